"""Workers and the API are killed outright, again and again, while images are made.

Most kills are deliberate: a process says that it has come to a phase, stands there, and is killed
there. So every kill is known to have hit what it was meant for. The rest come at any time.
"""

import asyncio
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from imagefleet.errors import Unavailable
from imagefleet.store.database import Connection
from tests.faults.director import ALWAYS, Director, Reached
from tests.faults.facts import Facts
from tests.support.checker import Breach, check
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.journal import Journal, read_facts
from tests.support.stack import Settings, Stack, running_stack

PHASES: Final = ("claimed", "rendering", "saving", "settling", "not yet deleted")
# The third loss of a job is its end (poison), and rightly: nobody can tell a killer from a picture
# that kills. So the killer leaves those alone that it has hit twice.
MOST_LOSSES: Final = 2
UPLOADS_AT_ONCE: Final = 4
ANYWHERE_WITHIN: Final = 0.3  # seconds after a claim

# Messages that went down with a worker which had received but not yet claimed them: they are known
# to be lost by a long poll that brings nothing, with a patience that doubles. A short run has none.
AGE_RINGS: Final = """
UPDATE rings SET sent_at = NULL, next_at = now()
 WHERE rings.sent_at < now() - interval '5 seconds'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    jobs: int
    each_phase: int
    anywhere: int
    of_the_api: int
    workers: int
    rescue_after: int
    patient: bool
    """Waits for what takes a minute, instead of ageing it."""
    ends_within: float

    @property
    def kills(self) -> int:
        return self.each_phase * len(PHASES) + self.anywhere

    def settings(self) -> Settings:
        return {
            "worker": {
                # Few slots: what dies with a worker is little, so many workers may die.
                "WORKER_FAST_SLOTS": "1",
                "WORKER_GENERAL_SLOTS": "2",
                "RENDER_CHILDREN": "1",
            },
            "maintenance": {"RESCUE_AFTER": str(self.rescue_after)},
        }


@dataclass(slots=True)
class Killer:
    """Decides who dies where: as planned, and spread over the run."""

    plan: Plan
    director: Director
    random: random.Random
    left: Counter[str] = field(default_factory=Counter)
    claims: int = 0
    kills: int = 0
    timers: list[threading.Timer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left.update(dict.fromkeys(PHASES, self.plan.each_phase))
        self.left["anywhere"] = self.plan.anywhere
        self.left["committed"] = self.plan.of_the_api

    def decide(self, reached: Reached) -> Literal["go", "kill"]:
        self.claims += reached.point == "claimed"
        if reached.point == "committed":
            return self._take("committed") if self.random.random() < 0.2 else "go"
        if reached.process != "worker" or not self._is_time() or not self._is_fair(reached):
            return "go"
        if reached.pid in self.director.spared:
            return "go"
        if reached.point == "claimed" and self.left["anywhere"] and self.random.random() < 0.5:
            self._take("anywhere")
            timer = threading.Timer(
                self.random.random() * ANYWHERE_WITHIN, self._kill_anywhere, [reached.pid]
            )
            timer.start()
            self.timers.append(timer)
            return "go"
        # What is left most is taken first, so that no phase is left over in the end.
        most = max(self.left[phase] for phase in PHASES)
        if self.left[reached.point] < most:
            return "go"
        return self._take(reached.point)

    def _take(self, phase: str) -> Literal["go", "kill"]:
        if self.left[phase] <= 0:
            return "go"
        self.left[phase] -= 1
        self.kills += phase != "committed"
        return "kill"

    def _kill_anywhere(self, pid: int) -> None:
        at_stake = self.director.at_stake(pid)
        fair = all(self.director.killed[job] < MOST_LOSSES for job in at_stake)
        if not fair or not self.director.kill_anywhere(pid, "worker"):
            self.left["anywhere"] += 1  # it has ended meanwhile, or holds what may not be lost
            self.kills -= 1

    def _is_time(self) -> bool:
        """Not all at once: a fleet without workers shows nothing."""
        # A little ahead of the jobs, as most are claimed more than once.
        return self.kills < self.plan.kills * 1.2 * self.claims / self.plan.jobs

    def _is_fair(self, reached: Reached) -> bool:
        held = self.director.holding.get(reached.pid, set())
        known = reached.point != "not yet deleted" or held.issuperset(reached.jobs)
        at_stake = self.director.at_stake(reached.pid).union(reached.jobs)
        return known and all(self.director.killed[job] < MOST_LOSSES for job in at_stake)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of it."""

    plan: Plan
    journal: Journal
    facts: Facts
    breaches: Sequence[Breach]
    missed: dict[str, int]
    """Kills that were planned and did not happen, by phase."""
    deaths: int
    """By SIGKILL, as whoever keeps the processes saw them."""
    seconds: float

    @property
    def recoveries(self) -> list[float]:
        """For each job that died with a worker: seconds until it was claimed again."""
        spans = []
        claims: dict[str, list[float]] = {}
        for event in self.facts.events:
            if event.new == "processing":
                claims.setdefault(event.job_id, []).append(event.at)
        for kill in self.journal.kills:
            for job in kill.jobs:
                after = [at for at in claims.get(job, []) if at > kill.at]
                spans += [after[0] - kill.at] if after else []
        return sorted(spans)

    def figures(self) -> list[tuple[str, str]]:
        states = Counter(job.state for job in self.facts.jobs)
        retries = Counter(attempt.outcome for attempt in self.facts.attempts)
        spans = self.recoveries or [0.0]
        return [
            ("jobs", str(len(self.facts.jobs))),
            *((f"  {state}", str(count)) for state, count in sorted(states.items())),
            ("kills", str(len(self.journal.kills))),
            ("  seen by the supervisor", str(self.deaths)),
            *((f"  {phase}", str(count)) for phase, count in self.journal.by_phase().items()),
            ("attempts", str(len(self.facts.attempts))),
            *((f"  {outcome}", str(count)) for outcome, count in sorted(retries.items())),
            ("objects, litter included", str(len(self.facts.objects))),
            ("claimed again, median", f"{statistics.median(spans):.1f} s"),
            ("claimed again, longest", f"{spans[-1]:.1f} s"),
            ("seconds in all", f"{self.seconds:.0f}"),
            ("breaches", str(len(self.breaches))),
        ]


async def run(plan: Plan, *, seed: int) -> Run:
    """Kill as planned and judge what is left."""
    begun = time.monotonic()
    points = (*ALWAYS, "rendering", "saving", "settling", "committed")
    async with running_stack(
        workers=plan.workers, settings=plan.settings(), points=points
    ) as stack:
        killer = Killer(plan, stack.director, random.Random(seed))
        stack.director.decide = killer.decide
        await upload(stack, plan.jobs)
        await ended(stack, plan)
        stack.director.decide = lambda _: "go"
        for timer in killer.timers:
            timer.join()
        await stack.all_ended(within=plan.ends_within)
        facts = await read_facts(stack.place, stack.journal.posts)
        deaths = stack.said.count("was ended by SIGKILL")
    return Run(
        plan=plan,
        journal=stack.journal,
        facts=facts,
        breaches=check(facts),
        missed={phase: count for phase, count in killer.left.items() if count > 0},
        deaths=deaths,
        seconds=time.monotonic() - begun,
    )


async def upload(stack: Stack, jobs: int) -> None:
    """As careful clients do: every picture under a key, again until somebody answers."""
    numbers = iter(range(jobs))

    async def client() -> None:
        async with stack.producer() as producer:
            for number in numbers:
                image = saved(quadrants(64 + number % 64, 48))
                answer = await producer.until_answered(
                    lambda image=image, number=number: producer.upload(  # type: ignore[misc]
                        image, key=f"picture-{number}"
                    ),
                    within=60,
                )
                assert answer.status_code == 202, answer.text

    await asyncio.gather(*(client() for _ in range(UPLOADS_AT_ONCE)))


async def ended(stack: Stack, plan: Plan) -> None:
    async with stack.database() as owner:

        async def nothing_open() -> bool:
            if not plan.patient:
                await age_rings(owner)
            left = await owner.fetch("SELECT state FROM jobs WHERE finished_at IS NULL")
            assert left == [], Counter(row["state"] for row in left)
            return True

        await eventually(nothing_open, within=plan.ends_within)


async def age_rings(owner: Connection) -> None:
    try:
        async with owner.transaction():
            await owner.execute("SET LOCAL lock_timeout = '100ms'")
            await owner.execute(AGE_RINGS)
    except Unavailable as error:
        if error.code != "database_conflict":
            raise
        # the dispatcher is at it: the next look will do
