"""Hears from the processes of a stack how far they have come, and kills them there if told to.

The other end of `plugin/sitecustomize.py`.
"""

import json
import os
import signal
import socketserver
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.support.journal import Journal, Kill

ALWAYS: Final = ("received", "dismissed", "claimed", "not yet deleted")
"""Points that say which jobs a process holds; tests add those at which they kill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A process stands at one of the points of tests/faults/plugin."""

    point: str
    process: str
    pid: int
    jobs: Sequence[str]


Decide = Callable[[Reached], Literal["go", "kill"]]


class Director:
    """Hears of every point that a process reaches, and lets it go on or kills it there."""

    def __init__(self, path: Path, points: Sequence[str], journal: Journal) -> None:
        self.path = path
        self.points = tuple(points)
        self.decide: Decide = lambda _: "go"
        self.counts: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        """How often each job's message was received."""
        self.holding: dict[int, set[str]] = {}
        """By process: what it has said that it has claimed."""
        self.perhaps: dict[int, set[str]] = {}
        """By process: what it has received, and may have claimed without having said so yet."""
        self.killed: Counter[str] = Counter()
        """How often each job may have lost its worker."""
        self.closed: dict[str, threading.Event] = {}
        """Points at which everybody waits until the event is set."""
        self.witnesses: dict[str, Callable[[Reached], None]] = {}
        """Points at which somebody looks at a process before it goes on, and nobody kills it."""
        self.spared: set[int] = set()
        """Processes that were asked to end, and are not killed while they do."""
        self._dead: set[int] = set()
        self._journal = journal
        self._lock = threading.Lock()

    def hear(self, reached: Reached) -> bool:
        """Whether it may go on; if not, it is dead."""
        if reached.point in self.closed:
            self.closed[reached.point].wait()
        if reached.point in self.witnesses:
            self.witnesses[reached.point](reached)
            return True
        with self._lock:
            if reached.pid in self._dead:  # its last words, said in parallel
                return True
            self.counts[reached.point] += 1
            held = self.holding.setdefault(reached.pid, set())
            perhaps = self.perhaps.setdefault(reached.pid, set())
            if reached.point == "received":
                self.received.update(reached.jobs)
                perhaps.update(reached.jobs)
            elif reached.point == "dismissed":
                perhaps.difference_update(reached.jobs)
            elif reached.point == "claimed":
                held.update(reached.jobs)
                perhaps.difference_update(reached.jobs)
            if self.decide(reached) == "kill" and self._kill(
                reached.point, reached.process, reached.pid
            ):
                return False
            if reached.point == "not yet deleted":
                held.difference_update(reached.jobs)
                perhaps.difference_update(reached.jobs)
            return True

    def at_stake(self, pid: int) -> set[str]:
        """Every job that may lose its worker if this process is killed now."""
        return self.holding.get(pid, set()) | self.perhaps.get(pid, set())

    @contextmanager
    def closing(self, point: str) -> Iterator[None]:
        """Let nobody beyond this point meanwhile."""
        self.closed[point] = threading.Event()
        try:
            yield
        finally:
            self.closed.pop(point).set()

    def kill_anywhere(self, pid: int, process: str) -> bool:
        """Kill it wherever it is; False when it has ended already."""
        with self._lock:
            return self._kill("anywhere", process, pid)

    def ask_to_end(self, least: int) -> int | None:
        """Send SIGTERM to a process that holds at least so many jobs; which one, if any does."""
        with self._lock:
            for pid, held in self.holding.items():
                if len(held) >= least and pid not in self._dead | self.spared:
                    self.spared.add(pid)
                    os.kill(pid, signal.SIGTERM)
                    return pid
        return None

    def _kill(self, phase: str, process: str, pid: int) -> bool:
        if pid in self._dead | self.spared:
            return False
        at_stake = self.at_stake(pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self._dead.add(pid)
        self.killed.update(at_stake)
        held = sorted(self.holding.pop(pid, set()))
        self.perhaps.pop(pid, None)
        self._journal.kills.append(
            Kill(phase=phase, process=process, pid=pid, jobs=held, at=time.time())
        )
        return True


@contextmanager
def directing(journal: Journal, points: Sequence[str] = ALWAYS) -> Iterator[Director]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if line and director.hear(Reached(**json.loads(line))):
                with suppress(BrokenPipeError):
                    self.wfile.write(b"go\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        request_queue_size = 128

    # The path of a socket may have a hundred characters, and a test's own folder has more.
    with tempfile.TemporaryDirectory(prefix="imagefleet-director-") as folder:
        director = Director(Path(folder) / "director", points, journal)
        with Server(str(director.path), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield director
            finally:
                server.shutdown()
                thread.join()
