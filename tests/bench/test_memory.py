"""A hungry picture and some of photos, in the children that they get; others are made by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.memory import MIB, crowd


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "webp lossless, alpha", "--megapixels", "64"],
        ["--only", "jpeg", "--megapixels", "12"],
    ],
)
def test_what_is_accepted_is_made_within_the_memory_that_was_foretold(arguments: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.memory", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert run.returncode == 0, run.stdout + run.stderr


async def test_a_crowd_is_made_within_the_memory_of_its_container(tmp_path: Path) -> None:
    assert await crowd((3000, 2000), 640 * MIB, tmp_path)
