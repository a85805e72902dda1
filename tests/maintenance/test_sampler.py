"""Samples: one process takes them, everybody else shows none, and no scrape sees half of one."""

from datetime import timedelta
from uuid import uuid4

import pytest

from imagefleet.aws.queue import QueueDepth
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobState, Lane
from imagefleet.maintenance.sampler import Sampled, Sampler
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.statistics import expect_messages
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.support.factories import a_job, announce, open_breaker
from tests.support.queues import FakeQueue

OFTEN = timedelta(0)


class CountedQueue(FakeQueue):
    """A queue that says how deep it is, or that it cannot say."""

    def __init__(self, depth: QueueDepth | None) -> None:
        super().__init__()
        self._depth = depth

    async def depth(self) -> QueueDepth:
        if self._depth is None:
            raise Unavailable("sqs_unavailable", "not now")
        return self._depth


def a_sampler(
    pool: Pool,
    metrics: MaintenanceMetrics,
    *,
    interval: timedelta = OFTEN,
    depth: QueueDepth | None = QueueDepth(visible=1, in_flight=2, delayed=0),  # noqa: B008 - frozen
    within: float = 5.0,
) -> Sampler:
    queues = {Lane.FAST: CountedQueue(depth).as_queue()}
    timed = pool.timed_by(metrics.query)
    return Sampler(timed, queues, uuid4(), metrics, interval=interval, within=within)


def shown(metrics: MaintenanceMetrics) -> dict[str, float]:
    lines = metrics.exposition().decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        if not name.startswith("process_")
    }


async def test_the_elected_one_shows_what_there_is(
    pool: Pool, metrics: MaintenanceMetrics, worker: Connection, superuser: Connection
) -> None:
    for state in (JobState.QUEUED, JobState.FAILED_RETRYABLE, JobState.PROCESSING, JobState.FAILED):
        await a_job(worker, superuser, state=state)
    await open_breaker(worker)
    await superuser.execute("UPDATE rings SET sends = 1, sent_at = now()")
    await superuser.execute(
        "UPDATE lanes SET window_size = 7, looked_at = now() - interval '5 seconds', "
        "oldest_at = now() - interval '1 minute' WHERE lane = 'fast'"
    )
    await superuser.execute(
        "UPDATE jobs SET claimed_at = now() - interval '2 hours', run_at = now() - interval '3 h' "
        "WHERE state = 'processing'"
    )

    answer = await a_sampler(pool, metrics).run_once()

    told = shown(metrics)
    assert Sampled(elected=True, sampled=True) == answer
    assert told['job_queue_depth{job_type="noop"}'] == 2, "what runs does not wait"
    assert told['job_queue_depth{job_type="process_image"}'] == 0
    assert (told["ledger_accepted"], told["ledger_missing"]) == (4, 0)
    assert (told["ledger_open"], told["ledger_failed"]) == (3, 1)
    assert told['rings_announced{lane="fast"}'] == 2
    assert told['rings_announced{lane="general"}'] == 0
    assert told['ring_window{lane="fast"}'] == 7
    assert 60 <= told['oldest_ring_age_seconds{lane="fast"}'] < 120
    assert told['oldest_ring_age_seconds{lane="general"}'] == 0, "nobody waits for a turn"
    assert 5 <= told['dispatcher_silence_seconds{lane="fast"}'] < 60
    assert told["dead_letters_unacknowledged"] == 1
    assert told['breaker_open{service="s3"}'] == 1
    assert told['sqs_messages{lane="fast",state="visible"}'] == 1
    assert told['queue_drift{lane="fast"}'] == 2 + 1 - 3, "what runs has a message too"
    for status in ("queued", "failed_retryable", "processing"):
        assert told[f'jobs_open{{job_type="noop",state="{status}"}}'] == 1
    age = told['oldest_job_age_seconds{job_type="noop",state="processing"}']
    assert 3 * 3600 <= age < 3 * 3600 + 60
    assert told["jobs_stuck"] == 1


async def test_people_at_psql_are_told_of_the_same_messages(
    worker: Connection, operator: Connection, superuser: Connection
) -> None:
    jobs = {state: await a_job(worker, superuser, state=state) for state in JobState}
    await announce(worker, jobs[JobState.QUEUED].job_id)

    view = await operator.fetch("SELECT * FROM expected_messages")
    known = await expect_messages(operator)

    told = {row["lane"]: (row["announced"], row["processing"], row["expected"]) for row in view}
    assert (1, 1, 2) == told["fast"]
    assert told == {
        lane: (messages.announced, messages.processing, messages.expected)
        for lane, messages in known.items()
    }


async def test_only_one_samples_and_the_others_show_nothing(pool: Pool) -> None:
    mine, theirs = MaintenanceMetrics(["noop"]), MaintenanceMetrics(["noop"])
    first, second = a_sampler(pool, mine), a_sampler(pool, theirs)
    answers = [await first.run_once(), await second.run_once()]

    assert [Sampled(elected=True, sampled=True), Sampled(elected=False)] == answers
    assert "ledger_accepted" in shown(mine)
    assert "ledger_accepted" not in shown(theirs)


async def test_who_lost_the_office_shows_nothing_any_more(
    pool: Pool, metrics: MaintenanceMetrics, superuser: Connection
) -> None:
    sampler = a_sampler(pool, metrics)
    await sampler.run_once()
    await superuser.execute("UPDATE elections SET holder = gen_random_uuid()")

    assert Sampled(elected=False) == await sampler.run_once()

    assert "ledger_accepted" not in shown(metrics)


async def test_the_office_is_renewed_more_often_than_a_sample_is_taken(
    pool: Pool, metrics: MaintenanceMetrics
) -> None:
    sampler = a_sampler(pool, metrics, interval=timedelta(minutes=5))
    answers = [await sampler.run_once(), await sampler.run_once()]

    assert [Sampled(elected=True, sampled=True), Sampled(elected=True)] == answers
    assert "ledger_accepted" in shown(metrics)


async def test_a_queue_that_does_not_answer_leaves_only_its_own_gauges_out(
    pool: Pool, metrics: MaintenanceMetrics
) -> None:
    await a_sampler(pool, metrics, depth=None).run_once()

    told = shown(metrics)
    assert "ledger_accepted" in told
    assert 'sqs_messages{lane="fast",state="visible"}' not in told


# A sample of each, and a table without which it cannot be taken.
NEEDS = {
    "ledger_accepted": "ledger",
    'job_queue_depth{job_type="noop"}': "ledger_book",
    "jobs_stuck": "stuck_jobs",
    'ring_window{lane="fast"}': "lanes",
    "dead_letters_unacknowledged": "dead_letters",
    "invalidations_owed": "invalidation_months",
}


@pytest.mark.parametrize(("series", "table"), NEEDS.items())
async def test_a_sample_that_fails_takes_no_other_with_it_and_comes_back(
    series: str, table: str, pool: Pool, metrics: MaintenanceMetrics, owner: Connection
) -> None:
    sampler = a_sampler(pool, metrics)
    await sampler.run_once()
    assert set(NEEDS) <= set(shown(metrics))

    await owner.execute(f"REVOKE SELECT ON {table} FROM imagefleet_maintenance")  # noqa: S608 - a table of ours
    failing = await sampler.run_once()
    without = shown(metrics)
    await owner.execute(f"GRANT SELECT ON {table} TO imagefleet_maintenance")
    healed = await sampler.run_once()

    assert series not in without, "what is not known any more is not shown any more"
    others = {each for each, needed in NEEDS.items() if needed != table}
    if table == "ledger_book":  # which the ledger needs too
        others -= {"ledger_accepted"}
    assert others <= set(without)
    assert failing.failed != ()
    assert (healed.failed, series in shown(metrics)) == ((), True)


async def test_a_sample_that_waits_too_long_takes_no_other_with_it(
    pool: Pool, metrics: MaintenanceMetrics, superuser: Connection
) -> None:
    sampler = a_sampler(pool, metrics, within=0.2)
    await sampler.run_once()
    async with superuser.transaction():
        await superuser.execute("LOCK TABLE ledger IN ACCESS EXCLUSIVE MODE")
        waiting = await sampler.run_once()
        told = shown(metrics)

    again = await sampler.run_once()

    assert (("ledger",), ()) == (waiting.failed, again.failed)
    cancelled = 'db_query_errors_total{error_type="cancelled",query_type="sample_ledger"}'
    assert (1, None) == (told[cancelled], told.get("ledger_accepted"))
    assert {"jobs_stuck", 'ring_window{lane="fast"}', 'job_queue_depth{job_type="noop"}'} <= set(
        told
    )


async def test_nothing_is_shown_when_nobody_knows_whose_office_it_is(
    pool: Pool, metrics: MaintenanceMetrics, owner: Connection
) -> None:
    sampler = a_sampler(pool, metrics)
    await sampler.run_once()
    await owner.execute("REVOKE UPDATE ON elections FROM imagefleet_maintenance")

    with pytest.raises(Exception, match="store_rejected"):
        await sampler.run_once()

    assert set() == set(NEEDS) & set(shown(metrics))


async def test_the_ledger_is_not_shown_before_its_book_is_open(
    pool: Pool, metrics: MaintenanceMetrics, superuser: Connection, worker: Connection
) -> None:
    await a_job(worker, superuser)
    await superuser.execute("UPDATE ledger_proof SET opened_at = NULL")

    answer = await a_sampler(pool, metrics).run_once()

    told = shown(metrics)
    assert (answer.failed, "ledger_missing" in told) == ((), False)
    assert 1 == told['job_queue_depth{job_type="noop"}']
