"""Tenants: what each has, and what is done about one that is too much."""

from typing import Final

import pytest

from imagefleet.store.database import Connection
from tests.console.conftest import Opened
from tests.console.world import CORRUPT, World, a_world

WHY: Final = "an order of the tests"


@pytest.fixture
async def world(worker: Connection, superuser: Connection) -> World:
    return await a_world(worker, superuser)


async def test_a_tenant_is_shown_with_what_it_has_and_what_failed(
    console: Opened, world: World
) -> None:
    async with console.logged_in() as visitor:
        everybody = (await visitor.get("/tenants")).text
        one = (await visitor.get("/tenants/acme")).text
        nobody = await visitor.get("/tenants/nobody")

    assert "/tenants/acme" in everybody
    assert "/tenants/rival" in everybody
    assert "3 open jobs" in one
    assert CORRUPT in one
    assert str(world.waiting) in one
    assert nobody.status_code == 404


async def test_a_limit_is_set_and_undone(console: Opened, superuser: Connection) -> None:
    weight = "SELECT weight FROM tenants WHERE id = 'acme'"
    async with console.logged_in() as visitor:
        place = "/tenants/acme/limit"
        await console.post(visitor, place, name="weight", value="7", reason=WHY)
        heavy = await superuser.fetchval(weight)
        refused = await console.post(visitor, place, name="weight", value="seven", reason=WHY)
        await console.post(visitor, place, name="weight", how="reset", reason=WHY)

    assert heavy == 7
    assert "A limit is a whole number." in refused.text
    assert await superuser.fetchval(weight) == 1


@pytest.mark.usefixtures("world")
async def test_what_it_has_open_is_counted_then_cancelled(
    console: Opened, superuser: Connection
) -> None:
    orders = "SELECT count(*) FROM jobs WHERE type = 'cancel_jobs' AND tenant_id = 'acme'"
    async with console.logged_in() as visitor:
        counted = await console.post(visitor, "/jobs/all/count?tenant=acme", type="noop")
        before = await superuser.fetchval(orders)
        ordered = await console.post(
            visitor, "/jobs/all/cancel?tenant=acme", type="noop", reason=WHY
        )

    assert "This cancels <b>2</b> jobs" in counted.text
    assert (before, await superuser.fetchval(orders)) == (0, 1)
    assert "A job of its own cancels 2 jobs." in ordered.text


async def test_it_is_paused_and_the_page_says_why(console: Opened) -> None:
    async with console.logged_in() as visitor:
        page = await console.post(
            visitor,
            "/pauses/pause",
            scope="tenant",
            tenant="acme",
            reason=WHY,
            back="/tenants/acme",
        )

    assert f"All that acme has waits: {WHY}" in page.text


@pytest.mark.usefixtures("world")
async def test_the_list_tells_what_failed_of_each(console: Opened) -> None:
    async with console.logged_in() as visitor:
        page = (await visitor.get("/tenants")).text

    assert '<a href="/faults?tenant=acme">8</a>' in page
    assert '<a href="/faults?tenant=rival">1</a>' in page
