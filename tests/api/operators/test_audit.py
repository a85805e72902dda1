"""Every route by which operators change something leaves one line that says what it changed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast
from uuid import uuid4

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.routing import iter_route_contexts
from structlog.testing import capture_logs

from imagefleet.api import operators
from imagefleet.api.http import auth
from imagefleet.api.http.auth import Keys, Operator, Refusals
from imagefleet.api.http.tools import Tools, tools_of
from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.keys import create_key, digest_of
from imagefleet.telemetry.metrics import ApiMetrics
from tests.support.api import ACME, JPEG, Running, Serve, app_of
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission, a_worker, open_breaker, settle_job
from tests.support.http import a_jpeg, submitted

OPERATOR = "/v1/operator"
LATER = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0).isoformat()
BUG = Failed(code="internal_error", message="Something went wrong.", detail="KeyError")


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
        letter_id = await self.superuser.fetchval(
            "SELECT id FROM dead_letters WHERE job_id = $1", job.job_id
        )
        return str(letter_id)

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
    ("POST", "/v1/operator/jobs/{job_id}/cancel"): Told("cancel", "job", _ending("cancel")),
    ("POST", "/v1/operator/jobs/{job_id}/fail"): Told("fail", "job", _ending("fail")),
    ("POST", "/v1/operator/jobs/{job_id}/retry-now"): Told("retry_now", "job", _retry_now),
    ("POST", "/v1/operator/dead-letters:acknowledge"): Told(
        "acknowledge", "dead_letter", _acknowledge
    ),
    ("POST", "/v1/operator/dead-letters:replay"): Told("replay", "dead_letter", _replay),
    ("PUT", "/v1/operator/settings/{name}"): Told("set", "setting", _set),
    ("DELETE", "/v1/operator/settings/{name}"): Told("reset", "setting", _set_back),
    ("POST", "/v1/operator/edge/invalidations"): Told("invalidate", "image", _invalidate),
    ("PUT", "/v1/operator/tenants/{tenant}/limits"): Told("limit", "tenant", _limit),
    ("POST", "/v1/operator/tenants/{tenant}/cancel"): Told("cancel", "tenant", _cancel_all),
}

# Not acts of operators, and why.
OTHERS: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/operator/jobs:outcomes"): "only reads; a thousand ids do not fit into a query",
    ("POST", "/v1/images"): "a producer's; the job says which key made it",
    ("PUT", "/v1/images/{image_id}"): "a producer's; the job says which key made it",
    ("DELETE", "/v1/images/{image_id}"): "a producer's; the receipt says which key asked for it",
    ("POST", "/v1/images/{image_id}/reprocess"): "a producer's; the job says which key made it",
    ("POST", "/v1/uploads"): "a producer's; the upload says which key made it",
    ("POST", "/v1/jobs"): "a producer's; the job says which key made it",
    ("POST", "/v1/jobs:batch"): "a producer's; the jobs say which key made them",
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


async def lines(superuser: Connection, after: int) -> list[dict[str, Any]]:
    return [
        dict(row)
        for row in await superuser.fetch("SELECT * FROM audit WHERE id > $1 ORDER BY id", after)
    ]


async def newest(superuser: Connection) -> int:
    newest_id: int = await superuser.fetchval("SELECT coalesce(max(id), 0) FROM audit")
    return newest_id


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
    last = await newest(scene.superuser)

    answer = await scene.operating.request(route[0], ordered.path, json=ordered.json)

    assert answer.is_success, answer.text
    (line,) = await lines(scene.superuser, last)
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
    last = await newest(scene.superuser)
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

    assert [] == await lines(scene.superuser, last)


async def test_letters_that_another_acknowledges_meanwhile_are_acknowledged_once(
    scene: Scene, database: Database
) -> None:
    letter = await scene.letter()
    body = {"ids": [letter], "note": "why"}
    last = await newest(scene.superuser)
    order = scene.operating.post(f"{OPERATOR}/dead-letters:acknowledge", json=body)
    async with waiting_behind(scene, database, "dead_letters", letter, order) as (other, asked):
        await other.execute(
            "UPDATE dead_letters SET acknowledged_at = now(), acknowledged_by = 'ada',"
            " acknowledged_note = 'first' WHERE id = $1::uuid",
            letter,
        )

    answer = asked.result()
    assert (200, {"acknowledged": 0, "more": False}) == (answer.status_code, answer.json())
    assert [] == await lines(scene.superuser, last)


async def test_retry_now_of_a_job_that_is_claimed_meanwhile_changes_nothing(
    scene: Scene, database: Database
) -> None:
    job = await scene.waiting_job()
    worker = await a_worker(scene.worker)
    last = await newest(scene.superuser)
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
    assert [] == await lines(scene.superuser, last)


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
                waits_behind: bool = await scene.superuser.fetchval(
                    "SELECT EXISTS (SELECT FROM pg_stat_activity AS one"
                    " WHERE $1 = ANY (pg_blocking_pids(one.pid)))",
                    pid,
                )
                return waits_behind

            await eventually(waits, within=5)
            yield holder, asked


async def test_a_header_does_not_say_where_somebody_is(scene: Scene) -> None:
    headers = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9"}

    last = await newest(scene.superuser)

    answer = await scene.operating.post(f"{OPERATOR}/breakers/s3/open", headers=headers)

    assert answer.is_success
    (line,) = await lines(scene.superuser, last)
    assert "127.0.0.1" == line["address"]


@pytest.mark.parametrize(
    ("said", "address"),
    [
        (["203.0.113.9"], "203.0.113.9"),
        (["198.51.100.1, 203.0.113.9, 10.1.2.3"], "203.0.113.9"),
        (["198.51.100.1", "203.0.113.9,10.1.2.3"], "203.0.113.9"),
        (["203.0.113.9, nobody, 10.1.2.3"], "10.1.2.3"),
        (["10.9.9.9"], "10.9.9.9"),
        (["::ffff:203.0.113.9"], "203.0.113.9"),
        ([], "127.0.0.1"),
    ],
)
async def test_a_proxy_of_ours_says_where_somebody_is(
    serve: Serve, superuser: Connection, said: list[str], address: str
) -> None:
    trusted = (ip_network("127.0.0.0/8"), ip_network("10.0.0.0/8"))
    async with (
        serve(trusted_proxies=trusted) as running,
        running.client("operator") as operating,
    ):
        last = await newest(superuser)
        headers = [("X-Forwarded-For", hops) for hops in said]
        answer = await operating.post(f"{OPERATOR}/breakers/s3/open", headers=headers)

    assert answer.is_success
    (line,) = await lines(superuser, last)
    assert address == line["address"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_route_that_only_looks_can_change_nothing(scene: Scene, method: str) -> None:
    app = app_of(scene.running)

    async def smuggles(_key: Operator, tools: Annotated[Tools, Depends(tools_of)]) -> None:
        async with tools.operating("pause", "pauses") as connection:
            await connection.execute(
                "INSERT INTO pauses (scope, paused_by, reason) VALUES ('all', 'x', 'y')"
            )

    app.add_api_route("/v1/operator/smuggles", smuggles, methods=[method])

    answer = await scene.operating.request(method, "/v1/operator/smuggles")

    assert 503 == answer.status_code  # as if Postgres was a standby
    assert 0 == await scene.superuser.fetchval("SELECT count(*) FROM pauses")


def test_routes_of_operators_reach_postgres_as_operators_alone() -> None:
    routes = list(Path(operators.__file__).parent.glob("*.py"))

    assert len(routes) > 5
    assert [] == [route.name for route in routes if "tools.pool" in route.read_text()]
    rehearsals = [route.name for route in routes if "tools.rehearsing(" in route.read_text()]
    assert ["letters.py"] == rehearsals


async def test_a_route_that_forgets_to_tell_changes_nothing(scene: Scene) -> None:
    app = app_of(scene.running)

    async def forgets(
        request: Request, key: Operator, tools: Annotated[Tools, Depends(tools_of)]
    ) -> None:
        async with tools.acting("pause", "pauses", request, key) as acting:
            await acting.connection.execute(
                "INSERT INTO pauses (scope, paused_by, reason) VALUES ('all', 'x', 'y')"
            )

    app.add_api_route("/v1/operator/forgets", forgets, methods=["POST"])

    answer = await scene.operating.post("/v1/operator/forgets")

    assert 500 == answer.status_code
    assert 0 == await scene.superuser.fetchval("SELECT count(*) FROM pauses")


async def test_what_could_not_be_told_was_not_done(scene: Scene) -> None:
    app = app_of(scene.running)

    async def tells_wrong(
        request: Request, key: Operator, tools: Annotated[Tools, Depends(tools_of)]
    ) -> None:
        async with tools.acting("pause", "pauses", request, key) as acting:
            await acting.connection.execute(
                "INSERT INTO pauses (scope, paused_by, reason) VALUES ('all', 'x', 'y')"
            )
            await acting.record(Act(action="No Word", kind="pause", name="all"))

    app.add_api_route("/v1/operator/wrong", tells_wrong, methods=["POST"])
    last = await newest(scene.superuser)

    answer = await scene.operating.post("/v1/operator/wrong")

    assert 500 == answer.status_code
    assert 0 == await scene.superuser.fetchval("SELECT count(*) FROM pauses")
    assert [] == await lines(scene.superuser, last)


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


# Keys that are refused.


async def test_a_refused_key_is_a_line_with_why_whose_and_where_from(running: Running) -> None:
    with capture_logs() as logs:
        for who in (None, "expired", "revoked", "unknown"):
            async with running.client(who) as client:
                await client.get("/v1/jobs")
        async with running.client(None, Authorization="Basic c2VjcmV0") as client:
            await client.get("/v1/jobs")

    told = [line for line in logs if line["event"] == "key.refused"]
    assert ["missing", "expired", "revoked", "unknown", "malformed"] == [
        line["reason"] for line in told
    ]
    assert {"127.0.0.1"} == {line["address"] for line in told}
    assert [False, True, True, False, False] == [line["key_id"] is not None for line in told]
    unknown = digest_of(running.secrets["unknown"]).hex()[:12]
    assert [None, None, None, unknown, None] == [line["digest"] for line in told]
    for secret in (*running.secrets.values(), "c2VjcmV0"):
        assert secret not in str(told)
    shown = app_of(running).state.tools.metrics.exposition().decode()
    for reason in ("missing", "expired", "revoked", "unknown", "malformed"):
        assert f'auth_failures_total{{reason="{reason}"}} 1.0' in shown


async def test_a_key_that_asks_for_what_it_may_not_do_is_a_line_too(running: Running) -> None:
    with capture_logs() as logs:
        async with running.client("reader") as client:
            await client.get("/v1/operator/tenants")
            await client.get("/v1/jobs")

    (line,) = [line for line in logs if line["event"] == "key.refused"]
    key = await Keys(app_of(running).state.tools).find(f"Bearer {running.secrets['reader']}")
    assert key is not None
    assert ("forbidden", str(key.id), "operate", "127.0.0.1") == tuple(
        line[name] for name in ("reason", "key_id", "scope", "address")
    )
    shown = app_of(running).state.tools.metrics.exposition().decode()
    assert 'auth_failures_total{reason="forbidden"} 1.0' in shown


async def test_a_key_that_expires_while_it_is_believed_is_refused_by_its_name(
    running: Running, admin: Connection
) -> None:
    keys = Keys(app_of(running).state.tools)
    secret = await create_key(
        admin, ACME, name="short", scopes=["read"], expires_in=timedelta(seconds=1)
    )
    key = await keys.find(f"Bearer {secret}")
    assert key is not None

    with capture_logs() as logs:
        await eventually(_is_refused(keys, secret), within=5)

    (line,) = [line for line in logs if line["event"] == "key.refused"]
    assert ("expired", str(key.id)) == (line["reason"], line["key_id"])


def _is_refused(keys: Keys, secret: str) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return await keys.find(f"Bearer {secret}") is None

    return asked


def test_a_flood_of_guesses_is_counted_and_is_no_flood_of_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(auth, "monotonic", lambda: now)
    metrics = ApiMetrics()
    refused = Refusals(cast("Tools", SimpleNamespace(metrics=metrics)))

    with capture_logs() as logs:
        for _ in range(10_000):
            refused.refused("unknown", digest=b"\x01" * 32, address="192.0.2.7")
        flood = len(logs)
        now += 1
        for _ in range(10_000):
            refused.refused("unknown", digest=b"\x01" * 32, address="192.0.2.7")
        told = len(logs)
        stolen = uuid4()
        refused.refused("revoked", key_id=stolen, address="192.0.2.7")

    assert ("revoked", str(stolen), 0) == tuple(
        logs[-1][name] for name in ("reason", "key_id", "untold")
    )
    assert told + 1 == len(logs)
    assert auth.MOST_AT_ONCE == flood
    assert auth.LINES_A_SECOND == told - flood
    assert 10_000 - flood == logs[flood]["untold"]
    assert b'auth_failures_total{reason="unknown"} 20000.0' in metrics.exposition()
