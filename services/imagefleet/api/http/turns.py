"""Whose body is read: so many uploads at once, a share of them for each tenant, none that stalls.

The others wait, unread: up to 128 KiB of what they have sent so far are in our memory (as of every
body that nobody reads), the rest stays in the kernel's buffers. When a place is free, the tenant
that has the fewest gets it. Where none is and somebody waits, the upload goes that has kept us
waiting most, unless its tenant has fewer than whoever waits.

How slow an upload may be is kept as credit, in seconds. It begins with `PATIENCE`, is used up
while we wait for its bytes, and every byte brings back what it may take at the least rate. So a
stall ends after ten seconds, a radio that is gone for eight does not matter, and whoever sends a
little faster than the rate is bounded by places alone. Where the rate is 0, bytes bring back all of
it: only the present stall counts, and only where others wait. Waiting for S3 costs nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Final

from imagefleet.api.http.limiting import Limiting, refusal
from imagefleet.errors import RequestRejected, Unavailable
from imagefleet.jobs.model import TenantId
from imagefleet.store.fleet.keys import ApiKey

PLACES: Final = 64  # each holds about 1 MB, and a part of 8 MiB on disk
PATIENCE: Final = 10.0  # seconds
EXPENDABLE_AFTER: Final = 2.0  # seconds of waiting that were not made up for
TURN_WITHIN: Final = 15.0  # seconds
LOOK_EVERY: Final = 0.5  # seconds; for one that stalls, while somebody waits
MOST_WAITING: Final = 1024

_TOO_SLOW: Final = "The body came too slowly."
_TOO_MANY: Final = "Too many uploads are under way at the moment."


class Pace:
    """How long a body may keep us waiting."""

    def __init__(self, least_rate: int) -> None:
        """`least_rate` is in bytes a second, and 0 is none."""
        self.is_ended = False
        self._least_rate = least_rate
        self._credit = PATIENCE
        self._waits_since: float | None = None

    @property
    def credit(self) -> float:
        """What is left of our patience, in seconds."""
        waiting = 0.0 if self._waits_since is None else monotonic() - self._waits_since
        return self._credit - waiting

    async def paced(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """The same stream; RequestRejected when it is too slow."""
        while True:
            self._waits_since = begun = monotonic()
            patience = asyncio.timeout(self._credit if self._least_rate else None)
            try:
                async with patience:
                    chunk = await anext(body)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not patience.expired():
                    raise
                self.is_ended = True
                raise RequestRejected("request_timeout", _TOO_SLOW) from None
            finally:
                self._waits_since = None
            self._came(len(chunk))
            if self._least_rate:
                left = self._credit - (monotonic() - begun) + len(chunk) / self._least_rate
                self._credit = min(PATIENCE, left)
            yield chunk

    def _came(self, size_bytes: int) -> None:
        """Whoever counts bytes does it here."""


class Turn(Pace):
    """An upload that is being read."""

    def __init__(
        self, key: ApiKey, deadline: asyncio.Timeout, limiting: Limiting, least_rate: int
    ) -> None:
        super().__init__(least_rate)
        self.key = key
        self._deadline = deadline
        self._limiting = limiting

    @property
    def is_leaving(self) -> bool:
        """Whether its place is free in a moment: it was ended, or its time is over."""
        if self.is_ended or self._deadline.expired():
            return True
        until = self._deadline.when()
        return until is not None and until <= asyncio.get_running_loop().time()

    def end(self) -> None:
        """Make room for somebody else; nothing where its own time is over."""
        if not self.is_leaving:  # a deadline that has expired cannot be moved
            self.is_ended = True
            self._deadline.reschedule(asyncio.get_running_loop().time())

    def _came(self, size_bytes: int) -> None:
        self._limiting.sent(self.key, size_bytes)


class _Waiter:
    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Turns:
    """The uploads of this process."""

    def __init__(
        self, limiting: Limiting, *, stalled: Callable[[], object], places: int = PLACES
    ) -> None:
        """Begin with nobody; `stalled` is told of each upload that was ended for it."""
        self._limiting = limiting
        self._stalled = stalled
        self._places = places
        self._taken = 0
        self._running: set[Turn] = set()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def turn(
        self, key: ApiKey, deadline: asyncio.Timeout, *, least_rate: int
    ) -> AsyncIterator[Turn]:
        """Surround an upload, from when its body may be read; its deadline is how it is ended.

        `least_rate` is in bytes a second, and 0 is none.
        """
        await self._place(key)
        turn = Turn(key, deadline, self._limiting, least_rate)
        self._running.add(turn)
        try:
            yield turn
        finally:
            self._running.discard(turn)
            self._leave(key)
            if turn.is_ended:
                self._stalled()

    async def _place(self, key: ApiKey) -> None:
        if self._taken < self._places and self._full_for(key) is None:
            self._take(key)  # whoever waits then is full himself, or comes right after
            return
        ours = self._limiting.tenants.of(key.tenant_id)
        if ours.waiting >= self._limiting.of(key.tenant_id, "uploads_waiting"):
            raise refusal("uploads_waiting", TURN_WITHIN)
        if len(self._waiting) >= MOST_WAITING:
            raise Unavailable("busy", _TOO_MANY)
        waiter = _Waiter(key)
        self._waiting.append(waiter)
        ours.waiting += 1
        try:
            await self._wait(waiter)
        except BaseException:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._leave(key)
            raise
        finally:
            ours.waiting -= 1
            with suppress(ValueError):
                self._waiting.remove(waiter)

    async def _wait(self, waiter: _Waiter) -> None:
        until = monotonic() + TURN_WITHIN
        while not waiter.turn.done():
            left = until - monotonic()
            if left <= 0:
                full = self._full_for(waiter.key)
                raise Unavailable("busy", _TOO_MANY) if full is None else refusal(full)
            await asyncio.wait([waiter.turn], timeout=min(left, LOOK_EVERY))
            if not waiter.turn.done():
                self._make_room(waiter.key)

    def _full_for(self, key: ApiKey) -> str | None:
        """The limit that is reached, if one is."""
        mine = self._limiting.keys.of(key.id).uploads
        if mine >= self._limiting.of(key.tenant_id, "key_uploads"):
            return "key_uploads"
        ours = self._uploads(key.tenant_id)
        return "uploads" if ours >= self._limiting.of(key.tenant_id, "uploads") else None

    def _uploads(self, tenant_id: TenantId) -> int:
        return self._limiting.tenants.of(tenant_id).uploads

    def _take(self, key: ApiKey) -> None:
        self._taken += 1
        self._limiting.keys.of(key.id).uploads += 1
        self._limiting.tenants.of(key.tenant_id).uploads += 1

    def _leave(self, key: ApiKey) -> None:
        self._taken -= 1
        self._limiting.keys.of(key.id).uploads -= 1
        self._limiting.tenants.of(key.tenant_id).uploads -= 1
        while self._taken < self._places:
            may = [turn for turn in self._waiting if self._full_for(turn.key) is None]
            if not may:
                return
            chosen = min(may, key=lambda turn: self._uploads(turn.key.tenant_id))
            self._waiting.remove(chosen)
            self._take(chosen.key)
            chosen.turn.set_result(None)

    def _make_room(self, key: ApiKey) -> None:
        """End the upload that stalls most; its place is for whoever has the fewest then."""
        if self._taken < self._places or self._full_for(key) is not None:
            return
        if any(turn.is_leaving for turn in self._running):
            return
        ours = self._uploads(key.tenant_id)
        stalled = [
            turn
            for turn in self._running
            if turn.credit < PATIENCE - EXPENDABLE_AFTER
            and self._uploads(turn.key.tenant_id) > ours
        ]
        if stalled:
            min(stalled, key=lambda turn: turn.credit).end()
