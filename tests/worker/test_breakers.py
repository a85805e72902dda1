"""What attempts learn about services, as the fleet's breakers hear of it, and how seldom."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from imagefleet.errors import Unavailable
from imagefleet.jobs.lifecycle import Released, Retry
from imagefleet.jobs.model import Claim, Verdict
from imagefleet.jobs.policies import STANDARD, BreakerLimits
from imagefleet.live import Live
from imagefleet.settings.in_force import Overlay
from imagefleet.settings.values import BreakerNumbers
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open, reset_breaker
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.worker.breakers import REPORT_EVERY, SUCCESSES_EVERY, BreakerReports
from tests.support.bench import Bench, done, needing, raising
from tests.support.eventually import eventually
from tests.support.factories import a_submission, open_breaker

S3_AWAY = Unavailable("s3_unavailable", "away", "503 and a SECRET")
PATIENT = BreakerLimits(listen_for=timedelta(seconds=4))
STATE = "SELECT state FROM circuit_breakers WHERE service = 's3'"
COUNT_WRITES = """
CREATE SEQUENCE writes;
GRANT USAGE ON SEQUENCE writes TO PUBLIC;
CREATE FUNCTION count_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM nextval('writes');
    RETURN NEW;
END
$$;
CREATE TRIGGER counted AFTER INSERT OR UPDATE OR DELETE ON circuit_breakers
FOR EACH ROW EXECUTE FUNCTION count_write();
"""
WRITES = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM writes"


@dataclass(frozen=True)
class OfS3(Overlay):
    """In force for one service are limits that nobody could turn."""

    limits: BreakerLimits = STANDARD

    def breaker(self, service: str, configured: Mapping[str, BreakerNumbers]) -> BreakerLimits:
        return self.limits if service == "s3" else super().breaker(service, configured)


@asynccontextmanager
async def workers(
    bench: Bench, count: int, limits: BreakerLimits | None = None
) -> AsyncIterator[list[BreakerReports]]:
    """What as many workers would have open, on one pool."""
    live = Live()
    live.now = OfS3(limits=limits or STANDARD)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                BreakerReports(bench.pool, WorkerMetrics(job_types=()), live, {}).open()
            )
            for _ in range(count)
        ]


async def a_claim(bench: Bench, *services: str) -> Claim:
    return await bench.claim(a_submission(services=services))


async def everything_is_told(services: BreakerReports, claim: Claim) -> None:
    """A failure of another service is answered when all was reported."""
    assert await services.failed(claim, "other", "other_unavailable") is None


@pytest.mark.parametrize("known", [True, False], ids=["that failed before", "never heard of"])
async def test_a_thousand_attempts_of_a_healthy_service_write_nothing(
    known: bool,  # noqa: FBT001 - a column of the table above
    bench: Bench,
    superuser: Connection,
) -> None:
    if known:
        await open_breaker(bench.worker)
        await reset_breaker(superuser, "s3", by="tests")
    await superuser.execute(COUNT_WRITES)
    claims = [await a_claim(bench, "s3") for _ in range(100)]
    assert {()} == {claim.watched for claim in claims}
    for claim in claims * 10:
        await bench.attempt(claim, done, needing("s3")).work()
    await everything_is_told(bench.equipment.breakers, claims[0])

    # The row and the count of the other service, by which this test waits.
    assert 2 == await superuser.fetchval(WRITES)


async def test_one_failure_among_many_successes_is_one_report_and_no_trip(
    bench: Bench, superuser: Connection
) -> None:
    await superuser.execute(COUNT_WRITES)
    services, claim = bench.equipment.breakers, await a_claim(bench, "s3")
    for _ in range(1000):
        services.worked(claim, ("s3",))

    held = await services.failed(claim, "s3", "s3_throttled")

    row = await superuser.fetchrow("SELECT * FROM circuit_breakers")
    assert row is not None
    assert (held, "closed", 1, 1000, "s3_throttled") == (
        None,
        row["state"],
        row["window_failures"],
        row["window_successes"],
        row["last_error_code"],
    )
    assert 2 == await superuser.fetchval(WRITES)  # the row itself, and the count


async def test_failures_write_at_most_once_in_two_seconds_and_nothing_once_it_is_open(
    bench: Bench, superuser: Connection
) -> None:
    await superuser.execute(COUNT_WRITES)
    services, claim = bench.equipment.breakers, await a_claim(bench, "s3")
    clock = asyncio.get_running_loop().time
    begun = clock()

    async def slot() -> int:
        """What a slot does in an outage: it fails one job after the other until they are held."""
        failed = 0
        while await services.failed(claim, "s3", "s3_unavailable") is None:
            failed += 1
        return failed

    async with asyncio.TaskGroup() as group:
        slots = [group.create_task(slot()) for _ in range(16)]
    until_open = await superuser.fetchval(WRITES)
    assert sum(task.result() for task in slots) == 0, "every one of them was given back"
    assert until_open <= 2 + (clock() - begun) / REPORT_EVERY + 1

    for _ in range(2):
        answers = [services.failed(claim, "s3", "s3_unavailable") for _ in range(16)]
        assert None not in await asyncio.gather(*answers)

    assert until_open == await superuser.fetchval(WRITES)


async def test_one_worker_with_a_broken_net_is_outvoted_by_the_others(
    bench: Bench, superuser: Connection
) -> None:
    """They tell of successes although nothing of theirs fails: their claims say that it matters."""
    async with workers(bench, 3, PATIENT) as all_:
        broken, *well = all_
        failing = [broken.failed(await a_claim(bench), "s3", "s3_away") for _ in range(5)]
        answers = asyncio.gather(*failing)
        watched = await eventually(lambda: a_watched_claim(bench), within=5)
        for services in well:
            for _ in range(20):
                services.worked(watched, ("s3",))

        assert [None] * 5 == await answers

    row = await superuser.fetchrow("SELECT * FROM circuit_breakers")
    assert row is not None
    assert ("closed", 5, 40) == (row["state"], row["window_failures"], row["window_successes"])


async def a_watched_claim(bench: Bench) -> Claim | None:
    claim = await a_claim(bench, "s3")
    return claim if claim.watched == ("s3",) else None


async def test_successes_alone_are_told_seldom(bench: Bench, superuser: Connection) -> None:
    await superuser.execute(COUNT_WRITES)
    async with workers(bench, 1) as (services,):
        claim = await a_claim(bench)
        assert await services.failed(claim, "s3", "s3_away") is None
        before = await superuser.fetchval(WRITES)
        watched = replace(claim, watched=("s3",))
        for _ in range(3):
            services.worked(watched, ("s3",))
            await everything_is_told(services, claim)
        others = "SELECT window_failures FROM circuit_breakers WHERE service = 'other'"

        assert REPORT_EVERY * 3 < SUCCESSES_EVERY
        # Those of the other service, by which this test waits: its row, and a count each.
        assert 1 + await superuser.fetchval(others) == await superuser.fetchval(WRITES) - before


@pytest.mark.parametrize("code", ["S3 said: SECRET", "x" * 64, "", "s3_é"])
async def test_only_a_word_is_kept_of_an_error(
    code: str, bench: Bench, superuser: Connection
) -> None:
    await bench.equipment.breakers.failed(await a_claim(bench), "s3", code)

    assert 1 == await superuser.fetchval("SELECT window_failures FROM circuit_breakers")
    assert await superuser.fetchval("SELECT last_error_code FROM circuit_breakers") is None


async def test_a_service_may_have_limits_of_its_own(bench: Bench) -> None:
    patient = BreakerLimits(failures=1000)
    async with workers(bench, 1, patient) as (services,):
        answers = [services.failed(await a_claim(bench), "s3", "s3_away") for _ in range(20)]

        assert [None] * 20 == await asyncio.gather(*answers)


# With attempts.


@pytest.mark.parametrize(
    ("service", "away"),
    [("s3", S3_AWAY), ("geocoder", Unavailable("geocoder_timeout", "away"))],
    ids=["ours", "one that a handler names"],
)
async def test_failures_of_a_service_open_its_breaker_and_then_cost_nothing(
    service: str, away: Unavailable, bench: Bench, superuser: Connection
) -> None:
    """Five at once: all are given back, due in a second, whatever the breaker's own time."""
    claims = [await a_claim(bench, service) for _ in range(5)]
    attempts = [bench.attempt(claim, raising(away), needing(service)) for claim in claims]

    with capture_logs() as logs:
        outcomes = await asyncio.gather(*(attempt.work() for attempt in attempts))

    told = [line for line in logs if line["event"].startswith("breaker.")]
    assert [
        {
            "event": "breaker.opened",
            "log_level": "warning",
            "service": service,
            "last_error": away.code,
            "failures": 5,
            "successes": 0,
            "open_seconds": 60,
        }
    ] == told
    breaker = await superuser.fetchrow(
        "SELECT *, updated_at + interval '1 second' AS due FROM circuit_breakers"
    )
    assert breaker is not None
    assert ("open", 5, 1) == (breaker["state"], breaker["window_failures"], breaker["trips"])
    assert away.code == breaker["last_error_code"]
    assert {Released(why=f"breaker:{service}", run_at=breaker["due"])} == set(outcomes)
    held_back = await bench.ask(await bench.submit(a_submission(services=(service,))))
    assert (Verdict.BREAKER, service) == (held_back.verdict, held_back.why)


async def test_a_failure_below_the_threshold_is_charged(bench: Bench) -> None:
    outcome = await bench.attempt(await bench.claim(), raising(S3_AWAY), needing("s3")).work()

    assert isinstance(outcome, Retry)
    assert "unavailable" == outcome.code


async def test_a_service_that_the_type_does_not_name_is_a_failure_like_any_other(
    bench: Bench, superuser: Connection
) -> None:
    outcome = await bench.attempt(await bench.claim(), raising(S3_AWAY)).work()

    assert isinstance(outcome, Retry)
    assert [] == await superuser.fetch("SELECT FROM circuit_breakers")


async def test_a_breaker_forced_open_gives_its_jobs_back(
    bench: Bench, operator: Connection, superuser: Connection
) -> None:
    claim = await bench.claim()
    await force_open(operator, "s3", by="tests")

    outcome = await bench.attempt(claim, raising(S3_AWAY), needing("s3")).work()

    assert isinstance(outcome, Released)
    assert outcome.run_at is not None


async def half_open(bench: Bench, superuser: Connection) -> Claim:
    """The claim of the one that may try."""
    await open_breaker(bench.worker)
    await superuser.execute("UPDATE circuit_breakers SET retry_at = now()")
    probe = await a_claim(bench, "s3")
    assert ("s3",) == probe.probes
    return probe


async def test_only_a_probe_closes_an_open_breaker(bench: Bench, superuser: Connection) -> None:
    probe = await half_open(bench, superuser)
    held_back = await bench.ask(await bench.submit(a_submission(services=("s3",))))
    assert "breaker" == held_back.verdict

    bystander = replace(probe, probes=())
    await bench.attempt(bystander, done, needing("s3")).work()
    await everything_is_told(bench.equipment.breakers, probe)
    assert "open" == await superuser.fetchval(STATE)

    with capture_logs() as logs:
        await bench.attempt(probe, done, needing("s3")).work()
        await everything_is_told(bench.equipment.breakers, probe)
    assert "closed" == await superuser.fetchval(STATE)
    told = [line for line in logs if line["event"].startswith("breaker.")]
    assert [("breaker.closed", "s3", "s3_unavailable")] == [
        (line["event"], line["service"], line["last_error"]) for line in told
    ]


async def test_a_probe_that_fails_opens_it_for_as_long_again_and_is_given_back(
    bench: Bench, superuser: Connection
) -> None:
    probe = await half_open(bench, superuser)

    with capture_logs() as logs:
        outcome = await bench.attempt(probe, raising(S3_AWAY), needing("s3")).work()

    (told,) = [line for line in logs if line["event"].startswith("breaker.")]
    assert ("breaker.probe_failed", "s3", "s3_unavailable", 60) == (
        told["event"],
        told["service"],
        told["last_error"],
        told["open_seconds"],
    )
    assert isinstance(outcome, Released)
    left = await superuser.fetchval("SELECT retry_at - updated_at FROM circuit_breakers")
    assert timedelta(seconds=60) == left
    assert 1 == await superuser.fetchval("SELECT trips FROM circuit_breakers")


async def test_a_late_failure_of_a_half_open_service_delays_no_probe(
    bench: Bench, superuser: Connection
) -> None:
    late = await a_claim(bench, "s3")
    await half_open(bench, superuser)
    before = await superuser.fetchrow("SELECT * FROM circuit_breakers")

    outcome = await bench.attempt(late, raising(S3_AWAY), needing("s3")).work()

    assert isinstance(outcome, Released)
    assert before == await superuser.fetchrow("SELECT * FROM circuit_breakers")
