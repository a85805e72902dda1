"""What a process gives up for good before it touches a picture.

Two barriers stand behind each other, as either may have a hole:

- The child may ask the kernel for almost nothing. A seccomp filter (child_syscalls.py) lets it
  compute, take and give back private memory, use the files it already holds, look at a clock and
  end. Everything else is answered with EPERM: files, sockets, programs, processes, signals.
- What it might still reach is not worth reaching. It is an unprivileged user where the worker is
  root, without capabilities, and neither the worker's memory nor its environment can be read by a
  process of the same user, because the worker is not dumpable.

The limits are not RLIMIT_AS: address space is twice what is used, and refusals hit at random.
"""

import ctypes
import os
import resource
import signal
import struct
from dataclasses import dataclass
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.worker.child_syscalls import filter_program

NOBODY: Final = 65534  # the kernel's own overflow user: owns nothing anywhere
NICENESS: Final = 10  # pixels wait for the worker's beat, never the other way round

# linux/prctl.h, linux/seccomp.h, linux/capability.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_BYTES_OF_CAPABILITIES: Final = 24
_BYTES_OF_AN_INSTRUCTION: Final = 8

_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """How much a confined process may use."""

    memory_bytes: int
    """Private writable memory, with what it was forked with."""
    file_bytes: int
    """The length of each file it writes."""
    cpu_seconds: int


def hide_this_process() -> None:
    """Make memory and environment of this process unreadable to all but a privileged root."""
    _prctl(_PR_SET_DUMPABLE, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which must be its parent, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def offer_this_process_first() -> None:
    """Let a kernel that is short of memory take this process and its children, not the worker."""
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123 - no cost
            file.write(b"500")
    except OSError:
        pass  # a wish, not a promise: some containers do not allow it


def confine(confinement: Confinement, parent: int) -> None:
    """Give up everything but computing. There is no way back; whatever fails is raised."""
    os.nice(NICENESS)
    _become_nobody()
    _limit(confinement)
    _drop_capabilities()
    # A change of user clears the wish to die and decides dumpability anew, so both come after it.
    die_with(parent)
    hide_this_process()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _filter_system_calls()


def _become_nobody() -> None:
    """Root is left behind; any other user has no second one to become."""
    if 0 in os.getresuid():
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _limit(confinement: Confinement) -> None:
    cpu = confinement.cpu_seconds
    limits = {
        resource.RLIMIT_CORE: (0, 0),  # a core file is a picture of somebody's picture
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_NOFILE: (0, 0),  # what is open stays open
        resource.RLIMIT_FSIZE: (confinement.file_bytes, confinement.file_bytes),
        resource.RLIMIT_DATA: (confinement.memory_bytes, confinement.memory_bytes),
        resource.RLIMIT_CPU: (cpu, cpu + 1),  # SIGXCPU says why, SIGKILL makes sure
    }
    for which, (soft, hard) in limits.items():
        _, ceiling = resource.getrlimit(which)  # may be lower already, and cannot be raised
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)  # noqa: PLW2901 - narrowed
        resource.setrlimit(which, (soft, hard))


def _drop_capabilities() -> None:
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _succeed(_libc.capset(header, bytes(_BYTES_OF_CAPABILITIES)), "capset")


def _filter_system_calls() -> None:
    program = filter_program(os.uname().machine, os.getpid())
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a 16-bit length, padding, a pointer.
    length = len(program) // _BYTES_OF_AN_INSTRUCTION
    described = struct.pack("@HP", length, ctypes.addressof(instructions))
    pointer = ctypes.create_string_buffer(described, len(described))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(pointer))


def _prctl(option: int, first: int, second: int = 0) -> None:
    # prctl is variadic: without a type each argument would be passed as an int.
    arguments = (ctypes.c_ulong(each) for each in (first, second, 0, 0))
    _succeed(_libc.prctl(option, *arguments), f"prctl {option}")


def _succeed(answer: int, call: str) -> None:
    if answer != 0:
        error = ctypes.get_errno()
        detail = f"cannot isolate decoding: {call}: {os.strerror(error)}"
        raise Misconfigured(detail)
