"""A short one of each run; `make simulation` goes on for longer."""

import pytest

from tests.simulation.runs import RUNS
from tests.support.database import Database


@pytest.mark.parametrize("name", RUNS)
async def test_whatever_the_queue_does_every_job_is_heard_in_time(
    name: str, database: Database
) -> None:
    told = await RUNS[name](database, 1, seconds=6)

    assert told.wrong == [], told.figures
