"""`make image-test`: the fleet from its own images, as strict as a cluster runs them.

Read-only, without capabilities, as nobody in particular. What the images tell of themselves is
compared with what is in them, and a decoding child tries everything that it may not do. 50 images
are made, a worker is stopped amid its work, another is killed; the judge of the fault tests looks
at what is left.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import httpx
import pytest

from tests.containers.contents import PROCESSES, examine
from tests.containers.engine import Engine, NoEngine, image_of
from tests.containers.fleet import WORKER_GRACE, Fleet, running_fleet
from tests.containers.ground import embedded, pooled, terraformed
from tests.containers.sandbox import confined
from tests.support.checker import check
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.journal import read_facts
from tests.support.terraform import LeftOutError

IMAGES: Final = 50
LONG: Final = {"milliseconds": 6000}
LONG_JOBS: Final = 24  # more than one worker has slots, so that both have some
STOP_WITHIN: Final = WORKER_GRACE + 10  # what a manifest would give it


class _Arguments(argparse.Namespace):
    engine: str
    terraform: bool
    through_pgbouncer: bool


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.containers", description=__doc__)
    parser.add_argument("--engine", default="docker", help="docker, or what understands its words")
    parser.add_argument(
        "--terraform", action="store_true", help="with what infra/aws makes, and its environment"
    )
    parser.add_argument(
        "--through-pgbouncer", action="store_true", help="the processes' way to Postgres"
    )
    asked = parser.parse_args(namespace=_Arguments())
    engine = Engine(asked.engine)
    try:
        engine.require()
    except NoEngine as why:
        say(f"SKIPPED: {why}; the images were not run")
        return 0
    for process in PROCESSES:
        say(f"{image_of(process):<28}{examine(engine, process)}")
    say(f"a decoding child in its container: {confined(engine)}")
    try:
        asyncio.run(judge(engine, asked))
    except (LeftOutError, pytest.skip.Exception) as why:
        say(f"SKIPPED: {why}; the fleet was not run")
        return 0
    say("all held")
    return 0


async def judge(engine: Engine, asked: _Arguments) -> None:
    async with AsyncExitStack() as stack:
        ground = await stack.enter_async_context(terraformed() if asked.terraform else embedded())
        if asked.through_pgbouncer:
            ground = await stack.enter_async_context(pooled(ground))
        fleet = await stack.enter_async_context(running_fleet(engine, ground))
        say(f"api, two workers, maintenance and console are ready, on {ground.name}")
        await step("migrations, and the doctor of each process", cli, fleet)
        await step(f"{IMAGES} images", images, fleet)
        await step("the console, and who logs in", console, fleet)
        await step("a worker is stopped amid its work", stopped, fleet)
        await step("a worker is killed amid its work", killed, fleet)
        await step("the containers' own health check", healthy, fleet)
        await step("the judge of the fault tests", judged, fleet)


async def cli(fleet: Fleet) -> str:
    owner = {"DATABASE_URL": fleet.facts.database_urls["owner"]}
    code, said = fleet.engine.once("cli", ["migrate", "status"], owner)
    assert code == 0, said
    for process in ("api", "worker", "maintenance", "console"):
        # In its own container, where it would be asked when a pod does not become ready.
        words, given = ["doctor", "--for", process], fleet.environment(process, 0)
        code, said = fleet.engine.once(
            process, words, given, entrypoint="imagefleet", reading=fleet.ground.authority
        )
        assert code == 0, (process, said)
    return "ok"


async def images(fleet: Fleet) -> str:
    async with fleet.producer() as producer:
        posts = [
            await producer.upload(saved(quadrants(320 + number, 240)), key=f"picture-{number}")
            for number in range(IMAGES)
        ]
        for post in posts:
            shown = await producer.ended(post.json()["jobId"], within=120)
            assert shown["status"] == "completed", shown
    return f"{IMAGES} completed"


async def console(fleet: Fleet) -> str:
    """Its pages from a root that nobody writes to, for who has an operator's key."""
    origin = {"Origin": fleet.console_url}
    async with httpx.AsyncClient(base_url=fleet.console_url, timeout=20) as visitor:
        shown = await visitor.get("/", follow_redirects=True)
        assert (shown.status_code, shown.url.path) == (200, "/login"), shown
        assert "Log in to the console" in shown.text, shown.text
        for key, status in ((fleet.ground.key, 403), (fleet.ground.operator_key, 303)):
            answer = await visitor.post("/login", data={"key": key}, headers=origin)
            assert answer.status_code == status, answer.text
        shown = await visitor.get("/")
        assert (shown.status_code, shown.url.path) == (200, "/"), shown
        assert fleet.ground.operator_key not in shown.text
    user, wrote = await asyncio.to_thread(fleet.containers["console"].trial)
    assert (user, wrote) == ("65532", "Read-only file system")
    return "a producer's key is refused, an operator's is not"


async def stopped(fleet: Fleet) -> str:
    """SIGTERM to PID 1: it takes nothing more, and ends what it has begun."""
    worker = fleet.containers["worker-1"]
    async with fleet.producer() as producer:
        jobs = await producer.submit_many(LONG_JOBS, LONG)
        await working(fleet)
        seconds = await asyncio.to_thread(worker.stop, STOP_WITHIN)
        state = worker.state
        assert state["ExitCode"] == 0, (state, worker.logs[-3000:])
        assert seconds < STOP_WITHIN, seconds
        worker.start()
        await fleet.ready()
        for job in jobs:
            assert (await producer.ended(job, within=60))["status"] == "completed"
    async with fleet.database() as owner:
        charged = await owner.fetchval("SELECT max(attempts) FROM jobs WHERE type = 'noop'")
    assert charged == 1, charged
    return (
        f"exit code 0 after {seconds:.1f} of {STOP_WITHIN} s, {len(jobs)} of {len(jobs)} jobs done"
    )


async def killed(fleet: Fleet) -> str:
    """SIGKILL: its jobs are rescued, and charged."""
    worker = fleet.containers["worker-2"]
    async with fleet.producer() as producer:
        jobs = await producer.submit_many(LONG_JOBS, LONG)
        await working(fleet)
        await asyncio.to_thread(worker.kill)
        worker.start()
        for job in jobs:
            assert (await producer.ended(job, within=110))["status"] == "completed"
    async with fleet.database() as owner:
        lost = await owner.fetchval("SELECT count(*) FROM attempts WHERE why = 'worker_lost'")
    assert lost > 0
    return f"{lost} attempts lost with it, {len(jobs)} of {len(jobs)} jobs done"


async def working(fleet: Fleet) -> None:
    """Both workers hold some of the long jobs."""
    async with fleet.database() as owner:

        async def both_hold() -> bool:
            held = await owner.fetchval(
                "SELECT count(DISTINCT locked_by) FROM jobs WHERE state = 'processing'"
            )
            return bool(held == 2)

        await eventually(both_hold, within=30)


async def healthy(fleet: Fleet) -> str:
    async def all_healthy() -> bool:
        health = {name: one.state["Health"]["Status"] for name, one in fleet.containers.items()}
        assert set(health.values()) == {"healthy"}, health
        return True

    await eventually(all_healthy, within=60)
    return "healthy"


async def judged(fleet: Fleet) -> str:
    facts = await read_facts(fleet.place, fleet.journal.posts)
    breaches = check(facts)
    assert breaches == [], breaches
    return f"{len(facts.jobs)} jobs, {len(facts.attempts)} attempts, 0 breaches"


async def step(name: str, work: Callable[[Fleet], Awaitable[str]], fleet: Fleet) -> None:
    begun = time.monotonic()
    try:
        result = await work(fleet)
    except (AssertionError, httpx.HTTPError):
        for container in fleet.containers.values():
            say(f"--- {container.name}\n{container.logs[-2000:]}")
        raise
    say(f"{name:<46}{time.monotonic() - begun:>6.1f} s   {result}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
