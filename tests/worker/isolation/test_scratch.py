"""Scratch folders: one a worker, none that outlives its worker for long."""

import subprocess
import sys
from pathlib import Path

import pytest

from imagefleet.errors import Misconfigured
from imagefleet.worker.isolation.client import scratch_folder

HOLD = """
import sys
from pathlib import Path
from imagefleet.worker.isolation.client import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "original").write_bytes(b"somebody's picture")
    print(folder, flush=True)
    sys.stdin.read()
"""


def worker(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def test_the_folder_is_for_its_user_alone_and_goes_with_its_worker(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "original").write_bytes(b"x")

        assert 0o700 == folder.stat().st_mode & 0o777
        assert 0o700 == folder.parent.stat().st_mode & 0o777

    assert not folder.exists()


def test_what_a_killed_worker_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    process, abandoned = worker(tmp_path)
    end(process)
    assert (abandoned / "original").exists()

    with scratch_folder(tmp_path):
        assert not abandoned.exists()


def test_the_folder_of_a_living_worker_is_left_alone(tmp_path: Path) -> None:
    process, alive = worker(tmp_path)
    try:
        with scratch_folder(tmp_path) as mine:
            assert alive != mine
            assert (alive / "original").exists()
    finally:
        end(process)


def test_a_place_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        place = folder.parent
    place.chmod(0o755)

    with (
        pytest.raises(Misconfigured, match="not a folder of this user alone"),
        scratch_folder(tmp_path),
    ):
        pass
