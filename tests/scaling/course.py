"""A burst, then little work, then none: how many workers there are, and how many are right.

What is right is said by the slots of a worker and the durations of the manifest, never by the
thresholds: those are what may be wrong. Time is that of the manifest, whatever plays it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from tests.scaling.autoscaler import SYNC, Autoscaler, Values
from tests.scaling.manifests import Scaled

TICK: Final = 1.0  # seconds between looks at what there is to do
FIRST_WITHIN: Final = 30.0  # seconds until the first worker is wanted
ALL_WITHIN: Final = 120.0  # seconds until as many are wanted as the burst fills
RAMP: Final = 1_200.0  # seconds until these are ready; many start on few cores here
TO_SPARE: Final = 1  # workers beyond those whose slots are needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is submitted."""

    burst: int = 3_000
    seconds: float = 10.0
    """How long one job takes."""
    at_once: int = 24
    """How many run at a time when the burst is over, for long enough that the others may go."""


class World(Protocol):
    """Triggers, workers and a clock."""

    def now(self) -> float:
        """Seconds since it began."""

    async def rest(self, until: float) -> None:
        """Let time pass."""

    async def ask(self) -> Values:
        """What the triggers say; the first is how much there is to do."""

    async def scale(self, replicas: int) -> None:
        """Start workers, or tell some to go."""

    async def submit(self, jobs: int) -> None:
        """Accept so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How it stood."""

    at: float
    values: Values
    replicas: int


@dataclass(slots=True, kw_only=True)
class Course:
    """What came of it."""

    scaled: Scaled
    load: Load
    samples: list[Sample] = field(default_factory=list)
    begun_at: float = 0.0
    """When the burst came."""
    absorbed_at: float = math.inf
    little_until: float = math.inf
    idle_at: float = math.inf
    zero_at: float = math.inf

    @property
    def needed(self) -> int:
        """Workers that the burst needs: as many as it fills, and as there may be."""
        return min(self.scaled.most, math.ceil(self.load.burst / self.scaled.slots))

    @property
    def needed_for_little(self) -> int:
        """Workers that what comes behind the burst fills."""
        return math.ceil(self.load.at_once / self.scaled.slots)

    @property
    def absorbed_within(self) -> float:
        """The time of that many workers, and what they may take to come."""
        jobs = self.load.burst * self.load.seconds
        return jobs / (self.needed * self.scaled.slots) + RAMP

    @property
    def little_for(self) -> float:
        """Until as many are gone as may go by the rules."""
        longest = max(policy.period for policy in self.scaled.down.policies)
        return self.scaled.down.window + 5 * longest

    @property
    def peak(self) -> int:
        """The most workers that were wanted."""
        return max(sample.replicas for sample in self.samples)

    @property
    def too_few(self) -> bool:
        """Whether they were too few for the burst when it was known for long enough."""
        soon = [each for each in self.samples if each.at - self.begun_at <= ALL_WITHIN]
        return max(sample.replicas for sample in soon) < self.needed

    def faults(self) -> list[str]:
        """Why this is not how it should be; nothing: it is."""
        return [*self._rising(), *self._falling(), *self._ending()]

    def _rising(self) -> list[str]:
        faults = []
        first = next((sample.at for sample in self.samples if sample.replicas), math.inf)
        if first - self.begun_at > FIRST_WITHIN:
            faults.append(f"the first worker was wanted after {first - self.begun_at:.0f} s")
        if self.too_few:
            faults.append(f"at most {self.peak} workers for a burst that fills {self.needed}")
        elif self.absorbed_at - self.begun_at > self.absorbed_within:
            faults.append(f"the burst was not absorbed within {self.absorbed_within:.0f} s")
        return faults

    def _falling(self) -> list[str]:
        if math.isinf(self.little_until):
            return []
        (sample, *_) = [each for each in self.samples if each.at >= self.little_until]
        faults = []
        at_once = self._at_once_before(sample)
        most = math.ceil(at_once / self.scaled.slots) + TO_SPARE
        if not self.needed_for_little <= sample.replicas <= most:
            faults.append(
                f"{sample.replicas} workers for {self.load.at_once} jobs at a time, {at_once:.0f} "
                f"at most, which fill {most - TO_SPARE}"
            )
        work = sample.values[0]
        if work is None or work > 2 * self.load.at_once:
            faults.append(f"{work} jobs run or wait where {self.load.at_once} come at a time")
        return faults

    def _at_once_before(self, sample: Sample) -> float:
        """The most there was to do while whoever was wanted then may still be there.

        On a machine that others use as well work piles up for moments, and is counted.
        """
        since = sample.at - self.scaled.down.window - self.scaled.polling
        values = [
            value for each in self.samples if since <= each.at <= sample.at for value in each.values
        ]
        return max([float(self.load.at_once), *(value or 0 for value in values)])

    def _ending(self) -> list[str]:
        if math.isinf(self.little_until):
            return []
        if self.scaled.least:
            left = self.samples[-1].replicas
            return [] if left == self.scaled.least else [f"{left} workers are left in the end"]
        lasted = self.zero_at - self.idle_at
        least = self.scaled.cooldown - self.scaled.polling
        most = self.scaled.cooldown + 2 * self.scaled.polling + SYNC
        if not least <= lasted <= most:
            return [
                f"zero workers {lasted:.0f} s after the last work, not {least:.0f} to {most:.0f}"
            ]
        return []


@dataclass(slots=True)
class Player:
    """Puts a load through a world, as the autoscaler says."""

    course: Course
    world: World
    watch: Callable[[Sample], None] = lambda _sample: None
    _scaler: Autoscaler = field(init=False)
    _polled_at: float = -math.inf
    _synced_at: float = -math.inf

    def __post_init__(self) -> None:
        self._scaler = Autoscaler(self.course.scaled)

    async def play(self) -> Course:
        """All of it; or until it is clear that workers are too few, or take too long."""
        course = self.course
        await self._tick()  # nothing is to do, and nobody is there but those who always are
        course.begun_at = self.world.now()
        await self.world.submit(course.load.burst)
        # The first half second after a submit its own rings are on their way.
        seen = False
        while (work := await self._tick()) > 0 or not seen:
            seen = seen or work > 0
            passed = self.world.now() - course.begun_at
            if passed > course.absorbed_within or (passed > ALL_WITHIN and course.too_few):
                return course
        course.absorbed_at = self.world.now()
        await self._with_little(until=course.absorbed_at + course.little_for)
        course.little_until = self.world.now()
        while await self._tick() > 0:
            pass
        course.idle_at = self.world.now()
        latest = course.idle_at + 2 * course.scaled.cooldown
        while self._scaler.replicas > course.scaled.least and self.world.now() < latest:
            await self._tick()
        course.zero_at = self.world.now()
        return course

    async def _with_little(self, until: float) -> None:
        """Work comes evenly, so that as much of it runs at a time."""
        load, owed = self.course.load, 0.0
        while self.world.now() < until:
            before = self.world.now()
            await self._tick()
            owed += (self.world.now() - before) * load.at_once / load.seconds
            await self.world.submit(int(owed))
            owed -= int(owed)

    async def _tick(self) -> float:
        """How much there is to do now."""
        now = self.world.now()
        values = await self.world.ask()
        if now - self._polled_at >= self.course.scaled.polling:
            self._polled_at = now
            self._scaler.poll(now, values)
        if now - self._synced_at >= SYNC:
            self._synced_at = now
            self._scaler.sync(now, values)
        await self.world.scale(self._scaler.replicas)
        sample = Sample(at=now, values=values, replicas=self._scaler.replicas)
        self.course.samples.append(sample)
        self.watch(sample)
        await self.world.rest(until=now + TICK)
        return sum(value or 0 for value in values)
