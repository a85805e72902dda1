"""What one embedded stack takes of this machine: a locked folder, some ports, a little environment.

Whatever is secret is in a file of its own that only the owner reads. Nothing here is needed to find
what is in Postgres: a lost password is made anew and set, a lost key is replaced by another. What
somebody else has already is said no to before anything starts. Of the environment processes are
given what stands here.
"""

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from imagefleet.errors import Misconfigured

HOST: Final = "127.0.0.1"
PASSWORD_BYTES: Final = 24
NOT_GIVEN: Final = range(
    20_000, 32_000
)  # ports: Linux gives those from 32768 to whoever asks for any
MOST_TAKEN: Final = 100  # of those, before any other will do

# No terminal's, user's or cloud account's settings reach a process: what works here then works
# because of what is written here, and in the recipes that were asked for.
PASSED_ON: Final = ("LANG", "LC_ALL", "RECIPES_FILE", "TMPDIR", "TZ")

# The AWS SDK would look for a user's profiles and for a cloud machine's credentials.
NO_CLOUD: Final = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


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

    @property
    def ready_file(self) -> Path:
        """What whoever uses the stack is told, as long as it is ready."""
        return self.path / "ready.json"

    def _make(self) -> None:
        make_passable(self.path)
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


def make_passable(folder: Path) -> None:
    """Make a folder that is missing; Postgres may run under another account, and passes through."""
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o711)


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; nobody but its owner ever reads it, not even half of it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    unfinished.replace(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where to listen; 0 is any free port."""

    api: int = 8080
    console: int = 8081
    edge: int = 8082
    postgres: int = 0
    aws: int = 0


class LocalServer(ABC):
    """A server in a process of its own, on a locked folder. It blocks: start it in a thread."""

    def __init__(self) -> None:
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The server's; None when it is not running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Return once it answers; whatever fails leaves nothing running."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    @abstractmethod
    def _start(self) -> None:
        """Lock the folder, and return once it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Let it end in order."""

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def ends_before(
    process: subprocess.Popen[bytes], is_ready: Callable[[], bool], *, within: float
) -> bool:
    """Wait until it is ready; True: it ended before that. TimeoutError when neither happens."""
    deadline = time.monotonic() + within
    while not is_ready():
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise TimeoutError from None
        else:
            return True
    return process.poll() is not None


def end(process: subprocess.Popen[bytes], *signals: signal.Signals, patience: float) -> None:
    """Send one signal after the other until it has ended."""
    for sent in signals:
        process.send_signal(sent)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        return


def end_of(log: Path) -> str:
    """The last lines that a server wrote, to be put behind a sentence."""
    lines = log.read_text(errors="replace").splitlines()[-10:] if log.exists() else []
    return "\n".join([f"; {log} ends with:", *lines])


def take(lock_file: Path, *, within: float = 0.0) -> int:
    """The descriptor of a lock that is ours until it is closed, or until this process ends."""
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + within
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(lock)
                what = "stop the other process or choose another state folder"
                detail = f"{lock_file.parent} is in use: {what}"
                raise Misconfigured(detail) from None
            time.sleep(0.05)
        else:
            return lock


def free_port(wanted: int = 0) -> int:
    """This port, or any for 0, if nobody has it at this moment; else OSError.

    Any is one that the kernel gives to nobody by itself: until somebody listens there, it would be
    given to the next who connects, and whoever asks whether that one is ready would ask a stranger.
    And it is given to no other process that asks here, though nobody listens there yet.
    """
    if not wanted:
        for _ in range(MOST_TAKEN):
            port = secrets.choice(NOT_GIVEN)
            with suppress(OSError):
                _keep(port)
                return free_port(port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, wanted))
        port = int(probe.getsockname()[1])
    if port not in _KEPT:
        with suppress(OSError):  # who names a port may have been given it by another process
            _keep(port)
    return port


_KEPT: Final[dict[int, int]] = {}
"""By port, a descriptor that is open as long as this process lives."""


def _keep(port: int) -> None:
    """Tell all that ask for any port on this machine that this one has an owner, or OSError."""
    with socket.socket(socket.AF_UNIX) as word:
        word.bind(f"\0imagefleet-port-{port}")  # a name that is in no folder, and ends with us
        _KEPT[port] = word.detach()


def chosen(port: int, *, what: str, option: str) -> int:
    """This port if it is free, or a free one for 0; the refusal says how to choose another."""
    try:
        return free_port(port)
    except OSError as error:
        detail = (
            f"port {port}, where {what} would listen, is taken ({error.strerror}): "
            f"choose another with {option} PORT, or any free one with {option} 0"
        )
        raise Misconfigured(detail) from error


def forget_cloud_account() -> None:
    """Let the SDK in this process see nothing of the user's own AWS account."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(NO_CLOUD)


def base_environment() -> dict[str, str]:
    """What every process has."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {
        "PATH": os.defpath,
        "PYTHONUNBUFFERED": "1",  # the last words of a process that dies are the ones that matter
        "LOG_FORMAT": "console",
        **NO_CLOUD,
        **passed_on,
    }
