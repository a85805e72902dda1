"""Each live setting does something: turned in Postgres, it changes what its reader does.

One entry a declared setting, in `EFFECTS`: a new one without an effect is a red test.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from imagefleet.api.http.limiting import Limiting
from imagefleet.jobs.kinds import BUILT_IN, STANDARD_RETRY
from imagefleet.jobs.limits import LIMITS, OPEN_JOBS
from imagefleet.jobs.model import JobState, Lane, TenantId
from imagefleet.maintenance.dispatcher import Dispatcher
from imagefleet.maintenance.sampler import Sampler
from imagefleet.maintenance.window import Window
from imagefleet.settings import Telemetry
from imagefleet.settings.live import DECLARED, TRACES
from imagefleet.store.database import Connection
from imagefleet.store.fleet.live_settings import turn, turn_back, turn_retention
from imagefleet.store.jobs.dispatching import TypeRoom, look_at_fleet, look_at_types
from imagefleet.store.jobs.pruning import prune_jobs
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.telemetry.tracing import open_tracing
from imagefleet.worker.breakers import BreakerReports
from imagefleet.worker.slots import Slots, TypeSlots, use_slots
from tests.support.bench import Bench, a_bench, never, raising
from tests.support.database import Database
from tests.support.factories import SLOTS, a_job, a_submission
from tests.support.otlp import collecting
from tests.support.queues import FakeQueue

SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True)
class Place:
    """A fleet in which something is turned, and whoever reads it has just looked."""

    bench: Bench
    database: Database
    operator: Connection
    superuser: Connection
    maintenance: Connection

    async def turn(self, name: str, value: object) -> None:
        await turn(self.operator, name, value, by="me", reason="why")
        await self.bench.equipment.live.look(self.bench.pool)

    async def turn_back(self, name: str) -> None:
        await turn_back(self.operator, name)
        await self.bench.equipment.live.look(self.bench.pool)


Effect = Callable[[Place], Awaitable[None]]


@pytest.fixture
async def a_place(
    database: Database,
    worker: Connection,
    operator: Connection,
    superuser: Connection,
    maintenance: Connection,
    tmp_path: Path,
) -> AsyncIterator[Place]:
    async with a_bench(database, worker, tmp_path) as bench:
        yield Place(bench, database, operator, superuser, maintenance)


async def opens(place: Place, *, after_successes: int = 0) -> bool:
    """Whether one failure opens the breaker of a service."""
    metrics = WorkerMetrics(job_types=())
    services = BreakerReports(place.bench.pool, metrics, place.bench.equipment.live, {})
    async with services.open():
        claim = await place.bench.claim()
        for _ in range(after_successes):
            services.worked(claim, ("s3",))
        return await services.failed(claim, "s3", "s3_throttled") is not None


async def forget_breakers(place: Place) -> None:
    await place.superuser.execute("DELETE FROM circuit_breakers")


async def fewer_failures_open_it(place: Place) -> None:
    assert not await opens(place)
    await forget_breakers(place)
    await place.turn("breaker.s3.failures", 1)
    assert await opens(place)


async def a_smaller_share_opens_it(place: Place) -> None:
    await place.turn("breaker.*.failures", 1)
    assert not await opens(place, after_successes=3)
    await forget_breakers(place)
    await place.turn("breaker.s3.ratio", 0.1)
    assert await opens(place, after_successes=3)


async def its_window_is_longer(place: Place) -> None:
    left = "SELECT window_ends_at - now() FROM circuit_breakers"
    await opens(place)
    assert await place.superuser.fetchval(left) < 31 * SECOND
    await forget_breakers(place)
    await place.turn("breaker.s3.window_seconds", 600)
    await opens(place)
    assert await place.superuser.fetchval(left) > 500 * SECOND


async def it_is_open_for_longer(place: Place) -> None:
    wait = "SELECT retry_at - opened_at FROM circuit_breakers"
    await place.turn("breaker.s3.failures", 1)
    assert await opens(place)
    assert await place.superuser.fetchval(wait) == 60 * SECOND
    await forget_breakers(place)
    await place.turn("breaker.s3.open_seconds", 900)
    assert await opens(place)
    assert await place.superuser.fetchval(wait) == 900 * SECOND


async def wait_after(place: Place, *, failures: int) -> timedelta:
    """How long a job waits that has failed so often."""
    submission = a_submission(max_attempts=20)
    await place.bench.submit(submission)
    for _ in range(failures):
        await place.superuser.execute(
            "UPDATE jobs SET run_at = now() WHERE id = $1", submission.job_id
        )
        answer = await place.bench.ask(submission)
        assert answer.claim is not None
        await place.bench.attempt(answer.claim, raising(ZeroDivisionError())).run()
    waits = "SELECT run_at - updated_at FROM jobs WHERE id = $1"
    wait: timedelta = await place.superuser.fetchval(waits, submission.job_id)
    return wait


async def the_first_wait_is_longer(place: Place) -> None:
    assert 30 * SECOND <= await wait_after(place, failures=1) <= 36 * SECOND
    await place.turn("retry.*.base_seconds", 600)
    assert 600 * SECOND <= await wait_after(place, failures=1) <= 720 * SECOND
    await place.turn("retry.noop.base_seconds", 10)
    assert 10 * SECOND <= await wait_after(place, failures=1) <= 12 * SECOND


async def no_wait_is_longer(place: Place) -> None:
    assert 120 * SECOND <= await wait_after(place, failures=3)
    await place.turn("retry.*.cap_seconds", 40)
    assert 40 * SECOND <= await wait_after(place, failures=3) <= 48 * SECOND


async def new_jobs_have_more_attempts(place: Place) -> None:
    """As the API asks; tests/api/operators/test_settings.py submits some."""
    kinds = BUILT_IN.with_standard_retry(STANDARD_RETRY)
    live = place.bench.equipment.live
    await place.turn("retry.*.max_attempts", 9)
    assert live.now.kinds(kinds, STANDARD_RETRY)["noop"].retry.max_attempts == 9
    await place.turn_back("retry.*.max_attempts")
    assert live.now.kinds(kinds, STANDARD_RETRY)["noop"].retry.max_attempts == 5


async def attempts_end_sooner(name: str, place: Place) -> None:
    await place.turn(name, 1)
    claim = await place.bench.claim()
    async with asyncio.timeout(20):
        await place.bench.attempt(claim, never).run()
    why = "SELECT why FROM attempts WHERE job_id = $1"
    assert "deadline" in await place.superuser.fetchval(why, claim.job_id)


async def fewer_slots_are_reserved_and_announced(place: Place) -> None:
    slots, live = {Lane.FAST: Slots(3)}, place.bench.equipment.live
    live.watch(lambda now: use_slots(now, slots, TypeSlots()))
    assert await slots[Lane.FAST].reserve(10) == 3
    slots[Lane.FAST].give_back(3)
    free = (await look_at_fleet(place.maintenance, live.now.slots_of_lanes()))[Lane.FAST].free
    assert free == SLOTS[Lane.FAST]

    await place.turn("slots.lane.fast", 1)

    assert await slots[Lane.FAST].reserve(10) == 1
    assert 1 == (await look_at_fleet(place.maintenance, live.now.slots_of_lanes()))[Lane.FAST].free


async def fewer_of_a_type_begin_and_are_announced(place: Place) -> None:
    """tests/worker/test_consumer.py claims some."""
    slots, live = TypeSlots(), place.bench.equipment.live
    live.watch(lambda now: use_slots(now, {}, slots))
    slots.occupy("noop")
    await a_job(place.bench.worker, place.superuser, state=JobState.PROCESSING)
    assert {} == slots.rooms

    await place.turn("slots.type.noop", 1)

    assert {"noop": 0} == slots.rooms
    # A second worker came with the job; as many again are announced.
    rooms = await look_at_types(place.maintenance, live.now.slots_of_types())
    one = TypeRoom(lane=Lane.FAST, type="noop", slots=2, room=3, shared=3)
    assert [replace(one, lane=lane) for lane in sorted(Lane)] == sorted(
        rooms, key=lambda room: room.lane
    )


def window_of(place: Place, *, gap: float) -> float:
    """How many are announced in a lane that finishes a hundred a second, looked at so seldom."""
    window = Window(place.bench.equipment.live.now.horizon)
    for look in range(1, 50):
        window.look(look * gap, announced=0, held=16, free=0, finished=100)
    return window.size


async def more_are_announced(
    name: str, value: float, gap: float, before: int, after: int, place: Place
) -> None:
    assert window_of(place, gap=gap) == pytest.approx(before, rel=0.1)
    await place.turn(name, value)
    assert window_of(place, gap=gap) == pytest.approx(after, rel=0.1)


async def fewer_are_announced_by_a_look(place: Place) -> None:
    await submit_jobs(place.bench.worker, [a_submission() for _ in range(5)])
    await place.superuser.execute("UPDATE rings SET next_at = now() WHERE sent_at IS NULL")
    queues = {lane: FakeQueue(lane.value).as_queue() for lane in Lane}
    async with place.database.pool("maintenance") as pool:
        dispatcher = Dispatcher(
            pool,
            queues,
            uuid4(),
            MaintenanceMetrics(()),
            batch=100,
            idle_interval=timedelta(0),
            live=place.bench.equipment.live,
        )
        await place.turn("window.batch_jobs", 2)
        assert 2 == await dispatcher.run_once()
        await place.turn_back("window.batch_jobs")
        assert 3 == await dispatcher.run_once()


async def what_ended_is_kept_for_longer(place: Place) -> None:
    await a_job(place.bench.worker, place.superuser, state=JobState.COMPLETED)
    async with place.superuser.transaction():
        await place.superuser.execute("SET LOCAL session_replication_role = replica")
        await place.superuser.execute("UPDATE jobs SET finished_at = now() - interval '50 days'")
    await turn_retention(place.operator, 90)
    assert 0 == (await prune_jobs(place.maintenance, limit=10)).pruned
    await turn_retention(place.operator, None)
    assert 1 == (await prune_jobs(place.maintenance, limit=10)).pruned


async def gauges_are_read_less_often(place: Place) -> None:
    async with place.database.pool("maintenance") as pool:
        sampler = Sampler(
            pool,
            {},
            uuid4(),
            MaintenanceMetrics(()),
            interval=timedelta(0),
            live=place.bench.equipment.live,
        )
        assert [True, True] == [(await sampler.run_once()).sampled for _ in range(2)]
        await place.turn("sampling.gauges_seconds", 300)
        assert not (await sampler.run_once()).sampled
        await place.turn_back("sampling.gauges_seconds")
        assert (await sampler.run_once()).sampled


async def fewer_traces_begin(place: Place) -> None:
    live = place.bench.equipment.live
    await place.turn(TRACES, 0)
    with collecting() as collector:
        telemetry = Telemetry(otlp_endpoint=collector.endpoint)
        async with open_tracing(telemetry, process="api") as tracing:
            tracing.share = lambda: live.now.number(TRACES, 1)
            with tracing.span("passed by"), tracing.child("a part of it"), tracing.span("inside"):
                pass
            await place.turn_back(TRACES)
            with tracing.span("recorded"):
                pass
    assert ["recorded"] == [span.name for span in collector.spans]


async def a_limit_is_another(name: str, place: Place) -> None:
    """But for a tenant that has its own."""
    live = place.bench.equipment.live
    await place.superuser.execute("INSERT INTO tenants (id, name) VALUES ('rival', 'Rival')")
    await place.operator.execute(
        "INSERT INTO tenant_limits (tenant_id, name, value, set_by, reason)"
        " VALUES ('rival', $1, 12, 'me', 'why')",
        name,
    )

    def turned(tenant_id: TenantId, asked: str) -> int | None:
        return live.now.limit(tenant_id, asked)

    limiting = Limiting(turned)
    assert LIMITS[name].default == limiting.of(TenantId("acme"), name)
    await place.turn(f"limits.{name}", 17)
    assert (17, 12) == (limiting.of(TenantId("acme"), name), limiting.of(TenantId("rival"), name))


EFFECTS: Final[dict[str, Effect | str]] = {
    "breaker.<service>.failures": fewer_failures_open_it,
    "breaker.<service>.ratio": a_smaller_share_opens_it,
    "breaker.<service>.window_seconds": its_window_is_longer,
    "breaker.<service>.open_seconds": it_is_open_for_longer,
    "retry.<policy>.base_seconds": the_first_wait_is_longer,
    "retry.<policy>.cap_seconds": no_wait_is_longer,
    "retry.<policy>.max_attempts": new_jobs_have_more_attempts,
    "timeout.lane.<lane>": partial(attempts_end_sooner, "timeout.lane.fast"),
    "timeout.type.<type>": partial(attempts_end_sooner, "timeout.type.noop"),
    "slots.lane.<lane>": fewer_slots_are_reserved_and_announced,
    "slots.type.<type>": fewer_of_a_type_begin_and_are_announced,
    "window.spare_jobs": partial(more_are_announced, "window.spare_jobs", 200, 0.2, 104, 300),
    "window.looks": partial(more_are_announced, "window.looks", 4, 1, 254, 404),
    "window.shortest_seconds": partial(
        more_are_announced, "window.shortest_seconds", 4, 0.2, 104, 404
    ),
    "window.longest_seconds": partial(more_are_announced, "window.longest_seconds", 2, 1, 254, 204),
    "window.batch_jobs": fewer_are_announced_by_a_look,
    "retention.jobs_days": what_ended_is_kept_for_longer,
    # With S3, beside what else is said of sweeping.
    "retention.originals_days": "tests/maintenance/test_kept_originals.py",
    "retention.superseded_seconds": "tests/maintenance/test_sweeper.py",
    "retention.sweep_deletes": "tests/maintenance/test_sweeper.py",
    "sampling.gauges_seconds": gauges_are_read_less_often,
    TRACES: fewer_traces_begin,
    **{f"limits.{name}": partial(a_limit_is_another, name) for name in LIMITS if name != OPEN_JOBS},
}


def test_every_setting_has_an_effect() -> None:
    assert {setting.name for setting in DECLARED} == EFFECTS.keys()


@pytest.mark.parametrize("name", EFFECTS)
async def test_it_does_something(name: str, a_place: Place) -> None:
    effect = EFFECTS[name]
    if isinstance(effect, str):
        there = (Path(__file__).parents[1] / effect).read_text(encoding="utf-8")
        assert f'"{name}"' in there
    else:
        await effect(a_place)
