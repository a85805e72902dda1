"""A folder of this worker's own for originals and variants on their way; nothing outlives it.

A worker that is killed leaves its folder behind, with somebody's pictures in it. So folders lie
side by side in one place of this user, each is locked for as long as its worker lives, and whoever
starts removes those that nobody holds any more.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import structlog

from imagefleet.errors import Misconfigured

OWN_ALONE: Final = 0o700
LOCK: Final = "lock"

log = structlog.get_logger()


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make the folder, and remove it and every abandoned one."""
    place = _place(parent or Path(tempfile.gettempdir()))
    with ExitStack() as stack:
        with _locked(place / LOCK):
            _remove_abandoned(place)
            folder = Path(tempfile.mkdtemp(prefix="worker-", dir=place))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(_locked(folder / LOCK))
        yield folder


def _place(parent: Path) -> Path:
    place = parent / f"imagefleet-{os.getuid()}"
    place.mkdir(mode=OWN_ALONE, exist_ok=True)
    found = place.lstat()
    # Anybody may write to /tmp: a folder that was waiting for us is no place for pictures.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        msg = f"{place} is not a folder of this user alone: remove it, or set TMPDIR"
        raise Misconfigured(msg)
    return place


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob("worker-*"):
        try:
            with (folder / LOCK).open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # its worker lives
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)  # killed before it could lock
        log.info("scratch.swept", folder=folder.name)
