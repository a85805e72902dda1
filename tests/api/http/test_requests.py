"""What a request leaves behind: an id that goes through, one line, two series, no secrets."""

import asyncio
import gc
import sys

import httpx
import pytest
from starlette.routing import Router
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from imagefleet.api.http.errors import UNHURRIED_FROM, problem_of
from imagefleet.errors import FleetError, InputRejected, RequestRejected, StoreRejected, Unavailable
from tests.support.api import (
    Running,
    Serve,
    app_of,
)
from tests.support.http import a_jpeg, is_problem, submitted


async def test_a_correlation_id_goes_through(acme: httpx.AsyncClient) -> None:
    answer = await acme.get("/v1/jobs", headers={"X-Correlation-Id": "order-7/a"})

    assert answer.headers["x-correlation-id"] == "order-7/a"


async def test_an_id_that_is_none_is_replaced(acme: httpx.AsyncClient) -> None:
    for given in ("two words", "x" * 129, 'a"b', ""):
        answer = await acme.get("/v1/jobs", headers={"X-Correlation-Id": given})

        assert len(answer.headers["x-correlation-id"]) == 32


async def test_a_request_leaves_one_line_without_secrets(
    running: Running, acme: httpx.AsyncClient
) -> None:
    with capture_logs() as lines:
        await acme.get("/v1/jobs/not-a-job?note=CANARY", headers={"X-Correlation-Id": "c"})

    (line,) = [line for line in lines if line["event"] == "request.answered"]
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/jobs/{job_id}", 422)
    assert (line["tenant_id"], line["correlation_id"]) == ("acme", "c")
    assert line["problem"] == "invalid_request"
    assert line["duration_seconds"] >= 0
    assert "CANARY" not in str(lines)
    assert running.secrets["acme"] not in str(lines)


async def test_requests_are_counted_by_route(running: Running, acme: httpx.AsyncClient) -> None:
    job_id = await submitted(acme)
    await acme.get(f"/v1/jobs/{job_id}")
    await acme.get("/v1/nothing/of/ours")
    await acme.post("/v1/images", content=a_jpeg(), headers={"Content-Type": "image/jpeg"})

    shown = app_of(running).state.tools.metrics.exposition().decode()

    for series in (
        'http_requests_total{method="POST",route="/v1/jobs",status_code="202"} 1.0',
        'http_requests_total{method="GET",route="/v1/jobs/{job_id}",status_code="200"} 1.0',
        'http_requests_total{method="GET",route="unmatched",status_code="404"} 1.0',
        'http_request_duration_seconds_count{method="GET",route="unmatched",status_code="404"} 1.0',
        'upload_size_bytes_count{mime_type="image/jpeg"} 1.0',
        'db_query_duration_seconds_count{operation="submit_job",table="jobs"} 1.0',
    ):
        assert series in shown
    assert str(job_id) not in shown


async def test_what_does_not_exist_is_a_problem(acme: httpx.AsyncClient) -> None:
    is_problem(await acme.get("/"), 404, "not_found")
    is_problem(await acme.get("/v1/jobs/"), 404, "not_found")


async def test_a_wrong_method_is_told_the_right_ones(acme: httpx.AsyncClient) -> None:
    for path, allowed in (("/v1/jobs", "GET, POST"), ("/v1/jobs:batch", "POST")):
        answer = await acme.delete(path)

        is_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


async def test_a_plain_route_is_found_without_the_framework(
    acme: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    route = Router.__call__

    async def noting(router: Router, scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await route(router, scope, receive, send)

    monkeypatch.setattr(Router, "__call__", noting)
    posted = await acme.post("/v1/jobs", json={"jobType": "noop"})
    refused = await acme.post("/v1/jobs:batch", json={"jobs": "none"})
    await acme.get("/v1/jobs")

    assert 202 == posted.status_code
    is_problem(refused, 422, "invalid_request")
    assert asked == ["/v1/jobs"], "the last of them has a query, which is the framework's affair"


async def test_what_a_process_has_loaded_is_not_collected_again_and_again(serve: Serve) -> None:
    gc.unfreeze()
    async with serve():
        assert gc.get_freeze_count() > len(sys.modules)


async def test_a_bug_is_a_problem_that_says_nothing(
    running: Running, acme: httpx.AsyncClient
) -> None:
    app_of(running).state.watcher = None

    async def broken() -> None:
        msg = "CANARY"
        raise LookupError(msg)

    app_of(running).add_api_route("/v1/broken", broken)
    with capture_logs() as lines:
        answer = await acme.get("/v1/broken")

    is_problem(answer, 500, "internal_error")
    assert "CANARY" not in answer.text
    assert ["request.broke", "request.answered"] == [line["event"] for line in lines]
    assert "internal_error" == lines[-1]["problem"]


def test_every_error_of_ours_is_one_problem() -> None:
    cases: list[tuple[FleetError, int, str]] = [
        (Unavailable("s3_denied", "…", "CANARY"), 503, "unavailable"),
        (Unavailable("submits_paused", "…"), 503, "submits_paused"),
        (StoreRejected("store_rejected", "…", "CANARY"), 500, "internal_error"),
        (InputRejected("corrupt", "…", "CANARY"), 422, "corrupt"),
        (RequestRejected("never_heard_of", "…", "CANARY"), 500, "internal_error"),
        (FleetError("s3_rejected", "…", "CANARY"), 500, "internal_error"),
    ]
    for error, status, code in cases:
        problem = problem_of(error)

        assert (problem.status, problem.code) == (status, code)
        assert "CANARY" not in problem.model_dump_json()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("PATCH", "/v1/jobs", 405),
        ("GET", "/v1/jobs?" + "&" * 64, 414),
        ("GET", "/v1/jobs", 401),
        ("GET", "/i/nonsense/current/thumb.webp", 404),
        ("GET", "/v1/openapi.json", 200),
        ("GET", "/v1/operator/openapi.json", 200),
        ("GET", "/docs", 200),
        ("GET", "/docs/page.js", 200),
    ],
)
async def test_who_shows_no_key_is_answered_without_hurry_and_counted_once(
    running: Running, monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int
) -> None:
    unhurried = app_of(running).state.unhurried
    paused = asyncio.Event()

    async def pause() -> None:
        paused.set()

    monkeypatch.setattr(unhurried, "pause", pause)
    async with httpx.AsyncClient(base_url=running.url) as nobody:
        assert (await nobody.request(method, path)).status_code == status
        (bucket,) = unhurried._addresses.values()
        assert bucket.level == 2 * UNHURRIED_FROM - 1
        bucket.level = -1000.0
        assert not paused.is_set()

        assert (await nobody.request(method, path)).status_code == status

    assert paused.is_set()


async def test_who_has_a_key_waits_for_none_of_that(
    running: Running, acme: httpx.AsyncClient
) -> None:
    await acme.get("/v1/jobs/nonsense")

    assert not app_of(running).state.unhurried._addresses


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("&".join(["limit=1"] * 64), 200),
        ("&".join(["limit=1"] * 65), 414),
        ("limit=" + "%30" * 2728 + "1", 200),
        ("limit=" + "%30" * 2729, 414),
        ("a" * 12_000, 414),
    ],
)
async def test_a_query_has_an_end(acme: httpx.AsyncClient, query: str, status: int) -> None:
    answer = await acme.get(f"/v1/jobs?{query}")

    assert answer.status_code == status
    if status != 200:
        is_problem(answer, 414, "uri_too_long")


async def test_the_longest_reference_and_reason_fit(running: Running) -> None:
    async with running.client("acme") as acme, running.client("operator") as operator:
        images = await acme.get("/v1/images", params={"reference": "😀" * 255})
        live = await operator.delete("/v1/operator/settings/x", params={"reason": "😀" * 500})

    assert images.status_code == 200
    assert live.status_code != 414
