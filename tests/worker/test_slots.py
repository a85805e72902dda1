"""How many at once, and who has a worker to itself: who waits for whom, and for how long."""

import asyncio
from datetime import timedelta

import pytest

from imagefleet.worker.slots import FIRST_PATIENCE, LONGEST_PATIENCE, Slots, Solitude
from tests.support.eventually import eventually

SOON = timedelta(milliseconds=20)


async def test_it_begins_when_all_others_have_left() -> None:
    solitude = Solitude()
    solitude.enter()
    solitude.enter()
    async with asyncio.TaskGroup() as group:
        alone = group.create_task(solitude.begin())
        await eventually(lambda: solitude.is_shut)
        solitude.leave()
        await asyncio.sleep(0)
        assert not alone.done()
        solitude.leave()

    assert alone.result()
    assert solitude.is_shut


async def test_all_others_wait_until_it_ends() -> None:
    solitude = Solitude()
    assert await solitude.begin()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(solitude.opened()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        solitude.end()

    assert not solitude.is_shut


async def test_patience_grows_until_it_outlasts_what_runs_and_begins_anew() -> None:
    solitude = Solitude()
    assert FIRST_PATIENCE == solitude.patience
    solitude.patience = SOON
    solitude.enter()

    assert not await solitude.begin()
    assert not solitude.is_shut
    assert SOON * 2 == solitude.patience

    solitude.leave()
    assert await solitude.begin()
    assert FIRST_PATIENCE == solitude.patience
    assert LONGEST_PATIENCE > timedelta(hours=1, minutes=1)


async def test_who_gives_up_waiting_shuts_nobody_out() -> None:
    solitude = Solitude()
    solitude.enter()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(solitude.begin())
        await eventually(lambda: solitude.is_shut)
        waiting.cancel()

    assert not solitude.is_shut


CLOSED = 0.2  # seconds


async def shut_for_a_while(solitude: Solitude) -> None:
    solitude.enter()
    asyncio.get_running_loop().call_later(CLOSED, solitude.leave)
    assert await solitude.begin()
    solitude.end()


@pytest.mark.parametrize("busy", [True, False], ids=["that have work", "that have none"])
async def test_others_have_as_long_as_the_last_suspect_had(
    busy: bool,  # noqa: FBT001 - a column of the table above
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("imagefleet.worker.slots.TURN", SOON)
    clock = asyncio.get_running_loop().time
    solitude = Solitude()
    await shut_for_a_while(solitude)
    begun = clock()
    if busy:
        solitude.enter()
    await solitude.others_had_their_turn()

    waited = clock() - begun
    assert waited >= CLOSED * 0.9 if busy else waited < CLOSED * 0.9
    await solitude.others_had_their_turn()
    assert clock() - begun - waited < CLOSED * 0.9, "once"


async def test_a_worker_for_suspects_alone_gives_nobody_a_turn() -> None:
    solitude = Solitude(shared=False)
    await shut_for_a_while(solitude)
    begun = asyncio.get_running_loop().time()
    await solitude.others_had_their_turn()

    assert asyncio.get_running_loop().time() - begun < CLOSED * 0.9


# Slots.


async def test_slots_are_told_of_as_they_change() -> None:
    seen: list[tuple[int, int, int]] = []
    slots = Slots(2, changed=lambda room: seen.append((room.free, room.reserved, room.busy)))

    assert 2 == await slots.reserve(10)
    slots.occupy()
    slots.give_back(1)
    slots.leave()
    await slots.all_free()

    assert [(2, 0, 0), (0, 2, 0), (0, 1, 1), (1, 0, 1), (2, 0, 0)] == seen


async def test_fewer_slots_in_use_are_fewer_reserved_and_the_others_come_back() -> None:
    slots = Slots(3)
    slots.use(1)
    assert 1 == await slots.reserve(10)
    async with asyncio.TaskGroup() as group:
        more = group.create_task(slots.reserve(10))
        await asyncio.sleep(0)
        assert not more.done()

        slots.use(50)

    assert 2 == more.result()
    assert (3, 0) == (slots.in_use, slots.surplus)
    slots.use(1)
    assert (0, 2) == (slots.free, slots.surplus)


async def test_no_slots_in_use_are_free_for_nobody_until_some_are() -> None:
    slots = Slots(3)
    slots.use(0)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(slots.reserve(10))
        async with asyncio.timeout(5):
            await slots.all_free()  # a drain does not wait for what may not be used
        assert not waiting.done()

        slots.use(2)

    assert 2 == waiting.result()
