"""`make check-infra`, what concerns AWS: format, validity, Terraform's own tests, and checkov.

With `--quick` the format alone, which needs neither a provider nor a second. What cannot be run on
this machine is left out by name, with the reason.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from tests.support.terraform import (
    EXAMPLE,
    MODULES,
    ROOT,
    LeftOutError,
    Terraform,
    TerraformError,
    copied,
    present,
)
from tests.support.wheels import pinned_environment

CACHE: Final = ROOT / ".bench"
PINS: Final = ROOT / "infra" / "checkov" / "requirements.txt"
WITHIN: Final = 300.0  # seconds


class _Arguments(argparse.Namespace):
    quick: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="check", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the format alone")
    given = parser.parse_args(arguments, namespace=_Arguments())
    checks: dict[str, Callable[[], str]] = {"terraform fmt": formatted}
    if not given.quick:
        checks |= {"terraform validate, test": tested, "checkov": scanned}
    return max([_checked(name, check) for name, check in checks.items()])


def _checked(name: str, check: Callable[[], str]) -> int:
    begun = time.monotonic()
    try:
        result = check()
    except LeftOutError as why:
        _say(f"check: {name}: left out, {why}")
        return 0
    except (AssertionError, TerraformError) as failure:
        _say(f"check: {name}: {failure}")
        return 1
    _say(f"check: {name}: {result}, {time.monotonic() - begun:.1f} s")
    return 0


def formatted() -> str:
    """As Terraform itself writes it; `terraform fmt -recursive infra/aws` mends it."""
    present()
    Terraform(ROOT).run("fmt", "-check", "-recursive", "-diff", "-no-color", str(MODULES))
    return "as it should be"


def tested() -> str:
    """The example, and every module that has tests of its own."""
    present()
    told: list[str] = []
    with copied() as folder:
        roots = [folder / EXAMPLE, *sorted(folder.glob(f"{MODULES}/modules/*/tests"))]
        for place in roots:
            terraform = Terraform(place.parent if place.name == "tests" else place)
            terraform.init()
            terraform.run("validate", "-no-tests", "-no-color")
            told.append(terraform.run("test", "-no-color").strip().splitlines()[-1])
    return " ".join(told)


def scanned() -> str:
    """Nothing is found but what is left out beside the resource, with its reason."""
    python = pinned_environment(PINS, CACHE)
    options = ("--framework", "terraform", "--quiet", "--compact", "--skip-download")
    done = subprocess.run(
        [python.with_name("checkov"), "--directory", str(MODULES), *options],
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN,
        env={"PATH": os.defpath, "LOG_LEVEL": "WARNING"},
    )
    assert done.returncode == 0, done.stdout
    return "nothing found that is not left out with a reason"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
