"""`imagefleet doctor`: whether a process finds what it needs, as seen from where it stands.

Questions, and how they are asked: whatever comes instead of an answer is one as well. `inside` asks
the container itself, `outside` whom it reaches. It is apart from the command line, which the
containers of processes do not have: there `run` takes its place. What it writes to try, it deletes.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from imagefleet.errors import FleetError, Misconfigured
from imagefleet.telemetry.plain import json, plain

WITHIN: Final = 30.0  # seconds for one check
FAILED: Final = 1
CANNOT_BE_USED: Final = 2


class Stands(StrEnum):
    """Whose environment this may be."""

    API = "api"
    WORKER = "worker"
    MAINTENANCE = "maintenance"
    CONSOLE = "console"
    OPERATOR = "operator"
    MIGRATE = "migrate"
    KEYS = "keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The answer to one question."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    milliseconds: int = 0


class Wrong(Exception):
    """A dependency answers, but not as it should."""


async def ask(name: str, question: Callable[[], Awaitable[str]], advice: str) -> Check:
    """Ask; what nobody can try in this container is said to be untried, and no fault of it."""
    begun = time.perf_counter()
    ok = False
    try:
        async with asyncio.timeout(WITHIN):
            found, ok = await question(), True
    except FleetError as error:
        found = error.detail or error.public_message
    except ModuleNotFoundError as error:
        found, ok = f"not tried: this container has no {error.name}", True
    except TimeoutError:
        found = f"no answer within {WITHIN:.0f} s"
    except (Wrong, OSError) as error:
        found = str(error)
    spent = round((time.perf_counter() - begun) * 1000)
    return Check(name=name, ok=ok, found=found, advice="" if ok else advice, milliseconds=spent)


def run(arguments: Sequence[str]) -> int:
    """What `imagefleet doctor` does where there is no command line."""
    from imagefleet.doctor.inside import examine  # noqa: PLC0415 - it asks as is said above

    parser = argparse.ArgumentParser(prog="imagefleet doctor")
    parser.add_argument("--for", "--as", dest="process", default="", choices=[*Stands])
    parser.add_argument("--replicas", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        checks = asyncio.run(examine(given.process, given.replicas))
    except Misconfigured as error:
        sys.stderr.write(f"imagefleet: {error.detail}\n")
        return CANNOT_BE_USED
    ok = all(check.ok for check in checks)
    if given.json:
        sys.stdout.write(json({"ok": ok, "checks": [asdict(check) for check in checks]}) + "\n")
    else:
        for check in checks:
            told = [check.name, check.found, check.advice]
            sys.stdout.write(
                f"{'ok' if check.ok else 'failed'}  {plain('  '.join(told).rstrip())}\n"
            )
    return 0 if ok else FAILED
