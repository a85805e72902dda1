"""What protects others where somebody stops work: flags, walks through many jobs, own pauses."""

from typing import Final

from tests.mutations.mutation import Mutation

OWN: Final = "migrations/0027_own_pauses.sql"
WALK: Final = "worker/test_cancel_jobs.py"
TARGETS: Final = "api/producers/test_targets.py"

STOPPING: Final = (
    Mutation(
        "a tenant cancels the job of another",
        "jobs/cancelling.py",
        "WHERE jobs.id = $1 AND ($2::text IS NULL OR jobs.tenant_id = $2)",
        "WHERE jobs.id = $1 AND ($2::text IS NULL OR true)",
        "jobs/test_cancelling.py",
        ("test_another_tenants_job_cannot_be_flagged",),
    ),
    Mutation(
        "a later cancel changes why a job ends",
        "jobs/cancelling.py",
        "WHERE jobs.id = victim.id AND jobs.cancel_requested_at IS NULL",
        "WHERE jobs.id = victim.id",
        "jobs/test_cancelling.py",
        ("test_the_first_flag_stays",),
    ),
    Mutation(
        "a walk cancels what it was not asked for",
        "jobs/cancelling.py",
        "({at}::{kind} IS NULL OR {job}.{column} = {at})",
        "({at}::{kind} IS NULL OR true)",
        WALK,
        ("test_what_a_list_can_ask_a_walk_can_ask",),
    ),
    Mutation(
        "a walk replays what failed after it was ordered",
        "letters/walks.py",
        "died_until=wanted.died_until,",
        "died_until=None,",
        "worker/test_replay_jobs.py",
        ("test_only_what_the_filter_names_is_replayed",),
    ),
    Mutation(
        "a walk cancels what was submitted after it began",
        "jobs/cancelling.py",
        "AND victim.created_at < $3 AND",
        "AND $3::timestamptz IS NOT NULL AND",
        WALK,
        ("test_what_is_submitted_meanwhile_is_not_in_the_walk_so_it_ends",),
    ),
    Mutation(
        "a walk cancels deletions",
        "jobs/cancelling.py",
        "AND victim.cancel_requested_at IS NULL AND NOT victim.preempts",
        "AND victim.cancel_requested_at IS NULL",
        WALK,
        ("test_what_no_pause_holds_back_is_not_cancelled_either",),
    ),
    Mutation(
        "a walk through one target goes from its head",
        "jobs/targets.py",
        " ORDER BY jobs.target_seq DESC\n LIMIT $4",
        " ORDER BY jobs.target_seq\n LIMIT $4",
        WALK,
        ("test_of_one_target_all_that_waits_is_flagged_from_its_end_and_nothing_else",),
    ),
    Mutation(
        "a tenant resumes what operators have paused",
        OWN,
        "AND (pauses.of_tenant OR pauses.paused_by = 'policy')",
        "",
        TARGETS,
        ("test_what_operators_have_paused_only_they_resume",),
    ),
    Mutation(
        "an operator's pause stays the tenant's",
        OWN,
        "NEW.of_tenant := false;",
        "NEW.of_tenant := NEW.of_tenant;",
        TARGETS,
        ("test_what_operators_have_paused_only_they_resume",),
    ),
    Mutation(
        "a tenant pauses without end",
        OWN,
        ") >= most THEN",
        ") >= most + 1000000 THEN",
        TARGETS,
        ("test_a_tenant_has_only_so_many_targets_paused",),
    ),
)
