"""Failures, kills, drains, cancellations and a crash of Postgres at once, on a small scale."""

import signal

import pytest

from tests.faults.failing import Ordeal, endure
from tests.faults.killing import Plan
from tests.faults.wishes import Mixture

ORDEAL = Ordeal(
    kills=Plan(
        jobs=120,
        each_phase=0,
        anywhere=4,
        of_the_api=0,
        workers=3,
        rescue_after=5,
        patient=False,
        ends_within=60,
    ),
    mixture=Mixture(
        permanent=12,
        transient=24,
        hopeless=3,
        cancelled=6,
        pictures=8,
        broken=2,
        milliseconds=(200, 1500),
    ),
    backoff=(0.5, 1.0),
    grace=0,
    visibility=8,
    lock_timeout=15,
    stop_postgres=signal.SIGQUIT,
    open_at_most=40,
)


@pytest.mark.timeout(180)
async def test_every_job_comes_to_what_it_has_to_though_everything_fails() -> None:
    trial = await endure(ORDEAL, seed=1)

    for name, value in trial.figures():
        print(f"{name:<28}{value:>8}")  # noqa: T201 - the figures are half of the test
    assert [] == trial.wrong()
    assert 0 < sum(attempt.outcome == "released" for attempt in trial.facts.attempts)
