"""The arithmetic of a lane: what it holds, and whose turn it is."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.maintenance.window import LATELY, TenantTurns, Window
from imagefleet.settings.in_force import AS_BUILT

LOOK = 0.2
SPARE = AS_BUILT.spare


def test_an_idle_lane_takes_its_free_slots_and_a_few() -> None:
    window = Window()

    assert window.look(0, announced=0, held=0, free=16, finished=0) == 16 + SPARE
    assert window.lately == LATELY


def test_slow_jobs_that_fill_the_slots_do_not_widen_the_window() -> None:
    """Sixteen are claimed at once, and none is finished: the lane is not quick."""
    window = Window()
    window.look(0, announced=0, held=0, free=16, finished=0)

    room = window.look(LOOK, announced=4, held=16, free=0, finished=0)

    assert (window.rate, window.size, room) == (0, SPARE, 0)


def test_quick_jobs_widen_it_within_a_second() -> None:
    window, now = Window(), 0.0
    sizes: list[int] = []
    for _ in range(6):
        # All that was announced is claimed and done by the next look.
        window.look(now, announced=0, held=0, free=16, finished=sum(sizes))
        sizes.append(window.size)
        now += LOOK

    assert sizes[0] == 20
    assert sizes[-1] > 15 * 20
    assert all(later > 1.1 * earlier for earlier, later in pairwise(sizes))


def test_a_window_holds_about_a_second_of_what_the_lane_finishes() -> None:
    """A hundred a second, whatever more is announced."""
    window = Window()
    for look in range(50):
        window.look(look * LOOK, announced=20 * look, held=16, free=0, finished=100)

    assert window.rate == pytest.approx(100, rel=0.1)
    assert window.size == pytest.approx(100 + SPARE, rel=0.1)
    assert window.lately.total_seconds() == pytest.approx(3.12, rel=0.1)


def test_jobs_that_end_together_keep_their_window_in_between() -> None:
    """Sixteen jobs of 1.5 s end at one moment; at the next looks none does."""
    window = Window()
    sizes = []
    for look in range(60):
        finished = 16 if look % 8 < 5 else 0  # within the last second
        window.look(look * LOOK, announced=SPARE, held=16, free=0, finished=finished)
        sizes.append(window.size)

    assert 16 * 3 / 5 <= min(sizes[30:]) <= max(sizes[30:]) <= SPARE + 16


def test_a_dispatcher_that_looks_late_looks_further_ahead() -> None:
    window = Window()
    for look in range(10):
        window.look(look * 1.0, announced=0, held=0, free=0, finished=100)
    assert window.size >= 2.5 * 100

    for look in range(10):
        window.look(10 + look * 30.0, announced=0, held=0, free=0, finished=100)
    assert window.size <= 5 * 100 + SPARE


def test_of_a_crowd_that_came_at_once_and_one_that_came_after_it_the_latter_is_next() -> None:
    turns = TenantTurns()
    crowd = {f"tenant-{n}": 1 for n in range(1000)}
    turns.arrive(crowd, complete=True)
    given_turns(turns, crowd, 10)
    turns.arrive([*crowd, "a-late-one"], complete=True)

    assert list(turns.share(crowd | {"a-late-one": 1}, 1)) == ["a-late-one"]


def test_who_is_looked_at_by_parts_is_not_new_with_every_part() -> None:
    turns = TenantTurns()
    for _ in range(3):
        turns.arrive(["a", "b"], complete=False)
        turns.arrive(["c", "d"], complete=True)

    assert list(turns.share({"a": 1, "b": 1, "c": 1, "d": 1}, 1)) == ["d"]
    turns.arrive(["a", "b"], complete=False)
    turns.arrive(["c", "e"], complete=True)
    assert list(turns.share({"a": 1, "b": 1, "c": 1, "e": 1}, 1)) == ["e"]


def given_turns(turns: TenantTurns, weights: dict[str, int], jobs: int) -> Counter[str]:
    """One turn at a time, as the smallest window would."""
    had: Counter[str] = Counter()
    for _ in range(jobs):
        (tenant,) = turns.share(weights, 1)
        turns.served([(tenant, weights[tenant], 1)])
        had[tenant] += 1
    return had


def test_tenants_with_equal_weights_alternate() -> None:
    had = given_turns(TenantTurns(), {"a": 1, "b": 1, "c": 1}, 300)

    assert set(had.values()) == {100}


def test_a_tenant_of_weight_four_has_four_turns_for_one() -> None:
    had = given_turns(TenantTurns(), {"heavy": 4, "light": 1}, 500)

    assert 390 <= had["heavy"] <= 410


def test_a_newcomer_is_next_however_long_the_others_have_been_served() -> None:
    turns = TenantTurns()
    old = {f"old-{n}": 1 for n in range(1000)}
    given_turns(turns, old, 3000)

    assert list(turns.share(old | {"new": 1}, 1)) == ["new"]


def test_a_newcomer_does_not_catch_up_on_turns_that_it_did_not_want() -> None:
    turns = TenantTurns()
    given_turns(turns, {"old": 1}, 10_000)

    had = given_turns(turns, {"old": 1, "new": 1}, 100)

    assert 49 <= had["new"] <= 52


def test_who_comes_back_after_a_pause_has_saved_nothing_and_owes_nothing() -> None:
    turns = TenantTurns()
    given_turns(turns, {"a": 1, "b": 1}, 100)
    given_turns(turns, {"b": 1}, 1000)

    had = given_turns(turns, {"a": 1, "b": 1}, 100)

    assert 49 <= had["a"] <= 52


@given(
    weights=st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 9), min_size=1),
    rooms=st.lists(st.integers(1, 40), min_size=1, max_size=20),
)
def test_shares_are_by_weight_whatever_the_room_of_a_look(
    weights: dict[str, int], rooms: list[int]
) -> None:
    """All have enough that waits: nobody is more than one turn and one look away from its part."""
    turns, had = TenantTurns(), Counter[str]()
    for room in rooms:
        shares = turns.share(weights, room)
        assert sum(shares.values()) == room
        turns.served((tenant, weights[tenant], jobs) for tenant, jobs in shares.items())
        had.update(shares)

    level = sum(rooms) / sum(weights.values())
    for tenant, weight in weights.items():
        assert abs(had[tenant] / weight - level) <= 2


def test_a_hundred_thousand_tenants_that_came_once_are_not_remembered() -> None:
    turns = TenantTurns()
    for n in range(100_000):
        turns.served([(f"tenant-{n}", 1, 1)])
        turns.served([("always", 1, 1)])

    assert len(turns._ends) < 30_000
