"""What a release has shown stays: docs/producers.md promises it, these compare the description.

`releases/` has a file for each release, a line a promise: a parameter or field that a request may
have, a status of success, a field of an answer with its type. A line goes only with a new major
version; docs/producers.md says what has to stand in the changelog before that, and for how long.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from imagefleet.api.producers.schemas import MAX_PAYLOAD_BYTES, MOST_IN_A_BATCH
from imagefleet.api.producers.uploads import VALID_FOR
from imagefleet.jobs.limits import LIMITS
from imagefleet.settings.live import DECLARED, RETENTION
from imagefleet.settings.slices import Maintenance, Pictures

HERE: Final = Path(__file__).parent
METHODS: Final = ("get", "put", "post", "delete", "patch")
OPERATORS: Final = "/v1/operator/"  # routes that come with the fleet, and change with it
MUST: Final = "must have"  # what a request may not leave out


def promises(document: Mapping[str, Any]) -> Iterator[str]:
    """Every line that a description holds."""
    for path, item in document["paths"].items():
        for method in () if path.startswith(OPERATORS) else METHODS:
            if operation := item.get(method):
                route = f"{method.upper()} {re.sub(r'{[^}]*}', '{}', path)}"
                yield from _of_operation(document, route, operation)


def _of_operation(
    document: Mapping[str, Any], route: str, operation: Mapping[str, Any]
) -> Iterator[str]:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] != "path":
            name = f"{parameter['in']} {parameter['name'].lower()}"
            yield f"{route} takes {name}"
            if parameter.get("required"):
                yield f"{route} {MUST} {name}"
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield from _of_body(document, route, content.get("schema", {}))
    for status, answer in operation["responses"].items():
        what = f"{route} answers {status}" if status < "4" else "a problem tells"
        yield what
        for content in answer.get("content", {}).values():
            for field in _fields(document, content.get("schema", {}), ""):
                yield f"{what} {field}"


def _of_body(document: Mapping[str, Any], route: str, schema: Mapping[str, Any]) -> Iterator[str]:
    resolved = _resolved(document, schema)
    for name in resolved.get("properties", {}):
        yield f"{route} takes body {name}"
    for name in resolved.get("required", ()):
        yield f"{route} {MUST} body {name}"


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any], place: str) -> Iterator[str]:
    """Every place in an answer, and what kind of value stands there."""
    for one in _kinds(document, schema):
        kind = one.get("type", "anything")
        if kind == "object" and one.get("properties"):
            for name, inner in one["properties"].items():
                yield from _fields(document, inner, f"{place}.{name}" if place else name)
        elif kind == "array":
            yield from _fields(document, one.get("items", {}), f"{place}[]")
        elif kind != "null" and place:
            yield f"{place}: {kind}"


def _kinds(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    resolved = _resolved(document, schema)
    for name in ("anyOf", "oneOf", "allOf"):
        for one in resolved.get(name, ()):
            yield from _kinds(document, one)
    if not {"anyOf", "oneOf", "allOf"} & set(resolved):
        yield resolved


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


@pytest.fixture(scope="module")
def now() -> frozenset[str]:
    """As the golden file has it, to which another test holds the API."""
    files = sorted((HERE / "golden").glob("openapi*.json"))
    return frozenset(line for file in files for line in promises(orjson.loads(file.read_bytes())))


RELEASES: Final = sorted((HERE / "releases").glob("*.txt"))


@pytest.fixture(scope="module", params=RELEASES, ids=lambda file: file.stem)
def then(request: pytest.FixtureRequest) -> frozenset[str]:
    lines: list[str] = request.param.read_text(encoding="utf-8").splitlines()
    return frozenset(lines)


def test_what_a_release_took_and_answered_is_taken_and_answered(
    now: frozenset[str], then: frozenset[str]
) -> None:
    assert sorted(line for line in then if f" {MUST} " not in line and line not in now) == []


def test_nothing_that_a_release_did_not_ask_for_is_required(
    now: frozenset[str], then: frozenset[str]
) -> None:
    routes = {" ".join(line.split(" ", 2)[:2]) for line in then}
    required = {line for line in now if f" {MUST} " in line}

    asked = {line for line in required if " ".join(line.split(" ", 2)[:2]) in routes}

    assert sorted(asked - then) == []


def test_the_page_for_producers_tells_the_limits_that_are_in_force_by_default() -> None:
    page = (HERE.parents[1] / "docs" / "producers.md").read_text(encoding="utf-8")
    of = {name: limit.default for name, limit in LIMITS.items()}
    pictures, mebi = Pictures(), 2**20
    (kept,) = (setting.low for setting in DECLARED if setting.name == RETENTION)
    told = (
        f"ask {of['requests']} times a second, {2 * of['requests']} at once after a rest",
        f"upload {of['uploads']} pictures at once; {of['uploads_waiting']} more wait",
        f"send {of['bytes'] // mebi} MiB a second, and ten seconds' worth",
        f"have {of['forms']:,} upload forms",
        f"upload a file of {pictures.max_bytes // mebi} MiB",
        f"{pictures.max_jpeg_pixels // 10**6} megapixels as JPEG, {pictures.max_pixels // 10**6}",
        f"a job {MAX_PAYLOAD_BYTES // 1024} KiB of payload, and a batch {MOST_IN_A_BATCH} jobs",
        f"| an upload form | {VALID_FOR.seconds // 60} minutes;",
        f"| {kept:.0f} days (`{RETENTION}`, never less)",
        f"{kept:.0f} days at least",
    )

    assert [sentence for sentence in told if sentence not in page] == []
    assert ("have a million jobs open" in page) == (of["open_jobs"] == 10**6)
    assert ("a day after the edge" in page) == (Maintenance().sweep_grace.days == 1)
