"""The long run: see the package. Ends with 1 where anything was wrong."""

import argparse
import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

import httpx

from imagefleet.api.http.documents import OPERATORS, PRODUCERS, Document
from tests.fuzzing import __doc__ as described
from tests.fuzzing.campaign import EVERY_PHASE, Verdict, fuzz
from tests.support.stack import Stack, running_stack

SHARES: Final = {PRODUCERS: 0.6, OPERATORS: 0.4}
"""Of the requests. Operators come last: what they order, as a pause of all, is there to stay."""
ROOM: Final = ("requests", "key_requests", "operator_requests")
MOST: Final = 1_000_000
"""What no run takes, so that it is not told to come later."""
AT_ONCE: Final = 3  # processes that ask
FIRST: Final = 25  # examples of an operation, of the run that tries everything


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzzing",
        description=described,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=100_000, help="at least (100,000)")
    parser.add_argument("--examples", type=int, default=250, help="of an operation, a run (250)")
    parser.add_argument("--seed", type=int, help="a new one unless given")
    return parser.parse_args(arguments)


async def main(arguments: Sequence[str] | None = None) -> int:
    asked, task = options(arguments), asyncio.current_task()
    assert task is not None
    # Whoever ends it: nothing is left.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    seed: int = asked.seed or secrets.randbelow(2**31)
    say(f"{asked.requests:,} requests, seed {seed}")
    async with running_stack() as stack:
        keys = {PRODUCERS: await two_tenants(stack), OPERATORS: [stack.facts["operator_key"]]}
        verdicts = {}
        for document, share in SHARES.items():
            wanted, begun = int(asked.requests * share), time.monotonic()
            verdict = await until(
                wanted, stack, document, keys[document], seed=seed, examples=asked.examples
            )
            verdicts[document] = verdict
            say(line(document, verdict, time.monotonic() - begun), *verdict.faults)
        missing = await missing_jobs(stack)
    whole = sum(verdicts.values(), Verdict())
    say(f"{whole.requests:,} requests, {len(whole.faults)} runs found faults, {missing} jobs lost")
    return int(bool(whole.faults) or missing != 0)


async def until(
    wanted: int, stack: Stack, document: Document, keys: Sequence[str], *, seed: int, examples: int
) -> Verdict:
    """Runs, some at once, until so many requests were answered or something was wrong."""
    address = stack.facts["api_url"] + document.address
    # Every bound of every field is the same again, and so is who has no key: once is enough.
    verdict, begun = await fuzz(address, keys, seed=seed, examples=FIRST), 1
    while verdict.requests < wanted and not verdict.faults:
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(
                    fuzz(
                        address,
                        keys,
                        seed=seed + begun + place,
                        examples=examples,
                        phases=EVERY_PHASE[2:],
                        without_a_key=False,
                    )
                )
                for place in range(AT_ONCE)
            ]
        begun += AT_ONCE
        verdict = sum((each.result() for each in runs), verdict)
        say(f"  {document.title}: {verdict.requests:,}")
    return verdict


async def two_tenants(stack: Stack) -> list[str]:
    """Keys of the stack's own and of another, with more room than any run takes."""
    makes = ("keys", "create", "--tenant", "rival", "--name", "rival")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "imagefleet", *makes),
        env={**os.environ, "DATABASE_URL": stack.facts["database_urls"]["admin"]},  # noqa: TID251 - as from a terminal
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    another = said.decode().split()[-1]
    headers = {"Authorization": f"Bearer {stack.facts['operator_key']}"}
    async with httpx.AsyncClient(base_url=stack.facts["api_url"], headers=headers) as operator:
        for tenant in ("demo", "rival"):
            limits = {"limits": dict.fromkeys(ROOM, MOST), "reason": "a long run"}
            answer = await operator.put(f"/v1/operator/tenants/{tenant}/limits", json=limits)
            assert answer.status_code == 200, answer.text
    return [stack.facts["api_key"], another]


async def missing_jobs(stack: Stack) -> int:
    headers = {"Authorization": f"Bearer {stack.facts['operator_key']}"}
    async with httpx.AsyncClient(base_url=stack.facts["api_url"], headers=headers) as operator:
        answer = await operator.get("/v1/operator/ledger")
    return int(answer.json()["missing"])


def line(document: Document, verdict: Verdict, seconds: float) -> str:
    answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(verdict.answers.items()))
    return f"{document.address}: {verdict.requests:,} in {seconds:.0f} s ({answers})"


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{each}\n" for each in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
