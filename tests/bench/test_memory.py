"""A hungry picture and some of photos, in the children that they get; others are made by hand.

Each in a process of its own: what this one has from other tests would be counted, too.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)  # on a machine that is busy, too


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "webp lossless, alpha", "--megapixels", "64"],
        ["--only", "jpeg", "--megapixels", "12"],
    ],
)
def test_what_is_accepted_is_made_within_the_memory_that_was_foretold(arguments: list[str]) -> None:
    run = measured(*arguments)

    assert run.returncode == 0, run.stdout + run.stderr


def test_a_crowd_is_made_within_the_memory_of_its_container() -> None:
    run = measured("--crowd", "--megapixels", "12", "--container", "640")

    assert run.returncode == 0, run.stdout + run.stderr


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.bench.memory", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
