"""What goes wrong in a drill: how it is brought in, what others mend, how it is cleared away."""

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.infra.observability.drill.world import World
from tests.support.children import children_of
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved

Does: TypeAlias = Callable[[World], Awaitable[None]]
StandsFor: TypeAlias = Mapping[str, str]

MANY: Final = 600  # more than `BacklogGrows` calls a backlog
A_FLOOD: Final = 3_000
HELD: Final = 8
FEW: Final = 5
PICTURES: Final = 12
POISONED: Final = 2  # fewer than three images lost are no trend
AN_AGE: Final = 420  # seconds, more than five minutes


async def nothing(_world: World) -> None:
    """What is mended by its command alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    alerts: tuple[str, ...]
    """Those that it has to raise, in the order in which their runbooks are followed."""
    prepared: Does = nothing
    """Have the fleet in the state that it is to be hit in."""
    brought: Callable[[World], Awaitable[StandsFor]]
    """Bring it in; what the placeholders of the runbooks stand for."""
    mended: Does = nothing
    """What a runbook leaves to whoever runs the service that is away."""
    cleared: Does = nothing
    """Leave nothing behind, whatever became of it."""


MAKE_OLDER: Final = """
UPDATE jobs SET run_at = run_at - $1 * interval '1 second'
 WHERE state IN ('queued', 'failed_retryable') AND run_at <= now()
"""
PROCESSING: Final = "SELECT count(*) FROM jobs WHERE state = 'processing'"
NOT_OVER: Final = "SELECT count(*) FROM jobs WHERE finished_at IS NULL"
LETTERS: Final = "SELECT count(*) FROM dead_letters WHERE acknowledged_at IS NULL"
FINGERPRINT: Final = "SELECT min(fingerprint) FROM dead_letters WHERE acknowledged_at IS NULL"


async def pause(world: World) -> None:
    """One type, and everything."""
    await world.orders("imagefleet queue pause --type noop --reason 'a bad release'")
    await world.orders("imagefleet queue pause --all --yes --reason 'a new database'")


async def forget_pauses(world: World) -> StandsFor:
    """Work goes on arriving."""
    await world.producer.submit_many(MANY)
    await make_older(world)
    return {"TYPE": "noop"}


async def resume(world: World) -> None:
    await world.undoes(
        "imagefleet queue resume --all --reason 'the drill is over'",
        "imagefleet queue resume --type noop --reason 'the drill is over'",
    )
    await world.comes_to(NOT_OVER, 0, within=60)


async def make_older(world: World) -> None:
    """An age is no duration of a rule: what waits has waited for so much longer."""
    await world.asks(MAKE_OLDER, AN_AGE)


async def keep_the_worker_busy(world: World) -> None:
    await world.producer.submit_many(HELD, {"milliseconds": 20_000})
    await world.comes_to(PROCESSING, HELD, within=20)


async def kill_the_worker(world: World) -> StandsFor:
    """The only one, amid what it does; others are due meanwhile."""
    world.cluster.lose("worker")
    await world.producer.submit_many(FEW)
    await make_older(world)
    return {"POD": "worker-1"}


async def start_the_worker(world: World) -> None:
    world.cluster.let_up("worker")
    await world.is_ready("worker-1")
    await world.comes_to(NOT_OVER, 0, within=90)


async def turn_down(world: World) -> None:
    await world.orders("imagefleet settings live set slots.lane.fast 4 --reason 'a slow database'")


async def flood(world: World) -> StandsFor:
    """Of one tenant, in a lane that has less room than it might."""
    await world.producer.submit_many(A_FLOOD, {"milliseconds": 300})
    return {"TENANT": "demo", "LANE": "fast"}


async def turn_up(world: World) -> None:
    await world.undoes(
        "imagefleet settings live reset slots.lane.fast --reason 'the drill is over'"
    )
    await world.comes_to(NOT_OVER, 0, within=120)


async def poison(world: World) -> StandsFor:
    """Pictures that a decoder dies of, twice and then in quarantine."""
    for number in range(POISONED):
        picture = saved(quadrants(40 + number, 25)) + b"poison:segfault"
        assert (await world.producer.upload(picture)).status_code == 202
    await world.comes_to(LETTERS, POISONED, within=60)
    return {"FINGERPRINT": await world.asks(FINGERPRINT)}


async def mend_the_decoder(world: World) -> None:
    """A release: workers that start from now on have another."""
    before = world.stack.pids("worker")
    (world.gates / "mended").touch()
    world.cluster.restart("worker")
    await eventually(lambda: world.stack.pids("worker") != before, within=30)
    await world.is_ready("worker-1")


async def acknowledge(world: World) -> None:
    await world.undoes("imagefleet dlq ack --type process_image --yes --note 'the drill is over'")


async def publish(world: World) -> None:
    for number in range(PICTURES):
        picture = saved(quadrants(60 + number, 40))
        assert (await world.producer.upload(picture)).status_code == 202
    await world.comes_to(NOT_OVER, 0, within=60)


async def lose_s3(world: World) -> StandsFor:
    """Whoever calls it is hung up on, while pictures are made again."""
    world.s3.close()
    answer = await world.producer.submit("reprocess_images", {"all_images": True})
    assert answer.status_code == 202, answer.text
    return {"SERVICE": "s3"}


async def bring_s3_back(world: World) -> None:
    world.s3.open()


async def close_the_breaker(world: World) -> None:
    world.s3.open()
    await world.undoes("imagefleet breaker reset --reason 'the drill is over' s3")
    await world.comes_to(NOT_OVER, 0, within=90)


async def kill_maintenance(world: World) -> StandsFor:
    world.cluster.lose("maintenance")
    return {"POD": "maintenance"}


async def start_maintenance(world: World) -> None:
    world.cluster.let_up("maintenance")
    await world.is_ready("maintenance")


async def stop_postgres(world: World) -> StandsFor:
    """Server and backends stand still: who is connected waits, and who comes is not let in."""
    signalled(world, signal.SIGSTOP)
    return {}


async def bring_postgres_back(world: World) -> None:
    signalled(world, signal.SIGCONT)
    for process in ("api", "worker-1", "maintenance"):
        await world.is_ready(process)


async def spare_it_no_more(world: World) -> None:
    await bring_postgres_back(world)
    await world.undoes(
        "imagefleet settings live reset slots.lane.general --reason 'the drill is over'"
    )


def signalled(world: World, number: signal.Signals) -> None:
    server = world.stack.facts["processes"]["postgres"]
    for pid in (server, *children_of(server)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


FAULTS: Final = (
    Fault(
        name="pause forgotten",
        alerts=("BacklogGrows", "NoProgress"),
        prepared=pause,
        brought=forget_pauses,
        cleared=resume,
    ),
    Fault(
        name="worker killed",
        alerts=("ProcessDown", "WorkersDie", "NoWorkers"),
        prepared=keep_the_worker_busy,
        brought=kill_the_worker,
        cleared=start_the_worker,
    ),
    Fault(
        name="flood", alerts=("FastLaneFull",), prepared=turn_down, brought=flood, cleared=turn_up
    ),
    Fault(
        name="poison",
        alerts=("DeadLetters",),
        brought=poison,
        mended=mend_the_decoder,
        cleared=acknowledge,
    ),
    Fault(
        name="S3 gone",
        alerts=("BreakerOpen",),
        prepared=publish,
        brought=lose_s3,
        mended=bring_s3_back,
        cleared=close_the_breaker,
    ),
    Fault(
        name="maintenance dead",
        alerts=("MaintenanceAway",),
        brought=kill_maintenance,
        cleared=start_maintenance,
    ),
    Fault(
        name="Postgres away",
        alerts=("DatabaseAway",),
        brought=stop_postgres,
        mended=bring_postgres_back,
        cleared=spare_it_no_more,
    ),
)
