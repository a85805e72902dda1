"""What the edge keeps, and what it forgets: answers by path, in memory, within bounds.

An invalidation forgets what is there and whatever is on its way: an answer that was asked for
before it may be the old one, so it is never kept after it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MOST_BYTES: Final = 128 * 2**20
MOST_ENTRIES: Final = 20_000
LARGEST_BODY: Final = 16 * 2**20
OVERHEAD: Final = 1024  # bytes of an entry beside its body and its headers, about

TAG_HEADER: Final = "x-amz-meta-cache-tag"
"""Where an answer bears its tags, as the distribution would be told; both origins send it."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Answer:
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
    answer: Answer
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

    def may_keep(self, answer: Answer) -> bool:
        """Tell whether the answer is none that was invalidated meanwhile."""
        return not self.overtaken and self.tags.isdisjoint(answer.tags)


class Cache:
    """Keeps nothing until it is opened: until then nobody would tell it what to forget."""

    def __init__(
        self,
        *,
        clock: Clock = time.monotonic,
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

    def keep(self, fill: Fill, answer: Answer, seconds: float) -> Kept | None:
        """Keep an answer, in place of an older one; None when it must not be kept, or cannot."""
        if seconds <= 0 or not fill.may_keep(answer):
            if fill.may_keep(answer):
                self._drop(fill.path)
            return None
        now = self._clock()
        kept = Kept(fill.path, answer, kept_at=now, fresh_until=now + seconds)
        self._drop(fill.path)
        if kept.bytes > self._most_bytes:
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

    def forget(self, items: Iterable[str]) -> int:
        """Apply one invalidation: paths, paths that end in `*`, and `#tags`; how many it hit."""
        hit = 0
        for item in items:
            if item.startswith("#"):
                hit += self._forget_tag(item[1:].lower())
            else:
                hit += self._forget_path(item if item.startswith("/") else f"/{item}")
        return hit

    def forget_everything(self) -> None:
        """Begin anew, as another distribution would."""
        self._forget_path("/*")

    def _forget_tag(self, tag: str) -> int:
        for fill in self._fills:
            fill.tags.add(tag)
        return self._drop_all(p for p, kept in self._kept.items() if tag in kept.answer.tags)

    def _forget_path(self, item: str) -> int:
        for fill in self._fills:
            fill.overtaken = fill.overtaken or names(item, fill.path)
        if not item.endswith("*"):
            return self._drop_all([item] if item in self._kept else ())
        return self._drop_all(path for path in self._kept if names(item, path))

    def _drop_all(self, paths: Iterable[str]) -> int:
        dropped = list(paths)
        for path in dropped:
            self._drop(path)
        return len(dropped)

    def _drop(self, path: str) -> None:
        kept = self._kept.pop(path, None)
        if kept is not None:
            self.bytes -= kept.bytes


def names(item: str, path: str) -> bool:
    """Whether an item of an invalidation means this path; only at its end `*` is a wildcard."""
    return path.startswith(item[:-1]) if item.endswith("*") else path == item
