"""The AWS emulator's own Python environment, made when it is first needed and kept in a cache.

Its botocore cannot share an environment with ours. The packages are locked with their hashes in
`emulator-requirements.txt` (see infra/emulator), so a mirror or a cache may serve them.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from imagefleet.errors import Misconfigured

REQUIREMENTS = "emulator-requirements.txt"
COMPLETE = ".complete"  # written last: without it the environment is made anew
INSTALL_WITHIN = 600.0  # seconds; 20 MB over a slow line
# uv reads neither pip's certificates nor the system's by itself.
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")

Say = Callable[[str], None]


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
    with _alone(cache / "emulator.lock"):
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
        say(f"emulator: making its environment with {name} in {folder} (once)")
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


def _environment() -> Mapping[str, str]:
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


@contextmanager
def _alone(lock_file: Path) -> Iterator[None]:
    with lock_file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
