"""AWS on this machine: SQS, S3 and CloudFront from MiniStack, a process of its own on 127.0.0.1.

It is a child of this process and ends with it: on `stop`, and when this process is killed outright,
because it sees its standard input close. When it ends in order it writes down what it holds: the
next start goes on with the same queues, messages and objects. After a kill, or with the folder
wiped, it comes back without messages or empty; the bootstrap makes what is missing, and every open
job is rung again from Postgres.

Its botocore cannot share an environment with ours: it has one of its own, made when it is first
needed and kept in a cache, of packages that are locked with their hashes (see infra/emulator).
"""

import fcntl
import hashlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, TypeAlias

from imagefleet.embedded.machine import LocalServer, end, end_of, ends_before, free_port, take
from imagefleet.errors import Misconfigured, Unavailable

KEY_ID: Final = "imagefleet"
SECRET: Final = "imagefleet-on-this-machine-only"  # noqa: S105 - guards a port of 127.0.0.1
REGION: Final = "eu-central-1"
SERVICES: Final = ("sqs", "s3", "cloudfront", "sts")

START_WITHIN: Final = 30.0  # seconds
STOP_WITHIN: Final = 15.0  # open long polls take three of them
TAKE_WITHIN: Final = 6.0  # an emulator whose parent was killed is still writing its state down
PORT_CHOICES: Final = 5  # a port that was free a moment ago may be taken by the time it is bound

REQUIREMENTS: Final = "emulator-requirements.txt"
COMPLETE: Final = ".complete"  # written last: without it the environment is made anew
INSTALL_WITHIN: Final = 600.0  # seconds; 20 MB over a slow line
# uv reads neither pip's certificates nor the system's by itself.
CERTIFICATES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")

Say: TypeAlias = Callable[[str], None]

# End of file on the standard input means that whoever started it is gone, however that happened.
PROGRAM: Final = """
import os, signal, sys, threading, time
def follow(within):
    os.read(0, 1)  # unbuffered: a lock on sys.stdin would be in the way of an orderly end
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(within)
    os._exit(1)
threading.Thread(target=follow, args=[float(sys.argv.pop())], daemon=True).start()
from ministack.app import main
main()
"""


class EmbeddedAws(LocalServer):
    """One emulator on one state folder; started again it listens where it did."""

    def __init__(
        self,
        state: Path,
        *,
        port: int | None = None,
        cache: Path | None = None,
        services: Sequence[str] = SERVICES,
        say: Say = print,
    ) -> None:
        super().__init__()
        self.folder = state.resolve() / "aws"
        self._services = services
        self.port = port or 0
        self._cache = cache
        self._say = say

    @property
    def url(self) -> str:
        """The endpoint of all three services."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """What a process needs to take this emulator for AWS, queues and buckets apart."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def _start(self) -> None:
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        self._lock = take(self.folder / "lock", within=TAKE_WITHIN)
        cache = self._cache or usable_cache(self.folder / "software")
        self._launch_on_a_port(emulator_python(cache, say=self._say))

    def stop(self) -> None:
        """Let it write its state down and end."""
        process, self._process = self._process, None
        if process is not None:
            end(process, signal.SIGTERM, signal.SIGKILL, patience=STOP_WITHIN)
            if process.stdin is not None:
                process.stdin.close()
        self._unlock()

    def _launch_on_a_port(self, python: Path) -> None:
        for port in self._ports():
            self.port = port
            self._process = self._launch(python)
            if self._is_ready(self._process):
                (self.folder / "port").write_text(str(self.port))
                return
        detail = f"the AWS emulator did not start{end_of(self.folder / 'log')}"
        raise Misconfigured(detail)

    def _ports(self) -> list[int]:
        if self.port:
            return [self.port]
        choices = [0] * PORT_CHOICES
        # The last one first: addresses that were handed out go on being right.
        with suppress(OSError):  # none is recorded, or somebody has it
            choices.insert(0, free_port(int((self.folder / "port").read_text())))
        return choices

    def _launch(self, python: Path) -> subprocess.Popen[bytes]:
        self.port = self.port or free_port()
        log = self.folder / "log"
        if log.exists():
            log.replace(log.with_name("log.previous"))
        with log.open("wb") as output:
            # With the lock in its hands too, nobody else gets the folder before it has ended.
            held = [] if self._lock is None else [self._lock]
            return subprocess.Popen(
                [python, "-c", PROGRAM, str(STOP_WITHIN)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._settings(),
                pass_fds=held,
                # Ctrl-C in the terminal is ours to handle: AWS goes after those who use it.
                start_new_session=True,
            )

    def _settings(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "TMPDIR": str(self.folder / "tmp"),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "MINISTACK_HOST": "127.0.0.1",  # in the addresses of queues
            "MINISTACK_REGION": REGION,
            "SERVICES": ",".join(self._services),
            "AUTH": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "PERSIST_STATE": "1",
            "STATE_DIR": str(self.folder / "state"),
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self.folder / "s3"),
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
            "LOG_LEVEL": "WARNING",
        }

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        try:
            return not ends_before(process, lambda: _answers(self.port), within=START_WITHIN)
        except TimeoutError:
            detail = f"no answer within {START_WITHIN:.0f} s{end_of(self.folder / 'log')}"
            sentence = "The AWS emulator is not available."
            raise Unavailable("emulator_unavailable", sentence, detail) from None


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/_ministack/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def emulator_python(cache: Path, *, say: Say = print) -> Path:
    """The interpreter that can import the emulator; makes the environment unless it is there."""
    requirements = (files(__package__) / REQUIREMENTS).read_bytes()
    # Another Python or other packages are another environment; the old one stays for its users.
    identity = requirements + f"{sys.version} {sysconfig.get_platform()}".encode()
    folder = cache / f"emulator-{hashlib.sha256(identity).hexdigest()[:16]}"
    python = folder / "bin" / "python"
    if (folder / COMPLETE).exists() and python.exists():
        return python
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "emulator.lock").open("a") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        if not ((folder / COMPLETE).exists() and python.exists()):  # another process just made it
            _make(folder, python, say)
            (folder / COMPLETE).touch()
    return python


def usable_cache(fallback: Path) -> Path:
    """Where software is kept for all state folders of this user, or below `fallback`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - `~` may stay
    for cache in (Path(home) / "imagefleet", fallback):
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(cache, os.W_OK | os.X_OK):
            return cache
    detail = f"neither {home} nor {fallback} can be written to: choose another state folder"
    raise Misconfigured(detail)


def _make(folder: Path, python: Path, say: Say) -> None:
    faults: list[str] = []
    for name, commands in _ways(folder, python):
        shutil.rmtree(folder, ignore_errors=True)
        say(f"emulator: making its environment in {folder.parent} (once)")
        fault = _run(commands)
        if fault is None:
            return
        faults.append(f"{name}: {fault}")
        say(f"emulator: {name} could not: {fault.splitlines()[-1]}")
    shutil.rmtree(folder, ignore_errors=True)
    detail = "\n".join(["the AWS emulator cannot be installed", *faults])
    raise Misconfigured(detail)


def _ways(folder: Path, python: Path) -> Iterator[tuple[str, Sequence[Sequence[str]]]]:
    """First uv, which takes a second; then pip, which knows this machine's mirrors and proxies."""
    with as_file(files(__package__) / REQUIREMENTS) as requirements:
        locked = ["--require-hashes", "-r", str(requirements)]
        uv = _find_uv()
        if uv is not None:
            yield (
                f"uv ({uv})",
                [
                    [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
                    [uv, "pip", "install", "--quiet", "--python", str(python), *locked],
                ],
            )
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        yield "venv and pip", [[sys.executable, "-m", "venv", str(folder)], [*pip, *locked]]


def _find_uv() -> str | None:
    # In a checkout, the one that `make setup` pinned.
    ours = Path(__file__).parents[3] / ".tools" / "bin" / "uv"
    return str(ours) if os.access(ours, os.X_OK) else shutil.which("uv")


def _run(commands: Sequence[Sequence[str]]) -> str | None:
    """What went wrong, if anything did."""
    for command in commands:
        try:
            done = subprocess.run(
                command,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=INSTALL_WITHIN,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            return done.stdout.strip() or f"ended with {done.returncode}"
    return None


def _environment() -> dict[str, str]:
    # An activated environment and this process's own Python settings are not meant for that one.
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PIP_TARGET", "PIP_USER"}
        and not name.startswith("PYTHON")
    }
    kept["UV_PYTHON_DOWNLOADS"] = "never"
    for certificates in CERTIFICATES:
        if "SSL_CERT_FILE" not in kept and Path(certificates).is_file():
            kept["SSL_CERT_FILE"] = certificates
    return kept
