"""The measurement itself must not rot: one picture of it runs with the other tests."""

import subprocess
import sys


def test_the_measurement_of_images_runs_and_prints_its_ratio() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.images", "--pictures", "1", "--rounds", "1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )

    assert "median ratio" in run.stdout
