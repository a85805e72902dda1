"""The folder that one embedded stack lives in: its lock, its passwords and its keys.

Whatever is secret is in a file of its own that only the owner reads. Nothing here is needed to find
what is in Postgres: a lost password is made anew and set, a lost key is replaced by another.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from imagefleet.errors import Misconfigured

DEFAULT_FOLDER: Final = Path(".imagefleet")
PASSWORD_BYTES: Final = 24


class StateFolder:
    """Where everything of one stack is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only one on this folder, until the end of the context or of this process."""
        self._make()
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Misconfigured(self._in_use(lock)) from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(lock)

    def role_passwords(self, roles: Sequence[str]) -> dict[str, str]:
        """The password of each role; those that are new are made and kept."""
        kept = self._read("passwords.json")
        known: Mapping[str, str] = {} if kept is None else json.loads(kept)
        passwords = {
            role: known.get(role) or secrets.token_urlsafe(PASSWORD_BYTES) for role in roles
        }
        if passwords != known:
            write_private(self.path / "passwords.json", json.dumps(passwords, indent=2))
        return passwords

    def key_file(self, name: str) -> Path:
        """Where the secret of this API key is."""
        return self.path / name

    def kept_key(self, name: str) -> str | None:
        """The secret of this API key, if one was kept."""
        return self._read(name)

    def keep_key(self, name: str, secret: str) -> None:
        """Keep it for the next start."""
        write_private(self.key_file(name), secret)

    def _make(self) -> None:
        if not self.path.exists():
            self.path.mkdir(parents=True)
            self.path.chmod(0o711)  # Postgres may run under another account, which passes through
        # Nobody commits passwords because the folder happens to lie in a checkout.
        ignored = self.path / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")

    def _read(self, name: str) -> str | None:
        path = self.path / name
        return path.read_text().strip() if path.exists() else None

    def _in_use(self, lock: int) -> str:
        holder = os.pread(lock, 32, 0).decode(errors="replace") or "just starting"
        return (
            f"{self.path} is in use by another `imagefleet up` (process {holder}): "
            "stop that one, or choose another folder with --state-dir"
        )


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; nobody but its owner ever reads it, not even half of it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    unfinished.replace(path)
