"""The worker's view of one child, from before it is forked until it is dead.

Everything here is a callback of the event loop on a descriptor that became readable: the child's
pipe, a process that ended. Nothing waits for a child but whoever asked for it, and the kill that
ends it in time goes straight to it, past a zygote that may be stuck.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

REAP_WITHIN: Final = 10.0  # seconds after a kill; a zygote that has not told by then is stuck
CHUNK: Final = 65_536  # what a pipe holds


class Killed(StrEnum):
    """Why the worker, or the zygote for it, killed a child."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    MEMORY = "memory"
    TALKATIVE = "talkative"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a child cost."""

    cpu_seconds: float
    max_rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a child ended. It is dead: nothing it held changes any more."""

    started: bool
    status: int | None
    """As waitpid gives it; None where nobody could tell."""
    usage: Usage | None
    killed: Killed | None
    report: bytes


class Child:
    """One child, from before it is forked until it is dead."""

    def __init__(self, pipe: int, longest_report: int, give_up: Callable[[], None]) -> None:
        self.pid: int | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ending] = self._loop.create_future()
        self._pidfd: int | None = None
        self._killed: Killed | None = None
        self._give_up = give_up
        self._overdue: asyncio.TimerHandle | None = None
        self._pipe: int | None = pipe
        self._longest_report = longest_report
        self._report = bytearray()
        self._loop.add_reader(pipe, self._read)

    def kill(self, why: Killed) -> None:
        """End it now, or as soon as it exists; the first reason is the one that counts."""
        if self._killed is not None or self.ended.done():
            return
        self._killed = why
        self._overdue = self._loop.call_later(REAP_WITHIN, self._give_up)
        self._send_kill()

    def started(self, pid: int, pidfd: int) -> None:
        """It exists."""
        self.pid, self._pidfd = pid, pidfd
        if self._killed is not None:
            self._send_kill()

    def orphaned(self) -> None:
        """The zygote is gone: the kernel kills its children, and their new parent has them."""
        if self._pidfd is None:
            self.finish(None, None)
        else:
            self._send_kill()
            self._loop.add_reader(self._pidfd, self._dead_without_parent)

    def finish(self, status: int | None, usage: Usage | None, killed: Killed | None = None) -> None:
        """It is dead; whatever it said is in the pipe by now. `killed` is for others' kills."""
        while self._pipe is not None and self._read():
            pass
        self._stop_reading()
        if self._overdue is not None:
            self._overdue.cancel()
        started = self._pidfd is not None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if not self.ended.done():
            self.ended.set_result(
                Ending(
                    started=started,
                    status=status,
                    usage=usage,
                    killed=self._killed or killed,
                    report=bytes(self._report),
                )
            )

    def _send_kill(self) -> None:
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _dead_without_parent(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            with suppress(
                ChildProcessError
            ):  # ours only where this process is the container's init
                os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        self.finish(None, None)

    def _read(self) -> bool:
        """Take one chunk; False when there is nothing more to take now."""
        if self._pipe is None:
            return False
        try:
            chunk = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return False
        self._report += chunk
        if len(self._report) > self._longest_report:
            self.kill(Killed.TALKATIVE)
            chunk = b""
        if not chunk:
            self._stop_reading()
        return bool(chunk)

    def _stop_reading(self) -> None:
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None
