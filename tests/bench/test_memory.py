"""The hungriest picture that is accepted, in the child that it gets; others are made by hand."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("arguments", [["--only", "webp lossless, alpha"], ["--side", "300"]])
def test_what_is_accepted_is_made_within_the_memory_that_was_foretold(arguments: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.memory", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert run.returncode == 0, run.stdout + run.stderr
