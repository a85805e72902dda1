"""A statement that takes too long is ended, and what is shown of that is a page like others."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from imagefleet.api import main as api
from tests.console.conftest import Opening
from tests.support.api import Serve
from tests.support.database import Database

SECONDS: Final = 0.3  # of a statement
SENTENCE: Final = "The database did not answer in time."


@asynccontextmanager
async def nobody_reads(database: Database, table: str) -> AsyncIterator[None]:
    """Until the end of it whoever reads there waits."""
    async with database.connect("superuser") as superuser, superuser.transaction():
        await superuser.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


async def test_a_page_whose_statement_takes_too_long_says_so(
    serve: Serve, opening: Opening, database: Database
) -> None:
    async with serve(statement_seconds=SECONDS) as running, opening(running) as console:
        async with console.logged_in() as visitor, nobody_reads(database, "dead_letters"):
            faults = await visitor.get("/faults")
            now = await visitor.get("/")
        async with console.logged_in() as visitor:
            again = await visitor.get("/faults")

    assert faults.status_code == 503
    assert SENTENCE in faults.text
    assert 'href="/jobs"' in faults.text, "one can go elsewhere from there"
    assert "Traceback" not in faults.text
    assert now.status_code == 503, "its first sentence needs all of the queues"
    assert again.status_code == 200


async def test_a_part_that_takes_too_long_leaves_the_others_of_its_page(
    serve: Serve, opening: Opening, database: Database
) -> None:
    async with (
        serve(statement_seconds=SECONDS) as running,
        opening(running) as console,
        console.logged_in() as visitor,
        nobody_reads(database, "circuit_breakers"),
    ):
        controls = await visitor.get("/controls")

    assert controls.status_code == 200
    assert 1 == controls.text.count('class="part-trouble"')
    assert SENTENCE in controls.text


async def test_operators_statements_end_before_a_page_gives_up(
    serve: Serve, opening: Opening, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the others' may take longer, so that none is left behind for nobody."""
    monkeypatch.setattr(api, "PATIENCE", api.PATIENCE / 10)
    async with (
        serve(statement_seconds=600) as running,
        opening(running) as console,
        console.logged_in() as visitor,
        nobody_reads(database, "dead_letters"),
    ):
        begun = time.monotonic()
        faults = await visitor.get("/faults")
        seconds = time.monotonic() - begun

    assert SENTENCE in faults.text
    assert seconds < 6
