"""Every page there is, over a small fleet of everything: what is said to Postgres for them."""

import pytest

from tests.bench.console import pages_of
from tests.bench.filling import Size, fill
from tests.console.conftest import Opened
from tests.store.plans.console import OF_THE_CONSOLE, Said
from tests.support.database import Database


@pytest.mark.breaks_invariants  # jobs of no submit
async def test_pages_say_nothing_that_is_not_judged_where_history_is_long(
    console: Opened, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, Size(jobs=2_000), lambda _what, _done: None)
    said = Said(monkeypatch)

    async with console.logged_in() as visitor:
        for name, page in (await pages_of(database, visitor, ())).items():
            answer = await visitor.get(page.address)
            assert answer.status_code == 200, f"{name}: {answer.status_code}"

    assert said.of_operators == OF_THE_CONSOLE
