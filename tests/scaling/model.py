"""Workers of numbers: they come after a while, run as many jobs as they have slots, and drain."""

import heapq
import math
from dataclasses import dataclass, field
from typing import Final

from tests.scaling.autoscaler import Values
from tests.scaling.course import Load
from tests.scaling.manifests import SQS, Scaled

SPARE: Final = 4  # messages beyond what workers have room for
HORIZON: Final = 2.5  # seconds


@dataclass(slots=True)
class Numbers:
    """A world in which nothing takes any time."""

    scaled: Scaled
    load: Load
    starting: float = 20.0
    stalls: tuple[float, float] = (math.inf, math.inf)
    """Between these nothing ends and nothing begins."""
    _now: float = 0.0
    _waiting: int = 0
    _ends: list[float] = field(default_factory=list)
    _ready_at: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self._now

    async def rest(self, until: float) -> None:
        self._now = until
        if self.stalls[0] <= until < self.stalls[1]:
            return
        while self._ends and self._ends[0] <= until:
            heapq.heappop(self._ends)
        ready = sum(at <= until for at in self._ready_at)
        free = max(0, ready * self.scaled.slots - len(self._ends))
        for _ in range(min(free, self._waiting)):
            self._waiting -= 1
            heapq.heappush(self._ends, until + self.load.seconds)

    async def ask(self) -> Values:
        """SQS has what runs, and the window: a little more than what ends until the next look."""
        window = min(self._waiting, SPARE + round(HORIZON * len(self._ends) / self.load.seconds))
        return [
            float(len(self._ends) + (window if trigger.kind == SQS else self._waiting))
            for trigger in self.scaled.triggers
        ]

    async def scale(self, replicas: int) -> None:
        del self._ready_at[replicas:]
        while len(self._ready_at) < replicas:
            self._ready_at.append(self._now + self.starting)

    async def submit(self, jobs: int) -> None:
        self._waiting += jobs
