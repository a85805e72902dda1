"""Where the API is and who asks it: what was named, or else what runs in this folder.

`imagefleet --state-dir` is asked first, then the environment, then the `imagefleet up` of this
folder. An address and a key belong together: neither is ever completed from another place, so that
no key and no image goes to whom it was not meant for.
"""

import json
import os
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from imagefleet.embedded.machine import StateFolder
from imagefleet.errors import Misconfigured
from imagefleet.settings import Client, load
from imagefleet.settings.variables import is_named

HERE: Final = Path(".imagefleet")

_PRIVATE: Final = 0o077  # what nobody else may


@dataclass(frozen=True, slots=True)
class Asked:
    """An API, and the key that it is asked with."""

    url: str
    key: str
    named_by: str

    def __str__(self) -> str:
        return f"asked was {self.url}, with the key of {self.named_by}"


_chosen: Final[ContextVar[Path | None]] = ContextVar("state_dir", default=None)


def choose(state_dir: Path | None) -> None:
    """Keep what all verbs are told."""
    _chosen.set(state_dir)


def asked_of() -> Asked:
    """What the verbs speak to."""
    chosen = _chosen.get()
    if chosen is not None:
        running = _running(chosen)
        if running is None:
            detail = f"no `imagefleet up` is ready in {chosen}: start it, with this --state-dir"
            raise Misconfigured(detail)
        return running
    if not is_named(Client):
        running = _running(HERE)
        if running is None:
            detail = (
                "nothing says where the API is: set IMAGEFLEET_URL and IMAGEFLEET_KEY, or start "
                f"`imagefleet up`, which is not ready in {HERE} of this folder (--state-dir names "
                "another)"
            )
            raise Misconfigured(detail)
        return running
    named = load(Client)
    return Asked(named.url, named.key.get_secret_value(), "IMAGEFLEET_KEY")


def _running(folder: Path) -> Asked | None:
    """What an `up` tells of itself; None where none is ready."""
    state = StateFolder(folder)
    path = state.ready_file
    try:
        told = _read(path)
        if told is not None and _is_left(state.path / "lock"):
            detail = f"the `imagefleet up` that was ready in {folder} is gone: start it again"
            raise Misconfigured(detail)
        return None if told is None else Asked(told["api_url"], told["operator_key"], str(path))
    except (OSError, KeyError, TypeError, ValueError) as error:
        detail = f"{path} cannot be used: {error}"
        raise Misconfigured(detail) from error


def _is_left(lock: Path) -> bool:
    """Whether who wrote its number there was killed, and could not tidy up."""
    with suppress(OSError, ValueError):
        os.kill(int(lock.read_text()), 0)
        return False
    return lock.exists()


def _read(path: Path) -> Any:  # noqa: ANN401 - JSON
    """It says where images go, so it has to be ours: nobody's checkout is private."""
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.geteuid() or facts.st_mode & _PRIVATE:
                msg = "it is not yours alone"
                raise ValueError(msg)
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
