"""Ringing right after commit: job messages in batches, then the ring rows marked as sent.

Nothing is promised here. The dispatcher announces whatever has no message; this is only why a job
usually starts within milliseconds. It is done where the lane's dispatcher says that there is room
and that nobody waits, and each process uses a quarter of that room at most. So a flood, a lane that
is full, or more rings than memory should hold are simply left to their rows, which take turns.
Where no dispatcher has looked for ten seconds there are no turns, and everything is rung at once.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

import structlog

from imagefleet.aws.queue import MOST_ENTRIES, Message, Queue
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import Lane, Ring, encode_message
from imagefleet.runtime import Batcher, tell_missed
from imagefleet.store.database import Pool
from imagefleet.store.jobs.rings import LaneRoom, confirm_rings, read_rooms

LINGER: Final = 0.005  # seconds; enough for the requests of one moment to share a call
MOST_WAITING: Final = 10_000
MOST_AT_ONCE: Final = 200
CALLS_AT_ONCE: Final = 4  # of one lane, ten messages each
SHARE: Final = 4  # of the room that a dispatcher tells; there are other processes that submit
ROOM_IS_GOOD_FOR: Final = 0.2  # seconds: as often as a dispatcher looks
CLOSE_WITHIN: Final = 5.0  # seconds for the last rings; what is left is the dispatcher's

log = structlog.get_logger()


def ringing(ring: Ring) -> Message:
    """The message that rings for a job."""
    trace = {"traceparent": ring.traceparent, "tracestate": ring.tracestate}
    return Message(
        body=encode_message(ring),
        group=ring.tenant_id,
        attributes={name: value for name, value in trace.items() if value},
    )


async def ring_jobs(queues: Mapping[Lane, Queue], rings: Sequence[Ring]) -> list[Ring]:
    """Send one message for each ring, lane by lane; those that SQS has taken."""
    sent: list[Ring] = []
    for lane, queue in queues.items():
        of_lane = [ring for ring in rings if ring.lane is lane]
        tens = max(1, math.ceil(len(of_lane) / MOST_ENTRIES / CALLS_AT_ONCE))
        size = tens * MOST_ENTRIES  # or each part would end in a smaller request
        parts = [of_lane[start : start + size] for start in range(0, len(of_lane), size)]
        for taken in await asyncio.gather(*(_send(lane, queue, part) for part in parts)):
            sent += taken
    return sent


async def _send(lane: Lane, queue: Queue, rings: Sequence[Ring]) -> list[Ring]:
    try:
        failures = await queue.send([ringing(ring) for ring in rings])
    except Unavailable as error:
        log.warning("ring.failed", lane=lane, jobs=len(rings), code=error.code)
        return []
    return [ring for ring, failure in zip(rings, failures, strict=True) if failure is None]


class Quota:
    """How many jobs this process may ring by itself, by what dispatchers told last."""

    def __init__(self) -> None:
        self._rooms: dict[Lane, LaneRoom] = {}
        self._left: dict[Lane, int] = {}
        self._good_until = 0.0

    def is_old(self, now: float) -> bool:
        """Whether the dispatchers have to be asked."""
        return now >= self._good_until

    def told(self, rooms: Iterable[LaneRoom], now: float) -> None:
        """Take what they say; only a new look gives a new share."""
        self._good_until = now + ROOM_IS_GOOD_FOR
        for room in rooms:
            before = self._rooms.get(room.lane)
            if before is None or before.looked_at != room.looked_at:
                self._left[room.lane] = math.ceil(room.room / SHARE)
            self._rooms[room.lane] = room

    def use(self, rings: Iterable[Ring]) -> list[Ring]:
        """Those that may be rung now; the others take turns."""
        return [ring for ring in rings if self._use_one(ring.lane)]

    def _use_one(self, lane: Lane) -> bool:
        room = self._rooms.get(lane)
        if room is None or room.abandoned:
            return True
        if not room.fresh or self._left[lane] == 0:
            return False
        self._left[lane] -= 1
        return True


class Doorbell:
    """Takes rings from whoever committed them and sends them from one place, a few at a time."""

    def __init__(self, pool: Pool, queues: Mapping[Lane, Queue]) -> None:
        self._pool = pool
        self._queues = queues
        self._quota = Quota()
        self._rings: Batcher[Ring, None] = Batcher(
            self._send, name="doorbell", linger=LINGER, most=MOST_AT_ONCE
        )

    def ring(self, rings: Iterable[Ring]) -> None:
        """Send these soon. Never waits, never fails: what is too much is left to the dispatcher."""
        for ring in islice(rings, max(0, MOST_WAITING - self._rings.waiting)):
            self._rings.put(ring)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Doorbell"]:
        """Ring until the end of the context, and send the last ones before it."""
        async with self._rings.open(close_within=CLOSE_WITHIN):
            yield self

    async def _send(self, rings: Sequence[Ring]) -> Sequence[None]:
        try:
            sent = await ring_jobs(self._queues, await self._allowed(rings))
            if sent:
                async with self._pool.use("confirm_rings") as connection:
                    await confirm_rings(connection, sent)
        except Unavailable as error:
            tell_missed(error, "ring.unconfirmed", jobs=len(rings))
        except Exception:
            # Nobody waits for an answer: a bug that is not told here would be told nowhere.
            log.exception("ring.broken", jobs=len(rings))
        return [None] * len(rings)

    async def _allowed(self, rings: Sequence[Ring]) -> list[Ring]:
        now = asyncio.get_running_loop().time()
        if self._quota.is_old(now):
            async with self._pool.connection() as connection:
                self._quota.told(await read_rooms(connection), now)
        return self._quota.use(rings)
