"""The decoding child's task, for pictures that say in their last bytes what to do to it.

Loaded in place of the product's own task by a stack that was started with `poison`; a picture that
says nothing is rendered as ever. `tests/faults/test_poison.py` makes such pictures, and those of
`tests/hostile/test_child.py` do what an attacker would who is past a decoder.
"""

import ctypes
import json
import os
import time
from collections.abc import Mapping
from typing import NoReturn

from imagefleet.errors import InputRejected
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation import child
from imagefleet.worker.isolation.report import GENERAL_MEMORY_BYTES
from tests.worker import hoards
from tests.worker.attacks import besiege, look_at

MARK = b"poison:"
LONGEST = 4096
CHUNK = 16 * 2**20
SEEN_FOR = 0.5  # seconds: whoever samples this child's memory sees what it came to


def render_variants(argument: JsonObject, files: Mapping[str, int]) -> JsonObject:
    what, _, how = _said(files["source"]).partition(b" ")
    match what:
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
        case b"stack" | b"look" | b"besiege":
            tell(ATTACKS[what](json.loads(how), files))
        case _:
            pass
    return child.render_variants(argument, files)


def grow_the_stack(argument: JsonObject, files: Mapping[str, int]) -> JsonObject:
    """Every way by which its mapping, which no limit of data counts, may come to hold more."""
    return {
        way.__name__: way(argument, files)
        for way in (
            hoards.grow_the_stack_mapping,
            hoards.walk_down_the_stack,
            hoards.grow_every_mapping_near_the_stack,
        )
    }


def besiege_in_short(argument: JsonObject, files: Mapping[str, int]) -> JsonObject:
    """By answer how many attempts met it, and the first of them."""
    met = besiege(argument, files)
    names = {answer: [name for name in met if met[name] == answer] for answer in met.values()}
    return {str(answer): [len(found), found[0]] for answer, found in names.items()}


ATTACKS = {b"stack": grow_the_stack, b"look": look_at, b"besiege": besiege_in_short}


def tell(met: JsonObject) -> NoReturn:
    """What was met, as the detail of a failure: the one thing that is believed as it is told."""
    time.sleep(SEEN_FOR)  # noqa: TID251 - as above
    raise InputRejected("unsupported", "It was poison.", json.dumps(met))


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
