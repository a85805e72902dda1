"""The data of an embedded server: made once, checked at every start, freed of what a crash left."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from imagefleet.embedded.placement import Account, Placement
from imagefleet.errors import Misconfigured, Unavailable

SUPERUSER = "postgres"
INITDB_WITHIN = 120.0
ORPHAN_GONE_WITHIN = 20.0  # seconds for each signal: a fast shutdown writes one checkpoint

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
    write_secret(path, password)
    return password


def write_secret(path: Path, secret: str, *, owner: Account | None = None) -> None:
    """Never readable by others, not even between two calls."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret)
    if owner is not None:
        owner.give(path)


def make_cluster(placement: Placement, password: str, *, durable: bool) -> None:
    # Renamed when complete: a run that is killed half way must not leave half a cluster.
    unfinished = placement.home / "data-unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    placement.account.give(unfinished)
    password_file = placement.home / "initdb-password"
    password_file.unlink(missing_ok=True)
    write_secret(password_file, password, owner=placement.account)
    try:
        _initdb(placement, unfinished, password_file, durable=durable)
    finally:
        password_file.unlink()
    unfinished.rename(placement.data)


def _initdb(placement: Placement, data: Path, password_file: Path, *, durable: bool) -> None:
    account = placement.account
    arguments = [
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        # The wheel has no ICU, and the machine's libc may have no UTF-8 locale.
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--no-instructions",
        *([] if durable else ["--no-sync"]),
    ]
    done = subprocess.run(
        [placement.software / "bin" / "initdb", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=INITDB_WITHIN,
        check=False,
        cwd="/",
        env=ENVIRONMENT,
        user=account.switch_uid,
        group=account.switch_gid,
        extra_groups=account.switch_groups,
    )
    if done.returncode != 0:
        detail = f"initdb failed: {done.stdout.decode(errors='replace')[-2000:]}"
        raise Misconfigured(detail)


def refuse_another_major_version(placement: Placement) -> None:
    made_by = (placement.data / "PG_VERSION").read_text().strip()
    answer = subprocess.run(
        [placement.software / "bin" / "postgres", "--version"],
        stdout=subprocess.PIPE,
        timeout=INITDB_WITHIN,
        check=True,
        cwd="/",
        env=ENVIRONMENT,
        user=placement.account.switch_uid,
        group=placement.account.switch_gid,
        extra_groups=placement.account.switch_groups,
    ).stdout.decode()
    found = re.search(r"(\d+)\.", answer)
    if found is None or found[1] != made_by:
        detail = (
            f"{placement.data} was made by Postgres {made_by}, installed is {answer.strip()!r}: "
            "install the version that fits, or choose another state folder"
        )
        raise Misconfigured(detail)


def stop_orphan(data: Path) -> None:
    """Stop what still runs on this data; who started it is gone, as the caller holds the lock."""
    pid_file = data / "postmaster.pid"
    if not pid_file.exists():
        return
    recorded = int(pid_file.read_text().split("\n", 1)[0])
    for sent in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        alive = _processes_in(data)
        # Without their postmaster, backends leave by themselves.
        for pid in {recorded} & alive:
            os.kill(pid, sent)
        if _gone(data, within=ORPHAN_GONE_WITHIN):
            # What is left is a number. An unrelated process of the same user may have it by now,
            # which Postgres would take for a running server and refuse to start.
            pid_file.unlink(missing_ok=True)
            return
    detail = f"processes {sorted(_processes_in(data))} still run on {data}"
    raise Unavailable("database_unavailable", "The database is not available.", detail)


def _gone(data: Path, *, within: float) -> bool:
    deadline = time.monotonic() + within
    while _processes_in(data):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _processes_in(data: Path) -> set[int]:
    """All processes of a server live in its data folder. Without a /proc nobody is seen."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.readlink() == data:
                found.add(int(entry.parent.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return found
