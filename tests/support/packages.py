"""Packages of Debian that nobody installed: what apt would install, unpacked beside the system."""

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.wheels import alone

FETCHED_WITHIN: Final = 600.0  # seconds


def unpacked(package: str, cache: Path, wanted: Path, *, needs_others: bool = True) -> Path | None:
    """Where the file that is wanted of a package lies; None where the package cannot be had.

    Unless it `needs_others` nothing that it depends on is fetched.
    """
    with alone(cache):
        if not (cache / wanted).exists():
            with suppress(OSError, subprocess.SubprocessError):
                _unpack(_planned(package) if needs_others else [package], cache)
    return cache / wanted if (cache / wanted).exists() else None


def _planned(package: str) -> list[str]:
    plan = subprocess.run(
        ["apt-get", "install", "--simulate", "-qq", "--no-install-recommends", package],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [line.split()[1] for line in plan.stdout.splitlines() if line.startswith("Inst ")]


def _unpack(wanted: Sequence[str], folder: Path) -> None:
    coming = folder.with_suffix(".coming")
    archives = coming / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["apt-get", "download", "-qq", *wanted],
        cwd=archives, check=True, timeout=FETCHED_WITHIN, capture_output=True,
    )  # fmt: skip
    for archive in sorted(archives.glob("*.deb")):
        subprocess.run(
            ["dpkg-deb", "--extract", str(archive), str(coming)], check=True, timeout=120
        )
    shutil.rmtree(archives)
    shutil.rmtree(folder, ignore_errors=True)
    coming.rename(folder)
