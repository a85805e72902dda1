"""Every route by which operators change something leaves one line that says what it changed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from structlog.testing import capture_logs

from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from tests.support.api import JPEG, Running, app_of
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission, a_worker, open_breaker, settle_job
from tests.support.http import a_jpeg, submitted
from tests.support.rows import audit_rows, newest_audit

OPERATOR = "/v1/operator"
LATER = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0).isoformat()
BUG = Failed(code="internal_error", message="Something went wrong.", detail="KeyError")


PENDING: Final = {"status": "pending"}  # an image as it is before anything was made of it


@dataclass(frozen=True)
class Scene:
    """Where something is changed, and by whom."""

    running: Running
    operating: httpx.AsyncClient
    acme: httpx.AsyncClient
    worker: Connection
    superuser: Connection

    async def waiting_job(self) -> str:
        return str(await submitted(self.acme, runAt=LATER))

    async def letter(self) -> str:
        job = await a_job(
            self.worker, self.superuser, state=JobState.PROCESSING, submission=a_submission()
        )
        await settle_job(self.worker, job, BUG)
        letter = await self.superuser.fetchval(
            "SELECT id FROM dead_letters WHERE job_id = $1", job.job_id
        )
        return str(letter)

    async def paused(self) -> None:
        body = {"scope": "type", "name": "noop", "reason": "first", "refuseNew": True}
        (await self.operating.put(f"{OPERATOR}/pauses", json=body)).raise_for_status()

    async def image(self) -> str:
        answer = await self.acme.post("/v1/images", content=a_jpeg(), headers=JPEG)
        return str(answer.json()["imageId"])


@dataclass(frozen=True)
class Ordered:
    """A request that changes something, and what its line has to say."""

    path: str
    name: str
    json: object = None
    content: bytes | None = None
    headers: Mapping[str, str] | None = None
    tenant: str | None = None
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None


async def _pause(scene: Scene) -> Ordered:
    await scene.paused()
    return Ordered(
        path=f"{OPERATOR}/pauses",
        json={"scope": "type", "name": "noop", "reason": "why", "refuseNew": False},
        name="type noop",
        before={"reason": "first", "refuse_new": True},
        after={"reason": "why", "refuse_new": False},
    )


async def _resume(scene: Scene) -> Ordered:
    await scene.paused()
    return Ordered(
        path=f"{OPERATOR}/pauses?scope=type&name=noop&reason=why",
        name="type noop",
        before={"reason": "first", "refuse_new": True},
    )


async def _open(scene: Scene) -> Ordered:
    await open_breaker(scene.worker)
    return Ordered(
        path=f"{OPERATOR}/breakers/s3/open?reason=why",
        name="s3",
        before={"state": "open", "forced": False, "last_error_code": "s3_unavailable"},
        after={"state": "open", "forced": True, "last_error_code": "s3_unavailable"},
    )


async def _reset(scene: Scene) -> Ordered:
    await open_breaker(scene.worker)
    return Ordered(
        path=f"{OPERATOR}/breakers/s3/reset?reason=why",
        name="s3",
        before={"state": "open", "trips": 1, "last_error_code": "s3_unavailable"},
        after={"state": "closed", "trips": 1, "last_error_code": "s3_unavailable"},
    )


async def _drain(scene: Scene) -> Ordered:
    worker_id = await a_worker(scene.worker)
    return Ordered(
        path=f"{OPERATOR}/workers/{worker_id}/drain",
        json={"reason": "why"},
        name=str(worker_id),
        before={"held": 0, "pid": 1},
        after={"held": 0, "drain_requested_at": None},
    )


def _ending(verb: str) -> Callable[[Scene], Awaitable[Ordered]]:
    async def order(scene: Scene) -> Ordered:
        job = await scene.waiting_job()
        return Ordered(
            path=f"{OPERATOR}/jobs/{job}/{verb}",
            json={"reason": "why"},
            name=job,
            tenant="acme",
            before={"type": "noop", "state": "queued"},
            after={"type": "noop", "state": "queued"},
        )

    return order


async def _retry_now(scene: Scene) -> Ordered:
    job = await scene.waiting_job()
    return Ordered(
        path=f"{OPERATOR}/jobs/{job}/retry-now?reason=why",
        name=job,
        tenant="acme",
        before={"state": "queued", "run_at": LATER},
        after={"state": "queued"},
    )


async def _acknowledge(scene: Scene) -> Ordered:
    letter = await scene.letter()
    return Ordered(
        path=f"{OPERATOR}/dead-letters:acknowledge",
        json={"ids": [letter], "note": "why"},
        name=letter,
        after={"acknowledged": 1, "letters": [letter]},
    )


async def _replay(scene: Scene) -> Ordered:
    letters = [await scene.letter(), await scene.letter()]
    return Ordered(
        path=f"{OPERATOR}/dead-letters:replay",
        json={"filter": {"reason": "internal_error", "tenant": "acme"}, "reason": "why"},
        name="tenant=acme reason=internal_error",
        tenant="acme",
        after={"replayed": 2, "letters": letters},
    )


async def _invalidate(scene: Scene) -> Ordered:
    image = await scene.image()
    return Ordered(
        path=f"{OPERATOR}/edge/invalidations",
        json={"imageIds": [image], "reason": "why"},
        name=image,
        tenant="acme",
        after={image: None},  # some id
    )


async def _replay_all(scene: Scene) -> Ordered:
    await scene.letter()
    return Ordered(
        path=f"{OPERATOR}/dead-letters:replay-all",
        json={"filter": {"reason": "internal_error", "tenant": "acme"}, "reason": "why"},
        name="tenant=acme reason=internal_error",
        tenant="acme",
        before={"letters": 1},
        after={"payload": None, "replayed_by": None},  # some
    )


def _of_image(
    path: str,
    json: object = None,
    after: str = "job_id",
    before: Mapping[str, object] | None = None,
) -> Callable[[Scene], Awaitable[Ordered]]:
    """An order on behalf of the tenant of an image, of which nothing is made yet."""

    async def order(scene: Scene) -> Ordered:
        image = await scene.image()
        return Ordered(
            path=f"{OPERATOR}/images/{image}{path}",
            json=json,
            name=image,
            tenant="acme",
            before=before,
            after={after: None},
        )

    return order


async def _replace(scene: Scene) -> Ordered:
    order = await _of_image("?reason=why", before=PENDING)(scene)
    return replace(order, content=a_jpeg(), headers=JPEG)


async def _limit(_scene: Scene) -> Ordered:
    return Ordered(
        path=f"{OPERATOR}/tenants/acme/limits",
        json={"limits": {"open_jobs": 7, "uploads": 2, "weight": None}, "reason": "why"},
        name="acme",
        tenant="acme",
        before={"open_jobs": 1_000_000, "weight": 1},
        after={"open_jobs": 7, "uploads": 2, "weight": 1},
    )


async def _cancel_all(scene: Scene) -> Ordered:
    await scene.waiting_job()
    return Ordered(
        path=f"{OPERATOR}/tenants/acme/cancel",
        json={"jobType": "noop", "reason": "why"},
        name="acme",
        tenant="acme",
        before={"jobs": 1, "complete": True},
        after={"payload": {"job_type": "noop", "reason": "why"}},
    )


async def _cancel_any(scene: Scene) -> Ordered:
    await scene.waiting_job()
    return Ordered(
        path=f"{OPERATOR}/jobs:cancel",
        json={"jobType": "noop", "reason": "why"},
        name="job_type=noop",
        before={"jobs": 1, "complete": True},
        after={"payload": None, "ended_by": None},
    )


async def _set(_scene: Scene) -> Ordered:
    return Ordered(
        path=f"{OPERATOR}/settings/breaker.s3.failures",
        json={"value": 9, "reason": "why"},
        name="breaker.s3.failures",
        before={"turned": False},
        after={"value": 9, "turned": True},
    )


async def _set_back(scene: Scene) -> Ordered:
    body = {"value": 40, "reason": "first"}
    path = f"{OPERATOR}/settings/retention.jobs_days"
    (await scene.operating.put(path, json=body)).raise_for_status()
    return Ordered(
        path=f"{path}?reason=why",
        name="retention.jobs_days",
        before={"value": 40, "turned": True},
        after={"value": 30, "turned": False},
    )


@dataclass(frozen=True)
class Told:
    action: str
    kind: str
    order: Callable[[Scene], Awaitable[Ordered]]


CHANGES: Mapping[tuple[str, str], Told] = {
    ("PUT", "/v1/operator/pauses"): Told("pause", "pause", _pause),
    ("DELETE", "/v1/operator/pauses"): Told("resume", "pause", _resume),
    ("POST", "/v1/operator/breakers/{service}/open"): Told("open", "circuit_breaker", _open),
    ("POST", "/v1/operator/breakers/{service}/reset"): Told("reset", "circuit_breaker", _reset),
    ("POST", "/v1/operator/workers/{worker_id}/drain"): Told("drain", "worker", _drain),
    ("POST", "/v1/operator/jobs/{job_id}/cancel"): Told("cancel", "job", _ending("cancel")),
    ("POST", "/v1/operator/jobs/{job_id}/fail"): Told("fail", "job", _ending("fail")),
    ("POST", "/v1/operator/jobs/{job_id}/retry-now"): Told("retry_now", "job", _retry_now),
    ("POST", "/v1/operator/dead-letters:acknowledge"): Told(
        "acknowledge", "dead_letter", _acknowledge
    ),
    ("POST", "/v1/operator/dead-letters:replay"): Told("replay", "dead_letter", _replay),
    ("POST", "/v1/operator/dead-letters:replay-all"): Told("replay", "dead_letter", _replay_all),
    ("POST", "/v1/operator/images/{image_id}/preview"): Told(
        "preview", "image", _of_image("/preview?reason=why")
    ),
    ("POST", "/v1/operator/images/{image_id}/reprocess"): Told(
        "reprocess", "image", _of_image("/reprocess", {"reason": "why"}, before=PENDING)
    ),
    ("PATCH", "/v1/operator/images/{image_id}"): Told(
        "move_focal",
        "image",
        _of_image("", {"reason": "why", "focalPoint": {"x": 0.25, "y": 0.5}}, before=PENDING),
    ),
    ("PUT", "/v1/operator/images/{image_id}"): Told("replace", "image", _replace),
    ("DELETE", "/v1/operator/images/{image_id}"): Told(
        "delete", "image", _of_image("?reason=why", before=PENDING)
    ),
    ("PUT", "/v1/operator/settings/{name}"): Told("set", "setting", _set),
    ("DELETE", "/v1/operator/settings/{name}"): Told("reset", "setting", _set_back),
    ("POST", "/v1/operator/edge/invalidations"): Told("invalidate", "image", _invalidate),
    ("PUT", "/v1/operator/tenants/{tenant}/limits"): Told("limit", "tenant", _limit),
    ("POST", "/v1/operator/tenants/{tenant}/cancel"): Told("cancel", "tenant", _cancel_all),
    ("POST", "/v1/operator/jobs:cancel"): Told("cancel", "job", _cancel_any),
}

# Not acts of operators, and why.
OTHERS: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/operator/jobs:outcomes"): "only reads; a thousand ids do not fit into a query",
    ("POST", "/v1/images"): "a producer's; the job says which key made it",
    ("PUT", "/v1/images/{image_id}"): "a producer's; the job says which key made it",
    ("DELETE", "/v1/images/{image_id}"): "a producer's; the receipt says which key asked for it",
    ("PATCH", "/v1/images/{image_id}"): "a producer's; the job says which key made it",
    ("POST", "/v1/images/{image_id}/reprocess"): "a producer's; the job says which key made it",
    ("POST", "/v1/uploads"): "a producer's; the upload says which key made it",
    ("POST", "/v1/jobs"): "a producer's; the job says which key made it",
    ("POST", "/v1/jobs:batch"): "a producer's; the jobs say which key made them",
    ("PUT", "/v1/targets/{target:path}/pause"): "a producer's; tests/api/producers/test_targets.py",
    ("DELETE", "/v1/targets/{target:path}/pause"): "the same",
    ("POST", "/v1/targets/{target:path}/cancel"): "a producer's; the job says which key made it",
    ("POST", "/v1/jobs/{job_id}/cancel"): "a producer's; a job ends it, which says who made it",
}


@pytest.fixture
async def scene(
    running: Running, worker: Connection, superuser: Connection
) -> AsyncIterator[Scene]:
    async with running.client("operator") as operating, running.client("acme") as acme:
        yield Scene(running, operating, acme, worker, superuser)


def changing_routes(app: FastAPI) -> set[tuple[str, str]]:
    """Of all there are, those that are in no description too."""
    return {
        (method, str(route.path))
        for route in iter_route_contexts(app.routes)
        for method in (route.methods or {"ANYTHING"}) - {"GET", "HEAD"}
    }


async def test_every_route_that_changes_something_is_told_of_or_says_why_not(
    running: Running,
) -> None:
    known = {*CHANGES, *OTHERS}

    assert known == changing_routes(app_of(running))
    assert not {path for _, path in OTHERS if path.startswith(OPERATOR)} - {
        "/v1/operator/jobs:outcomes"
    }


@pytest.mark.parametrize("route", CHANGES, ids=" ".join)
async def test_a_change_leaves_one_line_with_who_what_and_why(
    scene: Scene, route: tuple[str, str]
) -> None:
    expected = CHANGES[route]
    ordered = await expected.order(scene)
    last = await newest_audit(scene.superuser)

    answer = await scene.operating.request(
        route[0], ordered.path, json=ordered.json, content=ordered.content, headers=ordered.headers
    )

    assert answer.is_success, answer.text
    (line,) = await audit_rows(scene.superuser, last)
    key_id = await scene.superuser.fetchval("SELECT id FROM api_keys WHERE scopes = '{operate}'")
    assert ("of tests", key_id, "127.0.0.1", "imagefleet_operator") == (
        line["actor"],
        line["key_id"],
        line["address"],
        line["role"],
    )
    assert (expected.action, expected.kind, ordered.name, ordered.tenant, "why") == (
        line["action"],
        line["kind"],
        line["name"],
        line["tenant_id"],
        line["reason"],
    )
    _holds(line["before"], ordered.before)
    _holds(line["after"], ordered.after)


def _holds(told: Mapping[str, object] | None, expected: Mapping[str, object] | None) -> None:
    assert (told is None) == (expected is None)
    for name, value in (expected or {}).items():
        assert told is not None
        assert told[name] is not None if value is None else told[name] == value


async def test_what_is_refused_or_changes_nothing_leaves_no_line(scene: Scene) -> None:
    nobody = "0199a5c2-0000-7000-8000-000000000000"
    ended = (await a_job(scene.worker, scene.superuser, state=JobState.COMPLETED)).job_id
    letter = await scene.letter()
    last = await newest_audit(scene.superuser)
    chosen = {"ids": [letter], "reason": "why"}

    for method, path, body in (
        ("DELETE", "/pauses?scope=all", None),
        ("POST", "/breakers/s3/reset", None),
        ("POST", f"/jobs/{nobody}/retry-now", None),
        ("POST", f"/jobs/{ended}/retry-now", None),
        ("POST", "/dead-letters:acknowledge", {"ids": [nobody], "note": "why"}),
        ("POST", "/dead-letters:replay", {"ids": [nobody], "reason": "why"}),
        ("POST", "/dead-letters:replay", chosen | {"dryRun": True}),
        ("POST", "/edge/invalidations", {"imageIds": [nobody], "reason": "why"}),
        ("PUT", "/pauses", {"scope": "all", "reason": ""}),
        ("PUT", "/pauses", {"scope": "tenant", "tenant": "nobody", "reason": "why"}),
        ("PUT", "/tenants/nobody/limits", {"limits": {"weight": 2}, "reason": "why"}),
        ("POST", "/tenants/nobody/cancel", {"reason": "why"}),
        ("POST", "/tenants/acme/cancel", {"reason": "why", "dryRun": True}),
    ):
        answer = await scene.operating.request(method, OPERATOR + path, json=body)
        assert answer.status_code in {200, 404, 422}, answer.text

    assert [] == await audit_rows(scene.superuser, last)


async def test_letters_that_another_acknowledges_meanwhile_are_acknowledged_once(
    scene: Scene, database: Database
) -> None:
    letter = await scene.letter()
    body = {"ids": [letter], "note": "why"}
    last = await newest_audit(scene.superuser)
    order = scene.operating.post(f"{OPERATOR}/dead-letters:acknowledge", json=body)
    async with waiting_behind(scene, database, "dead_letters", letter, order) as (other, asked):
        await other.execute(
            "UPDATE dead_letters SET acknowledged_at = now(), acknowledged_by = 'ada',"
            " acknowledged_note = 'first' WHERE id = $1::uuid",
            letter,
        )

    answer = asked.result()
    assert (200, {"acknowledged": 0, "more": False}) == (answer.status_code, answer.json())
    assert [] == await audit_rows(scene.superuser, last)


async def test_retry_now_of_a_job_that_is_claimed_meanwhile_changes_nothing(
    scene: Scene, database: Database
) -> None:
    job = await scene.waiting_job()
    worker = await a_worker(scene.worker)
    last = await newest_audit(scene.superuser)
    order = scene.operating.post(f"{OPERATOR}/jobs/{job}/retry-now")
    async with waiting_behind(scene, database, "jobs", job, order) as (other, asked):
        await other.execute("DELETE FROM rings WHERE job_id = $1::uuid", job)
        await other.execute(
            "UPDATE jobs SET state = 'processing', claim_no = claim_no + 1, locked_by = $2,"
            " locked_at = now(), claimed_at = now(), claim_charged = true,"
            " attempts = attempts + 1 WHERE id = $1::uuid",
            job,
            worker,
        )

    answer = asked.result()
    assert 200 == answer.status_code, answer.text
    assert ("processing", False) == (answer.json()["status"], answer.json()["rung"])
    assert [] == await audit_rows(scene.superuser, last)


@asynccontextmanager
async def waiting_behind(
    scene: Scene,
    database: Database,
    table: str,
    row: str,
    order: Coroutine[object, object, httpx.Response],
) -> AsyncIterator[tuple[Connection, "asyncio.Task[httpx.Response]"]]:
    """Somebody holds a row, and the order waits for it; it is answered after the body."""
    async with asyncio.TaskGroup() as group, database.connect("superuser") as holder:  # noqa: SIM117
        async with holder.transaction():
            await holder.execute("SELECT set_config('imagefleet.acting', 'yes', true)")
            await holder.execute(f"SELECT FROM {table} WHERE id = $1::uuid FOR UPDATE", row)
            asked, pid = group.create_task(order), driver_of(holder).get_server_pid()

            async def waits() -> bool:
                waiting: bool = await scene.superuser.fetchval(
                    "SELECT EXISTS (SELECT FROM pg_stat_activity AS one"
                    " WHERE $1 = ANY (pg_blocking_pids(one.pid)))",
                    pid,
                )
                return waiting

            await eventually(waits, within=5)
            yield holder, asked


# Reading it.


async def _read(scene: Scene, query: str = "") -> Any:  # noqa: ANN401 - JSON
    answer = await scene.operating.get(f"{OPERATOR}/audit?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_audit_is_asked_by_whom_on_what_when_and_for_which_tenant(scene: Scene) -> None:
    await scene.paused()
    resumed = {"scope": "type", "name": "noop", "reason": "done"}
    await scene.operating.delete(f"{OPERATOR}/pauses", params=resumed)
    await scene.operating.post(f"{OPERATOR}/breakers/s3/open")
    job = await scene.waiting_job()
    await scene.operating.post(f"{OPERATOR}/jobs/{job}/cancel", json={"reason": "why"})
    key = await scene.superuser.fetchval("SELECT id FROM api_keys WHERE scopes = '{operate}'")
    mine = [
        f"cancel job {job}",
        "open circuit_breaker s3",
        "resume pause type noop",
        "pause pause type noop",
    ]

    async def said(query: str) -> list[str]:
        lines = (await _read(scene, query))["lines"]
        return [f"{line['action']} {line['kind']} {line['name']}" for line in lines]

    assert mine == await said(f"by={key}")
    assert mine == await said("by=of+tests")
    assert [] == await said("by=nobody")
    assert mine[1:2] == await said("on=circuit_breaker/s3")
    assert mine[2:] == await said("on=pause")
    assert mine[2:3] == await said("what=resume")
    assert mine[:1] == await said("tenant=acme&on=job")
    (resume, pause) = (await _read(scene, "on=pause/type+noop"))["lines"]
    assert ("of tests", str(key), "127.0.0.1", "done") == (
        resume["actor"],
        resume["keyId"],
        resume["address"],
        resume["reason"],
    )
    assert "after" not in resume
    assert "first" == resume["before"]["reason"] == pause["after"]["reason"]
    assert mine[2:3] == await said(f"on=pause&since={_at(resume)}")
    assert mine[3:] == await said(f"on=pause&until={_at(resume)}")


def _at(line: Mapping[str, str]) -> str:
    return line["at"].replace("+", "%2B")


async def test_pages_of_the_audit_follow_each_other(scene: Scene) -> None:
    for _ in range(3):
        await scene.paused()

    first = await _read(scene, "on=pause&limit=2")
    second = await _read(scene, f"on=pause&limit=2&cursor={first['nextCursor']}")

    assert [2, 1] == [len(first["lines"]), len(second["lines"])]
    assert "nextCursor" not in second
    ids = [line["id"] for line in first["lines"] + second["lines"]]
    assert sorted(ids, reverse=True) == ids
    assert 3 == len(set(ids))


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("since=yesterday", 422),
        ("since=2026-01-01T00:00:00", 422),
        ("since=0001-01-01T00:00:00%2B23:59", 422),
        ("limit=501", 422),
        ("cursor=99999999999999999999", 422),
        ("cursor=999999", 404),
        ("what=DROP+TABLE", 422),
        ("on=%00", 422),
        ("on=pause/%00", 422),
        ("by=%00", 422),
        ("by=" + "x" * 256, 422),
        ("tenant=NOBODY", 422),
        ("by=%5B%1B", 200),
    ],
)
async def test_what_cannot_be_asked_of_the_audit_is_refused(
    scene: Scene, query: str, status: int
) -> None:
    answer = await scene.operating.get(f"{OPERATOR}/audit?{query}")

    assert status == answer.status_code, answer.text


@pytest.mark.parametrize("path", ["/breakers/s3/open", "/breakers/s3/reset"])
async def test_a_reason_is_bounded(scene: Scene, path: str) -> None:
    for reason in ("", "x" * 501, "\0"):
        answer = await scene.operating.post(f"{OPERATOR}{path}", params={"reason": reason})
        assert 422 == answer.status_code


async def test_breakers_that_operators_turn_are_lines_of_the_log_as_those_of_workers_are(
    scene: Scene,
) -> None:
    await open_breaker(scene.worker)
    with capture_logs() as logs:
        for what in ("open", "open", "reset", "reset"):
            path = f"{OPERATOR}/breakers/s3/{what}"
            (await scene.operating.post(path, params={"reason": "moving"})).raise_for_status()

    told = [line for line in logs if line["event"].startswith("breaker.")]
    assert ["breaker.opened", "breaker.closed"] == [line["event"] for line in told]
    by = await scene.superuser.fetchval("SELECT updated_by FROM circuit_breakers")
    assert {("s3", by, "moving", "s3_unavailable")} == {
        tuple(line[name] for name in ("service", "by", "reason", "last_error")) for line in told
    }
