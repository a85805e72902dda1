"""No statement reads through the backlog or the history, and none does so once its plan is generic.

What counts is rows and pages touched in a real execution, never time: with a quarter of a million
jobs at hand, whatever reads through them is orders of magnitude beyond these bounds.
"""

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Final

import pytest
import pytest_asyncio

from imagefleet.errors import FleetError
from imagefleet.store.database import connect
from tests.store.plans import images, jobs, reading
from tests.store.plans.console import OF_THE_CONSOLE, Said
from tests.store.plans.history import HISTORY, ID, LOAD
from tests.store.plans.work import Case, PlanMode, tidy, watched
from tests.support.database import Database, Server, copied_database, driver_of, login
from tests.support.poolers import pgbouncer

CASES: Final[Mapping[str, Case]] = MappingProxyType({**jobs.CASES, **images.CASES, **reading.CASES})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def loaded(postgres: Server, template: str) -> AsyncIterator[Database]:
    """A fleet with a long past and a large backlog; what a test changes in it, it undoes."""
    async with copied_database(postgres, template) as database:
        async with database.connect("superuser") as superuser:
            await superuser.execute("SET statement_timeout = 0")
            await superuser.execute(ID)
            async with superuser.transaction():
                await driver_of(superuser).execute(LOAD, timeout=60)
            await driver_of(superuser).execute("ANALYZE", timeout=60)
            await tidy(superuser)
        yield database


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", CASES)
async def test_no_more_is_read_than_is_asked_for(
    name: str, mode: PlanMode, loaded: Database
) -> None:
    case = CASES[name]

    async with watched(loaded, case.by, mode) as (connection, work):
        await case.run(connection)

    assert work.plans != []
    assert work.rows <= case.rows, work.told
    assert work.pages <= case.pages, work.told


async def test_every_statement_of_a_page_of_the_console_is_among_them(
    loaded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(monkeypatch)
    for case in CASES.values():
        async with loaded.connect("superuser") as connection:
            undo = driver_of(connection).transaction()
            await undo.start()
            await connection.execute(f"SET LOCAL ROLE {login(case.by)}")
            await case.run(connection)
            await undo.rollback()
    async with loaded.connect("superuser") as superuser:
        await tidy(superuser)

    assert OF_THE_CONSOLE - said.of_operators == frozenset()


async def test_every_statement_works_behind_a_pooler_where_nothing_stays_prepared(
    loaded: Database,
) -> None:
    async with pgbouncer(loaded, pool_size=2) as pooler:
        for name, case in CASES.items():
            url = pooler.url(loaded, "superuser")
            async with connect(url, process="test", pooler="pgbouncer") as connection:
                undo = driver_of(connection).transaction()
                await undo.start()
                await connection.execute(f"SET LOCAL ROLE {login(case.by)}")
                try:
                    await case.run(connection)
                except FleetError as error:
                    pytest.fail(f"{name}: {error}")
                finally:
                    await undo.rollback()
    async with loaded.connect("superuser") as superuser:
        await tidy(superuser)


async def test_a_statement_that_reads_through_the_history_is_noticed(loaded: Database) -> None:
    async with watched(loaded, "operator", "force_custom_plan") as (connection, work):
        await connection.fetch("SELECT FROM jobs WHERE result_reason = 'superseded'")

    assert work.rows >= HISTORY
    assert work.pages > 1000


async def test_what_was_tried_before_makes_nothing_dearer(loaded: Database) -> None:
    """What is undone leaves rows and doubts behind, unless somebody tidies up."""

    async def pages(name: str) -> int:
        case = CASES[name]
        async with watched(loaded, case.by, "force_custom_plan") as (connection, work):
            await case.run(connection)
        return work.pages

    alone = await pages("room for jobs")
    await pages("page of cancelling")

    assert await pages("room for jobs") <= alone + 10
