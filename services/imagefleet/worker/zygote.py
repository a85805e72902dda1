"""The process that every decoding child is a copy of.

It is started with an empty environment and one socket, loads what children need, and from then on
only forks, waits, and tells the worker. It runs no task itself and reads no picture, so whatever a
picture does to a child, the next one is as clean. It ends when the worker does, and its children
end with it.

The socket carries one JSON message a packet: requests in, with their files; tidings out.
"""

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from imagefleet.errors import FleetError, Misconfigured
from imagefleet.imaging.warm import warm
from imagefleet.worker import child
from imagefleet.worker.sandbox import die_with, hide_this_process, offer_this_process_first

OPEN_FILES: Final = 1024  # every child closes all numbers up to here


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


class Zygote:
    """Forks on request and reports every end. Blocking, without threads, without handlers."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._children: dict[int, tuple[int, int]] = {}  # pidfd: number of the request, pid
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)

    def serve(self) -> None:
        """Return when the worker has hung up and no child is left."""
        while self._turn():
            pass
        for pidfd in self._children:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pidfd, (_, pid) in self._children.items():
            os.waitpid(pid, 0)
            os.close(pidfd)

    def _turn(self) -> bool:
        for descriptor, _ in self._poll.poll():
            if descriptor in self._children:
                self._reap(descriptor)
            elif not self._receive():
                return False
        return True

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
        self._children[pidfd] = (request.number, pid)
        self._poll.register(pidfd, select.POLLIN)
        # With the process itself, not only its number: the worker can never kill somebody else.
        _tell(self._channel, tidings="started", number=request.number, pid=pid, files=(pidfd,))

    def _reap(self, pidfd: int) -> None:
        number, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        _tell(
            self._channel,
            tidings="ended",
            number=number,
            status=status,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            max_rss_bytes=usage.ru_maxrss * 1024,
        )


def _tell(channel: socket.socket, *, files: tuple[int, ...] = (), **tidings: object) -> None:
    socket.send_fds(channel, [json.dumps(tidings).encode()], files)
