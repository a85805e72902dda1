"""The wait between two runs of a job."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.jobs.policies import (
    LONGEST_CAP,
    MOST_ATTEMPTS,
    STANDARD,
    BreakerLimits,
    CallWindow,
    RetryPolicy,
)

SECOND = timedelta(seconds=1)

policies = st.tuples(
    st.timedeltas(min_value=timedelta(microseconds=1), max_value=LONGEST_CAP),
    st.timedeltas(min_value=timedelta(microseconds=1), max_value=LONGEST_CAP),
).map(lambda spans: RetryPolicy(base=min(spans), cap=max(spans)))
counts = st.integers(min_value=1, max_value=10_000)
draws = st.floats(min_value=0, max_value=1, exclude_max=True)


def test_the_standard_policy_doubles_from_half_a_minute_to_one_hour() -> None:
    policy = RetryPolicy()

    waits = [policy.delay(n, 0) / SECOND for n in range(1, 10)]

    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert policy.max_attempts == 5


@given(policies)
def test_the_first_wait_is_the_base(policy: RetryPolicy) -> None:
    assert policy.base == policy.delay(1, 0)


@given(policies, counts)
def test_each_wait_is_twice_the_one_before_until_the_cap(policy: RetryPolicy, n: int) -> None:
    assert min(policy.cap, 2 * policy.delay(n, 0)) == policy.delay(n + 1, 0)


@given(policies, counts, draws)
def test_jitter_adds_up_to_a_fifth_and_never_takes_away(
    policy: RetryPolicy, n: int, draw: float
) -> None:
    bare = policy.delay(n, 0)

    assert bare <= policy.delay(n, draw) <= bare + bare / 5


def test_the_whole_draw_is_the_whole_fifth() -> None:
    assert RetryPolicy().delay(1, 1) == 36 * SECOND


def test_without_jitter_every_draw_waits_the_same() -> None:
    policy = RetryPolicy(jitter=0)

    assert policy.delay(3, 0) == policy.delay(3, 0.99)


def test_ten_thousand_attempts_wait_no_longer_than_the_cap() -> None:
    assert timedelta(hours=1) == RetryPolicy().delay(10_000, 0)


@pytest.mark.parametrize(
    ("base", "cap"),
    [
        (timedelta(0), SECOND),
        (-SECOND, SECOND),
        (2 * SECOND, SECOND),
        (SECOND, LONGEST_CAP + timedelta(microseconds=1)),
    ],
)
def test_spans_that_are_no_waits_are_refused(base: timedelta, cap: timedelta) -> None:
    with pytest.raises(ValueError, match="base <= cap"):
        RetryPolicy(base=base, cap=cap)


@pytest.mark.parametrize("attempts", [-1, 0, MOST_ATTEMPTS + 1])
def test_a_job_may_run_at_least_once_and_not_for_ever(attempts: int) -> None:
    with pytest.raises(ValueError, match="max_attempts must be"):
        RetryPolicy(max_attempts=attempts)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_jitter_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="jitter must be a share"):
        RetryPolicy(jitter=share)


@pytest.mark.parametrize("draw", [-0.1, 1.1, float("nan")])
def test_a_draw_outside_the_dice_is_refused(draw: float) -> None:
    with pytest.raises(ValueError, match="jitter must be drawn"):
        RetryPolicy().delay(1, draw)


def test_there_is_no_wait_before_the_first_attempt() -> None:
    with pytest.raises(ValueError, match=re.escape("0 were charged")):
        RetryPolicy().delay(0, 0)


def test_the_limits_themselves_are_allowed() -> None:
    shortest = RetryPolicy(base=SECOND, cap=SECOND, max_attempts=1, jitter=1)
    longest = RetryPolicy(base=LONGEST_CAP, cap=LONGEST_CAP, max_attempts=MOST_ATTEMPTS)

    assert shortest.delay(5, 1) == 2 * SECOND
    assert longest.delay(5, 0) == LONGEST_CAP


NOW = datetime(2026, 1, 1, tzinfo=UTC)
LISTENED = NOW + STANDARD.listen_for


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
