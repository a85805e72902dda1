"""How long a job waits for another worker after its own was killed, with the settings of a fleet.

A wave fills all slots of the workers with jobs that take a while, and kills some of the workers one
after the other. From each kill it is measured until every job that died with the worker is claimed
again, and until it has completed, less the time that it works.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.facts import Event
from tests.support.checker import Breach, check
from tests.support.eventually import eventually
from tests.support.journal import Kill, read_facts
from tests.support.stack import PLUGIN, Producer, Settings, Stack, running_stack

ROOT: Final = Path(__file__).parents[2]
BROUGHT: Final = Path(__file__).parent / "brought"
FAST_SLOTS: Final = 3
GENERAL_SLOTS: Final = 5
BETWEEN_BEATS: Final = 2.0  # seconds: a kill comes at any moment between two of them
CLAIMED_WITHIN: Final = 30.0
ENDED_WITHIN: Final = 240.0
PROMISED: Final = 75.0  # seconds, for 99 of 100

# As in a fleet: `imagefleet up` waits for one second only, to end sooner.
SETTINGS: Final[Settings] = {
    "all": {"PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, BROUGHT, ROOT)))},
    "worker": {
        "RECEIVE_WAIT_SECONDS": "20",
        "WORKER_FAST_SLOTS": str(FAST_SLOTS),
        "WORKER_GENERAL_SLOTS": str(GENERAL_SLOTS),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One job whose worker was killed: seconds from then on."""

    claimed: float
    completed: float
    """Less the time that the job works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    stacks: int
    """Side by side, as most of the time is spent waiting."""
    waves: int
    workers: int
    killed: int
    """Workers of every wave."""
    seconds: float
    """For which a job works."""

    @property
    def expected(self) -> int:
        slots = FAST_SLOTS + GENERAL_SLOTS
        return self.stacks * self.waves * self.killed * slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    plan: Waves
    recoveries: Sequence[Recovery]
    kills: int
    breaches: Sequence[Breach]
    open: int
    """Jobs that died with a worker and did not complete."""
    seconds: float

    def wrong(self) -> list[str]:
        """Everything that is wrong with it, in words."""
        wrong = [str(breach) for breach in self.breaches]
        if self.open:
            wrong.append(f"{self.open} jobs did not complete after their worker was killed")
        if len(self.recoveries) < 0.9 * self.plan.expected:
            wrong.append(f"{len(self.recoveries)} recoveries, and {self.plan.expected} expected")
        late = at_share([recovery.completed for recovery in self.recoveries], 0.99)
        if late > PROMISED:
            wrong.append(f"the recovery of 99 in 100 took up to {late:.1f} s, not {PROMISED:g} s")
        return wrong

    def figures(self) -> list[tuple[str, str]]:
        rows = [("kills", str(self.kills)), ("recoveries", str(len(self.recoveries)))]
        for what in ("claimed", "completed"):
            spans = [getattr(recovery, what) for recovery in self.recoveries]
            name = "claimed again" if what == "claimed" else "completed, less its work"
            rows += [
                (f"{name}, median", f"{at_share(spans, 0.5):.1f} s"),
                (f"{name}, p99", f"{at_share(spans, 0.99):.1f} s"),
                (f"{name}, longest", f"{at_share(spans, 1):.1f} s"),
            ]
        return [
            *rows,
            ("seconds in all", f"{self.seconds:.0f}"),
            ("breaches", str(len(self.breaches))),
        ]


def at_share(spans: Sequence[float], share: float) -> float:
    """The smallest span that this share of all does not exceed; for ever, if there is none."""
    if not spans:
        return float("inf")
    return sorted(spans)[max(0, -int(-share * len(spans) // 1) - 1)]


async def measure(plan: Waves, *, seed: int) -> Measured:
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        runs = [
            group.create_task(_measure_one(plan, random.Random(seed + number)))
            for number in range(plan.stacks)
        ]
    parts = [run.result() for run in runs]
    return Measured(
        plan=plan,
        recoveries=[recovery for part in parts for recovery in part.recoveries],
        kills=sum(part.kills for part in parts),
        breaches=[breach for part in parts for breach in part.breaches],
        open=sum(part.open for part in parts),
        seconds=time.monotonic() - begun,
    )


async def _measure_one(plan: Waves, dice: random.Random) -> Measured:
    begun = time.monotonic()
    async with running_stack(workers=plan.workers, settings=SETTINGS) as stack:
        for _ in range(plan.waves):
            await wave(stack, plan, dice)
        facts = await read_facts(stack.place, stack.journal.posts)
        kills = stack.journal.kills
        recovered = list(recoveries(facts.events, kills, plan.seconds))
    return Measured(
        plan=plan,
        recoveries=recovered,
        kills=len(kills),
        breaches=check(facts),
        open=sum(len(kill.jobs) for kill in kills) - len(recovered),
        seconds=time.monotonic() - begun,
    )


async def wave(stack: Stack, plan: Waves, dice: random.Random) -> None:
    """Fill the fleet, kill some of it, and wait until everything has ended."""

    def all_there() -> bool:
        return len(stack.pids("worker")) == plan.workers

    await eventually(all_there, within=CLAIMED_WITHIN)
    async with stack.producer() as producer:
        await fill(producer, plan)

    def full() -> list[int]:
        held = {pid: len(stack.director.holding.get(pid, ())) for pid in living(stack)}
        pids = [pid for pid, count in held.items() if count == FAST_SLOTS + GENERAL_SLOTS]
        assert len(pids) == plan.workers, Counter(held.values())
        return pids

    pids = await eventually(full, within=CLAIMED_WITHIN)
    for pid in dice.sample(pids, plan.killed):
        await asyncio.sleep(dice.random() * BETWEEN_BEATS)  # at no special moment
        assert stack.director.kill_anywhere(pid, "worker")
    await stack.all_ended(within=ENDED_WITHIN)


def living(stack: Stack) -> list[int]:
    return list(stack.pids("worker").values())


async def fill(producer: Producer, plan: Waves) -> None:
    """As many jobs as there are slots, in the lanes that have them."""
    milliseconds = {"milliseconds": round(plan.seconds * 1000)}
    for job_type, slots in (("failing", GENERAL_SLOTS), ("noop", FAST_SLOTS)):
        for _ in range(slots * plan.workers):
            answer = await producer.submit(job_type, milliseconds)
            assert answer.status_code == 202, answer.text


def recoveries(
    events: Sequence[Event], kills: Sequence[Kill], seconds: float
) -> Iterator[Recovery]:
    """What became of every job that a killed worker held; nothing, where it did not complete."""
    for kill in kills:
        for job in kill.jobs:
            after = [event for event in events if event.job_id == job and event.at > kill.at]
            claimed = [event.at for event in after if event.new == "processing"]
            completed = [event.at for event in after if event.new == "completed"]
            if claimed and completed:
                yield Recovery(
                    claimed=claimed[0] - kill.at, completed=completed[-1] - kill.at - seconds
                )
