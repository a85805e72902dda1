"""Jobs in a list: found by what is known of them, and ended or rung by tens and by thousands."""

from typing import Final

import pytest

from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.console.conftest import Opened
from tests.console.world import World, a_world

WHY: Final = "an order of the tests"


@pytest.fixture
async def world(worker: Connection, superuser: Connection) -> World:
    return await a_world(worker, superuser)


async def flagged(superuser: Connection) -> set[JobId]:
    """Jobs that are to be ended, by what was ordered of each."""
    rows = await superuser.fetch("SELECT payload->>'job_id' FROM jobs WHERE type = 'cancel_job'")
    return {JobId(row[0]) for row in rows}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=failed&tenant=rival", {"corrupt": 1}),
        ("code=storage", {"denied": 3}),
        ("code=corrupt&tenant=acme", {"corrupt": 5}),
        ("target=sku:4711&tenant=acme", {"running": 1, "waiting": 1}),
        ("status=failed_retryable", {"retried": 1}),
        ("before=2020-01-01T00:00", {}),
    ],
)
async def test_jobs_are_found_by_what_is_known_of_them(
    console: Opened, world: World, query: str, found: dict[str, int]
) -> None:
    async with console.logged_in() as visitor:
        page = await visitor.get(f"/jobs?{query}")

    assert page.status_code == 200
    shown = page.text.count("data-choose ")
    assert shown == sum(found.values())
    for name, many in found.items():
        made = getattr(world, name)
        ids = made if isinstance(made, list) else [made]
        assert sum(f'value="{job_id}"' in page.text for job_id in ids) == many


async def test_an_id_is_found_by_its_beginning(console: Opened, world: World) -> None:
    async with console.logged_in() as visitor:
        page = await visitor.get(f"/jobs?id={str(world.waiting)[:18]}")

    assert f'value="{world.waiting}"' in page.text


async def test_nothing_found_says_so(console: Opened) -> None:
    async with console.logged_in() as visitor:
        empty = await visitor.get("/jobs")
        filtered = await visitor.get("/jobs?status=completed")

    assert "No job was submitted yet." in empty.text
    assert "No job that is still kept fits this." in filtered.text


async def test_chosen_jobs_are_cancelled_and_those_that_are_over_left_alone(
    console: Opened, world: World, superuser: Connection
) -> None:
    chosen = [str(world.waiting), str(world.retried), str(world.completed)]
    async with console.logged_in() as visitor:
        answer = await console.post(
            visitor, "/jobs/chosen", how="cancel", reason=WHY, job=chosen, back="/jobs"
        )

    assert "2 of 3 are being cancelled. 1 had nothing to be done about." in answer.text
    assert {str(each) for each in await flagged(superuser)} == set(chosen[:2])


async def test_chosen_jobs_are_made_due(
    console: Opened, world: World, superuser: Connection
) -> None:
    due = "SELECT next_at <= now() FROM rings WHERE job_id = $1"
    before = await superuser.fetchval(due, world.retried)
    async with console.logged_in() as visitor:
        answer = await console.post(
            visitor, "/jobs/chosen", how="retry", reason=WHY, job=[str(world.retried)]
        )

    assert "1 of 1 are due now." in answer.text
    assert (before, await superuser.fetchval(due, world.retried)) == (False, True)


async def test_one_that_is_refused_says_why_and_costs_no_other(
    console: Opened, world: World, superuser: Connection
) -> None:
    gone = "0199a000-0000-7000-8000-000000000000"
    async with console.logged_in() as visitor:
        answer = await console.post(
            visitor, "/jobs/chosen", how="cancel", reason=WHY, job=[gone, str(world.waiting)]
        )

    assert "1 of 2 are being cancelled." in answer.text
    assert "1 were refused" in answer.text
    assert {str(each) for each in await flagged(superuser)} == {str(world.waiting)}


@pytest.mark.usefixtures("world")
async def test_all_that_a_filter_finds_is_counted_then_cancelled_by_one_job(
    console: Opened, superuser: Connection
) -> None:
    async with console.logged_in() as visitor:
        counted = await console.post(visitor, "/jobs/all/count?tenant=acme&type=noop")
        made = await superuser.fetchval("SELECT count(*) FROM jobs WHERE type = 'cancel_jobs'")
        ordered = await console.post(
            visitor, "/jobs/all/cancel?tenant=acme&type=noop", reason=WHY, back="/jobs"
        )
        payload = await superuser.fetchval("SELECT payload FROM jobs WHERE type = 'cancel_jobs'")

    assert "This cancels <b>2</b> jobs" in counted.text
    assert made == 0
    assert "A job of its own cancels 2 jobs." in ordered.text
    assert "/jobs/" in str(ordered.url)
    assert (payload["job_type"], payload["reason"]) == ("noop", WHY)


@pytest.mark.usefixtures("world")
async def test_what_a_filter_finds_is_cancelled_of_every_tenant(
    console: Opened, superuser: Connection
) -> None:
    async with console.logged_in() as visitor:
        counted = await console.post(visitor, "/jobs/all/count?type=noop")
        await console.post(visitor, "/jobs/all/cancel?type=noop", reason=WHY)

    walks = "SELECT tenant_id, payload FROM jobs WHERE type = 'cancel_jobs'"
    (walk,) = await superuser.fetch(walks)
    assert "This cancels <b>3</b> jobs" in counted.text
    assert (walk["payload"]["every_tenant"], walk["payload"]["job_type"]) == (True, "noop")
    told = "SELECT kind, name, tenant_id FROM audit WHERE action = 'cancel'"
    assert [tuple(row) for row in await superuser.fetch(told)] == [("job", "job_type=noop", None)]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("query", ["", "?id=0199a5c27d41", "?type="])
async def test_without_a_filter_nothing_is_cancelled_at_all(
    console: Opened, superuser: Connection, query: str
) -> None:
    async with console.logged_in() as visitor:
        answer = await console.post(visitor, f"/jobs/all/cancel{query}", reason=WHY)

    assert "Filter by something else than an id first" in answer.text
    assert await superuser.fetchval("SELECT count(*) FROM jobs WHERE type = 'cancel_jobs'") == 0


async def test_what_failed_and_was_chosen_is_replayed_and_all_that_a_filter_finds(
    console: Opened, world: World, superuser: Connection
) -> None:
    replays = "SELECT count(*) FROM jobs WHERE replay_of IS NOT NULL"
    chosen = [str(world.corrupt[0]), str(world.waiting)]
    query = "?status=failed&code=corrupt"
    async with console.logged_in() as visitor:
        page = (await visitor.get(f"/jobs{query}")).text
        one = await console.post(visitor, "/jobs/chosen", how="replay", reason=WHY, job=chosen)
        counted = await console.post(visitor, f"/jobs/all/count-replay{query}")
        made = await superuser.fetchval(replays)
        ordered = await console.post(visitor, f"/jobs/all/replay{query}", reason=WHY)
        unasked = await console.post(visitor, "/jobs/all/replay?status=failed", reason=WHY)

    assert "Replay all that the filter finds failed" in page
    assert "1 of 2 are replayed." in one.text
    assert ("This replays <b>5</b> failed jobs" in counted.text, made) == (True, 1)
    assert "A job of its own replays 5 failed jobs." in ordered.text
    assert "Filter by a tenant, a type or a failure code first" in unasked.text
    walks = "SELECT payload FROM jobs WHERE type = 'replay_jobs'"
    (walk,) = await superuser.fetch(walks)
    assert (walk["payload"]["code"], walk["payload"]["reason"]) == ("corrupt", WHY)
