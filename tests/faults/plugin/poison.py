"""The decoding child's task, for pictures that say in their last bytes what to do to it.

Loaded in place of the product's own task by a stack that was started with `poison`; a picture that
says nothing is rendered as ever. `tests/faults/test_poison.py` makes such pictures.
"""

import ctypes
import os
import time
from collections.abc import Mapping

from imagefleet.worker.isolation import child
from imagefleet.worker.isolation.report import GENERAL_MEMORY_BYTES

MARK = b"poison:"
LONGEST = 64
CHUNK = 16 * 2**20


def render_variants(argument: Mapping[str, object], files: Mapping[str, int]) -> object:
    match _said(files["source"]):
        case b"sleep":
            time.sleep(3600)  # noqa: TID251 - there is no event loop in a child
        case b"spin":
            while True:
                pass
        case b"segfault":
            ctypes.string_at(0)
        case b"memory":
            kept = [bytearray(CHUNK)]
            while True:
                kept.append(bytearray(b"x" * CHUNK))
        case b"tables":  # of pages, which no limit of the kernel counts
            scatter()
        case b"suspect":  # in quarantine, where it has the memory, it takes a while and is well
            try:
                bytearray(GENERAL_MEMORY_BYTES)
            except MemoryError:
                ctypes.string_at(0)
            time.sleep(0.7)  # noqa: TID251 - as above
        case b"exit":
            os._exit(3)
        case _:
            pass
    return child.render_variants(argument, files)


def scatter() -> None:
    """One page of every two mebibytes."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    step, page = 2 * 2**20, 4096
    words = [ctypes.c_size_t(word) for word in (0, step, 3, 0x22, -1, 0)]
    while (address := libc.mmap(*words)) != ctypes.c_void_p(-1).value:
        ctypes.memset(address, 1, 1)
        libc.munmap(ctypes.c_void_p(address + page), ctypes.c_size_t(step - page))


def _said(source: int) -> bytes:
    size = os.fstat(source).st_size
    end = os.pread(source, LONGEST, max(0, size - LONGEST))
    return end.rpartition(MARK)[2] if MARK in end else b""
