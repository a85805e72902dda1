"""What an attacker would run in a decoding child, and a worker that is attacked so.

The attacks are tasks for `Renderer.run_isolated`. As a program this file is a worker with a
secret in its environment: `burgle` prints what its children could get hold of, `besiege` what they
reach of a Postgres beside them, `hold` keeps some alive until it is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path

from imagefleet.embedded.postgres import EmbeddedPostgres
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import Allowance
from imagefleet.worker.isolation.sandbox import landlock_version, leave_the_world
from imagefleet.worker.isolation.syscalls import numbers
from tests.support.children import TASKS, children_of, sleep_for_ever, task
from tests.support.eventually import eventually

Files = Mapping[str, int]

SECRET = "AWS_SECRET_ACCESS_KEY"
ATTACKS = "tests.worker.attacks"
HELD = 2  # children of a worker that holds
PAGE = 4096

AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
MACHINE = os.uname().machine
_ON_X86 = MACHINE == "x86_64"
NEWFSTATAT, STATX = (262, 332) if _ON_X86 else (79, 291)
HIGHEST_CALL = 700  # the kernel's newest are below 480
# uretprobe and uprobe: no filter is asked, and whoever is not being probed dies of SIGILL.
PROBES = {335, 336} if _ON_X86 else set()

libc = ctypes.CDLL(None, use_errno=True)


def attack(function: Callable[[JsonObject, Files], JsonObject]) -> str:
    """The name under which a child finds it."""
    return f"{ATTACKS}:{function.__name__}"


def open_files(argument: JsonObject, files: Files) -> JsonObject:
    descriptors = []
    for number in range(1024):
        try:
            os.lseek(number, 0, os.SEEK_CUR)
        except OSError as error:
            if error.errno == errno.EBADF:
                continue
        descriptors.append(number)
    return {"open": descriptors, "given": sorted(files.values()), "environment": _environment()}


def _environment() -> dict[str, str]:
    return dict(os.environ)  # noqa: TID251 - to see that it is empty


def burgle(argument: JsonObject, files: Files) -> JsonObject:
    """Try everything; each attempt with the error it met, or with what it got."""
    pids = {name: argument[name] for name in ("worker", "zygote")}
    folder = str(argument["folder"])
    attempts: dict[str, Callable[[], object]] = {
        **dict(_readings(pids)),
        **dict(_writings(folder)),
        **dict(_processes(pids)),
        **dict(_rights()),
    }
    return {name: met(attempt) for name, attempt in attempts.items()}


def _readings(pids: Mapping[str, object]) -> Iterator[tuple[str, Callable[[], object]]]:
    paths = ["/etc/passwd", "/proc/self/environ", "/proc/self/mem", "/dev/null", __file__]
    paths += [f"/proc/{pid}/{file}" for pid in pids.values() for file in ("environ", "mem", "maps")]
    for path in paths:
        yield from _looks(path)
    yield "list /", lambda: os.listdir("/")  # noqa: PTH208 - the bare call
    yield "openat2", lambda: _call("syscall", 437, -100, b"/etc/passwd", bytes(24), 24)
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
        yield f"socket {family.name}", partial(socket.socket, family)
    yield "socketpair", socket.socketpair
    yield "io_uring_setup", lambda: _call("syscall", 425, 8, bytes(120))
    yield "getcwd", os.getcwd


def _looks(path: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """By every call that opens a file or tells of one."""
    yield f"open {path}", partial(os.open, path, os.O_RDONLY)
    yield f"stat {path}", partial(os.stat, path)
    yield f"lstat {path}", partial(os.lstat, path)
    yield f"access {path}", partial(_call, "access", path.encode(), os.F_OK)
    yield f"readlink {path}", partial(os.readlink, path)
    at = (AT_FDCWD, path.encode())
    for flags in (0, AT_EMPTY_PATH):
        of_old, of_new = (bytes(256), flags), (flags, 0xFFF, bytes(256))
        yield f"newfstatat {path} {flags}", partial(_call, "syscall", NEWFSTATAT, *at, *of_old)
        yield f"statx {path} {flags}", partial(_call, "syscall", STATX, *at, *of_new)


def look_at(argument: JsonObject, files: Files) -> JsonObject:
    """Ask about a file that is not its own."""
    return {name: met(attempt) for name, attempt in _looks(str(argument["path"]))}


def besiege(argument: JsonObject, files: Files) -> JsonObject:
    """Everything by which one gets at a database server that runs as the same user."""
    return {name: met(attempt) for name, attempt in _approaches(argument)}


def _approaches(target: JsonObject) -> Iterator[tuple[str, Callable[[], object]]]:
    pids, paths = target["pids"], target["files"]
    assert isinstance(pids, list)
    assert isinstance(paths, list)
    for path in map(str, paths):
        yield f"read {path}", partial(os.open, path, os.O_RDONLY)
        yield f"write {path}", partial(os.open, path, os.O_WRONLY)
        yield f"remove {path}", partial(os.unlink, path)
    for pid in pids:
        assert isinstance(pid, int)
        for name in ("mem", "environ", "maps", "root", "fd"):
            yield f"open {name} of {pid}", partial(os.open, f"/proc/{pid}/{name}", os.O_RDONLY)
        yield f"attach to {pid}", partial(_call, "ptrace", 16, pid, None, None)
        yield f"seize {pid}", partial(_call, "ptrace", 0x4206, pid, None, None)
        yield f"read memory of {pid}", partial(_read_memory, pid)
        yield f"signal {pid}", partial(os.kill, pid, signal.SIGCONT)
        yield f"signal {pid} by descriptor", partial(_signal_by_descriptor, pid)
    yield (
        "connect by TCP",
        partial(_connect, socket.AF_INET, ("127.0.0.1", int(str(target["port"])))),
    )
    if target["socket"]:
        yield "connect by path", partial(_connect, socket.AF_UNIX, str(target["socket"]))
    hosts = target.get("hosts", ())
    assert isinstance(hosts, list | tuple)
    for host in map(str, hosts):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        yield f"connect to {host}", partial(_connect, family, (host, 80))


def _read_memory(pid: int) -> int:
    room = ctypes.create_string_buffer(16)
    here = (ctypes.c_void_p * 2)(ctypes.addressof(room), 16)
    # What both are forked from, or none of it, lies there: refused is not the same as not there.
    there = (ctypes.c_void_p * 2)(id(None), 16)
    return _call("process_vm_readv", pid, here, 1, there, 1, 0)


def _signal_by_descriptor(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    finally:
        os.close(pidfd)


def _connect(family: int, address: tuple[str, int] | str) -> None:
    with socket.socket(family) as client:
        client.settimeout(5)
        client.connect(address)


def _writings(folder: str) -> Iterator[tuple[str, Callable[[], object]]]:
    file = f"{folder}/planted"
    yield "create", lambda: os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
    yield "mkdir", lambda: os.mkdir(file)  # noqa: PTH102 - the bare call
    yield "symlink", lambda: os.symlink("/etc/passwd", file)  # noqa: PTH211 - the bare call
    yield "rename", lambda: os.rename(folder, file)  # noqa: PTH104 - the bare call
    yield "unlink", lambda: os.unlink(file)  # noqa: PTH108 - the bare call
    yield "chmod", lambda: os.chmod(folder, 0o777)  # noqa: PTH101, S103 - the bare call
    yield "memfd_create", lambda: os.memfd_create("planted")
    yield "pipe", os.pipe
    yield "dup", lambda: os.dup(0)
    yield "mount", lambda: _call("mount", b"none", folder.encode(), b"tmpfs", 0, None)


def _processes(pids: Mapping[str, object]) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "fork", _fork
    yield "posix_spawn", lambda: os.posix_spawn("/bin/true", ["true"], {})
    yield "subprocess", lambda: subprocess.run(["/bin/true"], check=False)
    yield "execve", lambda: os.execve("/bin/true", ["true"], {})  # noqa: S606 - no shell
    yield "execveat", lambda: os.execve(0, ["true"], {})  # noqa: S606 - no shell
    yield "clone3", lambda: _call("syscall", 435, bytes(88), 88)
    yield "thread", lambda: threading.Thread(target=int).start()
    for name, pid in pids.items():
        assert isinstance(pid, int)
        yield f"kill {name}", partial(os.kill, pid, 0)
        yield f"tgkill {name}", partial(_call, "tgkill", pid, pid, 0)
        yield f"pidfd_open {name}", partial(os.pidfd_open, pid)
        yield f"ptrace {name}", partial(_call, "ptrace", 16, pid, None, None)
        yield (
            f"process_vm_readv {name}",
            partial(_call, "process_vm_readv", pid, bytes(16), 1, bytes(16), 1, 0),
        )
    yield "kill everybody", lambda: os.kill(-1, 0)


def _rights() -> Iterator[tuple[str, Callable[[], object]]]:
    code = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    yield "setuid", lambda: os.setuid(0)
    yield "unshare", lambda: _call("unshare", 0x10000000)
    yield "prctl", lambda: _call("prctl", 4, 1, 0, 0, 0)
    yield "setrlimit", lambda: _call("setrlimit", 2, bytes(16))
    yield "executable memory", lambda: mmap.mmap(-1, PAGE, flags=private, prot=code)
    yield "unlimited memory", lambda: mmap.mmap(-1, PAGE, flags=mmap.MAP_SHARED)
    yield "growing memory", lambda: mmap.mmap(-1, PAGE, flags=private | 0x100)
    yield "ioctl", lambda: _call("ioctl", 0, 0x5412, b"x")


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _call(name: str, *arguments: object) -> int:
    """A function of libc, with whatever it is given as a word of the machine."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    answer: int = getattr(libc, name)(*words)
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def met(attempt: Callable[[], object]) -> str:
    """The name of the error, or what was got."""
    try:
        return f"got {attempt()!r}"
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except RuntimeError as error:
        return str(error)


def call_everything(argument: JsonObject, files: Files) -> JsonObject:
    """Every system call there is or may be, but those that are allowed; what was not refused."""
    allowed = set(numbers(MACHINE).values())
    known = set(range(HIGHEST_CALL)) - allowed - PROBES
    if _ON_X86:  # its third world: numbers with a bit of their own
        known |= {number | 0x40000000 for number in set(range(HIGHEST_CALL)) - PROBES}
    answers = {}
    for number in sorted(known):
        ctypes.set_errno(0)
        answer = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
        if answer != -1 or ctypes.get_errno() != errno.EPERM:
            answers[str(number)] = [answer, ctypes.get_errno()]
    return {"tried": len(known), "not_refused": answers}


def describe(argument: JsonObject, files: Files) -> JsonObject:
    """What os.fstat() says of an own file, and what it says of one that is not there."""
    return {
        "told": all_of(os.fstat(files["source"])),
        "not_open": met(partial(os.fstat, 999)),
        "read": len(open(files["source"], "rb", closefd=False).read()),
    }


def all_of(told: os.stat_result) -> JsonObject:
    """Everything but its times of use, which the asking changes."""
    return {
        name: getattr(told, name)
        for name in dir(told)
        if name.startswith("st_") and not name.startswith("st_atime")
    }


def dump_memory(argument: JsonObject, files: Files) -> JsonObject:
    """All memory around all it knows: objects, heaps, libraries, the stack's end.

    The kernel tells what is mapped: a write from an address that is not fails, and does no harm.
    """
    stack = ctypes.c_char_p.in_dll(libc, "program_invocation_name")
    anchors = [ctypes.cast(stack, ctypes.c_void_p).value or 0, id(libc.write)]
    anchors += [id(each) for each in gc.get_objects()]
    anchors += [id(each) for each in argument.values()]
    seen: set[int] = set()
    for anchor in anchors:
        page = anchor // PAGE
        for neighbours in (count(page), count(page - 1, -1)):
            for number in neighbours:
                address = ctypes.c_void_p(number * PAGE)
                if number in seen or libc.write(files["out"], address, PAGE) != PAGE:
                    break
                seen.add(number)
    return {"pages": len(seen)}


async def burgle_and_tell(folder: Path) -> None:
    secret = os.environ[SECRET]  # noqa: TID251 - it plays a worker; also in its memory, like this
    async with Renderer(preload=(ATTACKS, TASKS)) as renderer:
        argument = {"worker": os.getpid(), "zygote": renderer.zygote_pid, "folder": str(folder)}
        allowance = Allowance(deadline_seconds=30, file_bytes=1 << 30)
        loot = await renderer.run_isolated(attack(burgle), argument, {}, allowance)
        belongings = await renderer.run_isolated(attack(open_files), {}, {}, allowance)
        calls = await renderer.run_isolated(attack(call_everything), {}, {}, allowance)
        dump = os.open(folder / "dump", os.O_CREAT | os.O_WRONLY, 0o600)
        marked = {"marker": f"of {os.getpid()}, which is here"}
        dumped = await renderer.run_isolated(attack(dump_memory), marked, {"out": dump}, allowance)
        os.close(dump)
    assert secret
    tell = {
        "loot": loot,
        "belongings": belongings,
        "calls": calls,
        "dumped": dumped,
        **marked,
    }
    print(json.dumps(tell))  # noqa: T201 - to the test


async def besiege_and_tell(folder: Path) -> None:
    """Beside a server of our own: what a child reaches of it, and what Landlock alone leaves."""
    sockets = folder / "sockets"
    sockets.mkdir()
    sockets.chmod(0o777)  # the server may have another account
    with EmbeddedPostgres(folder / "state", socket_folder=sockets) as server:
        assert server.pid is not None
        target: JsonObject = {
            "pids": [server.pid, *children_of(server.pid)],
            "files": [
                str(server.placement.data / name)
                for name in ("PG_VERSION", "postmaster.pid", "pg_hba.conf", "global/pg_control")
            ],
            "port": server.port,
            "socket": str(sockets / f".s.PGSQL.{server.port}"),
        }
        uncurbed = in_a_fork({**target, "files": []}, lambda: None)
        without_path = {**target, "socket": None}  # which Landlock knows nothing of
        curbed = in_a_fork(without_path, leave_the_world) if landlock_version() else None
        async with Renderer(preload=(ATTACKS, TASKS)) as renderer:
            allowance = Allowance(deadline_seconds=30)
            reached = await renderer.run_isolated(attack(besiege), target, {}, allowance)
            ids = await _ids_of_a_child(renderer)
        _connect(socket.AF_INET, ("127.0.0.1", server.port))
        told = {"uncurbed": uncurbed, "curbed": curbed, "child": reached}
        told |= {"landlock": landlock_version(), "child_ids": ids}
        told["owner"] = server.placement.data.stat().st_uid
    print(json.dumps(told))  # noqa: T201 - to the test


async def _ids_of_a_child(renderer: Renderer) -> list[int]:
    """Whom the kernel takes it for, once it is confined."""
    allowance = Allowance(deadline_seconds=3600)
    zygote = renderer.zygote_pid or 0

    def confined() -> list[int] | None:
        for child in children_of(zygote):
            status = Path(f"/proc/{child}/status").read_text(encoding="utf-8")
            fields = dict(line.split(":\t", 1) for line in status.splitlines())
            if fields["Seccomp"] == "2":
                return sorted(set(map(int, fields["Uid"].split())))
        return None

    async with asyncio.TaskGroup() as group:
        sleeping = group.create_task(renderer.run_isolated(task(sleep_for_ever), {}, {}, allowance))
        try:
            return await eventually(confined, within=20)
        finally:
            sleeping.cancel()


def in_a_fork(target: JsonObject, curb: Callable[[], None]) -> object:
    """The siege by a process that is like this one but for the curb."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            curb()
            os.write(theirs, json.dumps(besiege(target, {})).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:  # noqa: PTH123 - a descriptor
        told: object = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return told


async def hold(folder: Path) -> None:
    """Print the pids of this worker, of its zygote and of two children; live until killed."""
    async with Renderer(preload=(ATTACKS, TASKS)) as renderer, asyncio.TaskGroup() as group:
        allowance = Allowance(deadline_seconds=3600)
        for _ in range(HELD):
            group.create_task(renderer.run_isolated(task(sleep_for_ever), {}, {}, allowance))
        zygote = renderer.zygote_pid
        assert zygote is not None
        children = await eventually(
            lambda: found if len(found := children_of(zygote)) == HELD else None, within=20
        )
        print(json.dumps([os.getpid(), zygote, *children]), flush=True)  # noqa: T201 - to the test


if __name__ == "__main__":
    scenario = {"burgle": burgle_and_tell, "besiege": besiege_and_tell, "hold": hold}[sys.argv[1]]
    asyncio.run(scenario(Path(sys.argv[2])))
