"""What tenants and keys may take of this process: rates, and how much at once.

`jobs/limits.py` declares the limits. Here they are counted, in memory and without a statement: a
fleet of three lets through three times as much. Open jobs Postgres counts for the whole fleet; the
room it found is kept here for seconds. Forms are counted where they are written.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Self, TypeAlias
from uuid import UUID

from imagefleet.errors import LimitReached, Unavailable
from imagefleet.jobs.limits import KEY_OPEN_JOBS, LIMITS, OPEN_JOBS
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import CONNECT_WITHIN, Connection, unavailable
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.admissions import room_for_jobs

Override: TypeAlias = Callable[[TenantId, str], int | None]
"""What was set for this tenant or for all, by the name of the limit; None is the default."""

BURST_OF_REQUESTS: Final = 2.0  # seconds' worth
BURST_OF_BYTES: Final = 10.0
LONGEST_WAIT: Final = 60  # seconds that anybody is told to wait; where a limit is 0, too
ROOM_IS_GOOD_FOR: Final = 5.0  # seconds; the others that accept for this tenant are not seen
FULL_IS_GOOD_FOR: Final = 1.0  # the same where there is none: counting to the quota takes a while
MOST_REMEMBERED: Final = 10_000  # tenants, and keys; each has a key that an administrator made
MOST_STREAMS: Final = 2000  # of this process

_SENTENCES: Final = {
    "requests": "Your tenant sends more requests than it may.",
    "key_requests": "This API key sends more requests than it may.",
    "operator_requests": "This API key sends more requests than it may.",
    "bytes": "Your tenant sends more bytes than it may.",
    "key_bytes": "This API key sends more bytes than it may.",
    "uploads": "Your tenant has as many uploads under way as it may have.",
    "key_uploads": "This API key has as many uploads under way as it may have.",
    "uploads_waiting": "Your tenant has as many uploads waiting as it may have.",
    "bodies": "Too much or too many of your bodies have come whose end has not.",
    "streams": "Your tenant waits for as many jobs at once as it may.",
    "key_streams": "This API key waits for as many jobs at once as it may.",
    OPEN_JOBS: "Your tenant has as many open jobs as it may have.",
    KEY_OPEN_JOBS: "This API key has as many open jobs as it may have.",
    "forms": "Your tenant has as many unused upload forms as it may have.",
    "form_bytes": "The unused upload forms of your tenant allow as many bytes as they may.",
}
_TOO_MANY: Final = "Too many clients listen to events or wait for jobs at the moment."


def refusal(name: str, retry_after: float = 1) -> LimitReached:
    """What to raise where this limit is reached."""
    seconds = math.ceil(max(1, min(retry_after, LONGEST_WAIT)))
    code = "too_many_open_jobs" if name in {OPEN_JOBS, KEY_OPEN_JOBS} else "limit_reached"
    return LimitReached(name, _SENTENCES[name], seconds, code=code)


@dataclass(slots=True)
class Bucket:
    """Fills at a rate up to a burst. Above nought there is something to take; it may go below."""

    level: float = math.inf
    at: float = 0.0

    def wait(self, rate: float, burst: float, now: float) -> float:
        """Seconds until something is in it; 0: now."""
        self.level = min(burst, self.level + rate * (now - self.at))
        self.at = now
        if self.level > 0:
            return 0.0
        return (1 - self.level) / rate if rate else math.inf

    def take(self, amount: float) -> None:
        self.level -= amount


@dataclass(slots=True)
class Places:
    """For how many more open jobs there was room, less those that came since."""

    left: int = 0
    look_again_at: float = 0
    good_until: float = -math.inf

    @classmethod
    def counted(cls, left: int) -> Self:
        """What was counted just now; good until half of it is used up, whatever others did."""
        if left <= 0:
            return cls(0, -math.inf, monotonic() + FULL_IS_GOOD_FOR)
        return cls(left, left // 2, monotonic() + ROOM_IS_GOOD_FOR)

    def is_known_for(self, jobs: int) -> bool:
        return self.good_until >= monotonic() and self.left >= self.look_again_at + jobs


@dataclass(frozen=True, slots=True)
class Rooms:
    """The rooms that a new job takes a place in."""

    rooms: tuple[tuple[str, Places], ...]

    @property
    def left(self) -> int:
        return min(room.left for _, room in self.rooms)

    def are_known_for(self, jobs: int) -> bool:
        """Whether what was counted is to be believed where so many jobs want to come in."""
        return all(room.is_known_for(jobs) for _, room in self.rooms)

    def take(self) -> LimitReached | None:
        """Take the places of one; else what to raise, and none is taken."""
        for name, room in self.rooms:
            if room.left == 0:
                return refusal(name, 2)
        for _, room in self.rooms:
            room.left -= 1
        return None


@dataclass(slots=True)
class Counts:
    """Of one tenant, or of one key."""

    requests: Bucket = field(default_factory=Bucket)
    operations: Bucket = field(default_factory=Bucket)
    bytes: Bucket = field(default_factory=Bucket)
    uploads: int = 0
    waiting: int = 0
    bodies: int = 0  # of JSON, that are being read
    held: int = 0  # bytes of them
    streams: int = 0
    room: Places = field(default_factory=Places)
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_idle(self) -> bool:
        return not (self.uploads or self.waiting or self.bodies or self.streams)


class _Remembered:
    """The counts of those who were here last; of whom something is under way, always."""

    def __init__(self) -> None:
        self._counts: OrderedDict[TenantId | UUID, Counts] = OrderedDict()

    def of(self, who: TenantId | UUID) -> Counts:
        counts = self._counts.get(who)
        if counts is not None:
            self._counts.move_to_end(who)
            return counts
        counts = self._counts[who] = Counts()
        if len(self._counts) > MOST_REMEMBERED:
            idle = next((whose for whose, each in self._counts.items() if each.is_idle), who)
            if idle != who:
                del self._counts[idle]
        return counts


class Limiting:
    """The counts of this process."""

    def __init__(self, override: Override) -> None:
        """Begin with nobody."""
        self._override = override
        self.tenants = _Remembered()
        self.keys = _Remembered()
        self.streams = 0

    def of(self, tenant_id: TenantId, name: str) -> int:
        """How much this limit is for a tenant, and for each of its keys."""
        turned, limit = self._override(tenant_id, name), LIMITS[name]
        # A row that was written past the API is held to the same bounds.
        return limit.default if turned is None else max(limit.lowest, min(turned, limit.highest))

    def request(self, key: ApiKey, *, sends: bool, operates: bool) -> None:
        """Count a request, or refuse it. Operators' have a bucket of their own."""
        now = monotonic()
        mine = self.keys.of(key.id)
        if operates:
            self._let_in(key, "operator_requests", mine.operations, now)
            mine.operations.take(1)
            return
        ours = self.tenants.of(key.tenant_id)
        self._let_in(key, "key_requests", mine.requests, now)
        self._let_in(key, "requests", ours.requests, now)
        if sends:
            self._let_in(key, "key_bytes", mine.bytes, now)
            self._let_in(key, "bytes", ours.bytes, now)
        self.weigh(key, 1)

    def weigh(self, key: ApiKey, requests: float) -> None:
        """Count what a request costs; more than there is, too: then it is waited for."""
        self.keys.of(key.id).requests.take(requests)
        self.tenants.of(key.tenant_id).requests.take(requests)

    def sent(self, key: ApiKey, size_bytes: int) -> None:
        """Count a part of a body."""
        self.keys.of(key.id).bytes.take(size_bytes)
        self.tenants.of(key.tenant_id).bytes.take(size_bytes)

    def _let_in(self, key: ApiKey, name: str, bucket: Bucket, now: float) -> None:
        rate = self.of(key.tenant_id, name)
        seconds = BURST_OF_BYTES if name.endswith("bytes") else BURST_OF_REQUESTS
        wait = bucket.wait(rate, rate * seconds, now)
        if wait > 0:
            raise refusal(name, wait)

    async def open_jobs(self, connection: Connection, key: ApiKey, jobs: int) -> Rooms:
        """The room for this many new jobs; counted now where what was counted is of no use.

        Roughly: limits protect, they do not bill. A process that counted room uses up half of it,
        or what comes in five seconds, before it counts again, and others do so meanwhile. One of a
        tenant's requests counts; the others go by what was known, or wait if that was too little.
        """
        async with self.counting(key, jobs) as is_wanted:
            if is_wanted:
                await self.count(connection, key)
        return self.rooms_of(key)

    @asynccontextmanager
    async def counting(self, key: ApiKey, jobs: int) -> AsyncIterator[bool]:
        """Surround a count; whether it is still wanted once it is our turn, which is waited for."""
        if self._knows_room(key, jobs):
            yield False
            return
        turn = self.tenants.of(key.tenant_id).counting
        try:
            async with asyncio.timeout(CONNECT_WITHIN):  # as long as for a connection
                await turn.acquire()
        except TimeoutError as error:
            raise unavailable("database_timeout") from error
        try:
            yield not self.rooms_of(key).are_known_for(jobs)
        finally:
            turn.release()

    async def count(self, connection: Connection, key: ApiKey) -> None:
        """Look how much room there is now."""
        most = self.of(key.tenant_id, KEY_OPEN_JOBS)
        left = await room_for_jobs(connection, key.tenant_id, str(key.id), most)
        ours, mine = self.tenants.of(key.tenant_id), self.keys.of(key.id)
        ours.room, mine.room = (Places.counted(places) for places in left)

    def _knows_room(self, key: ApiKey, jobs: int) -> bool:
        rooms, counting = self.rooms_of(key), self.tenants.of(key.tenant_id).counting
        return rooms.are_known_for(jobs) or (counting.locked() and rooms.left >= jobs)

    def rooms_of(self, key: ApiKey) -> Rooms:
        """What is known; to be taken from before anybody counts again."""
        rooms = ((OPEN_JOBS, self.tenants.of(key.tenant_id).room),)
        if self.of(key.tenant_id, KEY_OPEN_JOBS) == LIMITS[KEY_OPEN_JOBS].default:
            return Rooms(rooms)
        return Rooms(((KEY_OPEN_JOBS, self.keys.of(key.id).room), *rooms))

    @contextmanager
    def stream(self, key: ApiKey) -> Iterator[None]:
        """Surround a request that waits for a job: it is counted as long as it does."""
        mine, ours = self.keys.of(key.id), self.tenants.of(key.tenant_id)
        for name, counts in (("key_streams", mine), ("streams", ours)):
            if counts.streams >= self.of(key.tenant_id, name):
                raise refusal(name)
        if self.streams >= MOST_STREAMS:
            raise Unavailable("busy", _TOO_MANY)
        self.streams += 1
        mine.streams += 1
        ours.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
            mine.streams -= 1
            ours.streams -= 1
