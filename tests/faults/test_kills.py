"""Kills of workers, deliberate and at any time: nothing is lost and nothing is done twice."""

import pytest

from tests.faults.killing import PHASES, Plan, run

PLAN = Plan(
    jobs=60,
    each_phase=2,
    anywhere=2,
    of_the_api=1,
    workers=2,
    rescue_after=5,
    patient=False,
    ends_within=60,
)


@pytest.mark.timeout(150)
async def test_nothing_is_lost_when_workers_are_killed_in_every_phase() -> None:
    ran = await run(PLAN, seed=1)

    for name, value in ran.figures():
        print(f"{name:<28}{value:>8}")  # noqa: T201 - the figures are half of the test
    assert [] == [str(breach) for breach in ran.breaches]
    assert {} == ran.missed
    assert len(ran.journal.kills) == ran.deaths
    assert set(PHASES) <= ran.journal.by_phase().keys()
    assert {"completed"} == {job.state for job in ran.facts.jobs}
    assert PLAN.jobs == len(ran.facts.jobs)
