"""A fleet in a bad hour: jobs that fail, kills, drains, and a restart of Postgres, all at once.

What each job has to come to is known beforehand. The kills are those of `killing.py`; jobs that
fail as they are told to are of a type that tests/faults/brought installs.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg
import httpx

from imagefleet.errors import Unavailable
from imagefleet.store.database import Connection
from tests.faults.counting import Bookkeeper, Books
from tests.faults.director import ALWAYS
from tests.faults.facts import Facts, Job
from tests.faults.killing import Killer, Plan, age_rings
from tests.faults.wishes import Mixture, Wish, wishes_of
from tests.support.checker import Breach, check
from tests.support.eventually import eventually
from tests.support.journal import Journal, Place, read_depths, read_facts
from tests.support.stack import PLUGIN, Producer, Settings, Stack, running_stack

ROOT: Final = Path(__file__).parents[2]
BROUGHT: Final = Path(__file__).parent / "brought"
CLIENTS: Final = 4
LOOK_EVERY: Final = 0.5  # seconds
DRAINS_AT: Final = (0.25, 0.65)  # shares of the jobs that have ended
RESTART_AT: Final = 0.45
HELD_AT_A_DRAIN: Final = 3
RECEIVES_END: Final = 2.5  # seconds; `imagefleet up` has them wait for one
MESSAGES_WITHIN: Final = 30.0  # seconds beyond the longest time that any message is invisible

# A message that was received while its job ran comes back when that job's lock can have expired.
SHORTEN_LOCKS: Final = "UPDATE fleet SET lock_timeout = make_interval(secs => $1)"
COUNT_JOBS: Final = """
SELECT count(finished_at) AS ended, count(*) - count(finished_at) AS open FROM jobs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordeal:
    """What is asked of the fleet and done to it."""

    kills: Plan
    mixture: Mixture
    backoff: tuple[float, float]
    """Base and cap, in seconds."""
    grace: int
    """Seconds that a drain lets jobs finish; so few that some are given back."""
    visibility: int
    lock_timeout: int
    stop_postgres: signal.Signals
    """SIGINT: in order, as `pg_ctl restart -m fast`; SIGQUIT: at once, as after a crash."""
    open_at_most: int
    """Clients wait while more jobs than this are open: so there are some at every moment."""

    def settings(self) -> Settings:
        base, cap = self.backoff
        return {
            "all": {
                "PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, BROUGHT, ROOT))),
                "BACKOFF_BASE_SECONDS": str(base),
                "BACKOFF_CAP_SECONDS": str(cap),
                "LOG_FORMAT": "json",
            },
            "worker": {"RENDER_CHILDREN": "1", "SHUTDOWN_GRACE_PERIOD_SECONDS": str(self.grace)},
            "maintenance": {"RESCUE_AFTER": str(self.kills.rescue_after)},
        }


@dataclass(slots=True)
class Progress:
    """How far the run is, as far as anybody could see."""

    jobs: int
    wished: dict[str, Wish] = field(default_factory=dict)
    """By job, once it is accepted."""
    begun: int = 0
    ended: int = 0
    settled: bool = False
    """Everything was asked for, and nothing is open."""
    outages: list[float] = field(default_factory=list)
    """When Postgres was stopped."""

    def has_reached(self, share: float) -> bool:
        return self.ended >= share * self.jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of it."""

    ordeal: Ordeal
    journal: Journal
    facts: Facts
    breaches: Sequence[Breach]
    wished: Mapping[str, Wish]
    missed: Mapping[str, int]
    deaths: int
    """By SIGKILL, as whoever keeps the processes saw them."""
    drains: int
    """Processes that ended by themselves with exit code 0."""
    restarts: int
    """Of Postgres."""
    books: Books
    seconds: float

    def wrong(self) -> list[str]:
        """Everything that is wrong with it, in words."""
        jobs = {job.id: job for job in self.facts.jobs}
        wrong = [str(breach) for breach in self.breaches] + self.books.wrong()
        if len(self.wished) != self.ordeal.kills.jobs:
            wrong.append(f"{len(self.wished)} jobs were accepted")
        for job_id, wish in self.wished.items():
            came = came_to(jobs[job_id]) if job_id in jobs else "nothing"
            if came not in wish.ends:
                wrong.append(f"job {job_id} ({wish.kind}) came to {came}")
        wrong += [f"{count} kills {phase} did not happen" for phase, count in self.missed.items()]
        done = (len(self.journal.kills), self.deaths, self.drains, self.restarts)
        planned = (self.ordeal.kills.kills, self.ordeal.kills.kills, len(DRAINS_AT), 1)
        if done != planned:
            wrong.append(f"kills, deaths, drains, restarts of Postgres: {done}, not {planned}")
        return wrong

    def figures(self) -> list[tuple[str, str]]:
        ends = Counter(came_to(job) for job in self.facts.jobs if job.id in self.wished)
        kinds = Counter(wish.kind for wish in self.wished.values())
        outcomes = Counter(attempt.outcome for attempt in self.facts.attempts)
        most = max((job.attempts for job in self.facts.jobs), default=0)
        return [
            ("jobs", str(len(self.wished))),
            *((f"  {kind}", str(count)) for kind, count in sorted(kinds.items())),
            ("came to", ""),
            *((f"  {end}", str(count)) for end, count in sorted(ends.items())),
            ("kills", str(len(self.journal.kills))),
            ("drains", str(self.drains)),
            ("restarts of Postgres", str(self.restarts)),
            ("attempts", str(len(self.facts.attempts))),
            *((f"  {outcome}", str(count)) for outcome, count in sorted(outcomes.items())),
            ("most charged to one job", str(most)),
            ("dead letters", str(len(self.facts.letters))),
            ("messages left over", str(left_over(self.facts))),
            *self.books.figures(),
            ("seconds in all", f"{self.seconds:.0f}"),
            ("breaches", str(len(self.breaches))),
        ]


def came_to(job: Job) -> str:
    return job.failure_code or "failed" if job.state == "failed" else job.state


def left_over(facts: Facts) -> int:
    return sum(n for name, n in facts.messages.items() if not name.startswith("dead-letter"))


async def endure(ordeal: Ordeal, *, seed: int) -> Trial:
    """Do it all, and judge what is left."""
    begun = time.monotonic()
    plan, dice = ordeal.kills, random.Random(seed)
    points = (*ALWAYS, "rendering", "saving", "settling")
    progress = Progress(plan.jobs)
    async with (
        running_stack(workers=plan.workers, settings=ordeal.settings(), points=points) as stack,
        Bookkeeper(stack).watching() as keeper,
    ):
        await shorten(stack, ordeal)
        killer = Killer(plan, stack.director, dice)
        stack.director.decide = killer.decide
        async with asyncio.timeout(plan.ends_within), asyncio.TaskGroup() as group:
            group.create_task(watch(stack, progress, patient=plan.patient))
            group.create_task(strike(stack, progress, ordeal))
            group.create_task(
                ask_for(stack, progress, ordeal, wishes_of(plan.jobs, ordeal.mixture, dice))
            )
        stack.director.decide = lambda _: "go"
        for timer in killer.timers:
            timer.join()
        await stack.all_ended(within=plan.ends_within)
        facts = await the_facts(stack, ordeal)
        books = await keeper.close(outages=progress.outages)
        said = stack.said
    return Trial(
        ordeal=ordeal,
        journal=stack.journal,
        facts=facts,
        breaches=check(facts),
        wished=progress.wished,
        missed={phase: count for phase, count in killer.left.items() if count > 0},
        deaths=said.count("was ended by SIGKILL"),
        drains=said.count("ended with exit code 0"),
        restarts=said.count("postgres ended, starts again"),
        books=books,
        seconds=time.monotonic() - begun,
    )


async def shorten(stack: Stack, ordeal: Ordeal) -> None:
    """Let the messages of the dead come back soon: the run has to see every one of them."""
    sqs = stack.place.client("sqs")
    for name, url in stack.place.queue_urls.items():
        if name != "dead-letter":
            attributes = {"VisibilityTimeout": str(ordeal.visibility)}
            sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)
    async with stack.database() as owner:
        await owner.execute(SHORTEN_LOCKS, ordeal.lock_timeout)
    await asyncio.sleep(RECEIVES_END)  # those on their way go by what was said before


async def the_facts(stack: Stack, ordeal: Ordeal) -> Facts:
    async with stack.database() as owner:
        letters = await owner.fetchval("SELECT count(*) FROM dead_letters")
    longest = max(ordeal.visibility, ordeal.lock_timeout * 1.1)
    await wait_for_messages(stack.place, letters=letters, within=longest + MESSAGES_WITHIN)
    base, cap = ordeal.backoff
    return await read_facts(
        stack.place, stack.journal.posts, backoff_base=base, backoff_cap=cap, waited=True
    )


async def watch(stack: Stack, progress: Progress, *, patient: bool) -> None:
    """Count what has ended, until nothing is open; Postgres may be away meanwhile."""
    while not progress.settled:
        try:
            async with stack.database() as owner:
                if not patient:
                    await age_rings(owner)
                ended, open_now = await counted(owner)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, Unavailable):
            pass
        else:
            progress.ended = ended
            progress.settled = len(progress.wished) == progress.jobs and open_now == 0
        await asyncio.sleep(LOOK_EVERY)  # between two looks; nobody waits for it


async def counted(owner: Connection) -> tuple[int, int]:
    row = await owner.fetchrow(COUNT_JOBS)
    assert row is not None
    return row["ended"], row["open"]


async def strike(stack: Stack, progress: Progress, ordeal: Ordeal) -> None:
    """The drains, and the restart of Postgres between them."""
    within = ordeal.kills.ends_within

    async def drain(share: float) -> None:
        await eventually(partial(progress.has_reached, share), within=within)
        await eventually(lambda: stack.director.ask_to_end(HELD_AT_A_DRAIN), within=within)

    await drain(DRAINS_AT[0])
    await eventually(partial(progress.has_reached, RESTART_AT), within=within)
    before = stack.facts["processes"]["postgres"]
    progress.outages.append(time.time())
    os.kill(before, ordeal.stop_postgres)

    def is_back() -> bool:
        return stack.facts["processes"].get("postgres") not in {None, before}

    await eventually(is_back, within=60)
    await drain(DRAINS_AT[1])


async def ask_for(stack: Stack, progress: Progress, ordeal: Ordeal, wishes: list[Wish]) -> None:
    """As careful clients do: each under a key, again until somebody answers."""
    numbered = iter(enumerate(wishes))

    def may_go_on() -> bool:
        return progress.begun - progress.ended < ordeal.open_at_most

    async def client(group: asyncio.TaskGroup) -> None:
        async with stack.producer() as producer:
            for number, wish in numbered:
                progress.begun += 1
                await eventually(may_go_on, within=ordeal.kills.ends_within)
                ask = partial(asked, producer, wish, f"wish-{number}")
                answer = await producer.until_answered(ask, within=60)
                assert answer.status_code == 202, answer.text
                job_id = answer.json()["jobId"]
                progress.wished[job_id] = wish
                if wish.cancel_when is not None:
                    group.create_task(cancel(stack, job_id, wish.cancel_when))

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client(group))


async def asked(producer: Producer, wish: Wish, key: str) -> httpx.Response:
    if wish.picture is not None:
        return await producer.upload(wish.picture, key=key)
    return await producer.submit("failing", wish.payload, key=key)


async def cancel(stack: Stack, job_id: str, when: str) -> None:
    """Ask that it stop, once it is seen in this state or has come further."""
    async with stack.producer() as producer:

        async def is_there() -> bool:
            answer = await producer.until_answered(lambda: producer.http.get(f"/v1/jobs/{job_id}"))
            return when == "queued" or answer.json()["status"] in {when, "completed", "failed"}

        await eventually(is_there, within=120)
        # Not written down: what makes a job stop is a job that the API asks for.
        answer = await producer.until_answered(
            lambda: producer.http.post(f"/v1/jobs/{job_id}/cancel", json={})
        )
        assert answer.status_code == 202, answer.text


async def wait_for_messages(place: Place, *, letters: int, within: float) -> None:
    """Wait until the queues of jobs are empty, and the letters lie in theirs.

    To be called when every job has ended. `within` is as long as any message can stay invisible:
    a message that is still there afterwards will be for the judge to find.
    """
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        depths = await asyncio.to_thread(read_depths, place)
        announced = sum(count for name, count in depths.items() if name.startswith("dead-letter"))
        if sum(depths.values()) == announced >= letters:
            return
        await asyncio.sleep(LOOK_EVERY)
