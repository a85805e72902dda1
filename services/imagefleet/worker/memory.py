"""Room for children: how many work at once, and how much memory they may take together.

A picture's head tells what it takes. So a large one begins when there is room for it, small ones
work beside each other, and what works never takes more than this worker's container has.

First come, first served: while the first in the line waits for memory nobody passes it, as else
large pictures would wait for as long as small ones come.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from imagefleet.errors import InputRejected
from imagefleet.settings import Worker
from imagefleet.worker.isolation.report import GENERAL_MEMORY_BYTES, QUARANTINE_MEMORY_BYTES

_MIB: Final = 2**20
SMALLEST_BYTES: Final = 128 * _MIB  # of a child, however small its picture
BESIDE_CHILDREN: Final = 256 * _MIB  # the worker, what children are forked from, files that wait
_NO_LIMIT: Final = 2**60  # version 1 says so by a number that no machine has


class Room:
    """Places for children, and memory."""

    def __init__(self, children: int, memory_bytes: int) -> None:
        self.memory_bytes: Final = memory_bytes
        """What one child may have at most, and all of them together."""
        self._places = children
        self._free_bytes = memory_bytes
        self._line: dict[asyncio.Future[None], int] = {}
        """The first came first."""

    def allowance(self, foretold_bytes: int | None, *, in_quarantine: bool = False) -> int:
        """What a child may take: an eighth more than was foretold; None: as much as is usual.

        In quarantine no less than there ever was, as nothing is begun beside it.
        """
        wanted = GENERAL_MEMORY_BYTES
        if foretold_bytes is not None:
            wanted = max(SMALLEST_BYTES, foretold_bytes + foretold_bytes // 8)
        if in_quarantine:
            wanted = max(wanted, QUARANTINE_MEMORY_BYTES)
        return min(wanted, self.memory_bytes)

    @asynccontextmanager
    async def place(self, memory_bytes: int) -> AsyncIterator[None]:
        """Have a place and this memory, once everybody who came before has theirs."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[turn] = memory_bytes
        self._admit()
        try:
            await turn
            yield
        finally:
            if self._line.pop(turn, None) is None:
                self._places += 1
                self._free_bytes += memory_bytes
            self._admit()

    def _admit(self) -> None:
        for turn, wanted in list(self._line.items()):
            if turn.cancelled():
                continue  # it leaves the line by itself
            if not self._places or wanted > self._free_bytes:
                return
            del self._line[turn]
            self._places -= 1
            self._free_bytes -= wanted
            turn.set_result(None)


def needs_more(foretold_bytes: int, most_bytes: int) -> InputRejected:
    """The refusal of a picture for which no worker has the memory."""
    needed, most = -(-foretold_bytes // _MIB), most_bytes // _MIB
    sentence = f"The image needs {needed:,} MiB of memory, and no worker has more than {most:,}."
    return InputRejected("memory", sentence)


def room_of(settings: Worker) -> Room:
    """What the settings say; where they do not, what the container has, or what is usual."""
    children, memory_bytes = settings.render_children, settings.render_memory
    if memory_bytes is None:
        limit = container_limit()
        memory_bytes = (children + 1) * GENERAL_MEMORY_BYTES
        if limit is not None:
            memory_bytes = max(SMALLEST_BYTES, limit - BESIDE_CHILDREN)
    return Room(children, memory_bytes)


def container_limit(root: Path = Path("/")) -> int | None:
    """How much memory the kernel gives this process and those beside it; None: it has no limit.

    The least of its control group and of those around it, as far as they are to be seen from here:
    in a container the outermost is usually the container's own.
    """
    limits = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        for part in ("", *path.split("/")):
            folder /= part
            limits += [int(told) for told in _lines(folder / name) if told.isdigit()]
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text(encoding="utf-8").splitlines()
    return []
