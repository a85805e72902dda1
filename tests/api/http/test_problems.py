"""What a refusal says: which field, what it must be, and how the log calls the request."""

import ast
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from imagefleet.api.http.errors import STATUSES
from tests.support.api import ANY_KEYS_ROUTES, JPEG, OPERATOR_ROUTES, ROUTES, Running
from tests.support.http import a_jpeg, is_problem, told
from tests.support.sources import parsed

PACKAGE = Path(__file__).parents[3] / "services" / "imagefleet"


async def test_a_misspelt_parameter_is_named_with_those_that_there_are(
    acme: httpx.AsyncClient,
) -> None:
    answer = await acme.post("/v1/images?recip=avif", content=a_jpeg(), headers=JPEG)

    is_problem(answer, 422, "invalid_request")
    (fault,) = answer.json()["errors"]
    told, _, known = fault["detail"].partition("; known are: ")
    assert (fault["field"], fault["problem"], told) == ("recip", "extra_forbidden", "is not known")
    assert {"recipe", "reference", "focal"} <= {*known.split(", ")}


async def test_no_route_passes_over_a_parameter_that_it_does_not_have(running: Running) -> None:
    nobody = "0199a5c2-0000-7000-8000-000000000000"
    async with running.client("acme") as acme, running.client("operator") as operator:
        for route in (*ROUTES, *ANY_KEYS_ROUTES, *OPERATOR_ROUTES):
            client = operator if route.scope == "operate" else acme
            acme.params = operator.params = httpx.QueryParams(stattus="failed")
            answer = await route.ask(client, nobody, nobody)

            is_problem(answer, 422, "invalid_request")
            assert [fault["field"] for fault in answer.json()["errors"]] == ["stattus"], route.path


async def test_what_is_known_is_told_of_a_model_of_parameters_too(running: Running) -> None:
    async with running.client("operator") as operator:
        answer = await operator.get("/v1/operator/dead-letters?all=true&kind=noop")

    (fault,) = answer.json()["errors"]
    known = (
        "diedAfter, diedBefore, tenant, jobType, reason, fingerprint, idPrefix, all, limit, cursor"
    )
    assert fault["detail"] == f"is not known; known are: {known}"


async def test_a_name_that_may_be_a_secret_is_not_repeated(running: Running) -> None:
    secret = running.secrets["acme"]
    async with running.client("acme") as acme:
        in_query = await acme.get("/v1/jobs", params={secret: "CANARY"})
        in_body = await acme.post("/v1/jobs", json={"jobType": "noop", secret: "CANARY"})

    for answer in (in_query, in_body):
        assert [fault["field"] for fault in answer.json()["errors"]] == ["?"]
        assert secret not in answer.text
        assert "CANARY" not in answer.text


SENTENCES = [
    ("/v1/jobs?limit=101", "limit", "must be at most 100"),
    ("/v1/jobs?limit=0", "limit", "must be at least 1"),
    ("/v1/jobs?limit=x", "limit", "must be a whole number"),
    ("/v1/jobs?cursor=x", "cursor", "must be a UUID"),
    ("/v1/jobs?jobType=A", "jobType", "must match ^[a-z][a-z0-9_]{0,62}$"),
    (
        "/v1/jobs?status=done",
        "status",
        "must be 'queued', 'processing', 'completed', 'failed_retryable' or 'failed'",
    ),
]


@pytest.mark.parametrize(("path", "field", "sentence"), SENTENCES)
async def test_a_parameter_is_told_its_bound_or_its_values(
    acme: httpx.AsyncClient, path: str, field: str, sentence: str
) -> None:
    (fault,) = (await acme.get(path)).json()["errors"]

    assert (fault["field"], fault["detail"]) == (field, sentence)


IN_BODIES = [
    ({}, "jobType", "is required"),
    ({"priority": 1001}, "priority", "must be at most 1000"),
    ({"priority": "5"}, "priority", "must be a whole number"),
    ({"payload": []}, "payload", "must be an object"),
    ({"runAt": "2030-01-01T00:00:00"}, "runAt", "must have a time zone, such as Z"),
    (
        {"runAt": "2100-01-01T00:00:00Z"},
        "runAt",
        "must be from 2000 to 2099, and less than 16 hours from UTC",
    ),
    ({"maxAttempts": 101}, "maxAttempts", "must be at most 100"),
]


@pytest.mark.parametrize(("asked", "field", "sentence"), IN_BODIES)
async def test_a_field_of_a_body_is_told_its_bound_or_its_form(
    acme: httpx.AsyncClient, asked: dict[str, object], field: str, sentence: str
) -> None:
    job = asked if field == "jobType" else {"jobType": "noop"} | asked

    alone = await acme.post("/v1/jobs", json=job)
    batch = await acme.post("/v1/jobs:batch", json={"jobs": [job]})

    (fault,) = alone.json()["errors"]
    assert (fault["field"], fault["detail"]) == (field, sentence)
    assert batch.json()["answers"][0]["problem"]["errors"] == [fault]


async def test_an_unknown_field_of_a_body_is_told_the_known_ones(acme: httpx.AsyncClient) -> None:
    answer = await acme.post("/v1/uploads", json={"contentType": "image/png", "bytes": 5})

    (fault,) = answer.json()["errors"]
    assert fault["detail"] == "is not known; known are: contentType, maxBytes"


async def test_a_payload_is_told_what_its_fields_must_be(acme: httpx.AsyncClient) -> None:
    answer = await acme.post("/v1/jobs", json={"jobType": "noop", "payload": {"milliseconds": -1}})

    assert told(answer) == (422, "invalid_payload")
    sentence = "The payload is not valid for noop: milliseconds must be at least 0."
    assert answer.json()["detail"] == sentence


async def test_a_problem_names_its_request_as_the_log_does(running: Running) -> None:
    async with running.client("acme", **{"X-Correlation-Id": "order-7"}) as acme:
        with capture_logs() as lines:
            answers = [
                await acme.get("/v1/jobs?limit=0"),
                await acme.get("/v1/nothing"),
                await acme.get("/v1/jobs?" + "&" * 64),
                await acme.post("/v1/jobs:batch", json={"jobs": [{}]}),
            ]

    problems = [answer.json() for answer in answers]
    problems[-1] = problems[-1]["answers"][0]["problem"]
    told_ids = [line["request_id"] for line in lines if line["event"] == "request.answered"]
    assert [problem["requestId"] for problem in problems] == told_ids
    assert len(set(told_ids)) == 4, "a correlation id may be that of many requests"


RAISED = {"RequestRejected", "refused", "_problem"}  # the first argument is a code


def test_whatever_is_refused_has_a_code_with_a_status_and_every_code_is_used() -> None:
    files = [file for part in ("api", "store", "jobs") for file in (PACKAGE / part).rglob("*.py")]
    calls = [
        node for file in files for node in ast.walk(parsed(file)) if isinstance(node, ast.Call)
    ]
    raised = {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in RAISED
        if call.args and isinstance(call.args[0], ast.Constant)
    }
    used = {
        node.value
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if file.name != "errors.py"
    }

    assert raised <= {*STATUSES}
    of_framework = {"bad_request", "method_not_allowed"}
    assert {*STATUSES} - used <= of_framework | {"not_found", "idempotency_conflict"}
