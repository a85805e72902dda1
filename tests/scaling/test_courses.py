"""What the manifests make of a burst, by numbers, and that wrong ones are noticed.

`make scale-test` puts the same through real workers.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

import pytest

from imagefleet.store.database import Connection
from tests.infra.kubernetes.rendering import rendered
from tests.scaling.course import Course, Load, Player
from tests.scaling.manifests import DOWN, POSTGRES, UP, Policy, Rules, Scaled, read_scaled
from tests.scaling.model import Numbers
from tests.scaling.test_autoscaler import MESSAGES, SCALED, WORK
from tests.support.wheels import NoPrograms

pytestmark = pytest.mark.timeout(300)  # the first one fetches what renders

LOAD: Final = Load()
RIGHT: Final = replace(
    SCALED,
    triggers=(WORK, MESSAGES),
    up=UP,
    down=Rules(window=300, policies=(Policy(kind="Percent", value=50, period=60),)),
)


async def course_of(scaled: Scaled, load: Load = LOAD) -> Course:
    return await Player(Course(scaled=scaled, load=load), Numbers(scaled, load)).play()


def by_threshold(threshold: float) -> Callable[[Scaled], Scaled]:
    def changed(scaled: Scaled) -> Scaled:
        triggers = [replace(trigger, threshold=threshold) for trigger in scaled.triggers]
        return replace(scaled, triggers=tuple(triggers))

    return changed


async def test_a_burst_brings_all_workers_and_its_end_takes_them_away() -> None:
    course = await course_of(RIGHT)

    assert course.faults() == []
    assert [course.samples[0].replicas, course.peak, course.samples[-1].replicas] == [0, 20, 0]


async def test_workers_that_do_not_come_are_noticed() -> None:
    world = Numbers(RIGHT, LOAD, starting=10_000)

    course = await Player(Course(scaled=RIGHT, load=LOAD), world).play()

    assert course.faults() == ["the burst was not absorbed within 1294 s"]


@pytest.mark.parametrize(
    ("threshold", "said"), [(16, []), (1, ["20 workers for 24 jobs at a time, 75 at most"])]
)
async def test_work_that_piles_up_for_a_moment_keeps_as_many_as_it_fills(
    threshold: float, said: list[str]
) -> None:
    """As where others use the machine, too; a wrong threshold is noticed all the same."""
    scaled = by_threshold(threshold)(RIGHT)
    world = Numbers(scaled, LOAD, stalls=(600, 620))

    course = await Player(Course(scaled=scaled, load=LOAD), world).play()

    assert [each.partition(", which")[0] for each in course.faults()] == said
    assert max(each.values[0] or 0 for each in course.samples if each.at > 600) > 2 * LOAD.at_once


async def test_by_sqs_alone_workers_come_as_slowly_as_those_before_them_start() -> None:
    """It has the window: what runs, and the little that workers can take soon."""
    by_both, by_sqs = [
        await course_of(replace(RIGHT, triggers=triggers))
        for triggers in ((WORK, MESSAGES), (MESSAGES,))
    ]

    (all_wanted_at, *_) = [each.at for each in by_both.samples if each.replicas == 20]
    assert all_wanted_at == 45
    assert by_sqs.faults() == ["at most 6 workers for a burst that fills 20"]


WRONG: Final[dict[str, tuple[Callable[[Scaled], Scaled], str]]] = {
    "a threshold ten times too large": (by_threshold(160), "at most 19 workers"),
    "a threshold that one worker never meets": (by_threshold(3_000), "at most 1 workers"),
    "a threshold of one job": (by_threshold(1), "20 workers for 24 jobs at a time"),
    "an activation that few jobs never meet": (
        lambda scaled: replace(
            scaled, triggers=tuple(replace(each, activation=30) for each in scaled.triggers)
        ),
        "after the last work",
    ),
    "no way down": (
        lambda scaled: replace(scaled, down=replace(DOWN, select="Disabled")),
        "20 workers for 24 jobs at a time",
    ),
    "a poll a minute": (lambda scaled: replace(scaled, polling=60), "the first worker was wanted"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_wrong_in_a_manifest_is_noticed(name: str) -> None:
    change, fault = WRONG[name]

    course = await course_of(change(RIGHT))

    assert any(fault in each for each in course.faults()), course.faults()


INSTALLATIONS: Final = ("local", "production")
COUNTED: Final = 10_000  # further than that `work_in_lane` does not count


@cache
def scaled_of(installation: str) -> dict[str, Scaled]:
    try:
        documents = rendered(installation).documents
    except NoPrograms as why:
        pytest.skip(str(why))
    return {scaled.lane: scaled for scaled in read_scaled(documents)}


@pytest.mark.parametrize("lane", ["fast", "general", "quarantine"])
@pytest.mark.parametrize("installation", INSTALLATIONS)
async def test_every_lane_of_the_manifests_takes_a_burst(installation: str, lane: str) -> None:
    scaled = scaled_of(installation)[lane]
    little = Load(burst=30 * scaled.slots * scaled.most, at_once=3 * scaled.slots // 2)

    assert (await course_of(scaled, little)).faults() == []


@pytest.mark.parametrize("installation", INSTALLATIONS)
def test_what_is_counted_is_enough_for_the_most_workers(installation: str) -> None:
    for scaled in scaled_of(installation).values():
        for trigger in scaled.triggers:
            assert scaled.most * trigger.threshold <= COUNTED, scaled.name


async def test_the_scaler_may_ask_what_the_manifests_ask(scaler: Connection) -> None:
    asked = [
        trigger.asks
        for scaled in scaled_of("production").values()
        for trigger in scaled.triggers
        if trigger.kind == POSTGRES
    ]

    assert [0, 0, 0] == [await scaler.fetchval(query) for query in asked]
