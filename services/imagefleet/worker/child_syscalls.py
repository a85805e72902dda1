"""The system calls a decoding child may make, and the kernel's filter that refuses the others.

A list of what is allowed stays right when the kernel learns something new; a list of what is
forbidden does not. What is refused fails with EPERM, as for want of a right, so that a library that
asks needlessly goes on without. The filter is classic BPF: a 32-bit accumulator, forward jumps, and
the first RET decides.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from errno import EPERM
from types import MappingProxyType
from typing import Final, TypeAlias

from imagefleet.errors import Misconfigured

# linux/bpf_common.h, linux/seccomp.h, linux/audit.h
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | EPERM
_KILL: Final = 0x80000000
# struct seccomp_data: number, architecture, instruction pointer, six arguments of 64 bits.
_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_ARGUMENTS_AT: Final = 16

_PROT_EXEC: Final = 0x4
_MAP_KIND: Final = 0x103  # MAP_SHARED, MAP_PRIVATE, MAP_GROWSDOWN
_MAP_PRIVATE: Final = 0x2
_AT_EMPTY_PATH: Final = 0x1000
_WHOLE: Final = 0xFFFFFFFF

Instruction: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Condition:
    """The low half of an argument, masked, has this value. The kernel ignores the high half too."""

    argument: int
    mask: int
    value: int


# As the processor's own table of calls numbers them. Both names and numbers never change.
_NUMBERS: Final = """
                x86_64  aarch64
read                  0       63
write                 1       64
close                 3       57
fstat                 5       80
lseek                 8       62
mmap                  9      222
mprotect             10      226
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
newfstatat          262       79
getrandom           318      278
"""
_AUDIT_NUMBERS: Final[Mapping[str, int]] = MappingProxyType(
    {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
)


def numbers(machine: str) -> Mapping[str, int]:
    """The calls that are allowed, with the number each has on this machine."""
    heading, *rows = (line.split() for line in _NUMBERS.strip().splitlines())
    column = 1 + heading.index(machine)
    return {row[0]: int(row[column]) for row in rows}


def filter_program(machine: str, pid: int) -> bytes:
    """The filter for a process of that id, as an array of struct sock_filter."""
    if machine not in _AUDIT_NUMBERS:
        known = ", ".join(_AUDIT_NUMBERS)
        detail = f"decoding can be isolated on {known} only, not on {machine}"
        raise Misconfigured(detail)
    return b"".join(struct.pack("=HBBI", *each) for each in _program(machine, pid))


def _program(machine: str, pid: int) -> Iterator[Instruction]:
    conditions = _conditions(pid)
    yield (_LOAD, 0, 0, _ARCHITECTURE_AT)
    # The numbers mean something else in the 32-bit world of the same processor.
    yield (_JUMP_IF_EQUAL, 1, 0, _AUDIT_NUMBERS[machine])
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER_AT)
    for name, number in numbers(machine).items():
        yield from _rule(number, conditions.get(name, ()))
    yield (_RETURN, 0, 0, _REFUSE)


def _rule(number: int, conditions: tuple[_Condition, ...]) -> Iterator[Instruction]:
    """Allow this call if all conditions hold, refuse it if not, go on if it is another one."""
    yield (_JUMP_IF_EQUAL, 0, 4 * len(conditions) + 1, number)
    for condition in conditions:
        yield (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * condition.argument)
        yield (_AND, 0, 0, condition.mask)
        yield (_JUMP_IF_EQUAL, 1, 0, condition.value)
        yield (_RETURN, 0, 0, _REFUSE)
    yield (_RETURN, 0, 0, _ALLOW)


def _conditions(pid: int) -> Mapping[str, tuple[_Condition, ...]]:
    return {
        # Bytes of the picture never become code. Shared memory and mappings that grow downwards do
        # not count towards RLIMIT_DATA, so they would be memory without a limit.
        "mmap": (_Condition(2, _PROT_EXEC, 0), _Condition(3, _MAP_KIND, _MAP_PRIVATE)),
        "mprotect": (_Condition(2, _PROT_EXEC, 0),),
        # How glibc asks about an open file.
        "newfstatat": (_Condition(3, _AT_EMPTY_PATH, _AT_EMPTY_PATH),),
        # abort() is the honest way for a library to say that it is broken; others are out of reach.
        "tgkill": (_Condition(0, _WHOLE, pid),),
    }
