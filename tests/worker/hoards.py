"""Ways to memory that a limit may not count, as tasks for a decoding child.

Each returns what it was refused, if it was, and otherwise goes on until something stops it.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NoReturn

from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation.child import RESULT_FILE

Files = Mapping[str, int]

HOARDS: Final = "tests.worker.hoards"
PAGE: Final = 4096
MIB: Final = 2**20
PROT_NONE: Final = 0
NORESERVE: Final = 0x4000
RW: Final = mmap.PROT_READ | mmap.PROT_WRITE
PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAYMOVE, FIXED = 1, 2
FAILED: Final = ctypes.c_void_p(-1).value

libc = ctypes.CDLL(None, use_errno=True)
for name in ("mmap", "mremap"):
    getattr(libc, name).restype = ctypes.c_void_p


def hoard(function: Callable[[JsonObject, Files], JsonObject]) -> str:
    """The name under which a child finds it."""
    return f"{HOARDS}:{function.__name__}"


def _words(*values: int) -> list[ctypes.c_size_t]:
    return [ctypes.c_size_t(value) for value in values]


def _map(length: int, protection: int = RW, flags: int = PRIVATE, file: int = -1) -> int:
    """The address; OSError or MemoryError when it is refused."""
    return _address(libc.mmap(*_words(0, length, protection, flags, file, 0)))


def _remap(old: int, length: int, new_length: int, flags: int = MAYMOVE, new: int = 0) -> int:
    return _address(libc.mremap(*_words(old, length, new_length, flags, new)))


def _address(answer: int | None) -> int:
    if answer is None or answer == FAILED:
        number = ctypes.get_errno()
        if number == 12:
            raise MemoryError
        raise OSError(number, os.strerror(number))
    return answer


def _fill(address: int, length: int) -> None:
    ctypes.memset(address, 1, length)


def _top_of_stack() -> int:
    """A page of it: that where the arguments of the program lie."""
    name = ctypes.c_char_p.in_dll(libc, "program_invocation_name")
    return (ctypes.cast(name, ctypes.c_void_p).value or 0) // PAGE * PAGE


def grow_the_stack_mapping(argument: JsonObject, files: Files) -> JsonObject:
    """Its pages are not data, and mremap knows no other limit."""
    page = _top_of_stack() - 2 * MIB  # below what is in use: the rest of the child has to live on
    ctypes.memset(page, 1, 1)
    larger = int(str(argument["bytes"]))
    try:
        moved = _remap(page, PAGE, larger)
    except OSError as error:
        return {"refused": error.errno}
    for at in range(0, larger, MIB):
        _fill(moved + at, MIB)
    return {"bytes": larger}


def grow_every_mapping_near_the_stack(argument: JsonObject, files: Files) -> JsonObject:
    """One page after the other, from the arguments down to where it ends, for as long as it may."""
    answers = set()
    for number in range(8 * MIB // PAGE):
        try:
            moved = _remap(_top_of_stack() - number * PAGE, PAGE, 64 * MIB)
        except OSError as error:
            answers.add(error.errno)
        else:
            _fill(moved, 64 * MIB)
            answers.add(0)
    return {"answers": sorted(each or 0 for each in answers)}


def walk_down_the_stack(argument: JsonObject, files: Files) -> JsonObject:
    """Below where it may grow to: a piece that is cut off grows anew, and is cut in its turn."""
    at = _top_of_stack() - 6 * MIB
    ctypes.memset(at, 1, 1)
    for _ in range(3):
        if libc.munmap(*_words(at + PAGE, 4 * MIB)) == -1:
            return {"refused": ctypes.get_errno()}
        at -= 7 * MIB
        ctypes.memset(at, 1, 1)
    larger = int(str(argument["bytes"]))
    moved = _remap(at, PAGE, larger)
    for each in range(0, larger, MIB):
        _fill(moved + each, MIB)
    return {"bytes": larger}


def descend(argument: JsonObject, files: Files) -> JsonObject:
    """Let the stack itself grow, after everything else is used up."""
    _hoard_data()
    for address in itertools.count(_top_of_stack(), -PAGE):
        ctypes.memset(address, 1, 1)
    return {}


def _hoard_data() -> None:
    """Nearly all there is; an interpreter without any aborts, so it asks for twice as much."""
    with suppress(MemoryError):
        while True:
            libc.munmap(*_words(_map(16 * MIB), 16 * MIB))
            _fill(_map(8 * MIB), 8 * MIB)


def ratchet(argument: JsonObject, files: Files) -> JsonObject:
    """What is made read-only after it was written does not count as data any more."""
    while True:
        address = _map(8 * MIB)
        _fill(address, 8 * MIB)
        if libc.mprotect(*_words(address, 8 * MIB, mmap.PROT_READ)) == -1:
            return {"refused": ctypes.get_errno()}


def scatter(argument: JsonObject, files: Files) -> NoReturn:
    """One page here and one there: each needs a table of 512, which is in no mapping."""
    while True:
        address = _map(2 * MIB)
        _fill(address, 1)
        libc.munmap(*_words(address + PAGE, 2 * MIB - PAGE))


def reserve_read_only(argument: JsonObject, files: Files) -> JsonObject:
    """Address space alone: no data, and pages of it are one and the same zero."""
    taken = 0
    try:
        while True:
            _map(64 * MIB, PROT_NONE, PRIVATE | NORESERVE)
            taken += 64 * MIB
    except MemoryError:
        return {"bytes": taken}


def copy_the_source(argument: JsonObject, files: Files) -> NoReturn:
    """Private pages over a file of its own."""
    while True:
        _fill(_map(MIB, RW, mmap.MAP_PRIVATE, files["source"]), MIB)


def move_the_break(argument: JsonObject, files: Files) -> JsonObject:
    libc.sbrk.restype = ctypes.c_void_p
    while True:
        address = libc.sbrk(ctypes.c_ssize_t(4 * MIB))
        if address is None or address == FAILED:
            raise MemoryError
        _fill(address, 4 * MIB)


def queue_signals(argument: JsonObject, files: Files) -> JsonObject:
    """Each that waits is kept by the kernel."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
    queued = 0
    while libc.tgkill(os.getpid(), threading.get_native_id(), int(signal.SIGRTMIN)) == 0:
        queued += 1
    return {"queued": queued}


def _outputs(files: Files) -> list[int]:
    return [file for name, file in files.items() if name != RESULT_FILE]


def fill_the_files(argument: JsonObject, files: Files) -> JsonObject:
    """Every file that it may write; on a tmpfs they are memory."""
    for file in _outputs(files):
        try:
            while os.write(file, bytes(MIB)):
                pass
        except OSError:
            continue
    return {}


def lengthen_the_files(argument: JsonObject, files: Files) -> JsonObject:
    for file in _outputs(files):
        for attempt in (os.ftruncate, lambda file, at: os.pwrite(file, b"x", at)):
            try:
                attempt(file, 1 << 40)
            except OSError:
                continue
    return {}


# mmap: kind and flags that nothing but a hoard needs, each with what it would be good for.
FLAGS: Final = {
    "shared": mmap.MAP_SHARED | mmap.MAP_ANONYMOUS,
    "shared and checked": 0x3 | mmap.MAP_ANONYMOUS,
    "droppable": 0x8 | mmap.MAP_ANONYMOUS,
    "growing downwards": PRIVATE | 0x100,
    "fixed": PRIVATE | 0x10,
    "fixed where nothing is": PRIVATE | 0x100000,
    "locked": PRIVATE | 0x2000,
    "populated": PRIVATE | 0x8000,
    "huge": PRIVATE | 0x40000,
    "uninitialized": PRIVATE | 0x4000000,
}


def try_every_flag(argument: JsonObject, files: Files) -> JsonObject:
    """What was not refused, of mmap, mremap and madvise."""
    page = _map(PAGE)
    got: list[str] = []

    def attempt(name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except PermissionError:
            return
        except OSError as error:
            got.append(f"{name}: {error}")
        else:
            got.append(name)

    for name, flags in FLAGS.items():
        attempt(f"mmap {name}", lambda flags=flags: _map(PAGE, RW, flags))  # type: ignore[misc]
    for flags in (FIXED, FIXED | MAYMOVE, 4 | MAYMOVE):  # 4: MREMAP_DONTUNMAP
        attempt(
            f"mremap {flags}",
            lambda flags=flags: _remap(page, PAGE, PAGE, flags, page),  # type: ignore[misc]
        )
    for address in (2**64 - PAGE, 2**63, 2**48, _top_of_stack()):
        attempt(f"mremap of {address:x}", lambda old=address: _remap(old, PAGE, PAGE))  # type: ignore[misc]
    for advice in (*range(4), *range(5, 30), 100, 102, 103):
        attempt(f"madvise {advice}", lambda advice=advice: _advise(page, advice))  # type: ignore[misc]
    return {"got": list(got)}


def _advise(page: int, advice: int) -> None:
    if libc.madvise(*_words(page, PAGE, advice)) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remap_honestly(argument: JsonObject, files: Files) -> JsonObject:
    """How a large block of malloc grows, and shrinks again, without being copied."""
    address = _map(MIB)
    _fill(address, MIB)
    grown = _remap(address, MIB, 16 * MIB)
    kept = ctypes.string_at(grown, 1)
    _remap(grown, 16 * MIB, MIB, 0)
    return {"kept": kept == b"\x01", "bits": sys.maxsize.bit_length()}
