"""Which changes of state exist, and what an outcome turns into."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.jobs.lifecycle import (
    FAILURE_SENTENCES,
    TRANSITIONS,
    Completed,
    Failed,
    Outcome,
    Released,
    ResultReason,
    Retry,
    Role,
    decide,
    failure_sentence,
)
from imagefleet.jobs.model import TERMINAL, CancelCode, JobState, Lane, Standing
from imagefleet.jobs.policies import RetryPolicy
from tests.support.edges import is_legal

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=3)
POLICY = RetryPolicy()
FRESH = Standing(attempts=1, max_attempts=5, crashes=0, lane=Lane.GENERAL, cancel_code=None)
LAST = replace(FRESH, attempts=5)
ERROR = Retry(code="unavailable", message="S3 did not answer.", log_excerpt="line")
CRASH = Retry(code="crashed", message="It crashed.", detail="signal 11", crashed=True)

standings = st.builds(
    Standing,
    attempts=st.integers(0, 12),
    max_attempts=st.integers(1, 10),
    crashes=st.integers(0, 5),
    lane=st.sampled_from(Lane),
    cancel_code=st.none() | st.sampled_from(CancelCode),
)
unflagged = standings.map(lambda standing: replace(standing, cancel_code=None))
retries = st.builds(
    Retry,
    code=st.sampled_from(["unavailable", "deadline"]),
    message=st.text(max_size=10),
    detail=st.none() | st.text(max_size=10),
    crashed=st.booleans(),
    charged=st.booleans(),
    run_at=st.none() | st.just(LATER),
    lane=st.none() | st.sampled_from([Lane.FAST, Lane.GENERAL]),
    log_excerpt=st.none() | st.just("line"),
)
released = st.builds(Released, why=st.just("drain"), run_at=st.none() | st.just(LATER))
draws = st.floats(min_value=0, max_value=1, exclude_max=True)


def decided(outcome: Outcome, standing: Standing = FRESH, jitter: float = 0) -> Outcome:
    return decide(outcome, standing, POLICY, NOW, jitter=jitter)


def decided_retry(outcome: Outcome, standing: Standing = FRESH, jitter: float = 0) -> Retry:
    decision = decided(outcome, standing, jitter)
    assert isinstance(decision, Retry)
    return decision


# Edges.


def test_nothing_leaves_a_terminal_state() -> None:
    for source in TERMINAL:
        for target in JobState:
            assert not is_legal(source, target)


def test_every_open_state_can_reach_an_end() -> None:
    for state in set(JobState) - TERMINAL:
        reached = {state}
        for _ in JobState:
            reached |= {edge.target for edge in TRANSITIONS if edge.source in reached}

        assert reached >= TERMINAL


def test_a_job_is_born_queued_and_in_no_other_state() -> None:
    assert {JobState.QUEUED} == {state for state in JobState if is_legal(None, state)}
    assert all(is_legal(None, JobState.QUEUED, actor) for actor in Role)


@pytest.mark.parametrize(
    "target", [JobState.QUEUED, JobState.COMPLETED, JobState.FAILED, JobState.FAILED_RETRYABLE]
)
def test_a_queued_job_can_only_be_claimed(target: JobState) -> None:
    assert not is_legal(JobState.QUEUED, target)
    assert is_legal(JobState.QUEUED, JobState.PROCESSING)


def test_only_workers_claim_and_complete() -> None:
    for source, target in [
        (JobState.QUEUED, JobState.PROCESSING),
        (JobState.FAILED_RETRYABLE, JobState.PROCESSING),
        (JobState.PROCESSING, JobState.PROCESSING),
        (JobState.PROCESSING, JobState.COMPLETED),
    ]:
        allowed = {actor for actor in Role if is_legal(source, target, actor)}

        assert {Role.WORKER} == allowed


def test_the_rescuer_may_end_or_give_back_what_a_dead_worker_held() -> None:
    for source, target in [
        (JobState.PROCESSING, JobState.FAILED_RETRYABLE),
        (JobState.PROCESSING, JobState.FAILED),
        (JobState.FAILED_RETRYABLE, JobState.FAILED),
    ]:
        allowed = {actor for actor in Role if is_legal(source, target, actor)}

        assert {Role.WORKER, Role.MAINTENANCE} == allowed


def test_api_and_operators_only_ever_create() -> None:
    for actor in (Role.API, Role.OPERATOR):
        assert [edge.source for edge in TRANSITIONS if actor in edge.by] == [None]


def test_there_are_eight_edges_and_none_twice() -> None:
    edges = {(edge.source, edge.target) for edge in TRANSITIONS}

    assert len(edges) == len(TRANSITIONS) == 8


# Outcomes that are written as they are.


@given(standings, draws)
def test_success_and_failure_are_written_as_they_are(standing: Standing, draw: float) -> None:
    done = Completed(result={"width": 4}, reason=ResultReason.SUPERSEDED, log_excerpt="line")
    failed = Failed(code="corrupt", message="Damaged.", detail="eof", log_excerpt="line")

    assert done is decided(done, standing, draw)
    assert failed is decided(failed, standing, draw)


# Flagged jobs.


@given(st.sampled_from(CancelCode), standings, retries | released, draws)
def test_a_flagged_job_that_did_not_succeed_ends_with_its_flag(
    code: CancelCode, standing: Standing, outcome: Outcome, draw: float
) -> None:
    decision = decided(outcome, replace(standing, cancel_code=code), draw)

    assert isinstance(decision, Failed)
    assert code.value == decision.code
    assert FAILURE_SENTENCES[code.value] == decision.message
    assert outcome.log_excerpt == decision.log_excerpt


def test_a_flagged_job_keeps_what_happened_for_operators() -> None:
    flagged = replace(FRESH, cancel_code=CancelCode.CANCELLED)

    of_error = decided(CRASH, flagged)
    of_drain = decided(Released(why="drain"), flagged)

    assert isinstance(of_error, Failed)
    assert of_error.detail == "instead of: crashed: signal 11"
    assert isinstance(of_drain, Failed)
    assert of_drain.detail == "instead of: drain"


# Release.


@given(unflagged, draws)
def test_a_released_job_may_run_at_once_and_is_never_failed(
    standing: Standing, draw: float
) -> None:
    given_back = Released(why="drain", log_excerpt="line")

    assert replace(given_back, run_at=NOW) == decided(given_back, standing, draw)


def test_a_release_may_name_a_later_time() -> None:
    waiting = Released(why="breaker", run_at=LATER)

    assert waiting == decided(waiting)


# Retry after an error.


def test_an_error_is_retried_after_the_wait_of_its_attempt() -> None:
    assert replace(ERROR, run_at=NOW + timedelta(seconds=30)) == decided(ERROR)
    second = replace(FRESH, attempts=2)
    assert replace(ERROR, run_at=NOW + timedelta(seconds=60)) == decided(ERROR, second)


def test_the_draw_lengthens_the_wait() -> None:
    assert NOW + timedelta(seconds=33) == decided_retry(ERROR, jitter=0.5).run_at


def test_a_handler_may_name_the_time_and_the_lane_of_the_next_run() -> None:
    asked = replace(ERROR, run_at=LATER, lane=Lane.FAST)

    assert asked == decided(asked)


def test_the_last_error_fails_the_job_under_its_own_code() -> None:
    decision = decided(ERROR, LAST)

    assert decision == Failed(
        code="unavailable",
        message="S3 did not answer.",
        detail="attempts exhausted (5 of 5)",
        log_excerpt="line",
    )


def test_the_detail_of_the_last_error_is_kept() -> None:
    decision = decided(replace(ERROR, detail="503 SlowDown"), LAST)

    assert isinstance(decision, Failed)
    assert decision.detail == "503 SlowDown; attempts exhausted (5 of 5)"


def test_one_attempt_before_the_last_is_still_retried() -> None:
    assert decided_retry(ERROR, replace(FRESH, attempts=4)).charged


def test_the_limit_is_the_jobs_own_and_not_the_policys() -> None:
    assert isinstance(decided(ERROR, replace(FRESH, max_attempts=1)), Failed)
    assert isinstance(decided(ERROR, replace(LAST, max_attempts=6)), Retry)


def test_an_uncharged_retry_does_not_exhaust_the_job() -> None:
    assert not decided_retry(replace(ERROR, charged=False), LAST).charged


def test_a_retry_with_no_attempt_charged_waits_like_the_first() -> None:
    free = replace(FRESH, attempts=0)

    assert NOW + timedelta(seconds=30) == decided_retry(replace(ERROR, charged=False), free).run_at


# Retry after a crash.


def test_the_first_crash_is_retried_in_the_same_lane() -> None:
    assert replace(CRASH, run_at=NOW + timedelta(seconds=30)) == decided(CRASH)


def test_the_second_crash_sends_the_job_to_quarantine() -> None:
    decision = decided_retry(CRASH, replace(FRESH, crashes=1))

    assert decision.lane is Lane.QUARANTINE
    assert decision.charged


def test_a_second_crash_on_the_last_attempt_gives_the_attempt_back() -> None:
    decision = decided_retry(CRASH, replace(LAST, crashes=1))

    assert decision.lane is Lane.QUARANTINE
    assert not decision.charged


def test_a_first_crash_on_the_last_attempt_is_retried_and_given_back() -> None:
    decision = decided_retry(CRASH, LAST)

    assert decision.lane is None
    assert not decision.charged


@given(standings)
def test_a_crash_in_quarantine_is_poison(standing: Standing) -> None:
    quarantined = replace(standing, lane=Lane.QUARANTINE, cancel_code=None)

    decision = decided(replace(CRASH, log_excerpt="line"), quarantined)

    assert decision == Failed(
        code="poison",
        message=FAILURE_SENTENCES["poison"],
        detail="crashed: signal 11",
        log_excerpt="line",
    )


@given(unflagged)
def test_a_crash_in_quarantine_that_others_may_have_caused_is_retried_there(
    standing: Standing,
) -> None:
    decision = decided_retry(
        replace(CRASH, alone=False), replace(standing, lane=Lane.QUARANTINE, crashes=2)
    )

    assert decision.lane is Lane.QUARANTINE
    assert decision.charged is (standing.attempts < standing.max_attempts)


def test_an_ordinary_error_in_quarantine_is_an_ordinary_error() -> None:
    assert decided_retry(ERROR, replace(FRESH, lane=Lane.QUARANTINE)).code == "unavailable"


# What holds for every decision.


@given(unflagged, retries, draws)
def test_a_crash_alone_never_fails_a_job_outside_quarantine(
    standing: Standing, retry: Retry, draw: float
) -> None:
    lane = Lane.GENERAL if standing.lane is Lane.QUARANTINE else standing.lane

    decision = decided(replace(retry, crashed=True), replace(standing, lane=lane), draw)

    assert isinstance(decision, Retry)


@given(unflagged, retries, draws)
def test_a_retry_always_has_a_time_and_a_charged_one_leaves_a_run(
    standing: Standing, retry: Retry, draw: float
) -> None:
    decision = decided(retry, standing, draw)

    if isinstance(decision, Retry):
        assert decision.run_at is not None
        assert decision.run_at > NOW
        assert not decision.charged or standing.attempts < standing.max_attempts


@given(st.integers(1, 8), st.data())
def test_every_job_ends_and_charged_runs_never_pass_the_limit(
    max_attempts: int, data: st.DataObject
) -> None:
    attempts, crashes, lane = 0, 0, Lane.FAST
    for _ in range(max_attempts + 3):
        attempts += 1
        assert attempts <= max_attempts
        standing = replace(
            FRESH, attempts=attempts, max_attempts=max_attempts, crashes=crashes, lane=lane
        )
        decision = decided(data.draw(st.sampled_from([ERROR, CRASH])), standing)
        if isinstance(decision, Failed):
            return
        assert isinstance(decision, Retry)
        attempts -= not decision.charged
        crashes += decision.crashed
        lane = decision.lane or lane
    pytest.fail("the job was never over")


# Sentences.


@pytest.mark.parametrize("code", CancelCode)
def test_every_cancel_code_has_a_sentence(code: CancelCode) -> None:
    assert code.value in FAILURE_SENTENCES


def test_failure_sentences_are_sentences() -> None:
    for sentence in FAILURE_SENTENCES.values():
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_an_unknown_failure_code_says_nothing_about_the_inside() -> None:
    assert FAILURE_SENTENCES["internal_error"] == failure_sentence("psycopg_kaboom")
