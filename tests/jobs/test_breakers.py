"""When a service counts as down: only the numbers, without a clock."""

from datetime import UTC, datetime, timedelta

import pytest

from imagefleet.jobs.breakers import STANDARD, BreakerLimits, CallWindow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LISTENED = NOW + STANDARD.listen_for
SECOND = timedelta(seconds=1)


def after(failures: int, successes: int, limits: BreakerLimits = STANDARD) -> CallWindow:
    return CallWindow().counting(failures, successes, limits, NOW)


@pytest.mark.parametrize(
    ("failures", "successes", "trips"),
    [
        (4, 0, False),
        (5, 0, True),
        (5, 5, True),
        (5, 6, False),
        (500, 500, True),
        (500, 501, False),
        (500, 100_000, False),
    ],
)
def test_enough_failures_that_are_half_of_all_calls_open_it(
    failures: int, successes: int, *, trips: bool
) -> None:
    assert trips is after(failures, successes).trips(STANDARD, LISTENED)


def test_who_sees_enough_failures_listens_to_others_before_it_is_judged() -> None:
    window = after(5, 0)

    assert window.is_listening(LISTENED - SECOND / 10)
    assert not window.trips(STANDARD, LISTENED - SECOND / 10)
    assert not window.counting(0, 6, STANDARD, LISTENED).trips(STANDARD, LISTENED)
    assert window.counting(0, 5, STANDARD, LISTENED).trips(STANDARD, LISTENED)


def test_further_failures_do_not_prolong_the_listening() -> None:
    assert after(5, 0).counting(9, 0, STANDARD, LISTENED).trips(STANDARD, LISTENED)


def test_fewer_failures_than_enough_are_listened_to_by_nobody() -> None:
    assert not after(4, 0).is_listening(NOW)


def test_successes_alone_change_nothing() -> None:
    assert CallWindow() == after(0, 1000)


def test_half_of_a_window_is_carried_into_the_next() -> None:
    first = after(9, 5)
    assert first.ends_at is not None

    second = first.counting(1, 0, STANDARD, first.ends_at)

    assert (5, 2, first.ends_at + STANDARD.window) == (
        second.failures,
        second.successes,
        second.ends_at,
    )
    assert first.judged_from == second.judged_from, "it was being judged all the time"


def test_what_is_carried_is_judged_anew_where_it_is_not_enough() -> None:
    first = after(6, 0)
    assert first.ends_at is not None
    later = first.ends_at + SECOND

    second = first.counting(1, 0, STANDARD, later)

    assert second.judged_from is None
    assert later + STANDARD.listen_for == second.counting(1, 0, STANDARD, later).judged_from


def test_nothing_of_long_ago_is_carried() -> None:
    first = after(1000, 0)
    assert first.ends_at is not None
    later = first.ends_at + STANDARD.window

    assert first == first.counting(0, 5, STANDARD, later), "nothing has to be written"
    assert CallWindow(ends_at=later + STANDARD.window, failures=1) == first.counting(
        1, 0, STANDARD, later
    )


def test_the_limits_are_a_services_own() -> None:
    strict = BreakerLimits(failures=1, ratio=0.01, listen_for=timedelta(0))

    assert after(1, 99, strict).trips(strict, NOW)
    assert not after(1, 100, strict).trips(strict, NOW)
