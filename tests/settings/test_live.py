"""Live settings as they are declared, and what holds in a process when some of them are turned."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagefleet.errors import RequestRejected
from imagefleet.jobs.kinds import BUILT_IN, TIMEOUTS
from imagefleet.jobs.model import Lane
from imagefleet.jobs.policies import STANDARD, RetryPolicy
from imagefleet.settings import Maintenance, Worker
from imagefleet.settings.in_force import (
    PLACES,
    Overlay,
    contradictions,
    defaults_of_api,
    defaults_of_maintenance,
    defaults_of_worker,
    find_setting,
    in_force,
    named,
)
from imagefleet.settings.live import DECLARED, LiveSetting
from imagefleet.settings.values import BreakerNumbers

USUAL = RetryPolicy()
SECOND = timedelta(seconds=1)
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
NAMES = {"<service>": "s3", "<policy>": "noop", "<type>": "noop", "<lane>": "fast"}


def spelled(setting: LiveSetting) -> str:
    """A name that it has, whatever may stand in its place."""
    places = [place for place in PLACES if place in setting.name]
    return named(setting.name, NAMES.get(places[0], "word")) if places else setting.name


@pytest.mark.parametrize("setting", DECLARED, ids=lambda setting: setting.name)
def test_a_name_leads_to_its_setting_and_to_no_other(setting: LiveSetting) -> None:
    assert setting is find_setting(spelled(setting))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nonsense",
        "breaker.s3",
        "breaker..failures",
        "breaker.S3.failures",
        "breaker.s3.failures ",
        "timeout.type.*",
        "slots.type.*",
        "slots.lane.express",
        "retry.no-type.base_seconds",
        "limits.*",
        "slots.type." + "x" * 64,
        "window.spare_jobs\n",
    ],
)
def test_what_is_like_a_name_is_none(name: str) -> None:
    assert find_setting(name) is None


@pytest.mark.parametrize("setting", DECLARED, ids=lambda setting: setting.name)
def test_the_bounds_are_allowed_and_what_is_beyond_them_is_not(setting: LiveSetting) -> None:
    name = spelled(setting)
    if setting.form == "switch":
        assert [True, False] == [setting.read(name, value) for value in (True, False)]
        beyond: list[object] = [0, 1]
    else:
        made = int if setting.form == "whole" else float
        for bound in (setting.low, setting.high):
            assert setting.read(name, made(bound)) == bound
        beyond = [setting.low - 1, setting.high + 1, float("nan"), float("inf"), True, False]
        if setting.form == "whole":
            beyond.append(setting.low + 0.5)

    for value in (*beyond, None, "1", [], {}):
        with pytest.raises(RequestRejected) as refused:
            setting.read(name, value)
        assert refused.value.public_message == f"{name} is {setting.allowed}."


def test_what_is_allowed_is_said_in_words() -> None:
    failures, lane = find_setting("breaker.s3.failures"), find_setting("timeout.lane.fast")
    assert failures is not None
    assert lane is not None

    assert failures.allowed == "a whole number from 1 to 1000000"
    assert lane.allowed == "a number of seconds from 1 to 7200"


@settings(suppress_health_check=[HealthCheck.too_slow])  # that is a busy machine
@given(st.dictionaries(st.sampled_from([*map(spelled, DECLARED), "other"]), ANYTHING, max_size=30))
def test_whatever_stands_in_postgres_some_rules_hold(rows: dict[str, object]) -> None:
    now, ignored = in_force(rows)

    assert now.turned.keys() | ignored.keys() == rows.keys()
    for kind in BUILT_IN.values():
        assert now.retry(kind, USUAL).delay(3, 0.5) > timedelta(0)
        assert now.timeout(kind, Lane.FAST) > timedelta(0)
    assert now.breaker("s3", {}).failures >= 1
    assert now.horizon().shortest <= now.horizon().longest
    assert 0 <= now.slots(Lane.FAST, 3) <= 3
    assert now.slots_of_types().keys() <= {"noop"}
    list(contradictions(now, BUILT_IN, USUAL))


def test_what_is_unknown_or_nonsense_is_left_out_and_said() -> None:
    now, ignored = in_force({"slots.lane.fast": 2, "slots.lane.general": "two", "later.one": 1})

    assert now.turned == {"slots.lane.fast": 2}
    assert ignored == {
        "slots.lane.general": "slots.lane.general is a whole number of slots from 0 to 100.",
        "later.one": "this release has no such setting",
    }


def test_a_breaker_is_turned_by_its_own_name_first() -> None:
    """Here before the environment, a name before the star, each number by itself."""
    configured = {"s3": BreakerNumbers(failures=20), "*": BreakerNumbers(failures=10, ratio=0.3)}
    now = Overlay(turned={"breaker.*.failures": 7, "breaker.s3.window_seconds": 5.0})

    assert now.breaker("s3", configured) == replace(
        STANDARD, failures=20, ratio=0.3, window=5 * SECOND
    )
    assert now.breaker("other", configured) == replace(STANDARD, failures=7, ratio=0.3)
    assert Overlay().breaker("other", {}) == STANDARD


def test_the_star_is_for_types_without_a_policy_of_their_own() -> None:
    noop = replace(BUILT_IN["noop"], retry=USUAL)
    own = replace(noop, name="own", retry=RetryPolicy(base=2 * SECOND))
    now = Overlay(turned={"retry.*.base_seconds": 7.0, "retry.*.max_attempts": 9})

    assert now.retry(noop, USUAL) == RetryPolicy(base=7 * SECOND, max_attempts=9)
    assert now.retry(own, USUAL) is own.retry
    by_name = Overlay(turned={"retry.own.base_seconds": 3.0})
    assert by_name.retry(own, USUAL) == RetryPolicy(base=3 * SECOND)


def test_a_type_with_a_time_of_its_own_is_not_turned_by_its_lane() -> None:
    noop = BUILT_IN["noop"]
    own = replace(noop, timeout=9 * SECOND)
    lane = Overlay(turned={"timeout.lane.fast": 5.0})
    both = Overlay(turned={"timeout.lane.fast": 5.0, "timeout.type.noop": 7.0})

    assert lane.timeout(noop, Lane.FAST) == 5 * SECOND
    assert lane.timeout(noop, Lane.GENERAL) == TIMEOUTS[Lane.GENERAL]
    assert lane.timeout(own, Lane.FAST) == 9 * SECOND
    assert both.timeout(noop, Lane.FAST) == both.timeout(own, Lane.GENERAL) == 7 * SECOND


def test_more_slots_than_there_are_is_all_of_them() -> None:
    now = Overlay(turned={"slots.lane.fast": 50, "slots.type.noop": 2})

    assert [now.slots(lane, 3) for lane in Lane] == [3, 3, 3]
    assert now.slots_of_lanes() == {Lane.FAST: 50}
    assert now.slots_of_types() == {"noop": 2}


def test_a_tenants_own_limit_stands_before_that_for_all() -> None:
    now = Overlay(turned={"limits.streams": 5}, tenant_limits={("acme", "streams"): 0})

    limits = [
        now.limit(*asked) for asked in (("acme", "streams"), ("rival", "streams"), ("acme", "x"))
    ]
    assert limits == [0, 5, None]


@pytest.mark.parametrize(
    ("rows", "named_ones"),
    [
        ({"retry.*.base_seconds": 4000}, {"retry.*.base_seconds", "retry.*.cap_seconds"}),
        ({"retry.*.cap_seconds": 1}, {"retry.*.base_seconds", "retry.*.cap_seconds"}),
        (
            {"retry.noop.base_seconds": 90, "retry.*.cap_seconds": 60},
            {"retry.noop.base_seconds", "retry.*.cap_seconds"},
        ),
        (
            {"window.longest_seconds": 0.5},
            {"window.shortest_seconds", "window.longest_seconds"},
        ),
    ],
)
def test_what_contradicts_itself_is_told_with_both_names(
    rows: dict[str, object], named_ones: set[str]
) -> None:
    now, _ = in_force(rows)

    (sentence,) = set(contradictions(now, {}, USUAL))

    assert all(name in sentence for name in named_ones)


def test_what_makes_sense_together_is_no_contradiction() -> None:
    now, _ = in_force({"retry.*.base_seconds": 4000, "retry.*.cap_seconds": 4000})

    assert [] == list(contradictions(now, BUILT_IN, USUAL))


def test_every_default_that_is_told_has_a_name_and_is_allowed() -> None:
    worker = Worker(breakers={"s3": BreakerNumbers(failures=20)})
    told = defaults_of_worker(worker, USUAL, BUILT_IN, {"process_image": 3})
    told |= defaults_of_api(USUAL, BUILT_IN) | defaults_of_maintenance(Maintenance())

    now, ignored = in_force(told)

    assert ({}, told) == (ignored, now.turned)
    assert (20, 5) == (told["breaker.s3.failures"], told["breaker.*.failures"])
    assert (16, 5) == (told["slots.lane.fast"], told["retry.*.max_attempts"])
