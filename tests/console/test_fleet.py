"""Workers, the timeline, the edge: what is there, told honestly."""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

import pytest

from imagefleet.console.pages.timeline import changes, place
from imagefleet.console.pages.workers import Condition
from imagefleet.jobs.shapes.fleet import HeldJobView, WorkerView
from imagefleet.jobs.shapes.rules import AuditLineView
from imagefleet.store.database import Connection
from tests.console.conftest import Opened
from tests.console.world import World, a_world

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def world(worker: Connection, superuser: Connection) -> World:
    return await a_world(worker, superuser)


def a_view(**told: object) -> WorkerView:
    """A worker that beats, and holds nothing."""
    usual = {
        "worker_id": uuid4(),
        "host": "pod-1",
        "pid": 7,
        "version": "1",
        "lanes": ["fast"],
        "types": ["noop"],
        "slots": 4,
        "lane_slots": {"fast": 4},
        "started_at": NOW,
        "beat_at": NOW,
        "silent_for": timedelta(seconds=1),
        "held": [],
    }
    return WorkerView.model_validate(usual | told)


A_HELD_JOB: Final = HeldJobView(
    job_id=uuid4(),
    tenant="acme",
    job_type="noop",
    lane="fast",
    claim_no=1,
    claimed_at=NOW,
    progress_done=0,
    cancel_requested=False,
)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({}, "idle"),
        ({"held": [A_HELD_JOB]}, "working"),
        ({"held": [A_HELD_JOB], "silent_for": timedelta(seconds=16)}, "silent"),
        ({"drain_requested_at": NOW}, "asked to drain"),
        ({"draining_since": NOW, "drain_requested_at": NOW}, "draining"),
        ({"draining_since": NOW}, "draining"),
        ({"draining_since": NOW, "silent_for": timedelta(seconds=16)}, "silent"),
        ({"dead_at": NOW, "dead_why": "silent"}, "lost"),
        ({"dead_at": NOW, "dead_why": "stopped"}, "stopped"),
    ],
)
def test_a_worker_that_was_not_heard_of_is_not_told_to_work(
    told: dict[str, object], word: str
) -> None:
    assert Condition.of(a_view(**told)).word == word


async def test_workers_are_shown_with_what_they_hold(console: Opened, world: World) -> None:
    async with console.logged_in() as visitor:
        page = (await visitor.get("/workers?gone=yes")).text

    assert str(world.running) in page
    assert "in its hands" in page


async def test_a_worker_is_drained_for_a_reason(
    console: Opened, world: World, superuser: Connection
) -> None:
    worker_id = await superuser.fetchval("SELECT id FROM workers LIMIT 1")
    await superuser.execute(
        "UPDATE workers SET beat_at = now() + interval '1 hour'"
    )  # none is silent
    async with console.logged_in() as visitor:
        await console.post(visitor, f"/workers/{worker_id}/drain")
        unreasoned = await superuser.fetchval("SELECT count(drain_requested_at) FROM workers")
        told = await console.post(visitor, f"/workers/{worker_id}/drain", reason="its host")
        page = (await visitor.get("/workers")).text

    asked = "SELECT id FROM workers WHERE drain_requested_at IS NOT NULL"
    assert (0, [worker_id]) == (unreasoned, [row["id"] for row in await superuser.fetch(asked)])
    assert "is asked to drain" in told.text
    assert f"/workers/{worker_id}/drain" not in page


async def test_no_worker_at_all_says_what_that_means(console: Opened) -> None:
    async with console.logged_in() as visitor:
        page = (await visitor.get("/workers")).text

    assert "No worker is up, so nothing runs." in page


def a_line(**told: object) -> AuditLineView:
    usual = {"id": 1, "at": NOW, "role": "r", "actor": "ana", "action": "set", "kind": "setting"}
    return AuditLineView.model_validate(usual | {"name": "window.looks"} | told)


def test_a_line_tells_what_is_not_as_it_was() -> None:
    line = a_line(before={"value": 1, "turned": False}, after={"value": 2, "turned": False})

    assert [(each.name, each.before, each.after) for each in changes(line)] == [("value", 1, 2)]


@pytest.mark.parametrize(
    ("kind", "name", "there"),
    [
        ("job", "0199", "/jobs/0199"),
        ("image", "0199", "/images/0199"),
        ("image", "3 images", None),
        ("job", "job_type=noop", None),
        ("dead_letter", "all", None),
        ("setting", "window.looks", None),
        ("tenant", "../evil", None),
    ],
)
def test_what_was_done_to_something_leads_there(kind: str, name: str, there: str | None) -> None:
    assert place(a_line(kind=kind, name=name)) == there


async def test_the_timeline_has_pages(console: Opened, superuser: Connection) -> None:
    await superuser.execute(
        "INSERT INTO audit (actor, action, kind, name)"
        " SELECT 'ana', 'pause', 'pause', 'type n' || n FROM generate_series(1, 130) n"
    )
    async with console.logged_in() as visitor:
        first = (await visitor.get("/timeline?span=all&by=ana")).text
        cursor = first.partition("cursor=")[2].partition('"')[0]
        second = (await visitor.get(f"/timeline?span=all&by=ana&cursor={cursor}")).text

    assert first.count("<li ") - second.count("<li ") == 70
    assert "Newest" in second


async def test_the_edge_is_shown_and_told_to_forget(console: Opened) -> None:
    async with console.logged_in() as visitor:
        page = (await visitor.get("/edge")).text
        unnamed = await console.post(visitor, "/edge/invalidate", images=" ")
        unknown = await console.post(visitor, "/edge/invalidate", images=str(uuid4()))

    assert "No maintenance process tells CloudFront just now" in page
    assert "Nothing that a row names is missing." in page
    assert "No image was named." in unnamed.text
    assert 'class="notice refused"' in unknown.text
