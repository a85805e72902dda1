"""Listening to a lane: reserve slots, receive, claim, and do what each verdict says.

A receive is sent only for slots that are free and reserved, and only while the worker's beat is
young, so that an outage of Postgres does not wear out healthy messages. The general lane's slots
serve `fast` too, whenever `general` has nothing for them; the fast lane's slots are its own. What
comes from the quarantine has the worker to itself.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog

from imagefleet.aws.queue import Queue, Received
from imagefleet.errors import ClaimLost, FleetError
from imagefleet.jobs.model import Claim, ClaimAnswer, Lane, WorkerId, parse_message
from imagefleet.runtime import Drain, unless
from imagefleet.store.database import Pool
from imagefleet.store.jobs.claims import NO_ROOM, claim_jobs, count_over
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.worker.lease import Lease
from imagefleet.worker.messages import CONTENDED_FOR, Delivery, Unclaimed
from imagefleet.worker.settler import Takeovers
from imagefleet.worker.slots import Hearing, Slots, Solitude, TypeSlots

MOST_AT_ONCE: Final = 10  # of one receive
HELP_FOR: Final = 1.0  # seconds on `fast` after `general` was empty, before it is asked again
WITHOUT_ROOM_FOR: Final = 2.0  # seconds without a receive: what needs no room may be there too
PAUSE_AFTER_ERROR: Final = timedelta(seconds=1)
LONGEST_RECEIVE: Final = 120.0  # seconds; far beyond every deadline that a receive has

log = structlog.get_logger()

Start = Callable[[Claim, Delivery, Callable[[], None]], None]
"""Begin an attempt; calls back when its slot is free again."""
Brought = tuple[Lane, Queue, Sequence[Received]]
"""What a receive brought, from which queue, which is a lane's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ears:
    """What every consumer of a worker shares."""

    pool: Pool
    worker_id: WorkerId
    types: tuple[str, ...]
    lease: Lease
    solitude: Solitude
    unclaimed: Unclaimed
    hearing: Hearing
    metrics: WorkerMetrics
    takeovers: Takeovers
    start: Start
    type_slots: TypeSlots = field(default_factory=TypeSlots)


class Consumer:
    """The listener of one lane's slots."""

    def __init__(
        self,
        lane: Lane,
        slots: Slots,
        queues: Sequence[tuple[Lane, Queue]],
        ears: Ears,
        wait: timedelta,
    ) -> None:
        """Listen to the first of the queues, and to the others when it has nothing."""
        self._lane = lane
        self._slots = slots
        self._queues = queues
        self._ears = ears
        self._wait = wait
        self._now = asyncio.get_running_loop().time
        self._own_empty_at = float("-inf")
        self._helped = False
        self._taken = 0
        self._crowd: frozenset[str] = frozenset()
        """Types of which what comes had no room of late."""
        self._helps_from = float("-inf")
        self._failed = False
        self._receiving_since: float | None = None
        self.deaf: str | None = None
        """Why the last receive or claim failed; None while all is well."""

    def stuck(self) -> str | None:
        """Why this loop does not turn any more, if so: a vital sign."""
        since = self._receiving_since
        if since is None or self._now() - since < LONGEST_RECEIVE:
            return None
        return f"a receive has taken {self._now() - since:.0f} s"

    async def run(self, drain: Drain) -> None:
        """Listen until the drain begins, then give back what is still on its way.

        While what a receive brought is claimed the next one is on its way, if slots are free.
        """
        async with asyncio.TaskGroup() as group:
            taking: list[asyncio.Task[None]] = []
            while not drain.requested:
                if self._failed and await drain.wait_at_most(PAUSE_AFTER_ERROR):
                    break
                self._failed = False
                reserved = await unless(drain, self._reserve(taking))
                if reserved is None:
                    break
                brought = await self._hear(reserved, drain)
                if brought is not None:
                    await _end_of(taking)
                    taking = [group.create_task(self._take(brought, drain))]
        for _, queue in self._queues:
            self._ears.unclaimed.give_back(queue, await queue.drain())

    async def _reserve(self, taking: Sequence[asyncio.Task[None]]) -> int:
        """Wait for slots to listen for; where what comes has no room, for that, but not for long.

        What waits there meanwhile is for workers that have some. And for what needs none we ask now
        and then, for as much as there are slots: it may lie behind what has no room.
        """
        while True:
            if self._crowd:
                await _end_of(taking)
            most, crowd = MOST_AT_ONCE, self._crowd
            if crowd:
                rooms = self._ears.type_slots
                most = await rooms.more(self._lane, crowd, WITHOUT_ROOM_FOR, most=most)
            reserved = await self._slots.reserve(most)
            if crowd or not self._crowd:
                return reserved
            self._slots.give_back(reserved)  # by what is known by now of what was claimed meanwhile

    async def _hear(self, reserved: int, drain: Drain) -> Brought | None:
        """Receive, and free the slots for which nothing came."""
        brought: Brought | None = None
        try:
            await self._ears.takeovers.catch_up()
            brought = await self._listen(reserved, drain)
            if brought is None and not self._failed:
                self.deaf = None
        except FleetError as error:
            self._fails(error)
        finally:
            self._slots.give_back(reserved - (len(brought[2]) if brought else 0))
        return brought

    def _fails(self, error: FleetError) -> None:
        self._failed, self.deaf = True, error.code
        log.warning("receive.failed", lane=self._lane, code=error.code, detail=error.detail)

    async def _listen(self, most: int, drain: Drain) -> Brought | None:
        """Receive from the lane's queues until one has something."""
        for position, (lane, queue) in enumerate(self._queues):
            rest = timedelta(seconds=max(0.0, self._helps_from - self._now()))
            helping = self._now() - self._own_empty_at < HELP_FOR
            if position == 0 and helping and not rest:
                continue
            if position > 0 and rest:  # those who listen there themselves wait for room
                return None
            wait = self._wait if position == 0 and not self._helped else timedelta()
            wait = min(self._wait, rest) if rest else wait
            began = self._now()
            received = await self._receive(queue, most, wait, drain)
            if received == [] and wait:
                self._ears.hearing.silence(lane, began)
            if received:
                self._helped = position > 0
                # Fewer slots may be in use than were when it was sent.
                most = max(0, most - self._slots.surplus)
                self._ears.unclaimed.give_back(queue, received[most:])
                return (lane, queue, received[:most]) if most else None
            if drain.requested:
                return None
            if position == 0:
                self._own_empty_at, self._crowd = self._now(), frozenset()
        self._helped = False
        self._own_empty_at = float("-inf")
        return None

    async def _receive(
        self, queue: Queue, most: int, wait: timedelta, drain: Drain
    ) -> Sequence[Received] | None:
        await unless(drain, self._may_receive())
        if drain.requested:
            return None
        self._receiving_since = self._now()
        try:
            return await unless(drain, queue.receive(most=most, wait=wait))
        finally:
            self._receiving_since = None

    async def _may_receive(self) -> None:
        solitude = self._ears.solitude
        if self._lane is Lane.QUARANTINE:
            await solitude.others_had_their_turn()
        else:
            await solitude.opened()
        await self._ears.lease.until_fresh()

    async def _take(self, brought: Brought, drain: Drain) -> None:
        """Begin what came, and free the slots of what is not ours."""
        self._taken = 0
        try:
            await self._admit(*brought, drain)
            self.deaf = None
        except FleetError as error:
            self._fails(error)
        finally:
            self._slots.give_back(len(brought[2]) - self._taken)

    async def _admit(
        self, lane: Lane, queue: Queue, received: Sequence[Received], drain: Drain
    ) -> None:
        """Begin what came, unless a suspect is alone here; a suspect once nothing else runs."""
        solitude = self._ears.solitude
        if self._lane is Lane.QUARANTINE:
            if solitude.others and await self._are_over(received):
                await self._begin(lane, queue, received, drain)
            elif await self._is_left_alone(queue, received, drain):
                try:
                    await self._begin(lane, queue, received, drain)
                finally:
                    if not self._taken:
                        solitude.end()
        elif solitude.is_shut:
            self._ears.unclaimed.give_back(queue, received)
        else:
            solitude.enter()
            try:
                await self._begin(lane, queue, received, drain)
            finally:
                solitude.leave()

    async def _are_over(self, received: Sequence[Received]) -> bool:
        """Whether these are of suspects that have ended: a claim says so, and shuts nobody out."""
        try:
            job_ids = {parse_message(message.body).job_id for message in received}
            async with self._ears.pool.use("claim") as connection:
                return await count_over(connection, job_ids) == len(job_ids)
        except FleetError:
            return False

    async def _is_left_alone(
        self, queue: Queue, received: Sequence[Received], drain: Drain
    ) -> bool:
        solitude, unclaimed = self._ears.solitude, self._ears.unclaimed
        if solitude.others:
            unclaimed.give_back(queue, received, solitude.patience + PAUSE_AFTER_ERROR)
        alone = await unless(drain, solitude.begin())
        if alone is None:
            unclaimed.give_back(queue, received)
        elif not alone:  # perhaps another worker has nothing long to wait for
            log.info("suspect.put_off", others=solitude.others)
            unclaimed.put_off(queue, received)
        return bool(alone)

    async def _begin(
        self, lane: Lane, queue: Queue, received: Sequence[Received], drain: Drain
    ) -> None:
        """Claim, start what is ours, and say to the other messages what became of them."""
        unclaimed = self._ears.unclaimed
        deliveries = await unclaimed.readable(queue, received)
        if not deliveries:
            return
        await self._ears.type_slots.answered()
        # Nothing new is begun any more, or nothing could be claimed: others may have them.
        if drain.requested or not self._ears.lease.fresh:
            unclaimed.give_back(queue, [delivery.received for delivery in deliveries])
            return
        try:
            answers = await self._claim(lane, deliveries)
        except FleetError:
            # Perhaps it was claimed all the same; then the beat finds the stray.
            lost = [delivery.received for delivery in deliveries]
            unclaimed.give_back(queue, lost, CONTENDED_FOR)
            raise
        self._find_out(lane, answers)
        for delivery, answer in zip(deliveries, answers, strict=True):
            if answer.claim is None:
                await unclaimed.dismiss(delivery, answer)

    def _find_out(self, lane: Lane, answers: Sequence[ClaimAnswer]) -> None:
        """It is crowded once something had no room, until something comes that had."""
        crowd = self._crowd if lane is self._lane else frozenset()
        begun = {answer.claim.type for answer in answers if answer.claim}
        no_room = any(answer.why == NO_ROOM for answer in answers)
        self._ears.type_slots.found(lane, begun, no_room=no_room)
        if no_room:
            crowd = self._ears.type_slots.full(lane)
        if begun - crowd:
            crowd = frozenset()
        if lane is self._lane:
            self._crowd = crowd
        elif crowd:
            self._helps_from = self._now() + WITHOUT_ROOM_FOR

    async def _claim(self, lane: Lane, deliveries: Sequence[Delivery]) -> list[ClaimAnswer]:
        """Claim what there is room for, tell whose claims that ended, and start it."""
        job_ids = [delivery.message.job_id for delivery in deliveries]
        async with self._ears.pool.use("claim") as connection:
            with self._ears.type_slots.kept(lane, len(job_ids)) as rooms:
                try:
                    answers = await claim_jobs(
                        connection,
                        job_ids,
                        worker_id=self._ears.worker_id,
                        lanes=[lane],
                        types=self._ears.types,
                        rooms=rooms,
                    )
                except ClaimLost:  # an answer
                    raise
                except BaseException:
                    self._ears.takeovers.not_answered(job_ids)
                    raise
                self._ears.takeovers.tell(each.ended for each in answers if each.ended is not None)
                for delivery, answer in zip(deliveries, answers, strict=True):
                    self._ears.metrics.claimed(answer.verdict)
                    if answer.claim is not None:
                        self._ears.hearing.claimed(lane, delivery.message)
                        self._start(answer.claim, delivery)
        return answers

    def _start(self, claim: Claim, delivery: Delivery) -> None:
        """Begin an attempt; it ends once."""
        solitude, alone = self._ears.solitude, self._lane is Lane.QUARANTINE

        def leave() -> None:
            self._slots.leave()
            self._ears.type_slots.leave(claim.type)
            if alone:
                solitude.end()
            else:
                solitude.leave()

        self._taken += 1
        self._slots.occupy()
        self._ears.type_slots.occupy(claim.type)
        if not alone:
            solitude.enter()
        self._ears.start(claim, delivery, leave)


async def _end_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


def consumers_of(
    slots: Mapping[Lane, Slots], queues: Mapping[Lane, Queue], ears: Ears, wait: timedelta
) -> dict[Lane, Consumer]:
    """One listener a lane; the general one helps with `fast` when it has nothing else to do."""
    heard = {lane: [lane] for lane in slots}
    if Lane.FAST in slots and Lane.GENERAL in slots:
        heard[Lane.GENERAL].append(Lane.FAST)
    return {
        lane: Consumer(lane, own, [(each, queues[each]) for each in heard[lane]], ears, wait)
        for lane, own in slots.items()
    }
