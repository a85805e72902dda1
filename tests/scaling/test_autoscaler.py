"""The arithmetic of KEDA and of the HPA, as their documents and sources have it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from tests.scaling.autoscaler import SYNC, Autoscaler, Values
from tests.scaling.manifests import (
    DOWN,
    POSTGRES,
    SQS,
    UP,
    Fallback,
    Policy,
    Rules,
    Scaled,
    Trigger,
    read_scaled,
)

WORK = Trigger(
    kind=POSTGRES,
    asks="SELECT work_in_lane('fast')",
    threshold=16,
    activation=0,
    cached=False,
    in_flight=True,
)
MESSAGES = replace(WORK, kind=SQS, asks="FAST_QUEUE_URL")
AT_ONCE = Rules(window=0, policies=(Policy(kind="Percent", value=900, period=15),))
SCALED = Scaled(
    name="worker-fast",
    least=0,
    most=20,
    polling=5,
    cooldown=300,
    fallback=None,
    triggers=(WORK,),
    up=AT_ONCE,
    down=Rules(window=0, policies=(Policy(kind="Percent", value=100, period=15),)),
    environment={"WORKER_LANES": "fast", "WORKER_FAST_SLOTS": "16"},
    grace=200,
)


def replicas_of(
    scaler: Autoscaler, heard: Iterable[Sequence[float | None] | float | None]
) -> list[int]:
    """After each look of the HPA, fifteen seconds from one to the next."""
    counts = []
    for number, each in enumerate(heard, start=1):
        values: Values = list(each) if isinstance(each, Sequence) else [each]
        now = number * SYNC
        scaler.poll(now, values)
        scaler.sync(now, values)
        counts.append(scaler.replicas)
    return counts


@pytest.mark.parametrize(("work", "replicas"), [(0, 0), (1, 1), (16, 1), (33, 3), (10_000, 20)])
def test_workers_are_as_many_as_the_thresholds_in_the_work(work: float, replicas: int) -> None:
    assert replicas_of(Autoscaler(SCALED), [work] * 2)[-1] == replicas


def test_the_trigger_that_wants_the_most_decides() -> None:
    scaler = Autoscaler(replace(SCALED, triggers=(WORK, MESSAGES)))

    assert replicas_of(scaler, [(20, 100), (100, 20), (0, 100)]) == [7, 7, 7]


def test_the_first_comes_only_of_more_than_the_activation() -> None:
    scaler = Autoscaler(replace(SCALED, triggers=(replace(WORK, activation=5),)))

    assert replicas_of(scaler, [5, 5, 6, 6]) == [0, 0, 1, 1]


def test_a_tenth_more_or_less_changes_nothing() -> None:
    assert replicas_of(Autoscaler(SCALED), [64, 69, 59, 71]) == [4, 4, 4, 5]


def test_all_go_at_once_when_nothing_was_active_for_the_cooldown() -> None:
    scaler = Autoscaler(replace(SCALED, down=DOWN))
    quiet = [0] * 21

    assert replicas_of(scaler, [64, *quiet]) == [4] * 20 + [1, 0]


def test_work_within_the_cooldown_begins_it_anew() -> None:
    scaler = Autoscaler(SCALED)

    counts = replicas_of(scaler, [16, *[0] * 15, 1, *[0] * 21])

    assert counts.index(0) == 16 + 21


def test_least_workers_stay_whatever_there_is_to_do() -> None:
    assert replicas_of(Autoscaler(replace(SCALED, least=2)), [0] * 40) == [2] * 40


def test_up_by_default_it_goes_by_four_or_twice_as_many() -> None:
    assert replicas_of(Autoscaler(replace(SCALED, up=UP)), [320] * 4) == [5, 10, 20, 20]


def test_down_it_goes_to_the_most_that_was_wanted_within_the_window() -> None:
    window = Rules(window=60, policies=DOWN.policies)
    scaler = Autoscaler(replace(SCALED, down=window))

    assert replicas_of(scaler, [160, 16, 80, 16, 16, 16, 16, 16]) == [10, 10, 10, 10, 5, 5, 1, 1]


def test_up_it_goes_to_the_least_that_was_wanted_within_the_window() -> None:
    scaler = Autoscaler(replace(SCALED, up=replace(AT_ONCE, window=30)))

    assert replicas_of(scaler, [16, 160, 160, 160, 160]) == [1, 1, 10, 10, 10]


def test_policies_bound_what_goes_within_their_period() -> None:
    half = Rules(window=0, policies=(Policy(kind="Percent", value=50, period=60),))
    scaler = Autoscaler(replace(SCALED, down=half))

    assert replicas_of(scaler, [320, 320, 320, 320, 320, *[16] * 9]) == [
        *(10, 20, 20, 20, 20),
        *(10, 10, 10, 10),
        *(5, 5, 5, 5),
        2,
    ]


@pytest.mark.parametrize(("select", "replicas"), [("Max", 18), ("Min", 19), ("Disabled", 20)])
def test_of_two_policies_the_one_counts_that_is_selected(select: str, replicas: int) -> None:
    policies = (
        Policy(kind="Pods", value=1, period=60),
        Policy(kind="Percent", value=10, period=60),
    )
    rules = Rules(window=0, policies=policies, select=select)  # type: ignore[arg-type] # of three
    scaler = Autoscaler(replace(SCALED, down=rules))

    assert replicas_of(scaler, [*[320] * 6, 16])[-1] == replicas


def test_a_trigger_that_is_away_takes_nobody_away() -> None:
    scaler = Autoscaler(replace(SCALED, triggers=(WORK, MESSAGES)))

    assert replicas_of(scaler, [(160, 160), *[(None, 0)] * 60]) == [10] * 61


def test_but_the_other_brings_more_meanwhile() -> None:
    scaler = Autoscaler(replace(SCALED, triggers=(WORK, MESSAGES)))

    assert replicas_of(scaler, [(16, 16), (None, 160)]) == [1, 10]


def test_what_is_away_for_long_is_taken_for_what_the_fallback_says() -> None:
    fallback = Fallback(failures=3, replicas=2, behavior="static")
    scaler = Autoscaler(replace(SCALED, fallback=fallback))

    assert replicas_of(scaler, [None] * 5) == [0, 0, 0, 2, 2]
    assert replicas_of(Autoscaler(replace(SCALED, fallback=fallback)), [160, *[None] * 5]) == [
        *(10, 10, 10, 10),
        *(2, 2),
    ]


def test_a_fallback_may_leave_alone_what_is_more() -> None:
    fallback = Fallback(failures=3, replicas=2, behavior="currentReplicasIfHigher")
    scaler = Autoscaler(replace(SCALED, fallback=fallback))

    assert replicas_of(scaler, [160, *[None] * 5]) == [10] * 6


def test_of_cached_metrics_the_hpa_hears_what_keda_heard() -> None:
    scaler = Autoscaler(replace(SCALED, triggers=(replace(WORK, cached=True),)))
    scaler.poll(0, [160])
    scaler.sync(1, [16])
    assert scaler.replicas == 10

    scaler.poll(5, [16])
    scaler.sync(16, [160])
    assert scaler.replicas == 1


def test_what_the_manifest_leaves_out_is_the_default_of_keda_and_of_the_hpa() -> None:
    spec = {
        "scaleTargetRef": {"name": "worker"},
        "triggers": [
            {
                "type": POSTGRES,
                "metadata": {"query": "SELECT 1", "targetQueryValue": "7"},
            }
        ],
    }
    pod = {"containers": [{"name": "worker", "env": [{"name": "WORKER_LANES", "value": "fast"}]}]}

    (scaled,) = read_scaled(
        [
            {"kind": "ScaledObject", "metadata": {"name": "by work"}, "spec": spec},
            {
                "kind": "Deployment",
                "metadata": {"name": "worker"},
                "spec": {"template": {"spec": pod}},
            },
        ]
    )

    assert (scaled.least, scaled.most, scaled.polling, scaled.cooldown) == (0, 100, 30, 300)
    assert (scaled.up, scaled.down, scaled.fallback, scaled.grace) == (UP, DOWN, None, 30)
    (trigger,) = scaled.triggers
    assert (trigger.threshold, trigger.activation, trigger.cached) == (7, 0, False)
