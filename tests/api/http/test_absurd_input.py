"""Input that no client of ours would send: refused by name, never a fault of ours."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from imagefleet.api.http.bodies import MOST_NESTED
from imagefleet.store.database import Connection
from tests.support.api import NOBODY, OPERATOR_ROUTES, ROUTES, Running, app_of, described_whole
from tests.support.http import told

pytestmark = [pytest.mark.timeout(300)]  # thousands of requests, on a machine that may be busy

AT_ONCE: Final = 4

DIGITS: Final = "9" * 100_000


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


ABSURD_JSON: Final = (
    *(nested(depth) for depth in (60, 63, 64, 250, 254, 255, 1000, 1024, 1025, 30_000)),
    '{"a":' * 1000 + "1" + "}" * 1000,
    "1e400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity", "-0", "-0.0",
    DIGITS[:70_000], "-" + DIGITS[:5000], "0." + DIGITS[:5000], "1e" + DIGITS[:5000],
    "18446744073709551615", "18446744073709551616", "-9223372036854775809", "2147483648",
    '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"a\\u0000b"', '"\ufffe\uffff"', '"\\u202e"',
    '"' + "x" * 70_000 + '"', '"\x85\u2028"', "true", "null", "{}", '{"":""}', '{"\\u0000":1}',
    '"9999-12-31T23:59:59-23:59"', '"0001-01-01T00:00:00+23:59"', '"2030-01-01T00:00:00+23:59"',
    '"2030-01-01T00:00:00-23:59"', '"2030-01-01T00:00:00+16:00"', '"2030-01-01T00:00:60Z"',
    '"-99999999-01-01T00:00:00Z"', '"2030-02-30T00:00:00Z"', '"P999999999999D"',
    '"00000000-0000-0000-0000-000000000000"', '"ffffffff-ffff-ffff-ffff-ffffffffffff"',
)  # fmt: skip

ABSURD_TEXT: Final = (
    "", " ", "\x00", "a\x00b", "\ud7ff", "\ufffe", "\u202e", "-1", "0", "1", "1e9", "NaN", "inf",
    "9" * 5000, "-" + "9" * 5000, "0" * 5000, "2147483648", "9223372036854775808",
    "true", "{}", "[]", "%", "x" * 8000, "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
    "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "../../etc/passwd", "'; DROP TABLE jobs; --", "\U0010ffff",
)  # fmt: skip

ABSURD_BYTES: Final = (b"%ff", b"%c0%80", b"%ed%a0%80", b"%00", b"%", b"%zz", b"%u0000", b"+")


@pytest.fixture
async def anything(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    """A client that may do all there is."""
    async with running.client("operator") as operator, running.client("acme") as acme:

        async def chosen(request: httpx.Request) -> None:
            who = operator if request.url.path.startswith("/v1/operator") else acme
            request.headers["Authorization"] = who.headers["Authorization"]

        async with httpx.AsyncClient(
            base_url=running.url, timeout=30, event_hooks={"request": [chosen]}
        ) as client:
            yield client


def answered(what: object, answer: httpx.Response) -> None:
    assert answer.status_code < 500, (what, answer.status_code, answer.text)
    if answer.is_error:
        told(answer)


async def ask_all(client: httpx.AsyncClient, asked: Iterator[tuple[object, httpx.Request]]) -> None:
    """Every one of them, some at once."""

    async def one_after_another() -> None:
        for what, request in asked:
            answered(what, await client.send(request))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_another())


def described(running: Running) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of every route."""
    for path, methods in described_whole(app_of(running))[0].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def filled(path: str, names: list[str], value: str = NOBODY) -> str:
    for name in names:
        path = path.replace("{" + name + "}", value)
    return path


def holds_more(value: dict[str, Any]) -> bool:
    """Whether it may be a list, an object, or anything."""
    choices = value.get("anyOf", [value])
    return any(each.get("type", "object") in {"array", "object"} for each in choices)


async def test_no_parameter_makes_it_our_fault(
    running: Running, anything: httpx.AsyncClient
) -> None:
    def requests() -> Iterator[tuple[object, httpx.Request]]:
        for method, path, operation in described(running):
            given = operation.get("parameters", ())
            in_path = [each["name"] for each in given if each["in"] == "path"]
            for name in (each["name"] for each in given if each["in"] == "query"):
                for value in ABSURD_TEXT:
                    url = f"{filled(path, in_path)}?{quote(name)}={quote(value, safe='')}"
                    yield (method, name, value[:40]), anything.build_request(method, url)
            for name in in_path:
                others = [other for other in in_path if other != name]
                values = [quote(value, safe="") for value in ABSURD_TEXT]
                for value in (*values, *(each.decode() for each in ABSURD_BYTES)):
                    url = filled(filled(path, others), [name], value)
                    yield (method, url[:80]), anything.build_request(method, url)

    await ask_all(anything, requests())


async def test_no_body_makes_it_our_fault(running: Running, anything: httpx.AsyncClient) -> None:
    usual = {
        (route.method, route.path.partition("?")[0].partition("{")[0]): route.json
        for route in (*ROUTES, *OPERATOR_ROUTES)
        if route.json is not None
    }

    def bodies(schema: dict[str, Any], base: dict[str, object]) -> Iterator[tuple[str, str]]:
        for name in schema["properties"]:
            others = {key: value for key, value in base.items() if key != name}
            start = httpx.Request("POST", "http://x", json=others).content.decode()[:-1]
            within = f'{start}{"," if others else ""}"{name}":'
            for value in ABSURD_JSON:
                yield name, f"{within}{value}}}"
            if holds_more(schema["properties"][name]):  # of all others a list is as absurd as any
                for value in ABSURD_JSON:
                    yield name, f"{within}[{value}]}}"
                    yield name, f'{within}{{"a":{value}}}}}'

    def requests() -> Iterator[tuple[object, httpx.Request]]:
        _, schemas = described_whole(app_of(running))
        for method, path, operation in described(running):
            taken = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if taken is None:
                continue
            in_path = [
                each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"
            ]
            base = usual.get((method, path.partition("{")[0])) or {}
            assert isinstance(base, dict)
            schema = schemas[taken["schema"]["$ref"].rpartition("/")[2]]
            for name, body in (*bodies(schema, base), *((None, each) for each in ABSURD_JSON)):
                request = anything.build_request(
                    method,
                    filled(path, in_path),
                    content=body.encode("utf-8", "surrogatepass"),
                    headers={"Content-Type": "application/json"},
                )
                yield (method, path, name, body[-60:]), request

    await ask_all(anything, requests())


async def test_no_header_makes_it_our_fault(running: Running, acme: httpx.AsyncClient) -> None:
    names = (
        "Idempotency-Key", "X-Correlation-Id", "traceparent", "tracestate", "Content-Type",
        "Accept", "Authorization", "Content-Encoding", "Last-Event-ID", "If-None-Match", "Range",
        "Forwarded", "X-Forwarded-For", "Cookie", "Expect",
    )  # fmt: skip
    values = (
        b"", b"\xff\xfe", b"\xc3\xa4", b"\x80", b"9" * 5000, b'"', b"multipart/form-data",
        b"multipart/form-data; boundary=\xff", b"multipart/form-data; boundary*=utf-8''%ff",
        b"image/jpeg; charset=\xff", b"bytes=9-1," * 500, b"Bearer if_" + b"\xff" * 40,
        b"00-" + b"f" * 32 + b"-" + b"f" * 16 + b"-ff", b"a=" + b"b" * 5000, b"100-continue",
    )  # fmt: skip

    def requests() -> Iterator[tuple[object, httpx.Request]]:
        for name in names:
            for value in values:
                for method, url, body in (
                    ("POST", "/v1/jobs", b'{"jobType":"noop"}'),
                    ("POST", "/v1/images", b"x" * 100),
                    ("GET", f"/v1/jobs/{NOBODY}/events", b""),
                ):
                    request = acme.build_request(
                        method, url, content=body, headers={"Content-Type": "application/json"}
                    )
                    kept = [each for each in request.headers.raw if each[0] != name.encode()]
                    request.headers = httpx.Headers([*kept, (name.encode(), value)])
                    yield (method, url, name, value[:40]), request

    await ask_all(acme, requests())


@pytest.mark.parametrize(
    "absurd",
    [
        f'{{"jobType":"noop","payload":{{"note":{nested(1000)}}}}}',
        f'{{"jobType":"noop","payload":{{"note":{nested(MOST_NESTED)}}}}}',
        '{"jobType":"noop","runAt":"2030-01-01T00:00:00+23:59"}',
        '{"jobType":"noop","runAt":"2030-01-01T00:00:00-16:00"}',
        '{"jobType":"noop","runAt":"9999-12-31T23:59:59-15:59"}',
        '{"jobType":"noop","payload":{"note":"a\\u0000"}}',
    ],
)
async def test_of_a_batch_it_fails_alone(
    acme: httpx.AsyncClient, owner: Connection, absurd: str
) -> None:
    good = '{"jobType":"noop","runAt":"2030-01-01T00:00:00+14:00"}'
    answer = await acme.post(
        "/v1/jobs:batch",
        content=f'{{"jobs":[{good},{absurd},{good}]}}',
        headers={"Content-Type": "application/json"},
    )
    alone = await acme.post(
        "/v1/jobs", content=absurd, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code == 200, answer.text
    assert [each["status"] for each in answer.json()["answers"]] == [202, 422, 202]
    assert alone.status_code == 422
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 2
