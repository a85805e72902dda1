"""The process that every decoding child is a copy of.

It is started with an empty environment and one socket, loads what children need, and from then on
only forks, watches, waits, and tells the worker. It runs no task itself and reads no picture, so
whatever a picture does to a child, the next one is as clean. It ends when the worker does, and its
children end with it.

What a child may take is the kernel's to refuse, call by call (sandbox.py). What a child has, in
whichever way it came by it, is looked at from here.

The socket carries one JSON message a packet: requests in, with their files; tidings out.
"""

import gc
import importlib
import json
import os
import re
import resource
import select
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from imagefleet.errors import FleetError, Misconfigured
from imagefleet.imaging.warming import warm
from imagefleet.worker.isolation import child
from imagefleet.worker.isolation.sandbox import (
    STACK_BYTES,
    bound_the_stack,
    die_with,
    filter_around_an_id,
    forswear_programs,
    hide_this_process,
    landlock_version,
    nobodys_id,
    offer_this_process_first,
)

OPEN_FILES: Final = 1024  # every child closes all numbers up to here

# A child's data has a limit of its own. Its stack, the tables of its pages and the libraries' data
# that was written once and is read only now are beside that.
BESIDE_DATA: Final = STACK_BYTES + (8 << 20)
# A child is looked at again before it could have used up its room, at this many bytes a second.
FASTEST: Final = 8 << 30
LOOK_AGAIN_AFTER: Final = (0.005, 0.05)  # seconds, at least and at most

# Groups stand in it, before what is looked for: 65,536 of them at most, each of ten digits.
LONGEST_STATUS: Final = 1 << 20

# Of /proc/PID/status: pages of its own in memory and in swap, and the tables of its pages.
_OWN_MEMORY: Final = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap|VmPTE):\s*(\d+) kB$", re.MULTILINE)


def main() -> None:
    """Serve until the worker hangs up. Arguments: module path, socket, worker's pid, preloads."""
    _, _, descriptor, worker, preload = sys.argv
    die_with(int(worker))
    with socket.socket(fileno=int(descriptor)) as channel:
        try:
            _prepare(json.loads(preload))
        except Exception as error:  # noqa: BLE001 - the worker decides what to make of it
            detail = error.detail if isinstance(error, FleetError) else None
            _tell(channel, tidings="broken", detail=detail or f"{type(error).__name__}: {error}")
            return
        _tell(channel, tidings="ready")
        Zygote(channel).serve()


def _prepare(preload: list[str]) -> None:
    os.environ.clear()  # noqa: TID251 - not read; Python itself puts the locale there
    offer_this_process_first()
    hide_this_process()
    forswear_programs()
    bound_the_stack()
    nobodys_id()
    landlock_version()
    filter_around_an_id()
    _see_others()
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    for module in preload:
        importlib.import_module(module)
    warm()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        # A lock held by another thread at the moment of the fork stays held for ever in the child.
        detail = f"{threads} threads after loading the codecs: a fork would not be safe"
        raise Misconfigured(detail)
    gc.collect()
    gc.freeze()  # collections in a child would copy every page they touch


def _see_others() -> None:
    """The worker is as hidden as children are, and there already."""
    try:
        status = _status_of(os.getppid())
    except OSError as error:
        detail = f"cannot watch the memory of children: {error}; is /proc mounted with hidepid?"
        raise Misconfigured(detail) from error
    try:
        # Nothing found would be nothing taken: a child could have all it likes.
        if not _OWN_MEMORY.search(os.pread(status, LONGEST_STATUS, 0)):
            detail = "cannot watch the memory of children: /proc tells none"
            raise Misconfigured(detail)
    finally:
        os.close(status)


def _status_of(pid: int) -> int:
    return os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)


@dataclass(slots=True, kw_only=True)
class Forked:
    """A child that has not been reaped."""

    number: int
    """Of the request."""
    pid: int
    status: int
    """An open file."""
    most_bytes: int
    too_large: bool = False

    def room(self) -> int:
        """How many bytes of memory it may still take."""
        try:
            status = os.pread(self.status, LONGEST_STATUS, 0)
        except ProcessLookupError:
            status = b""  # dead, but not reaped
        return self.most_bytes - 1024 * sum(map(int, _OWN_MEMORY.findall(status)))


class Zygote:
    """Forks on request and reports every end. Blocking, without threads, without handlers."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._children: dict[int, Forked] = {}  # by pidfd
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def serve(self) -> None:
        """Return when the worker has hung up and no child is left."""
        while self._turn():
            pass
        for pidfd in self._children:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pidfd, forked in self._children.items():
            os.waitpid(forked.pid, 0)
            os.close(pidfd)
            os.close(forked.status)

    def _turn(self) -> bool:
        for descriptor, _ in self._poll.poll(self._look()):
            if descriptor in self._children:
                self._reap(descriptor)
            elif not self._receive():
                return False
        return True

    def _look(self) -> float | None:
        """Kill whoever has too much; the milliseconds until the next look, None without children.

        Refusals come first and are told by the child; who gets here has found a way around them.
        """
        soonest = None
        shortest, longest = LOOK_AGAIN_AFTER
        for pidfd, forked in self._children.items():
            if forked.too_large:
                continue
            room = forked.room()
            if room < 0:
                forked.too_large = True
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            else:
                after = min(longest, max(shortest, room / FASTEST))
                soonest = after if soonest is None else min(soonest, after)
        return None if soonest is None else soonest * 1000

    def _receive(self) -> bool:
        message, files, _, _ = socket.recv_fds(
            self._channel, child.LONGEST_MESSAGE, child.MOST_FILES
        )
        if not message:
            return False
        try:
            self._fork(child.Request(**json.loads(message)), files)
        finally:
            for file in files:
                os.close(file)
        return True

    def _fork(self, request: child.Request, files: list[int]) -> None:
        named = dict(zip(request.files, files, strict=True))
        try:
            pid = os.fork()
        except OSError as error:
            _tell(self._channel, tidings="refused", number=request.number, detail=str(error))
            return
        if pid == 0:
            child.run(request, named, self._pid)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = Forked(
            number=request.number,
            pid=pid,
            status=_status_of(pid),
            most_bytes=request.confinement["memory_bytes"] + BESIDE_DATA,
        )
        self._poll.register(pidfd, select.POLLIN)
        # With the process itself, not only its number: the worker can never kill somebody else.
        _tell(self._channel, tidings="started", number=request.number, pid=pid, files=(pidfd,))

    def _reap(self, pidfd: int) -> None:
        forked = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        os.close(forked.status)
        _, status, usage = os.wait4(forked.pid, 0)
        _tell(
            self._channel,
            tidings="ended",
            number=forked.number,
            status=status,
            too_large=forked.too_large,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            max_rss_bytes=usage.ru_maxrss * 1024,
        )


def _tell(channel: socket.socket, *, files: tuple[int, ...] = (), **tidings: object) -> None:
    socket.send_fds(channel, [json.dumps(tidings).encode()], files)
