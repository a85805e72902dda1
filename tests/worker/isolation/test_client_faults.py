"""Children that die, hang, babble or lie: the worker names it, and goes on."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from imagefleet.errors import InputRejected, Misconfigured, Unavailable
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation import nursery
from imagefleet.worker.isolation.child import FRAME_HEADER, frame
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import (
    Allowance,
    ChildCancelled,
    ChildCrashed,
    ChildDeadline,
    ChildFailed,
)
from tests.support import children as tasks
from tests.support.children import TASKS, alive, children_of, task
from tests.support.eventually import eventually

Task = Callable[[JsonObject, Mapping[str, int]], JsonObject]

ROOMY = Allowance(deadline_seconds=30)
DIES_WHEN_ASKED = """
import socket, sys
with socket.socket(fileno=int(sys.argv[2])) as channel:
    channel.send(b'{"tidings": "ready"}')
    channel.recv(1)
"""
TURN = {"code": "upside_down", "message": "Turn it round.", "detail": "180 degrees"}
DONE = frame({"kind": "done", "value": {}})


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    async with Renderer(preload=(TASKS,)) as renderer:
        yield renderer
        pid = renderer.zygote_pid
        assert pid is None or children_of(pid) == []


async def run(
    renderer: Renderer,
    function: Task,
    argument: JsonObject | None = None,
    allowance: Allowance = ROOMY,
    *,
    cancel: asyncio.Event | None = None,
) -> JsonObject:
    return await renderer.run_isolated(task(function), argument or {}, {}, allowance, cancel)


async def ticks_until(done: asyncio.Event) -> int:
    """How often the event loop came round; it does as long as nothing blocks it."""
    count = 0
    while not done.is_set():
        await asyncio.sleep(0.002)
        count += 1
    return count


async def test_a_task_gives_back_what_it_returns(renderer: Renderer) -> None:
    finished = await run(renderer, tasks.echo, {"deep": [1, None, {"ä": 0.5}]})

    assert finished == {"deep": [1, None, {"ä": 0.5}]}


async def test_a_segfault_is_named_while_the_other_slots_and_the_loop_go_on(
    renderer: Renderer,
) -> None:
    quick = Allowance(deadline_seconds=0.5)
    done = asyncio.Event()

    async def all_of_them() -> tuple[JsonObject | BaseException, ...]:
        try:
            return await asyncio.gather(
                run(renderer, tasks.segfault),
                run(renderer, tasks.echo, {"slot": 2}),
                run(renderer, tasks.spin, allowance=quick),
                run(renderer, tasks.spin, allowance=quick),
                run(renderer, tasks.echo, {"slot": 5}),
                return_exceptions=True,
            )
        finally:
            done.set()

    outcomes, ticks = await asyncio.gather(all_of_them(), ticks_until(done))

    crash, second, third, fourth, fifth = outcomes
    assert isinstance(crash, ChildCrashed)
    assert crash.signal == signal.SIGSEGV
    assert second == {"slot": 2}
    assert fifth == {"slot": 5}
    assert isinstance(third, ChildDeadline)
    assert isinstance(fourth, ChildDeadline)
    assert ticks > 20


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGKILL, 40], ids=str)
async def test_whatever_signal_ends_a_child_is_a_crash(renderer: Renderer, number: int) -> None:
    with pytest.raises(ChildCrashed) as crash:
        await run(renderer, tasks.die_of, {"signal": int(number)})

    assert crash.value.signal == number


async def test_a_library_that_aborts_is_a_crash(renderer: Renderer) -> None:
    with pytest.raises(ChildCrashed) as crash:
        await run(renderer, tasks.abort)

    assert crash.value.signal == signal.SIGABRT


@pytest.mark.parametrize("status", [0, 3])
async def test_an_exit_without_a_report_is_a_crash(renderer: Renderer, status: int) -> None:
    with pytest.raises(ChildCrashed) as crash:
        await run(renderer, tasks.exit_with, {"status": status})

    assert crash.value.signal is None


@pytest.mark.parametrize(
    "stuck",
    [tasks.sleep_for_ever, tasks.spin, tasks.spin_holding_the_lock, tasks.hang_up_and_sleep],
    ids=lambda function: function.__name__,
)
async def test_the_deadline_ends_whatever_hangs(renderer: Renderer, stuck: Task) -> None:
    with pytest.raises(ChildDeadline, match=r"killed after 0\.3 s"):
        await run(renderer, stuck, allowance=Allowance(deadline_seconds=0.3))


async def test_a_child_that_used_up_its_processor_time_met_a_deadline(renderer: Renderer) -> None:
    with pytest.raises(ChildDeadline, match="processor time"):
        await run(renderer, tasks.spin, allowance=Allowance(deadline_seconds=30, cpu_seconds=1))


async def test_a_memory_hog_is_rejected_for_good(renderer: Renderer) -> None:
    allowance = Allowance(deadline_seconds=30, memory_bytes=128 * 2**20)

    with pytest.raises(InputRejected) as rejected:
        await run(renderer, tasks.hog_memory, allowance=allowance)

    assert rejected.value.code == "memory"


async def test_a_file_grows_to_its_limit_and_no_further(renderer: Renderer, tmp_path: Path) -> None:
    out = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)

    with pytest.raises(InputRejected) as rejected:
        await renderer.run_isolated(
            task(tasks.flood), {}, {"out": out}, Allowance(deadline_seconds=30, file_bytes=100_000)
        )

    assert rejected.value.code == "output_too_large"
    assert os.fstat(out).st_size == 100_000
    os.close(out)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"IF",
        b"no frame at all",
        DONE[:-1],
        DONE + b" ",
        DONE + DONE,
        b"XXXX" + DONE[4:],
        FRAME_HEADER.pack(b"IFR1", 2**32 - 1) + DONE[8:],
        frame({"kind": "done", "value": []}),
        frame({"kind": "done"}),
        frame({"kind": "other", "value": {}}),
        frame({"kind": "rejected", "code": "Robert'); --", "public_message": "x", "detail": None}),
        frame({"kind": "rejected", "code": "x", "public_message": "a\nb", "detail": None}),
        frame({"kind": "rejected", "code": "x", "public_message": "y" * 201, "detail": None}),
        FRAME_HEADER.pack(b"IFR1", 20_000) + b"[" * 20_000,
        FRAME_HEADER.pack(b"IFR1", 3) + b"\xff\xfe\xfd",
    ],
    ids=lambda raw: repr(raw[:40]),
)
async def test_noise_in_place_of_a_report_is_a_crash(renderer: Renderer, raw: bytes) -> None:
    with pytest.raises(ChildCrashed):
        await run(renderer, tasks.say, {"hex": raw.hex()})


@pytest.mark.parametrize("endless", [False, True])
async def test_a_report_that_is_too_long_is_a_crash(renderer: Renderer, *, endless: bool) -> None:
    babble = tasks.say_without_end if endless else tasks.report_at_length

    with pytest.raises(ChildCrashed, match="more than 262144 bytes"):
        await run(renderer, babble, {"length": 300_000})


async def test_a_report_longer_than_a_pipe_arrives_whole(renderer: Renderer) -> None:
    finished = await run(renderer, tasks.report_at_length, {"length": 250_000})

    assert len(str(finished["blob"])) == 250_000


async def test_what_a_child_rejects_is_rejected_here(renderer: Renderer) -> None:
    with pytest.raises(InputRejected) as rejected:
        await run(renderer, tasks.reject, TURN)

    assert rejected.value.code == "upside_down"
    assert rejected.value.public_message == "Turn it round."
    assert rejected.value.detail == "180 degrees"


async def test_a_detail_can_be_stored_whatever_the_file_said(renderer: Renderer) -> None:
    with pytest.raises(InputRejected) as rejected:
        await run(renderer, tasks.reject, {"code": "odd", "message": "x", "detail": "a\0b\udc80"})

    assert rejected.value.detail == "a\N{REPLACEMENT CHARACTER}b?"


@pytest.mark.parametrize("name", [task(tasks.break_down), f"{TASKS}:nothing", "nowhere:nothing"])
async def test_a_bug_in_a_task_is_no_crash_and_tells_where(renderer: Renderer, name: str) -> None:
    with pytest.raises(ChildFailed, match=r"Traceback(.|\n)*Error"):
        await renderer.run_isolated(name, {}, {}, ROOMY)


async def test_a_request_that_is_too_long_is_refused_before_any_child(renderer: Renderer) -> None:
    with pytest.raises(ValueError, match="bytes with 0 files"):
        await run(renderer, tasks.echo, {"blob": "x" * 200_000})

    assert await run(renderer, tasks.echo) == {}


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
async def test_a_cancelled_child_ends_in_time(renderer: Renderer, *, early: bool) -> None:
    cancel = asyncio.Event()
    pid = renderer.zygote_pid
    assert pid is not None

    async def cancel_it() -> None:
        await eventually(lambda: early or children_of(pid))
        cancel.set()

    if early:
        cancel.set()
    with pytest.raises(ChildCancelled):
        await asyncio.gather(run(renderer, tasks.sleep_for_ever, cancel=cancel), cancel_it())


async def test_a_cancelled_wait_returns_when_the_child_is_dead(renderer: Renderer) -> None:
    pid = renderer.zygote_pid
    assert pid is not None

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await run(renderer, tasks.sleep_for_ever)

    assert children_of(pid) == []


async def test_a_killed_zygote_is_replaced_and_its_children_have_crashed(
    renderer: Renderer,
) -> None:
    first = renderer.zygote_pid
    assert first is not None
    held: list[int] = []

    async def kill_it() -> None:
        held.extend(
            await eventually(lambda: found if len(found := children_of(first)) == 2 else None)
        )
        # It tells of one child before it makes the next: so it has told of both.
        await run(renderer, tasks.echo)
        os.kill(first, signal.SIGKILL)

    outcomes = await asyncio.gather(
        run(renderer, tasks.sleep_for_ever),
        run(renderer, tasks.spin),
        kill_it(),
        return_exceptions=True,
    )
    after = await asyncio.gather(*(run(renderer, tasks.echo, {"n": n}) for n in range(3)))

    assert [type(outcome) for outcome in outcomes[:2]] == [ChildCrashed, ChildCrashed]
    assert after == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert renderer.zygote_pid not in {None, first}
    assert not any(map(alive, [first, *held]))


async def test_a_stuck_zygote_is_killed_so_that_no_kill_waits_for_it(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "REAP_WITHIN", 0.3)
    first = renderer.zygote_pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)

    with pytest.raises(ChildDeadline):
        await run(renderer, tasks.sleep_for_ever, allowance=Allowance(deadline_seconds=0.2))

    assert not alive(first)
    assert await run(renderer, tasks.echo) == {}


async def test_requests_wait_for_a_zygote_that_is_slow_to_read(renderer: Renderer) -> None:
    pid = renderer.zygote_pid
    assert pid is not None
    argument = {"blob": "x" * 100_000}  # a few of these fill the socket
    os.kill(pid, signal.SIGSTOP)

    async def go_on() -> None:
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.2, os.kill, pid, signal.SIGCONT)

    *outcomes, _ = await asyncio.gather(
        *(run(renderer, tasks.echo, argument) for _ in range(8)), go_on()
    )

    assert [outcome for outcome in outcomes if outcome is not None] == [argument] * 8


async def test_requests_that_wait_for_a_dying_zygote_go_to_the_next(renderer: Renderer) -> None:
    pid = renderer.zygote_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(0.2, os.kill, pid, signal.SIGKILL)

    outcomes = await asyncio.gather(
        *(run(renderer, tasks.echo, {"blob": "x" * 100_000}) for _ in range(8)),
        return_exceptions=True,
    )

    # What had reached the socket is lost, and nobody is blamed; what had not is done.
    assert {type(outcome) for outcome in outcomes} == {Unavailable, dict}


async def test_closing_the_renderer_ends_what_still_runs() -> None:
    async with asyncio.TaskGroup() as group:
        async with Renderer(preload=(TASKS,)) as renderer:
            pid = renderer.zygote_pid
            assert pid is not None

            async def sleeper() -> None:
                with pytest.raises(ChildCancelled):
                    await run(renderer, tasks.sleep_for_ever)

            group.create_task(sleeper())
            children = await eventually(lambda: children_of(pid))

        assert not any(map(alive, [pid, *children]))


@pytest.mark.parametrize("module", ["nowhere_to_be_found", "tests.support.children_of_none"])
async def test_a_zygote_that_cannot_be_prepared_stops_the_start(module: str) -> None:
    with pytest.raises(Misconfigured, match="ModuleNotFoundError"):
        async with Renderer(preload=(module,)):
            pass


async def test_a_zygote_that_dies_at_its_start_stops_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nursery, "BOOT", "raise SystemExit(3)")

    with pytest.raises(Misconfigured, match="ended at its start: 3"):
        async with Renderer():
            pass


async def test_a_zygote_that_is_never_ready_stops_the_start_and_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    monkeypatch.setattr(nursery, "BOOT", "import time; time.sleep(60)")
    monkeypatch.setattr(nursery, "START_WITHIN", 0.1)
    monkeypatch.setattr(nursery, "STOP_WITHIN", 0.1)

    with pytest.raises(Misconfigured, match="not ready within"):
        async with Renderer():
            pass
    gc.collect()

    assert told == []  # asyncio tells of an exception that nobody took when it is collected


async def test_without_any_zygote_nothing_is_blamed_on_the_job(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = renderer.zygote_pid
    assert pid is not None
    monkeypatch.setattr(nursery, "BOOT", DIES_WHEN_ASKED)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: renderer.zygote_pid is None)

    with pytest.raises(Unavailable):
        await run(renderer, tasks.echo)
