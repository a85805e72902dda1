"""A consumer that listens to queues of the test, and what it made of what it heard."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, cast

from imagefleet.jobs.model import Claim, Lane, Submission
from imagefleet.runtime import Drain
from imagefleet.worker.consumer import Consumer, Ears
from imagefleet.worker.lease import Lease
from imagefleet.worker.messages import Delivery
from imagefleet.worker.settler import Takeovers
from imagefleet.worker.slots import Hearing, Slots, Solitude, TypeSlots
from tests.support.bench import Bench
from tests.support.eventually import eventually
from tests.support.queues import FakeQueue, a_ringing


class FakeLease:
    """A beat that is as old as the test says."""

    def __init__(self) -> None:
        self.is_stale = False
        self.is_waited_for = asyncio.Event()
        self._beaten = asyncio.Event()

    async def until_fresh(self) -> None:
        while self.is_stale:
            self.is_waited_for.set()
            await self._beaten.wait()

    @property
    def fresh(self) -> bool:
        return not self.is_stale


class Started(NamedTuple):
    """A claim that the consumer has handed on, and what gives its slot back."""

    claim: Claim
    delivery: Delivery
    leave: Callable[[], None]


@dataclass
class Listening:
    """A consumer of two slots, its queues, and what it started."""

    bench: Bench
    own: FakeQueue
    dead_letters: FakeQueue
    slots: Slots
    lease: FakeLease
    hearing: Hearing
    consumer: Consumer
    drain: Drain
    started: list[Started] = field(default_factory=list)

    def ring(self, *jobs: Submission | Claim) -> None:
        """A message of each lies in its queue."""
        self.own.waiting += [a_ringing(job.job_id) for job in jobs]

    async def runs(self, count: int) -> None:
        await eventually(lambda: len(self.started) == count)

    @property
    def changes(self) -> dict[str, timedelta]:
        return {receipt.message_id: span for receipt, span in self.own.changed}


@asynccontextmanager
async def listening(
    bench: Bench,
    *,
    lane: Lane = Lane.FAST,
    slots: int = 2,
    helps: FakeQueue | None = None,
    types: tuple[str, ...] = ("noop",),
    solitude: Solitude | None = None,
    type_slots: TypeSlots | None = None,
) -> AsyncIterator[Listening]:
    own, dead_letters, drain, lease = FakeQueue("own"), FakeQueue("dead"), Drain(), FakeLease()
    started: list[Started] = []
    room, hearing = Slots(slots), Hearing(Lane)
    ears = Ears(
        pool=bench.pool,
        worker_id=bench.worker_id,
        types=types,
        lease=cast("Lease", lease),
        solitude=solitude or Solitude(),
        unclaimed=bench.unclaimed(dead_letters),
        hearing=hearing,
        metrics=bench.equipment.metrics,
        takeovers=Takeovers(bench.pool, bench.worker_id, bench.equipment.metrics),
        start=lambda *given: started.append(Started(*given)),
        type_slots=type_slots or TypeSlots(),
    )
    queues = [(lane, own.as_queue())]
    if helps is not None:
        queues.append((Lane.FAST, helps.as_queue()))
    consumer = Consumer(lane, room, queues, ears, timedelta(seconds=20))
    async with asyncio.TaskGroup() as group:
        group.create_task(consumer.run(drain))
        yield Listening(bench, own, dead_letters, room, lease, hearing, consumer, drain, started)
        drain.request("the test is over")
    assert 0 == room.reserved


def ends_in(lines: Sequence[Mapping[str, object]]) -> list[tuple[object, ...]]:
    return [(line["event"], line["state"], line["why"]) for line in lines if "outcome" in line]


def counted(bench: Bench, series: str) -> float:
    lines = bench.equipment.metrics.exposition().decode().splitlines()
    (line,) = [line for line in lines if line.startswith(series)]
    return float(line.rpartition(" ")[2])
