"""What a process gives up for good before it touches a picture.

Barriers stand behind each other, as any of them may have a hole:

- The child may ask the kernel for almost nothing. A seccomp filter (syscalls.py) lets it
  compute, take and give back private memory, use the files it already holds, look at a clock and
  end. Everything else is answered with EPERM: files, sockets, programs, processes, signals.
- Where the kernel has Landlock, it also refuses paths, TCP, signals to others and their memory.
- What it might still reach is not worth reaching. Where the worker is root it has an id that nobody
  else has, without capabilities. Neither memory nor environment of the worker can be read by a
  process of the same user, because the worker is not dumpable.

Memory has three limits, one behind the other. RLIMIT_DATA is what a child normally meets. It does
not count everything, so the filter refuses what would pass it by, and RLIMIT_AS leaves room for
that much data and a stack; alone it would be no good limit, as libraries map more than they use.
The third is the zygote, which looks at what a child has (zygote.py, docs/decisions/0009).
"""

import ctypes
import grp
import os
import pwd
import resource
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.worker.isolation.syscalls import filter_program

# Nobody's by the conventions of Debian and systemd, and within the ids that a container has. Not
# 65534, `nobody`: that is an account, and what runs under it (NFS, an embedded Postgres) would be
# in reach.
UNCLAIMED: Final = range(65_531, 65_519, -1)
STACK_BYTES: Final = 8 << 20
SIGNALS: Final = 64  # as may wait, with what they carry, for this user's processes
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
NICENESS: Final = 10  # pixels wait for the worker's beat, never the other way round

# linux/prctl.h, linux/seccomp.h, linux/capability.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_BYTES_OF_CAPABILITIES: Final = 24
_MOST_CAPABILITIES: Final = 64
# linux/landlock.h; the numbers of these two are the same on every processor
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_RESTRICT_SELF: Final = 446
_LANDLOCK_WITH_TCP: Final = 4
_LANDLOCK_WITH_SCOPES: Final = 6
_START_OF_STACK_AT: Final = 25  # of the words in /proc/PID/stat behind the program's name
_BYTES_OF_AN_INSTRUCTION: Final = 8
# asm/stat.h
_MACHINE: Final = os.uname().machine
_ON_X86: Final = _MACHINE == "x86_64"
_STAT: Final = struct.Struct("=3Q4IQ3q6q24x" if _ON_X86 else "=2Q4I2Qqiiq6q8x")
_STAT_FIELDS: Final = (
    (
        "dev ino nlink mode uid gid pad rdev size blksize blocks"
        if _ON_X86
        else "dev ino mode nlink uid gid rdev pad size blksize pad2 blocks"
    )
    + " atime atime_nsec mtime mtime_nsec ctime ctime_nsec"
).split()
_FSTAT: Final = 5 if _ON_X86 else 80

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


def bound_the_stack() -> None:
    """Fix how far the stack of this process and of its children grows."""
    _lower(resource.RLIMIT_STACK, STACK_BYTES, STACK_BYTES)


def forswear_programs() -> None:
    """Let no program that this process or its children start have more rights than they have."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(_MOST_CAPABILITIES):  # refused to all but root, and for unknown ones
        _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)


@cache
def nobodys_id() -> int | None:
    """The id that children have as user and group; None where there is only the worker's own.

    Looked up once, before any child: it takes files.
    """
    if 0 not in os.getresuid():
        return None
    for number in UNCLAIMED:
        if not (_is_known(pwd.getpwuid, number) or _is_known(grp.getgrgid, number)):
            return number
    detail = f"every id from {UNCLAIMED[-1]} to {UNCLAIMED[0]} is somebody's: children need one"
    raise Misconfigured(detail)


def _is_known(look_up: Callable[[int], object], number: int) -> bool:
    try:
        look_up(number)
    except KeyError:
        return False
    return True


def confine(confinement: Confinement, parent: int) -> None:
    """Give up everything but computing. There is no way back; whatever fails is raised."""
    os.nice(NICENESS)
    _become_nobody()
    address_space = _address_space(confinement.memory_bytes)
    leave_the_world()
    _limit(confinement, address_space)
    _drop_capabilities()
    # A change of user clears the wish to die and decides dumpability anew, so both come after it.
    die_with(parent)
    hide_this_process()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _filter_system_calls()
    os.fstat = fstat_of_a_descriptor


def fstat_of_a_descriptor(fd: int) -> os.stat_result:
    """os.fstat(), by the call that takes no path; glibc's, since 2.33, is newfstatat."""
    buffer = ctypes.create_string_buffer(_STAT.size)
    if _libc.syscall(_FSTAT, fd, buffer) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    told = dict(zip(_STAT_FIELDS, _STAT.unpack(buffer), strict=True))
    first = (told[name] for name in ("mode", "ino", "dev", "nlink", "uid", "gid", "size"))
    times = {name: told[name] + told[f"{name}_nsec"] / 1e9 for name in ("atime", "mtime", "ctime")}
    more = {f"st_{name}": told[name] for name in ("rdev", "blksize", "blocks")}
    more |= {f"st_{name}": time for name, time in times.items()}
    more |= {f"st_{name}_ns": told[name] * 10**9 + told[f"{name}_nsec"] for name in times}
    return os.stat_result((*first, *(told[name] for name in times)), more)


def leave_the_world() -> None:
    """Give up paths, TCP, and all processes but this one, as far as this kernel's Landlock goes.

    Files that are open stay as they are.
    """
    version = landlock_version()
    if version == 0:
        return
    rights = 13 + sum(version >= since for since in (2, 3, 5))
    handled = [(1 << rights) - 1]
    if version >= _LANDLOCK_WITH_TCP:
        handled.append(0b11)  # to bind, to connect
    if version >= _LANDLOCK_WITH_SCOPES:
        handled.append(0b11)  # abstract sockets, signals
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    ruleset = _libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    _succeed(min(ruleset, 0), "landlock_create_ruleset")
    try:  # what is handled and has no rule is refused
        _succeed(_libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


@cache
def landlock_version() -> int:
    """How much of Landlock this kernel has; 0 is none of it."""
    version: int = _libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1)
    return max(0, version)


def _become_nobody() -> None:
    """Root is left behind; any other user has no second one to become."""
    number = nobodys_id()
    if number is not None:
        os.setgroups([])
        os.setresgid(number, number, number)
        os.setresuid(number, number, number)


def _limit(confinement: Confinement, address_space: int) -> None:
    cpu = confinement.cpu_seconds
    limits = {
        resource.RLIMIT_CORE: (0, 0),  # a core file is a picture of somebody's picture
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_NOFILE: (0, 0),  # what is open stays open
        resource.RLIMIT_FSIZE: (confinement.file_bytes, confinement.file_bytes),
        resource.RLIMIT_DATA: (confinement.memory_bytes, confinement.memory_bytes),
        resource.RLIMIT_AS: (address_space, address_space),
        resource.RLIMIT_SIGPENDING: (SIGNALS, SIGNALS),
        resource.RLIMIT_CPU: (cpu, cpu + 1),  # SIGXCPU says why, SIGKILL makes sure
    }
    for which, (soft, hard) in limits.items():
        _lower(which, soft, hard)


def _lower(which: int, soft: int, hard: int) -> None:
    _, ceiling = resource.getrlimit(which)  # may be lower already, and cannot be raised
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(which, (soft, hard))


def _address_space(memory_bytes: int) -> int:
    """What is mapped now, what may be added to the data, and a stack grown to its limit."""
    words = _about_this_process("statm").split()
    mapped, data = int(words[0]) * PAGE_BYTES, int(words[5]) * PAGE_BYTES
    return mapped + max(0, memory_bytes - data) + STACK_BYTES


@cache
def filter_around_an_id() -> tuple[bytes, bytes]:
    """The filter of this process's children, but for the id of each: made once, before any child.

    No stack of theirs grows below that address as long as its upper end is where it is. The limit
    is of a mapping's size: of a stack that is cut in two each part has all of it.
    """
    after_the_name = _about_this_process("stat").rpartition(b")")[2].split()
    return filter_program(_MACHINE, int(after_the_name[_START_OF_STACK_AT]) - STACK_BYTES)


def _about_this_process(file: str) -> bytes:
    with open(f"/proc/self/{file}", "rb", buffering=0) as opened:  # noqa: PTH123 - no cost
        return opened.read(4096)


def _drop_capabilities() -> None:
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _succeed(_libc.capset(header, bytes(_BYTES_OF_CAPABILITIES)), "capset")


def _filter_system_calls() -> None:
    program = os.getpid().to_bytes(4, sys.byteorder).join(filter_around_an_id())
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
