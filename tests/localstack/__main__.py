"""`make localstack`: the whole topology on a LocalStack from PyPI, as processes of this machine.

Images from end to end, SQS's own redrive of dead letters, a backlog that is drained, a worker that
is stopped and one that is killed; then the judge of the fault tests looks at what is left, and the
contract of `tests/aws` is asked of the same LocalStack.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import httpx

from tests.aws.differences import DIFFERENCES
from tests.localstack.backlog import drained
from tests.localstack.fleet import BACKOFF_BASE, WORKERS, Fleet, logs_of, running_fleet
from tests.localstack.pictures import pictures
from tests.localstack.redriving import redriven
from tests.localstack.server import NotInstalledError
from tests.support.checker import check
from tests.support.eventually import eventually
from tests.support.journal import read_facts

STANDS: Final = ("LocalStack", "moto", "Postgres", "api", *WORKERS, "maintenance", "edge")
LONG: Final = {"milliseconds": 3000}
LONG_JOBS: Final = 32  # more than one worker has slots, so that both have some
DONE_WITHIN: Final = 60.0  # seconds
CONTRACT_WITHIN: Final = 300.0
HOLDERS: Final = "SELECT count(DISTINCT locked_by) FROM jobs WHERE state = 'processing'"
ATTEMPTS: Final = "SELECT count(*) FROM attempts WHERE job_id = ANY ($1::uuid[])"
LOST: Final = """
SELECT count(*) FROM attempts WHERE job_id = ANY ($1::uuid[]) AND why = 'worker_lost'
"""


class _Arguments(argparse.Namespace):
    backlog: int
    contract: bool


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.localstack", description=__doc__)
    parser.add_argument("--backlog", type=int, default=20_000, help="jobs that do nothing")
    parser.add_argument("--no-contract", dest="contract", action="store_false")
    given = parser.parse_args(namespace=_Arguments())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it: nothing is left
    begun = time.monotonic()
    try:
        asyncio.run(judge(given))
    except KeyboardInterrupt:
        say("ended before its time")
        return 130
    except NotInstalledError:
        say("LocalStack is not installed: `make localstack` does that")
        return 1
    except (AssertionError, httpx.HTTPError, RuntimeError) as failure:
        say(f"BROKEN {failure}")
        return 1
    say(f"all held, in {time.monotonic() - begun:.0f} s")
    return 0


async def judge(given: _Arguments) -> None:
    begun = time.monotonic()
    async with running_fleet() as fleet:
        say(f"{'everything is ready':<36}{time.monotonic() - begun:>6.1f} s   {', '.join(STANDS)}")
        steps: list[tuple[str, Callable[[Fleet], Awaitable[str]]]] = [
            ("images, one replaced", pictures),
            ("dead letters, redriven by SQS", redriven),
            (f"a backlog of {given.backlog} jobs", partial(drained, jobs=given.backlog)),
            ("a worker is stopped amid its work", stopped),
            ("a worker is killed amid its work", killed),
            ("the judge of the fault tests", judged),
        ]
        if given.contract:
            steps.append(("the contract of tests/aws", contract))
        for name, work in steps:
            await step(name, work, fleet)


async def step(name: str, work: Callable[[Fleet], Awaitable[str]], fleet: Fleet) -> None:
    begun = time.monotonic()
    try:
        result = await work(fleet)
    except (AssertionError, httpx.HTTPError, RuntimeError):
        say(f"{name}: it did not hold\n{logs_of(fleet)}")
        raise
    say(f"{name:<36}{time.monotonic() - begun:>6.1f} s   {result}")


async def stopped(fleet: Fleet) -> str:
    """SIGTERM: it takes nothing more, and ends what it has begun."""
    async with fleet.producer() as producer:
        jobs = await producer.submit_many(LONG_JOBS, LONG)
        await both_work(fleet)
        seconds = await fleet.stop(WORKERS[0])
        fleet.start(WORKERS[0])
        await fleet.ready()
        for job in jobs:
            assert (await producer.ended(job, within=DONE_WITHIN))["status"] == "completed"
    attempts = await fleet.ask(ATTEMPTS, jobs)
    assert attempts == len(jobs), f"{attempts} attempts for {len(jobs)} jobs"
    return (
        f"exit code 0 after {seconds:.1f} s; {len(jobs)} of {len(jobs)} done, in one attempt each"
    )


async def killed(fleet: Fleet) -> str:
    """SIGKILL: its jobs are rescued, and charged."""
    async with fleet.producer() as producer:
        jobs = await producer.submit_many(LONG_JOBS, LONG)
        await both_work(fleet)
        fleet.kill(WORKERS[1])
        begun = time.monotonic()
        fleet.start(WORKERS[1])
        for job in jobs:
            assert (await producer.ended(job, within=DONE_WITHIN))["status"] == "completed"
        seconds = time.monotonic() - begun
    lost = await fleet.ask(LOST, jobs)
    assert lost > 0, "it held nothing"
    return f"{lost} attempts lost with it; {len(jobs)} of {len(jobs)} done {seconds:.1f} s later"


async def both_work(fleet: Fleet) -> None:
    async def both_hold() -> bool:
        return bool(await fleet.ask(HOLDERS) == len(WORKERS))

    await eventually(both_hold, within=30)


async def judged(fleet: Fleet) -> str:
    await fleet.nothing_open(within=DONE_WITHIN)
    facts = await read_facts(fleet.place, fleet.journal.posts, backoff_base=BACKOFF_BASE)
    breaches = check(facts)
    assert breaches == [], "\n".join(str(breach) for breach in breaches[:20])
    return f"{len(facts.jobs)} jobs, {len(facts.attempts)} attempts, 0 breaches"


async def contract(fleet: Fleet) -> str:
    """The adapters' own tests, with the differences that LocalStack is known to have."""
    url = fleet.facts.aws["AWS_ENDPOINT_URL"]
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pytest", "tests/aws", "-k", "localstack", "-n", "2", "-q"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=CONTRACT_WITHIN,
        env={**os.environ, "TEST_LOCALSTACK_URL": url},  # noqa: TID251 - as from a terminal
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    known = [name for name, one in DIFFERENCES.items() if "localstack" in one.instead]
    return f"{ran.stdout.strip().splitlines()[-1]}; differs by name: {', '.join(known)}"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
