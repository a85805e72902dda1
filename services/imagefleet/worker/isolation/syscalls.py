"""The system calls a decoding child may make, and the kernel's filter that refuses the others.

A list of what is allowed stays right when the kernel learns something new; a list of what is
forbidden does not. What is refused fails with EPERM, as for want of a right, so that a library that
asks needlessly goes on without. The filter is classic BPF: a 32-bit accumulator, forward jumps, and
the first RET decides.

Two calls are missed at first sight. newfstatat names a file by a pointer, which a filter cannot
follow, so it would tell of any path; glibc 2.33 to 2.38 ask it about open files, where fstat() is
refused for that reason. mprotect makes pages read-only, and those stay in memory, uncounted.
"""

import struct
import sys
from collections.abc import Mapping
from errno import EPERM
from typing import Final, TypeAlias

from imagefleet.errors import Misconfigured

# linux/bpf_common.h, linux/seccomp.h, linux/audit.h
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_IF_ABOVE: Final = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_JUMP_UNLESS_BELOW: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | EPERM
_KILL: Final = 0x80000000
# struct seccomp_data: number, architecture, instruction pointer, six arguments of 64 bits.
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16

_PROT_EXEC: Final = 0x4
_MAP_PRIVATE: Final = 0x2
_MAP_HARMLESS: Final = 0x24020  # MAP_ANONYMOUS, MAP_NORESERVE, MAP_STACK (which means nothing)
_MREMAP_MAYMOVE: Final = 0x1
_MADV_DONTNEED: Final = 4
_WHOLE: Final = 0xFFFFFFFF
_ITS_ID: Final = 0x7FFFFFFF  # where the process's own belongs: neither an id nor an address

Program: TypeAlias = tuple[tuple[int, int, int, int], ...]


def _masked(argument: int, mask: int, value: int) -> Program:
    """The low half of an argument, masked, has this value. The kernel ignores the high half too."""
    return (
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),
        (_AND, 0, 0, mask),
        (_JUMP_IF_EQUAL, 1, 0, value),
        (_RETURN, 0, 0, _REFUSE),
    )


def _below(argument: int, limit: int) -> Program:
    """An argument, all 64 bits of it, is less than this."""
    low = _ARGUMENTS_AT + 8 * argument
    return (
        (_LOAD, 0, 0, low + 4),
        (_JUMP_IF_ABOVE, 3, 0, limit >> 32),
        (_JUMP_IF_EQUAL, 0, 3, limit >> 32),
        (_LOAD, 0, 0, low),
        (_JUMP_UNLESS_BELOW, 0, 1, limit & _WHOLE),
        (_RETURN, 0, 0, _REFUSE),
    )


# As the processor's own table of calls numbers them. Both names and numbers never change.
_NUMBERS: Final = """
                x86_64  aarch64
read                  0       63
write                 1       64
close                 3       57
fstat                 5       80
lseek                 8       62
mmap                  9      222
munmap               11      215
brk                  12      214
rt_sigaction         13      134
rt_sigprocmask       14      135
rt_sigreturn         15      139
pread64              17       67
pwrite64             18       68
readv                19       65
writev               20       66
sched_yield          24      124
mremap               25      216
madvise              28      233
nanosleep            35      101
getpid               39      172
exit                 60       93
ftruncate            77       46
gettimeofday         96      169
getrusage            98      165
sigaltstack         131      132
gettid              186      178
futex               202       98
sched_getaffinity   204      123
restart_syscall     219      128
clock_gettime       228      113
clock_getres        229      114
clock_nanosleep     230      115
exit_group          231       94
tgkill              234      131
getrandom           318      278
"""
_AUDIT_NUMBERS: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def numbers(machine: str) -> Mapping[str, int]:
    """The calls that are allowed, with the number each has on this machine."""
    heading, *rows = (line.split() for line in _NUMBERS.strip().splitlines())
    column = 1 + heading.index(machine)
    return {row[0]: int(row[column]) for row in rows}


def filter_program(machine: str, lowest_stack: int) -> tuple[bytes, bytes]:
    """The filter, as an array of struct sock_filter: what stands before a process's id, and after.

    Its stack, however far it grows, stays above the address `lowest_stack`, as it is never cut.
    """
    if machine not in _AUDIT_NUMBERS:
        known = ", ".join(_AUDIT_NUMBERS)
        detail = f"decoding can be isolated on {known} only, not on {machine}"
        raise Misconfigured(detail)
    # The numbers mean something else in the 32-bit world of the same processor.
    program: Program = (
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 1, 0, _AUDIT_NUMBERS[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    )
    conditions = _conditions(lowest_stack)
    for name, number in numbers(machine).items():
        checks = conditions.get(name, ())
        # Allowed if all of them hold, refused if not; on to the next if it is another call.
        program += ((_JUMP_IF_EQUAL, 0, len(checks) + 1, number), *checks, (_RETURN, 0, 0, _ALLOW))
    program += ((_RETURN, 0, 0, _REFUSE),)
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    before, after = packed.split(_ITS_ID.to_bytes(4, sys.byteorder))
    return before, after


def _conditions(lowest_stack: int) -> Mapping[str, Program]:
    return {
        # Bytes of the picture never become code. Shared memory, mappings that grow downwards, huge
        # pages of the machine's own stock: what RLIMIT_DATA does not count would have no limit. Nor
        # does anything take the place of what is there (MAP_FIXED).
        "mmap": _masked(2, _PROT_EXEC, 0) + _masked(3, _WHOLE ^ _MAP_HARMLESS, _MAP_PRIVATE),
        # The stack does not count either, wherever it is moved to and however large it is made. Nor
        # is it cut: what is left below grows as far again, to where nothing holds it any more. A
        # range that begins below it can take its lower end alone, and no distance from its upper.
        "munmap": _below(0, lowest_stack),
        "mremap": _below(0, lowest_stack) + _masked(3, _WHOLE ^ _MREMAP_MAYMOVE, 0),
        "madvise": _masked(2, _WHOLE, _MADV_DONTNEED),
        # abort() is the honest way for a library to say that it is broken; others are out of reach.
        "tgkill": _masked(0, _WHOLE, _ITS_ID),
    }
