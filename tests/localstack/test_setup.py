"""`infra/localstack/setup`: LocalStack needs one Python, and says so where there is none."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "infra" / "localstack"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "infra" / "localstack")
    return tmp_path


def setup(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Where no Python is but those that a test made."""
    return subprocess.run(
        ["/bin/sh", checkout / "infra" / "localstack" / "setup"],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env={"PATH": f"{checkout}:/usr/bin:/bin", "HOME": str(checkout), **variables},
    )


def a_python(place: Path, version: str, *, fits: bool) -> Path:
    """Something that calls itself a Python."""
    place.write_text(
        f'#!/bin/sh\ncase $1 in --version) echo "Python {version}" ;; *) exit {1 - fits} ;; esac\n'
    )
    place.chmod(0o755)
    return place


def test_without_its_python_it_says_which_is_needed_and_how_to_name_it(checkout: Path) -> None:
    a_python(checkout / "python3", "3.11.7", fits=False)

    done = setup(checkout)

    assert 1 == done.returncode
    assert "needs Python 3.13, not older and not newer; python3.13 is not there" in done.stderr
    assert "PYTHON313=" in done.stderr
    assert not (checkout / ".tools").exists()


def test_a_named_python_that_does_not_fit_is_refused_though_another_would(checkout: Path) -> None:
    a_python(checkout / "python3.13", "3.13.0", fits=True)
    named = a_python(checkout / "mine", "3.12.1", fits=False)

    done = setup(checkout, PYTHON313=str(named))

    assert 1 == done.returncode
    assert f"{named} is Python 3.12.1" in done.stderr


def test_what_is_there_already_is_left_alone(checkout: Path) -> None:
    place = checkout / ".tools" / "localstack"
    (place / "bin").mkdir(parents=True)
    a_python(place / "bin" / "python", "3.13.0", fits=True)
    shutil.copy(checkout / "infra" / "localstack" / "requirements.txt", place / "made-of")

    done = setup(checkout)

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_every_package_is_locked_with_its_hash() -> None:
    locked = (FOLDER / "requirements.txt").read_text().split("\n")
    packages = [number for number, line in enumerate(locked) if "==" in line]

    assert "localstack-core[runtime]==4.14.0" in (FOLDER / "requirements.in").read_text()
    assert any(locked[number].startswith("localstack-core==4.14.0 ") for number in packages)
    assert all("--hash=sha256:" in locked[number + 1] for number in packages)
