"""The runs: what happens to the queue, and what must be true of every job all the same."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.fleet import Fleet
from tests.simulation.queue import BadQueue, Manners
from tests.support.database import Database

BAD: Final = Manners(loses=0.15, doubles=0.2, latest=1.0, doubts=0.02, forgets=0.02)


@dataclass
class Told:
    """What a run has to say."""

    figures: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def judge(self, name: str, value: float, most: float, unit: str = "s") -> None:
        self.figures[name] = f"{value:.2f} {unit} (at most {most:g})"
        if value > most:
            self.wrong.append(f"{name}: {value:.2f} {unit}, and at most {most:g} are promised")


def share(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("inf")


async def everything_at_once(database: Database, seed: int, *, seconds: float) -> Told:
    """Lost, doubled, late, doubtful; dispatchers killed in a third of their looks."""
    dice = random.Random(seed)
    queue = BadQueue(dice, BAD)
    fleet = Fleet(database, queue, slots=16, work=0.02)
    async with fleet.open(killed_in=0.3, dice=dice):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await fleet.submit(10)
            await asyncio.sleep(0.1)
        # From here on it is well: a message that was lost four times is waited for over a minute.
        queue.manners = Manners()
        await fleet.all_done(within=180)
    waits, told = fleet.story.waits(), Told()
    jobs = len(fleet.story.submitted)
    told.figures |= {
        "jobs": str(jobs),
        "messages lost": str(queue.lost),
        "dispatchers killed": str(fleet.dispatchers_killed),
        "half waited": f"{share(waits, 0.5):.2f} s",
    }
    told.judge("97 in 100 waited", share(waits, 0.97), 45)
    told.judge("sends a job", queue.sent / jobs, 2.2, "")
    return told


async def purged_while_busy(database: Database, seed: int, *, seconds: float) -> Told:
    """Every message is gone at once, in a lane that goes on hearing new ones."""
    dice = random.Random(seed)
    queue = BadQueue(dice)
    fleet = Fleet(database, queue, slots=4, work=0.2)
    async with fleet.open(dice=dice):
        await fleet.submit(60, tenant="flood")
        await asyncio.sleep(1)
        purged = queue.purge()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await fleet.submit(1, tenant="goes-on")
            await asyncio.sleep(0.3)
        await fleet.all_done(within=120)
    told = Told(figures={"purged": str(purged)})
    told.judge("the longest waited", fleet.story.waits()[-1], 120)
    if not purged:
        told.wrong.append("nothing was purged")
    return told


async def refused(database: Database, seed: int, *, seconds: float) -> Told:
    """SQS takes nothing for a while; nothing is taken for sent."""
    dice = random.Random(seed)
    queue = BadQueue(dice, refuses=True)
    fleet = Fleet(database, queue, slots=16, work=0.01)
    async with fleet.open(dice=dice):
        await fleet.submit(100)
        await asyncio.sleep(seconds / 2)
        queue.refuses = False
        allowed_at = time.monotonic()
        await fleet.all_done(within=60)
        took = time.monotonic() - allowed_at
    told = Told(figures={"refused for": f"{seconds / 2:g} s"})
    told.judge("all done after", took, 10)
    return told


async def a_flood(database: Database, seed: int, *, seconds: float) -> Told:
    """One tenant's jobs of 1.5 s fill the lane; another's short ones come in between."""
    dice = random.Random(seed)
    queue = BadQueue(dice)
    fleet = Fleet(database, queue, slots=16, work=1.5)
    async with fleet.open(dice=dice):
        await fleet.submit(int(11 * seconds), tenant="flood")
        await asyncio.sleep(2)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await fleet.submit(1, tenant="other")
            await asyncio.sleep(1)
        await fleet.all_done(within=120)
    told = Told(figures={"most messages at a time": str(queue.most)})
    told.judge("the other tenant waited at most", fleet.story.waits("other")[-1], 5)
    return told


RUNS: Final[Mapping[str, Callable[..., Awaitable[Told]]]] = {
    "everything": everything_at_once,
    "purge": purged_while_busy,
    "refusal": refused,
    "flood": a_flood,
}
