"""Pages of a noun each: what they show of a fleet in which enough happened."""

from typing import Final

import pytest

from imagefleet.store.database import Connection
from tests.console.conftest import Opened
from tests.console.world import a_world

PAGES: Final = (
    "/jobs",
    "/jobs?status=failed&tenant=acme",
    "/tenants",
    "/tenants/acme",
    "/timeline?span=day",
    "/workers?gone=yes",
    "/edge",
    "/controls",
)


@pytest.mark.parametrize("page", PAGES)
async def test_each_page_is_shown(
    console: Opened, page: str, worker: Connection, superuser: Connection, operator: Connection
) -> None:
    await a_world(worker, superuser, operator)
    async with console.logged_in() as visitor:
        answer = await visitor.get(page)

    assert answer.status_code == 200, answer.text
    assert "not known" not in answer.text
