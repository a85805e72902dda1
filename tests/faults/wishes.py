"""What clients ask for in `failing.py`: jobs of which it is known beforehand what they come to."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.support.images import quadrants, saved, without_pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How many of each kind there are; all others just work."""

    permanent: int
    """Jobs that can never work, pictures that are none included."""
    transient: int
    """Jobs whose first attempt or two fail."""
    hopeless: int
    """Jobs of which every attempt fails, until they have no more."""
    cancelled: int
    pictures: int
    broken: int
    """Of the permanent ones: pictures that nobody can read."""
    milliseconds: tuple[int, int]
    """How long a job works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One job that a client asks for, and what it has to come to."""

    kind: str
    ends: frozenset[str]
    """`completed`, or codes of failures."""
    payload: Mapping[str, object] = field(default_factory=dict)
    picture: bytes | None = None
    cancel_when: str | None = None
    """The state in which it is cancelled; None leaves it alone."""


DONE: Final = frozenset({"completed"})
CANCELLED: Final = frozenset({"cancelled"})
EXHAUSTED: Final = frozenset({"internal_error", "unavailable"})
CANCEL_WHEN: Final = ("queued", "processing", "failed_retryable")


def wishes_of(jobs: int, mixture: Mixture, dice: random.Random) -> list[Wish]:
    """Every job of the run, in an order of their own."""

    def work(**more: object) -> dict[str, object]:
        by = dice.choice(["bug", "unavailable"])
        return {"milliseconds": dice.randint(*mixture.milliseconds), "by": by, **more}

    def picture(number: int) -> bytes:
        return saved(quadrants(64 + number % 64, 48))

    def to_cancel(number: int) -> Wish:
        when = CANCEL_WHEN[number % len(CANCEL_WHEN)]
        if when == "failed_retryable":  # and it may have had all its attempts before
            payload, ends = work(milliseconds=10, times=100), CANCELLED | EXHAUSTED
        else:
            payload, ends = work(milliseconds=20_000), CANCELLED
        return Wish(kind="cancelled", ends=ends, payload=payload, cancel_when=when)

    def special() -> Iterator[Wish]:
        for number in range(mixture.broken):
            torn = without_pixels(picture(number))
            yield Wish(kind="permanent", ends=frozenset({"corrupt"}), picture=torn)
        for _ in range(mixture.permanent - mixture.broken):
            made_to_fail = frozenset({"made_to_fail"})
            yield Wish(kind="permanent", ends=made_to_fail, payload=work(permanent=True))
        for _ in range(mixture.transient):
            yield Wish(kind="transient", ends=DONE, payload=work(times=dice.randint(1, 2)))
        for _ in range(mixture.hopeless):
            payload = work(times=100, milliseconds=10)
            yield Wish(kind="hopeless", ends=EXHAUSTED, payload=payload)
        for number in range(mixture.pictures):
            yield Wish(kind="picture", ends=DONE, picture=picture(number))
        yield from map(to_cancel, range(mixture.cancelled))

    wishes = list(special())
    plain = jobs - len(wishes)
    wishes += [Wish(kind="plain", ends=DONE, payload=work()) for _ in range(plain)]
    dice.shuffle(wishes)
    return wishes
