"""Tasks for a decoding child that ends well, badly or not at all; and who is alive.

The tasks are for `Renderer.run_isolated`, whose zygote is to have `TASKS` loaded.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from imagefleet.errors import InputRejected
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation.child import render_variants

Files = Mapping[str, int]

TASKS = "tests.support.children"

libc = ctypes.CDLL(None, use_errno=True)


def task(function: Callable[[JsonObject, Files], JsonObject]) -> str:
    """The name under which a child finds it."""
    return f"{TASKS}:{function.__name__}"


def echo(argument: JsonObject, files: Files) -> JsonObject:
    return dict(argument)


def claim_anothers_picture(argument: JsonObject, files: Files) -> JsonObject:
    """Render, and say that the first variant's picture is the last one's."""
    report = render_variants(argument, files)
    variants = report["variants"]
    assert isinstance(variants, tuple)
    variants[0]["same_as"] = variants[-1]["name"]
    return report


def reserve(argument: JsonObject, files: Files) -> JsonObject:
    """Take so much memory, without a touch of it: the limit counts what is taken."""
    length = int(str(argument["bytes"]))
    try:
        with mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
            return {"bytes": length}
    except OSError as error:
        raise MemoryError from error


def sleep_for_ever(argument: JsonObject, files: Files) -> JsonObject:
    while True:
        signal.pause() if argument.get("pause") else time.sleep(3600)  # noqa: TID251 - no loop here


def spin(argument: JsonObject, files: Files) -> JsonObject:
    while True:
        pass


def spin_holding_the_lock(argument: JsonObject, files: Files) -> JsonObject:
    """One call into C that takes hours and lets no signal handler run."""
    return {"length": len(str(pow(7, 10**9)))}


def segfault(argument: JsonObject, files: Files) -> JsonObject:
    return {"bytes": ctypes.string_at(1).hex()}


def abort(argument: JsonObject, files: Files) -> JsonObject:
    os.abort()


def die_of(argument: JsonObject, files: Files) -> JsonObject:
    """Of a signal that it sends itself."""
    number = argument["signal"]
    assert isinstance(number, int)
    libc.tgkill(os.getpid(), threading.get_native_id(), number)
    return {}


def exit_with(argument: JsonObject, files: Files) -> JsonObject:
    status = argument["status"]
    assert isinstance(status, int)
    os._exit(status)


def hog_memory(argument: JsonObject, files: Files) -> JsonObject:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 20))


def flood(argument: JsonObject, files: Files) -> JsonObject:
    while True:
        os.write(files["out"], bytes(1 << 16))


def say(argument: JsonObject, files: Files) -> JsonObject:
    """Raw bytes in place of a report."""
    raw = str(argument["hex"])
    os.write(files["result"], bytes.fromhex(raw))
    os._exit(0)


def say_without_end(argument: JsonObject, files: Files) -> JsonObject:
    while True:
        os.write(files["result"], b"IFR1" * 4096)


def report_at_length(argument: JsonObject, files: Files) -> JsonObject:
    length = argument["length"]
    assert isinstance(length, int)
    return {"blob": "x" * length}


def hang_up_and_sleep(argument: JsonObject, files: Files) -> JsonObject:
    os.close(files["result"])
    return sleep_for_ever(argument, files)


def reject(argument: JsonObject, files: Files) -> JsonObject:
    raise InputRejected(str(argument["code"]), str(argument["message"]), str(argument["detail"]))


def break_down(argument: JsonObject, files: Files) -> JsonObject:
    message = "a bug in a task"
    raise LookupError(message)


def children_of(parent: int) -> list[int]:
    """The living, by what everybody may read."""
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, ppid, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if int(ppid) == parent and state != "Z":
                children.append(int(entry.name))
    return children


def files_in(folder: Path) -> list[str]:
    """Files of this folder that this process has open, also those that have no name any more."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            links.append(str(descriptor.readlink()))
    return [link for link in links if link.startswith(f"{folder}/")]


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
