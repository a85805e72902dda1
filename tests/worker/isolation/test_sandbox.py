"""A child that is the attacker's gets nothing, whether the worker is root or an ordinary user."""

from __future__ import annotations

import grp
import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from imagefleet.errors import Misconfigured
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import GENERAL_MEMORY_BYTES, Allowance
from imagefleet.worker.isolation.sandbox import SIGNALS, STACK_BYTES, UNCLAIMED, nobodys_id
from imagefleet.worker.isolation.syscalls import filter_program, numbers
from tests.support.children import alive
from tests.support.eventually import eventually
from tests.worker.attacks import ATTACKS, SECRET, all_of, attack, describe

ROOT = Path(__file__).parents[3]
AS_ROOT = os.geteuid() == 0
ORDINARY = 12_345  # a user that exists nowhere
KNOWN = pwd.getpwnam("nobody").pw_uid  # Postgres runs as an account only, and not as root
USER_OF_IMAGES = 65532
LANDLOCK_WITH_SCOPES = 6
CANARY = "canary-9f2c7d1e5b"
PYTHONS = (sys.executable, "/usr/bin/python3")  # the one of the tests may lie in root's home

# Names that follow from the kernel's answer; whatever else an attempt may have met is a breach.
REFUSED = {"EPERM", "can't start new thread"}


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the worker runs as, and a Python that this account can start."""

    user: int | None
    python: str

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), SECRET: CANARY},
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )

    def can_start(self) -> bool:
        try:
            process = self.start("-c", "import PIL.Image, pydantic, imagefleet")
        except OSError:
            return False
        process.communicate()
        return process.returncode == 0


@pytest.fixture(scope="module", params=["ourselves", "ordinary"] if AS_ROOT else ["ourselves"])
def account(request: pytest.FixtureRequest) -> Account:
    if request.param == "ourselves":
        return Account(None, sys.executable)
    for python in PYTHONS:
        account = Account(ORDINARY, python)
        if account.can_start():
            return account
    pytest.skip("no Python of this version that another user may start")


@pytest.fixture(scope="module")
def folder(account: Account) -> Iterator[Path]:
    """The account's own; pytest's is root's alone."""
    with tempfile.TemporaryDirectory() as name:
        if account.user is not None:
            os.chown(name, account.user, account.user)
        yield Path(name)


@dataclass(frozen=True, slots=True)
class Loot:
    attempts: dict[str, str]
    belongings: dict[str, object]
    calls: dict[str, object]
    marker: str
    memory: bytes


@pytest.fixture(scope="module")
def loot(account: Account, folder: Path) -> Loot:
    process = account.start("-m", ATTACKS, "burgle", str(folder))
    output, _ = process.communicate(timeout=50)
    assert process.returncode == 0, output
    told = json.loads(output.splitlines()[-1])
    dump = folder / "dump"
    memory = dump.read_bytes()
    dump.unlink()
    return Loot(told["loot"], told["belongings"], told["calls"], told["marker"], memory)


@pytest.fixture(scope="module")
def siege(account: Account) -> dict[str, Any]:
    """Attempts on an embedded Postgres; where the worker is not root, it is the same user's."""
    if account.user is not None:
        account = replace(account, user=KNOWN)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        if account.user is not None:
            os.chown(name, account.user, account.user)
        process = account.start("-m", ATTACKS, "besiege", name)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    return told


@contextmanager
def holding(account: Account, folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A worker with children, and the pids of worker, zygote and children."""
    with account.start("-m", ATTACKS, "hold", str(folder)) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("["))
            yield process, json.loads(line)
        finally:
            process.kill()


def test_everything_an_attacker_tries_is_refused(loot: Loot) -> None:
    breaches = {name: met for name, met in loot.attempts.items() if met not in REFUSED}

    assert breaches == {}
    assert len(loot.attempts) > 120


def test_every_other_system_call_there_is_is_refused(loot: Loot) -> None:
    assert loot.calls["not_refused"] == {}
    assert isinstance(loot.calls["tried"], int)
    assert loot.calls["tried"] > 600


def test_a_postgres_beside_it_is_out_of_reach(siege: dict[str, Any], account: Account) -> None:
    """Without the sandbox it is not: the attempts are good ones."""
    same_user = account.user is not None or not AS_ROOT
    assert siege["owner"] == (KNOWN if AS_ROOT else os.geteuid())
    assert siege["child_ids"] == ([siege["owner"]] if same_user else [UNCLAIMED[0]])
    assert {"got"} <= {met.split()[0] for met in siege["uncurbed"].values()}
    for attempt in ("attach to", "signal", "connect by TCP", "connect by path"):
        first = next(met for name, met in siege["uncurbed"].items() if name.startswith(attempt))
        assert first.startswith("got")

    assert set(siege["child"].values()) == {"EPERM"}
    assert len(siege["child"]) > 40


def test_landlock_alone_keeps_postgres_out_of_reach(siege: dict[str, Any]) -> None:
    """What stands behind the filter, for as much of it as the kernel has."""
    if siege["landlock"] < LANDLOCK_WITH_SCOPES:
        pytest.skip("a kernel without Landlock's scopes")

    assert set(siege["curbed"].values()) == {"EACCES", "EPERM"}
    assert len(siege["curbed"]) > 40


async def test_a_child_asks_about_its_own_files_and_no_others(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(12_345))
    allowance = Allowance(deadline_seconds=30)
    async with Renderer(preload=(ATTACKS,)) as renderer:
        with source.open("rb") as file:
            files = {"source": file.fileno()}
            told = await renderer.run_isolated(attack(describe), {}, files, allowance)

        expected = all_of(os.stat(source))  # noqa: PTH116 - compared with the bare call

    assert told == {"told": expected, "not_open": "EBADF", "read": 12_345}


def test_nothing_that_was_tried_left_a_file(loot: Loot, folder: Path) -> None:
    assert list(folder.iterdir()) == []


def test_a_child_holds_its_own_files_and_no_environment(loot: Loot) -> None:
    given = loot.belongings["given"]

    assert isinstance(given, list)
    assert loot.belongings == {"open": [0, 1, 2, *given], "given": given, "environment": {}}


def test_the_workers_secret_is_nowhere_in_a_childs_memory(loot: Loot) -> None:
    # Found: the search reaches what a child does know.
    assert loot.marker.encode() in loot.memory
    assert b"imagefleet.worker.isolation.zygote" in loot.memory

    assert CANARY.encode() not in loot.memory


def test_another_process_of_the_same_user_cannot_read_the_worker(
    account: Account, folder: Path
) -> None:
    """Without any filter: the worker is not dumpable. Root may read everything, so it is nobody."""
    peek = "import sys; print(open(f'/proc/{sys.argv[1]}/environ').read())"
    user = ORDINARY if AS_ROOT else None
    with holding(account, folder) as (_, pids):
        for pid in pids:
            reader = Account(user, account.python if account.user else PYTHONS[-1])
            process = reader.start("-c", peek, str(pid))
            output, _ = process.communicate(timeout=20)

            assert process.returncode != 0
            assert CANARY not in output


async def test_the_kernel_agrees_that_children_are_confined(account: Account, folder: Path) -> None:
    user = os.geteuid() if account.user is None else account.user
    with holding(account, folder) as (_, (_, zygote, *children)):
        for child in children:
            status = await eventually(partial(status_once_filtered, child))

            ids = set(status["Uid"].split() + status["Gid"].split())
            assert ids == {str(UNCLAIMED[0] if user == 0 else user)}
            assert status["Groups"].split() == [] or user != 0
            assert status["PPid"] == str(zygote)
            assert status["NoNewPrivs"] == "1"
            rights = {"CapPrm", "CapEff", "CapInh", "CapAmb"} | ({"CapBnd"} if user == 0 else set())
            assert {status[name] for name in rights} == {"0" * 16}
            limits = limits_of(child)
            assert limits["Max stack size"] <= STACK_BYTES
            assert limits["Max data size"] <= GENERAL_MEMORY_BYTES
            assert limits["Max address space"] < 2 * GENERAL_MEMORY_BYTES
            assert limits["Max pending signals"] <= SIGNALS


def limits_of(pid: int) -> dict[str, float]:
    """The hard ones."""
    lines = Path(f"/proc/{pid}/limits").read_text(encoding="utf-8").splitlines()[1:]
    return {line[:25].strip(): float(line[47:68].replace("unlimited", "inf")) for line in lines}


def status_once_filtered(pid: int) -> dict[str, str] | None:
    """What the kernel says about a process that has entered its sandbox."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    status = dict(line.split(":\t", 1) for line in text.splitlines())
    return status if status["Seccomp"] == "2" else None


@pytest.mark.parametrize("victim", ["worker", "zygote"])
async def test_nobody_outlives_a_killed(victim: str, account: Account, folder: Path) -> None:
    with holding(account, folder) as (process, pids):
        _, zygote, *children = pids
        if victim == "worker":
            process.kill()
        else:
            os.kill(zygote, 9)

        await eventually(lambda: not any(map(alive, [zygote, *children])), within=5)


def test_an_unknown_processor_is_refused_before_any_picture() -> None:
    with pytest.raises(Misconfigured, match="not on riscv64"):
        filter_program("riscv64", 2**46)


def test_the_id_of_children_is_no_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor that of the embedded Postgres; an account that has it is made way for."""
    monkeypatch.setattr(os, "getresuid", lambda: (0, 0, 0))
    taken = {UNCLAIMED[0], UNCLAIMED[1]}

    def found(number: int) -> None:
        if number not in taken:
            raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", found)
    monkeypatch.setattr(grp, "getgrgid", found)
    assert nobodys_id.__wrapped__() == UNCLAIMED[2]
    assert not {KNOWN, USER_OF_IMAGES} & set(UNCLAIMED)

    taken.update(UNCLAIMED)
    with pytest.raises(Misconfigured, match="somebody's"):
        nobodys_id.__wrapped__()


def test_both_processors_are_allowed_the_same_calls() -> None:
    ours, theirs = numbers("x86_64"), numbers("aarch64")

    assert list(ours) == list(theirs)
    assert len(set(ours.values())) == len(set(theirs.values())) == len(ours)
    never = {"openat", "socket", "execve", "clone", "kill", "ptrace", "ioctl"}
    never |= {"newfstatat", "statx", "mprotect"}
    assert not never & set(ours)
