"""What each login role may touch: the whole of it, typed out, so that a new grant is a red test."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final, TypeAlias

import asyncpg
import pytest

from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from tests.support.database import Database, Role, driver_of
from tests.support.factories import a_job, a_submission

Extent: TypeAlias = frozenset[str] | bool
"""True: the whole table. Otherwise the columns; a verb that is not granted has none."""


@dataclass(frozen=True, kw_only=True)
class May:
    select: Extent = True
    insert: Extent = frozenset()
    update: Extent = frozenset()
    delete: bool = False
    truncate: bool = False
    references: Extent = frozenset()
    trigger: bool = False


def columns(names: str) -> frozenset[str]:
    return frozenset(names.split())


READS: Final = May()
NOTHING: Final = May(select=frozenset())
EVERY_ROLE: Final = ("api", "worker", "maintenance", "operator")

BIRTH: Final = columns(
    "id tenant_id type lane priority run_at target target_seq preempts services "
    "pause_target_on_failure max_attempts payload idempotency_key fingerprint dedup_key "
    "correlation_id parent_job_id created_by replay_of generation replay_reason traceparent "
    "tracestate"
)
# due_at, rings and since are for processes of 0.2.0, as long as those run beside.
RING: Final = columns("job_id lane tenant_id type priority next_at due_at")
RUNG: Final = columns("next_at sent_at sends due_at rings")
TARGET: Final = columns("tenant_id target next_seq")
MOVES: Final = columns("hour type lane queued processing failed_retryable completed failed")
BILLED: Final = columns("sqs_requests s3_writes")
ALIAS: Final = May(insert=columns("tenant_id idempotency_key fingerprint job_id"))

ACT: Final = columns("actor key_id address action kind name tenant_id before after reason")

# Table, role: what is beyond reading, which every role may (but for `api_keys`).
VIEWS: Final = (
    "expected_messages",
    "job_queue_health",
    "ledger_balance",
    "ledger_book",
    "recent_failures",
    "stuck_jobs",
    "throughput",
)
EXPECTED: Final[Mapping[str, Mapping[str, May]]] = MappingProxyType(
    {
        "jobs": {
            "api": May(insert=BIRTH),
            "worker": May(
                insert=BIRTH,
                update=columns(
                    "state run_at lane claim_no locked_by locked_at claimed_at claim_charged "
                    "attempts crashes "
                    "cancel_requested_at cancel_code cancel_detail progress_done progress_total "
                    "progress_cursor last_progress_at result result_reason failure_code "
                    "failure_message failure_detail updated_at finished_at"
                ),
            ),
            "maintenance": May(
                insert=BIRTH,
                update=columns(
                    "state run_at lane locked_by locked_at attempts crashes failure_code "
                    "failure_message failure_detail updated_at finished_at"
                ),
                delete=True,
            ),
            "operator": May(insert=BIRTH, update=columns("run_at updated_at")),
        },
        "rings": {
            "api": May(insert=RING, update=RUNG),
            "worker": May(insert=RING, update=RUNG | columns("lane priority"), delete=True),
            "maintenance": May(
                insert=RING, update=RUNG | columns("lane tenant_id type"), delete=True
            ),
            "operator": May(insert=RING, update=RUNG | columns("priority")),
        },
        "lanes": {
            "maintenance": May(
                update=columns("holder until room looked_at window_size oldest_at"),
            ),
        },
        "targets": {
            "api": May(insert=TARGET, update=columns("next_seq")),
            "worker": May(insert=TARGET, update=columns("next_seq running_job runs")),
            "maintenance": May(insert=TARGET, update=columns("next_seq running_job"), delete=True),
            "operator": May(insert=TARGET, update=columns("next_seq")),
        },
        "idempotency_aliases": {
            "api": ALIAS,
            "worker": ALIAS,
            "maintenance": May(insert=ALIAS.insert, delete=True),
            "operator": ALIAS,
        },
        "attempts": {
            "worker": May(insert=True),
            "maintenance": May(insert=True, delete=True),
        },
        "dead_letters": {
            "maintenance": May(insert=True, update=True, delete=True),
            "operator": May(update=columns("acknowledged_at acknowledged_by acknowledged_note")),
        },
        "dead_letter_sends": {"maintenance": May(insert=True, update=True, delete=True)},
        "ledger_counts": {"maintenance": May(insert=True, update=True, delete=True)},
        "ledger_entries": {"maintenance": May(insert=MOVES, delete=True)},
        "ledger_proof": {
            "maintenance": May(
                update=columns("opened_at proven_until round_at round_until round_began_at")
            )
        },
        "ledger": {"maintenance": May(insert=columns("accepted pruned"), delete=True)},
        **{
            table: {
                "api": NOTHING,
                "worker": NOTHING,
                "maintenance": May(insert=True, update=True, delete=True),
            }
            for table in ("rollups", "rollup_costs")
        },
        "rollup_progress": {
            "api": NOTHING,
            "worker": NOTHING,
            "maintenance": May(update=columns("counted_until settled_until marked_at mark")),
        },
        "rollup_entries": {
            "api": May(select=frozenset(), insert=BILLED),
            "worker": May(select=frozenset(), insert=BILLED),
            "maintenance": May(
                insert=BILLED | columns("at type lane submitted promised late invalidation_paths"),
                delete=True,
            ),
            "operator": NOTHING,
        },
        "workers": {
            "worker": May(
                insert=columns("id host pid version lanes types slots type_slots memory_bytes"),
                update=columns("beat_at beats draining_since dead_at dead_why silent_at heard_at"),
            ),
            "maintenance": May(update=columns("dead_at dead_why"), delete=True),
            "operator": May(update=columns("drain_requested_at")),
        },
        "pauses": {
            "operator": May(insert=True, update=True, delete=True),
        },
        "circuit_breakers": {
            "worker": May(
                insert=columns("service state failures trips opened_at retry_at last_failure_at"),
                update=columns(
                    "state failures trips opened_at retry_at last_failure_at updated_by updated_at"
                    " window_ends_at window_failures window_successes judged_from last_error_code"
                ),
            ),
            "operator": May(insert=True, update=True),
        },
        "elections": {"maintenance": May(insert=True, update=True, delete=True)},
        "periods": {"maintenance": May(insert=True, update=True, delete=True)},
        "fleet": {"operator": May(update=columns("retention default_retention"))},
        "schema_migrations": {"admin": READS},
        "tenants": {
            "operator": May(update=columns("max_open_jobs weight")),
            "admin": May(insert=True),
        },
        "tenant_limits": {"operator": May(insert=True, update=True, delete=True), "admin": NOTHING},
        "live_settings": {"operator": May(insert=True, update=True, delete=True), "admin": NOTHING},
        "live_version": {"admin": NOTHING},
        "live_defaults": {
            **dict.fromkeys(("api", "worker", "maintenance"), May(insert=True, update=True)),
            "admin": NOTHING,
        },
        "audit": dict.fromkeys((*EVERY_ROLE, "admin"), May(insert=ACT)),
        "api_keys": {
            "api": May(update=columns("last_used_at")),
            "worker": NOTHING,
            "maintenance": NOTHING,
            "operator": READS,
            "admin": May(insert=True, update=columns("revoked_at")),
        },
        "images": {
            "api": May(
                insert=columns("id tenant_id reference recipe recipe_hash focal_x focal_y"),
                update=columns("updated_at focal_x focal_y"),
            ),
            "operator": May(
                insert=columns("id tenant_id reference recipe recipe_hash focal_x focal_y"),
                update=columns("updated_at focal_x focal_y"),
            ),
            "worker": May(
                update=columns(
                    "recipe recipe_hash source_seq revision claim_no job_id published_at updated_at"
                )
            ),
            "maintenance": May(delete=True),
        },
        "recipes": dict.fromkeys(("api", "worker"), May(insert=columns("hash name content"))),
        "image_sources": {
            "api": May(insert=True),
            "maintenance": May(update=columns("gone_at"), delete=True),
            "operator": May(insert=True),
        },
        "image_revisions": {
            "worker": May(insert=True, update=columns("superseded_at invalidation_id")),
            "maintenance": May(update=columns("swept_at invalidation_id"), delete=True),
        },
        "variants": {"worker": May(insert=True), "maintenance": May(delete=True)},
        "uploads": {
            "api": May(
                insert=columns(
                    "id tenant_id image_id key content_type max_bytes created_by expires_at"
                ),
                update=columns("job_id used_at"),
            ),
            "maintenance": May(delete=True),
        },
        "image_tombstones": {
            "api": May(insert=True, update=columns("job_id")),
            "operator": May(insert=True, update=columns("job_id")),
            "worker": May(update=columns("objects_deleted_at objects invalidation_id")),
            "maintenance": May(
                update=columns("dark_at emptied_again_at invalidation_id"), delete=True
            ),
        },
        "invalidations": {
            "worker": May(insert=True, update=columns("reason debts last_owed_at")),
            "operator": May(
                insert=True,
                update=columns("reason debts last_owed_at requested_by request_reason"),
            ),
            "maintenance": May(insert=True, update=True, delete=True),
        },
        "invalidation_batches": {"maintenance": May(insert=True, update=True, delete=True)},
        "invalidation_months": {"maintenance": May(insert=True, update=True)},
        **{view: {"api": NOTHING, "worker": NOTHING} for view in VIEWS},
    }
)

TABLES = """
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')
"""
TABLE_PRIVILEGE = "SELECT has_table_privilege($1, format('public.%I', $2::text), $3)"
COLUMNS_GRANTED = """
SELECT attname
  FROM pg_attribute
 WHERE attrelid = format('public.%I', $2::text)::regclass AND attnum > 0 AND NOT attisdropped
   AND has_column_privilege($1, attrelid, attnum, $3)
"""
BY_COLUMN = frozenset({"select", "insert", "update", "references"})


async def granted(superuser: Connection, role: str, table: str) -> May:
    extents: dict[str, Extent] = {}
    for verb in (field.name for field in fields(May)):
        asked = (f"imagefleet_{role}", table, verb.upper())
        extent: Extent = await superuser.fetchval(TABLE_PRIVILEGE, *asked)
        if not extent and verb in BY_COLUMN:
            extent = frozenset(row[0] for row in await superuser.fetch(COLUMNS_GRANTED, *asked))
        extents[verb] = extent
    return May(**extents)  # type: ignore[arg-type]  # verbs are its fields


async def test_every_table_is_spoken_of(superuser: Connection) -> None:
    assert set(EXPECTED) == {row[0] for row in await superuser.fetch(TABLES)}


@pytest.mark.parametrize("role", EVERY_ROLE)
async def test_a_role_has_these_privileges_and_no_other(role: str, superuser: Connection) -> None:
    grants = {table: await granted(superuser, role, table) for table in EXPECTED}

    assert {table: by_role.get(role, READS) for table, by_role in EXPECTED.items()} == grants


BEYOND_TABLES = """
SELECT has_schema_privilege($1, 'public', 'USAGE') AS schema_usage,
       has_schema_privilege($1, 'public', 'CREATE') AS schema_create,
       has_database_privilege($1, current_database(), 'CREATE') AS database_create,
       has_database_privilege($1, current_database(), 'TEMPORARY') AS temporary_tables,
       EXISTS (SELECT FROM pg_sequence
                WHERE has_sequence_privilege($1, seqrelid, 'USAGE, SELECT, UPDATE')) AS sequences,
       EXISTS (SELECT FROM pg_auth_members
                WHERE member = $1::regrole) AS memberships,
       EXISTS (SELECT FROM pg_shdepend
                WHERE refclassid = 'pg_authid'::regclass AND refobjid = $1::regrole
                  AND deptype = 'o') AS owns_something
"""


async def test_who_scales_reads_no_table_but_what_version_this_is(superuser: Connection) -> None:
    grants = {table: await granted(superuser, "scaler", table) for table in EXPECTED}

    assert {**dict.fromkeys(EXPECTED, NOTHING), "schema_migrations": READS} == grants


CALLABLE = """
SELECT proname FROM pg_proc
 WHERE pronamespace = 'public'::regnamespace AND prorettype <> 'trigger'::regtype
   AND has_function_privilege($1, oid, 'EXECUTE')
"""


async def test_who_scales_calls_one_function_that_looks_at_rows(superuser: Connection) -> None:
    names = {row[0] for row in await superuser.fetch(CALLABLE, "imagefleet_scaler")}

    assert {"work_in_lane", "hour_of", "fault_fingerprint", "take_key"} >= names
    assert "work_in_lane" in names


async def test_who_makes_keys_does_nothing_else(superuser: Connection) -> None:
    grants = {table: await granted(superuser, "admin", table) for table in EXPECTED}

    assert {table: by_role.get("admin", NOTHING) for table, by_role in EXPECTED.items()} == grants


@pytest.mark.parametrize("role", [*EVERY_ROLE, "scaler"])
async def test_a_role_may_use_the_schema_and_make_nothing(role: str, superuser: Connection) -> None:
    row = await superuser.fetchrow(BEYOND_TABLES, f"imagefleet_{role}")

    assert {
        "schema_usage": True,
        "schema_create": False,
        "database_create": False,
        "temporary_tables": False,
        "sequences": False,
        "memberships": False,
        "owns_something": False,
    } == dict(row or {})


FUNCTIONS = """
SELECT proname, prosecdef, proconfig,
       coalesce((SELECT bool_or(grantee = 0)
                   FROM aclexplode(coalesce(proacl, acldefault('f', proowner)))), false) AS public
  FROM pg_proc
 WHERE pronamespace = 'public'::regnamespace
"""


async def test_functions_with_the_owners_rights_are_nobodys_to_call(
    superuser: Connection,
) -> None:
    functions = await superuser.fetch(FUNCTIONS)

    definers = {row["proname"]: row["public"] for row in functions if row["prosecdef"]}
    assert {
        "count_accepted": False,
        "count_gone": False,
        "count_live_change": False,
        "count_moved": False,
        "pause_own_target": False,
        "pause_target": False,
        "resume_own_target": False,
        "work_in_lane": False,
        "write_dead_letter": False,
    } == definers


async def test_every_function_names_the_schemas_it_looks_in(superuser: Connection) -> None:
    functions = await superuser.fetch(FUNCTIONS)

    settings = {row["proname"]: row["proconfig"] for row in functions}
    assert {
        "check_transition": ["search_path=pg_catalog, public"],
        "count_accepted": ["search_path=pg_catalog, public"],
        "count_live_change": ["search_path=pg_catalog, public"],
        "count_gone": ["search_path=pg_catalog, public"],
        "count_moved": ["search_path=pg_catalog, public"],
        "fault_fingerprint": ["search_path=pg_catalog"],
        "pause_own_target": ["search_path=pg_catalog"],
        "resume_own_target": ["search_path=pg_catalog"],
        "take_over_pause": ["search_path=pg_catalog"],
        "follow_older_ring": ["search_path=pg_catalog"],
        "keep_audit": ["search_path=pg_catalog"],
        "hour_of": None,  # its body was bound when it was made; with a setting none is inlined
        "pause_target": ["search_path=pg_catalog, public"],
        "refuse": ["search_path=pg_catalog"],
        "take_key": ["search_path=pg_catalog, public", "enable_seqscan=off"],
        "tell_audit": ["search_path=pg_catalog"],
        "work_in_lane": [
            "search_path=pg_catalog",
            "enable_seqscan=off",
            "enable_bitmapscan=off",
            "enable_sort=off",
            "enable_hashjoin=off",
            "enable_mergejoin=off",
            "jit=off",
        ],
        "write_dead_letter": ["search_path=pg_catalog, public"],
    } == settings


async def refusal(connection: Connection, statement: str) -> str | None:
    """The SQLSTATE with which Postgres refuses this; None if it does not."""
    undo = driver_of(connection).transaction()
    await undo.start()
    try:
        await driver_of(connection).execute(statement)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    finally:
        await undo.rollback()
    return None


def insert_job(**forged: str) -> str:
    born = {
        "id": "gen_random_uuid()",
        "tenant_id": "'acme'",
        "type": "'noop'",
        "lane": "'fast'",
        "correlation_id": "'x'",
        "created_by": "'x'",
    } | forged
    return f"INSERT INTO jobs ({', '.join(born)}) VALUES ({', '.join(born.values())})"  # noqa: S608


FORGED_BIRTHS = {
    "state": "'completed'",
    "claim_no": "7",
    "attempts": "1",
    "crashes": "1",
    "locked_by": "gen_random_uuid()",
    "locked_at": "now()",
    "cancel_requested_at": "now()",
    "result": "'{}'",
    "failure_code": "'x'",
    "finished_at": "now()",
    "created_at": "now()",
}


@pytest.mark.parametrize("role", EVERY_ROLE)
@pytest.mark.parametrize("column", FORGED_BIRTHS)
async def test_no_role_may_insert_a_job_with_a_past(
    role: Role, column: str, database: Database
) -> None:
    async with database.connect(role) as connection:
        assert "42501" == await refusal(connection, insert_job(**{column: FORGED_BIRTHS[column]}))


async def test_an_honest_birth_is_no_forgery(api: Connection) -> None:
    assert await refusal(api, insert_job()) is None


JOBS_COLUMNS = """
SELECT attname
  FROM pg_attribute
 WHERE attrelid = 'jobs'::regclass AND attnum > 0 AND NOT attisdropped
"""


async def test_the_api_may_update_no_column_of_a_job(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    await a_job(worker, superuser)
    names = [row[0] for row in await superuser.fetch(JOBS_COLUMNS)]

    found = {name: await refusal(api, f"UPDATE jobs SET {name} = {name}") for name in names}  # noqa: S608

    assert dict.fromkeys(names, "42501") == found


REFUSED: Final[Mapping[Role, tuple[str, ...]]] = MappingProxyType(
    {
        "api": (
            "DELETE FROM jobs",
            "DELETE FROM attempts",
            "DELETE FROM dead_letters",
            "DELETE FROM rings",
            "UPDATE rings SET lane = 'general'",
            "UPDATE rings SET priority = -1",
            "UPDATE rings SET tenant_id = 'other'",
            "UPDATE lanes SET room = 1000",
            "UPDATE targets SET running_job = NULL",
            "UPDATE dead_letters SET acknowledged_at = now()",
            "UPDATE images SET revision = 7",
            "INSERT INTO attempts SELECT * FROM attempts",
            "INSERT INTO pauses (scope, name, paused_by, reason) VALUES ('type', 'x', 'x', 'x')",
            "INSERT INTO pauses VALUES ('target', 'x', 'x', false, 'x', 'x', now(), true)",
            "UPDATE pauses SET of_tenant = true",
            "DELETE FROM pauses",
            "INSERT INTO ledger (accepted) VALUES (1)",
            "SELECT * FROM jobs FOR UPDATE",
        ),
        "worker": (
            "DELETE FROM jobs",
            "DELETE FROM attempts",
            "DELETE FROM dead_letters",
            "UPDATE attempts SET why = 'x'",
            "SELECT * FROM api_keys",
            "SELECT secret_sha256 FROM api_keys",
            "UPDATE jobs SET payload = '{}'",
            "UPDATE jobs SET tenant_id = 'other'",
            "UPDATE jobs SET max_attempts = 100",
            "UPDATE dead_letters SET acknowledged_at = now()",
            "UPDATE circuit_breakers SET forced = false",
            "INSERT INTO pauses (scope, name, paused_by, reason) VALUES ('type', 'x', 'x', 'x')",
            "UPDATE jobs SET pause_target_on_failure = false",
            "DELETE FROM pauses",
            "INSERT INTO ledger (accepted) VALUES (1)",
            "DELETE FROM workers",
            "UPDATE rings SET tenant_id = 'other'",
            "UPDATE lanes SET room = 1000",
        ),
        "maintenance": (
            "SELECT * FROM api_keys",
            "UPDATE jobs SET claim_no = claim_no + 1",
            "UPDATE jobs SET result = '{}'",
            "UPDATE jobs SET result_reason = 'done'",
            "UPDATE jobs SET cancel_requested_at = now()",
            "UPDATE workers SET beats = beats + 1",
            "UPDATE ledger SET accepted = 0",
            "INSERT INTO variants SELECT * FROM variants",
        ),
        "operator": (
            "UPDATE jobs SET state = 'completed'",
            "UPDATE jobs SET state = 'queued'",
            "UPDATE jobs SET claim_no = 0",
            "UPDATE jobs SET attempts = 0",
            "DELETE FROM jobs",
            "DELETE FROM attempts",
            "DELETE FROM dead_letters",
            "DELETE FROM rings",
            "UPDATE targets SET running_job = NULL",
            "UPDATE api_keys SET secret_sha256 = ''",
            "UPDATE fleet SET lock_timeout = interval '1 second'",
            "INSERT INTO ledger (accepted) VALUES (1)",
        ),
    }
)
REFUSED_TO_ALL: Final = (
    *(f"TRUNCATE {table}" for table in EXPECTED if table not in VIEWS),
    "CREATE TABLE mine (x int)",
    "CREATE TEMPORARY TABLE mine (x int)",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE jobs DISABLE TRIGGER ALL",
    "ALTER TABLE jobs ADD COLUMN mine int",
    "ALTER TABLE jobs DROP CONSTRAINT jobs_lock_is_set_exactly_while_processing",
    "DROP TABLE rings",
    "DROP TRIGGER jobs_take_only_legal_transitions ON jobs",
    "CREATE TRIGGER mine AFTER UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION refuse('x')",
    "CREATE INDEX ON jobs (type)",
    "CREATE RULE mine AS ON DELETE TO jobs DO INSTEAD NOTHING",
    "SET SESSION AUTHORIZATION imagefleet_owner",
    "SET ROLE imagefleet_owner",
    "SET session_replication_role = replica",
    "SELECT count_accepted()",
    "SELECT write_dead_letter()",
    "SELECT pause_target()",
    "SELECT pg_read_file('/etc/passwd')",
    "COPY jobs TO PROGRAM 'true'",
)


@pytest.mark.parametrize("role", EVERY_ROLE)
async def test_postgres_itself_refuses_what_is_not_a_roles_part(
    role: Role, database: Database, worker: Connection, superuser: Connection
) -> None:
    for state in JobState:  # a statement on an empty table proves less
        await a_job(worker, superuser, state=state, submission=a_submission(target=f"t:{state}"))

    async with database.connect(role) as connection:
        found = {
            statement: await refusal(connection, statement)
            for statement in (*REFUSED[role], *REFUSED_TO_ALL)
        }

    assert dict.fromkeys(found, "42501") == found
