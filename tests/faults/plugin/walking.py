"""Tells which functions of the product a process runs, and which statements.

Loaded by `sitecustomize.py` when the stack was started with `walk`, a folder. The file `phase` in
it holds one byte, which says what is going on; in each phase a function is told when it is entered
first, a statement every time. A decoding child may open nothing and call next to nothing, so what
there is to tell goes into memory that is shared with a file. `tests/walk` reads it.
"""

import mmap
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

PHASE_FILE: Final = "phase"
REGION: Final = 1 << 18  # bytes for one process; a child has its own beside its zygote's
REGIONS: Final = 64
IN_A_FUNCTION: Final = 1  # co_flags of what is no module and no class body: CO_OPTIMIZED
PACKAGE: Final = f"{os.sep}imagefleet{os.sep}"


class Walk:
    """What this process tells, and where."""

    def __init__(self, folder: str, process: str) -> None:
        self.process = process
        self._phase = _mapped(f"{folder}/{PHASE_FILE}", 1)
        self._told = _mapped(f"{folder}/{process}.{os.getpid()}", REGION * REGIONS)
        self._region = 0
        self._at = 0
        self._now = 0
        self._seen: dict[int, CodeType] = {}  # by id: to hash one is to compare what it says
        self._forks = 0
        self._kept = (0, 0)
        self._lock = threading.Lock()

    def begin(self) -> None:
        os.register_at_fork(before=self._next, after_in_parent=self._back, after_in_child=self._own)
        threading.settrace(self.entered)
        sys.settrace(self.entered)

    def entered(self, frame: FrameType, _event: str, _argument: object) -> None:
        phase = self._phase[0]
        if phase != self._now:
            self._now = phase
            self._seen.clear()
        code = frame.f_code
        if phase == 0 or id(code) in self._seen:
            return
        self._seen[id(code)] = code
        if code.co_flags & IN_A_FUNCTION and PACKAGE in code.co_filename:
            path = code.co_filename.rpartition(PACKAGE)[2]
            self.tell("call", path, str(code.co_firstlineno), code.co_qualname)

    def tell(self, kind: str, *words: str) -> None:
        phase = self._phase[0]
        if phase == 0:
            return
        line = "\t".join((str(phase), str(time.monotonic_ns()), self.process, kind, *words))
        encoded = line.encode() + b"\n"
        with self._lock:
            if self._at + len(encoded) < REGION:
                begin = self._region * REGION + self._at
                self._told[begin : begin + len(encoded)] = encoded
                self._at += len(encoded)

    def _next(self) -> None:
        self._kept = (self._region, self._at)
        self._forks += 1

    def _back(self) -> None:
        self._region, self._at = self._kept

    def _own(self) -> None:
        self._region, self._at = self._forks % REGIONS, 0
        self.process = "child"
        self._seen.clear()


def _mapped(path: str, length: int) -> mmap.mmap:
    with Path(path).open("r+b" if Path(path).exists() else "w+b") as file:
        file.truncate(length)
        return mmap.mmap(file.fileno(), length)


WALKS: Final[list[Walk]] = []


def begin(folder: str, process: str) -> None:
    WALKS.append(Walk(folder, process))
    WALKS[0].begin()


def tell_statements() -> None:
    """Tell every statement that asyncpg is given, by the name of the constant that holds it."""
    from asyncpg import Connection  # noqa: PLC0415 - when the product has imported it, too

    names: dict[str, str] = {}

    def name_of(text: str) -> str:
        if text not in names:
            names[text] = _constant(text) or " ".join(text.split())[:60]
        return names[text]

    def telling(method: str, *, even: bool) -> None:
        original = getattr(Connection, method)

        def told(self: object, query: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401
            if even or not args:
                WALKS[0].tell("statement", name_of(query))
            return original(self, query, *args, **named)

        setattr(Connection, method, told)

    telling("execute", even=False)  # with arguments it goes through the next one
    telling("_execute", even=True)
    telling("executemany", even=True)
    telling("prepare", even=True)


def _constant(text: str) -> str | None:
    for module in [*sys.modules.values()]:
        name = getattr(module, "__name__", "")
        if name.startswith("imagefleet.store"):
            for constant, value in vars(module).items():
                if isinstance(value, str) and value == text:
                    return f"{name.removeprefix('imagefleet.').replace('.', '/')}.py {constant}"
    return None
