"""`make check-observability`: promtool reads every rule and plays the unit test of every alert.

Where there is no promtool it says so; `make promtool` unpacks Debian's beside the system.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.infra.observability.asking import HERE, RULES, UNIT_TESTS
from tests.support.prometheus import program

WITHIN: Final = 300.0  # seconds
LEFT_OUT: Final = "there is no promtool (`make promtool` fetches Debian's)"


class _Arguments(argparse.Namespace):
    fetch: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="check", description=__doc__.partition("\n")[0])
    parser.add_argument("--fetch", action="store_true", help="unpack Debian's promtool, if needed")
    given = parser.parse_args(arguments, namespace=_Arguments())
    promtool = program("promtool", fetch=given.fetch)
    if given.fetch:
        _say(f"promtool: {promtool or 'cannot be had'}")
        return int(promtool is None)
    if promtool is None:
        _say(f"check: alerts: left out, {LEFT_OUT}")
        return 0
    begun = time.monotonic()
    if complaints := complaints_of(promtool):
        _say(complaints)
        return 1
    _say(
        f"check: alerts (promtool check, test): as they should be, {time.monotonic() - begun:.1f} s"
    )
    return 0


def complaints_of(
    promtool: Path, rules: Sequence[Path] = RULES, tests: Sequence[Path] = UNIT_TESTS
) -> str:
    """What it says, unless it has nothing to complain of."""
    wrong = []
    for command, files in (("check", rules), ("test", tests)):
        if not files:
            continue
        done = subprocess.run(
            [str(promtool), command, "rules", *map(str, files)],
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )
        if done.returncode:
            wrong.append(done.stdout + done.stderr)
    return "\n".join(wrong)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
