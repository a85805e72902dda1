"""The wait between two runs of a job."""

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.jobs.retry import LONGEST_CAP, MOST_ATTEMPTS, RetryPolicy

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
