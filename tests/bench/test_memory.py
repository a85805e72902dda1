"""A hungry picture and some of photos, in the children that they get; others are made by hand.

Each in a process of its own: what this one has from other tests would be counted, too.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.contained import MIB, NoGroupError, crowd_of
from tests.bench.ground import Ground
from tests.bench.peers import Peers
from tests.support.database import Server
from tests.support.emulators import Emulator
from tests.support.fixtures import emulator
from tests.support.images import quadrants, saved, translucent

__all__ = ["emulator"]

pytestmark = pytest.mark.timeout(120)  # on a machine that is busy, too


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "webp lossless, alpha", "--megapixels", "64"],
        ["--only", "jpeg", "--megapixels", "12"],
        ["--only", "drawn as avif", "--megapixels", "12"],
    ],
)
def test_what_is_accepted_is_made_within_the_memory_that_was_foretold(arguments: list[str]) -> None:
    run = measured(*arguments)

    assert run.returncode == 0, run.stdout + run.stderr


def test_a_crowd_is_made_within_the_memory_of_its_container() -> None:
    run = measured("--crowd", "renderer", "--megapixels", "12", "--container", "640")

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.timeout(180)
async def test_a_crowd_is_made_by_a_whole_worker_that_never_meets_its_containers_limit(
    postgres: Server, template: str, emulator: Emulator, tmp_path: Path
) -> None:
    """As many PNG as it has places for children would take more than it has."""
    paths = [tmp_path / "jpeg", tmp_path / "png", tmp_path / "another"]
    paths[0].write_bytes(saved(quadrants(4000, 3000)))
    for path in paths[1:]:
        path.write_bytes(saved(translucent(4000, 3000), "PNG", compress_level=1))
    peers = Peers(tmp_path)
    ground = Ground(
        server=postgres, template=template, emulator=emulator, folder=tmp_path, peers=peers
    )
    try:
        crowd = await crowd_of(ground, paths, 3, 448 * MIB)
    except NoGroupError as error:
        pytest.skip(str(error))

    assert crowd.budget_bytes == 192 * MIB, "as the worker found by itself"
    assert crowd.states == {"completed": 9}
    assert (crowd.attempts, crowd.met) == (9, 0), str(crowd)
    assert 64 * MIB < crowd.peak_bytes <= crowd.limit_bytes
    assert crowd.well


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.bench.memory", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
