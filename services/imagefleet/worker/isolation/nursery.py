"""The worker's view of the zygote and its children: start them, hear how they ended, end them.

Whatever is heard is heard by a callback of the event loop on a descriptor that became readable: the
zygote's socket, a child's pipe, a process that ended. Nothing waits for a child but whoever asked
for it, and the kill that ends it in time goes straight to it, past a zygote that may be stuck.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation.child import LONGEST_MESSAGE, MOST_FILES, RESULT_FILE, Request
from imagefleet.worker.isolation.report import Allowance, Ending, Killed, Usage

START_WITHIN: Final = 60.0  # seconds; a cold disk and two busy cores, normally half a second
STOP_WITHIN: Final = 5.0
REAP_WITHIN: Final = 10.0  # seconds after a kill; a zygote that has not told by then is stuck
CHUNK: Final = 65_536  # what a pipe holds

# Not -m: only a worker that was started with a module path of its own knows where the modules are.
BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from imagefleet.worker.isolation.zygote import main; main()"
)


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


class Nursery:
    """One zygote and the children it has now."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            try:
                self._process = _start_zygote(there, preload)
            except BaseException:
                self._socket.close()
                raise
        self._socket.setblocking(False)  # noqa: FBT003 - the name says it
        self._pidfd = os.pidfd_open(self._process.pid)
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._sending = asyncio.Lock()
        self._hung_up = False
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._socket, self._hear)
        self._loop.add_reader(self._pidfd, self._end)

    @property
    def alive(self) -> bool:
        """Tell whether it can be asked for children."""
        return self._ready.done() and not self._hung_up and not self._gone.done()

    @property
    def pid(self) -> int:
        """The zygote's."""
        return self._process.pid

    async def ready(self) -> None:
        """Return when every codec is loaded; Misconfigured when that does not work."""
        try:
            async with asyncio.timeout(START_WITHIN):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            detail = f"the decoding process was not ready within {START_WITHIN:.0f} s"
            raise Misconfigured(detail) from error

    async def start_child(
        self, task: str, argument: JsonObject, files: Mapping[str, int], allowance: Allowance
    ) -> Child:
        """Ask for a child that runs the task. ConnectionError when there is no zygote any more."""
        number = next(self._numbers)
        request = Request(
            number=number,
            task=task,
            argument=argument,
            files=(RESULT_FILE, *files),
            confinement=asdict(allowance.confinement()),
        )
        message = json.dumps({each: getattr(request, each) for each in request.__slots__}).encode()
        if len(message) > LONGEST_MESSAGE or len(request.files) > MOST_FILES:
            detail = f"a request of {len(message)} bytes with {len(files)} files"
            raise ValueError(detail)
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        child = self._children[number] = Child(ours, allowance.report_bytes, self.kill)
        try:
            await self._send(message, [theirs, *files.values()])
        except BaseException:
            self._children.pop(number, child).finish(None, None)
            raise
        finally:
            os.close(theirs)
        return child

    def kill(self) -> None:
        """End the zygote, and with it its children."""
        if not self._gone.done():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def close(self) -> None:
        """Hang up: the zygote kills and reaps its children and ends."""
        if self.alive:  # otherwise they die of something else
            for child in self._children.values():
                child.kill(Killed.CANCELLED)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(STOP_WITHIN):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self.kill()
            await asyncio.shield(self._gone)

    async def _send(self, message: bytes, files: list[int]) -> None:
        async with self._sending:
            while not self._gone.done():
                try:
                    socket.send_fds(self._socket, [message], files)
                except BlockingIOError:
                    await self._writable()
                except ConnectionError:
                    self._hang_up()
                    raise
                else:
                    return
        raise ConnectionResetError

    async def _writable(self) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._socket, _settle, writable)
        try:
            await asyncio.wait([writable, self._gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not self._gone.done():
                self._loop.remove_writer(self._socket)

    def _hear(self) -> bool:
        """Take one message; False when there is none, or never will be again."""
        try:
            message, files, _, _ = socket.recv_fds(
                self._socket, LONGEST_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            message, files = b"", []
        if not message:
            self._hang_up()
            return False
        self._learn(json.loads(message), files)
        return True

    def _hang_up(self) -> None:
        """It is dying or out of its mind; once it is dead there may be another one."""
        self._hung_up = True
        self._loop.remove_reader(self._socket)
        self.kill()

    def _learn(self, tidings: object, files: list[int]) -> None:
        match tidings:
            case {"tidings": "ready"}:
                self._ready.set_result(None)
            case {"tidings": "broken", "detail": str(detail)}:
                self._break(detail)
            case {"tidings": "refused", "number": int(number)}:
                self._children.pop(number).finish(None, None)
            case {"tidings": "started", "number": int(number), "pid": int(pid)} if files:
                self._children[number].started(pid, files[0])
            case {"tidings": "started"}:
                self.kill()  # no descriptor was free for it: a child that could not be killed
            case {
                "tidings": "ended",
                "number": int(number),
                "status": int(status),
                "too_large": bool(too_large),
                "cpu_seconds": float(cpu_seconds),
                "max_rss_bytes": int(max_rss_bytes),
            }:
                usage = Usage(cpu_seconds=cpu_seconds, max_rss_bytes=max_rss_bytes)
                killed = Killed.MEMORY if too_large else None
                self._children.pop(number).finish(status, usage, killed)
            case _:
                msg = f"a zygote that says {tidings!r}"
                raise ValueError(msg)

    def _break(self, detail: str) -> None:
        self._ready.set_exception(Misconfigured(detail))
        self._ready.exception()  # whoever waited for it may be gone: then nobody is to be told

    def _end(self) -> None:
        """The zygote is dead. What it said before counts; what it did not say is unknown."""
        while self._hear():
            pass
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._pidfd)
        self._process.wait()  # it is a zombie already
        os.close(self._pidfd)
        self._gone.set_result(None)
        self._socket.close()
        if not self._ready.done():
            self._break(f"the decoding process ended at its start: {self._process.returncode}")
        children, self._children = self._children, {}
        for child in children.values():
            child.orphaned()


def _settle(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _start_zygote(there: socket.socket, preload: Sequence[str]) -> subprocess.Popen[bytes]:
    """A Python that inherits nothing but one socket and the place of the modules."""
    modules = [folder for folder in sys.path if os.path.isabs(folder)]  # noqa: PTH117 - text
    arguments = [
        json.dumps(modules),
        str(there.fileno()),
        str(os.getpid()),
        json.dumps(list(preload)),
    ]
    return subprocess.Popen(  # noqa: S603 - this interpreter, and arguments of our own
        [sys.executable, "-I", "-B", "-c", BOOT, *arguments],
        env={},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[there.fileno()],
        start_new_session=True,  # a Ctrl-C in the terminal is for the worker, which drains
    )
