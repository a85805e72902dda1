"""What the edge keeps, and what it forgets: answers by path, in memory, within bounds.

An invalidation forgets what is there and whatever is on its way: an answer that was asked for
before it may be the old one, so it is never kept after it.

It is heard of where everybody hears of it: at the CloudFront API. The emulator takes invalidations
down and says `Completed` at once; nobody carries them out. So the edge asks for the list again and
again, and applies each that is new, once. For that long, `LOOK_EVERY` and the answer, a completed
invalidation may not be in effect yet.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from imagefleet.aws.calls import translated
from imagefleet.errors import FleetError

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_cloudfront.client import CloudFrontClient


MOST_BYTES: Final = 128 * 2**20
MOST_ENTRIES: Final = 20_000
LARGEST_BODY: Final = 16 * 2**20
OVERHEAD: Final = 1024  # bytes of an entry beside its body and its headers, about
LOOK_EVERY: Final = 0.2  # seconds
AFTER_FAILURE: Final = 1.0
REST: Final = 10  # times as long as a look took, as it takes longer the more were made

TAG_HEADER: Final = "x-amz-meta-cache-tag"
"""Where an answer bears its tags, as the distribution would be told; both origins send it."""

Clock = Callable[[], float]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EdgeAnswer:
    """What an origin said, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def tags(self) -> frozenset[str]:
        """In small letters, as tags are compared."""
        listed = self.headers.get(TAG_HEADER, "").split(",")
        return frozenset(tag.strip().lower() for tag in listed if tag.strip())


@dataclass(slots=True)
class Kept:
    """An answer, and for how long it may be given."""

    path: str
    answer: EdgeAnswer
    kept_at: float
    fresh_until: float

    @property
    def bytes(self) -> int:
        """What it takes up."""
        headers = sum(len(name) + len(value) for name, value in self.answer.headers.items())
        return len(self.answer.body) + len(self.path) + headers + OVERHEAD


@dataclass(slots=True, eq=False)
class Fill:
    """A question on its way to an origin, and what was invalidated meanwhile."""

    path: str
    overtaken: bool = False
    tags: set[str] = field(default_factory=set)

    @property
    def is_current(self) -> bool:
        """Whether nothing was invalidated meanwhile that this may be the old answer of."""
        return not self.overtaken and not self.tags

    def may_keep(self, answer: EdgeAnswer) -> bool:
        """Tell whether the answer is none that was invalidated meanwhile."""
        return not self.overtaken and self.tags.isdisjoint(answer.tags)


class Cache:
    """Keeps nothing until it is opened: until then nobody would tell it what to forget."""

    def __init__(
        self,
        *,
        clock: Clock = monotonic,
        most_bytes: int = MOST_BYTES,
        most_entries: int = MOST_ENTRIES,
    ) -> None:
        self.bytes = 0
        self._clock = clock
        self._most_bytes = most_bytes
        self._most_entries = most_entries
        self._kept: OrderedDict[str, Kept] = OrderedDict()  # what was asked for last comes last
        self._fills: set[Fill] = set()
        self._is_open = False

    def __len__(self) -> int:
        return len(self._kept)

    def open(self) -> None:
        """Keep answers from now on; those on their way are not among them."""
        self._is_open = True

    def find(self, path: str) -> Kept | None:
        """What is kept for this path, be it fresh or not."""
        kept = self._kept.get(path)
        if kept is not None:
            self._kept.move_to_end(path)
        return kept

    def is_fresh(self, kept: Kept) -> bool:
        """Tell whether it may be given without asking."""
        return self._clock() < kept.fresh_until

    def age(self, kept: Kept) -> int:
        """Whole seconds since its origin was last asked."""
        return max(0, int(self._clock() - kept.kept_at))

    def begin(self, path: str) -> Fill:
        """Before an origin is asked; `end` it whatever happens."""
        fill = Fill(path, overtaken=not self._is_open)
        self._fills.add(fill)
        return fill

    def end(self, fill: Fill) -> None:
        """After the answer was kept, or was none."""
        self._fills.discard(fill)

    def keep(self, fill: Fill, answer: EdgeAnswer, seconds: float) -> Kept | None:
        """Keep an answer, in place of an older one; None when it must not be kept, or cannot."""
        if not fill.may_keep(answer):
            return None
        self._drop(fill.path)
        now = self._clock()
        kept = Kept(fill.path, answer, kept_at=now, fresh_until=now + seconds)
        if seconds <= 0 or kept.bytes > self._most_bytes:
            return None
        self._kept[fill.path] = kept
        self.bytes += kept.bytes
        while self.bytes > self._most_bytes or len(self._kept) > self._most_entries:
            self._drop(next(iter(self._kept)))
        return kept

    def extend(self, fill: Fill, kept: Kept, seconds: float, *, confirmed: bool) -> bool:
        """Go on with what is kept: its origin confirmed it, or does not answer."""
        if self._kept.get(fill.path) is not kept or not fill.may_keep(kept.answer):
            return False
        now = self._clock()
        kept.fresh_until = now + seconds
        if confirmed:
            kept.kept_at = now
        return True

    def forget(self, items: Iterable[str]) -> None:
        """Apply one invalidation: paths, paths that end in `*`, and `#tags`."""
        for item in items:
            if item.startswith("#"):
                self._forget_tag(item[1:].lower())
            else:
                self._forget_path(item if item.startswith("/") else f"/{item}")

    def _forget_tag(self, tag: str) -> None:
        for fill in self._fills:
            fill.tags.add(tag)
        self._drop_all(path for path, kept in self._kept.items() if tag in kept.answer.tags)

    def _forget_path(self, item: str) -> None:
        for fill in self._fills:
            fill.overtaken = fill.overtaken or names(item, fill.path)
        if item.endswith("*"):
            self._drop_all(path for path in self._kept if names(item, path))
        else:
            self._drop(item)

    def _drop_all(self, paths: Iterable[str]) -> None:
        for path in list(paths):
            self._drop(path)

    def _drop(self, path: str) -> None:
        kept = self._kept.pop(path, None)
        if kept is not None:
            self.bytes -= kept.bytes


def names(item: str, path: str) -> bool:
    """Whether an item of an invalidation means this path; only at its end `*` is a wildcard."""
    return path.startswith(item[:-1]) if item.endswith("*") else path == item


class Invalidations:
    """Applies to the cache what is invalidated at its distribution."""

    def __init__(
        self, client: "CloudFrontClient", cache: Cache, distribution: Callable[[], str]
    ) -> None:
        """`distribution` tells its id now: an emulator that lost everything gets another one."""
        self._client = client
        self._invalidations = client.get_paginator("list_invalidations")
        self._cache = cache
        self._distribution = distribution
        self._watched: str | None = None
        self._known: set[str] = set()
        self._failing = False

    async def follow(self) -> None:
        """Look for ever; while CloudFront is away nobody can invalidate anything either."""
        while True:
            begun = monotonic()
            try:
                await self.look()
            except FleetError as error:
                if not self._failing:
                    log.warning("edge.deaf", code=error.code, detail=error.detail)
                self._failing = True
                await asyncio.sleep(AFTER_FAILURE)
            else:
                self._failing = False
                await asyncio.sleep(max(LOOK_EVERY, REST * (monotonic() - begun)))

    async def look(self) -> None:
        """Apply what is new. The first look only learns what is old, and opens the cache."""
        distribution = self._distribution()
        with translated("cloudfront"):
            pages = self._invalidations.paginate(DistributionId=distribution)
            listed = [
                item["Id"]
                async for page in pages
                for item in page["InvalidationList"].get("Items", ())
            ]
            if distribution != self._watched:
                self._cache.forget(["/*"])
                self._known = set(listed)
                self._watched = distribution
                self._cache.open()
            for each in listed:
                if each not in self._known:
                    await self._apply(distribution, each)
        self._known.intersection_update(listed)

    async def _apply(self, distribution: str, invalidation: str) -> None:
        answer = await self._client.get_invalidation(DistributionId=distribution, Id=invalidation)
        paths = answer["Invalidation"]["InvalidationBatch"]["Paths"]
        self._cache.forget(paths.get("Items", ()))
        self._known.add(invalidation)
