"""The documents that describe the API: whole, apart, and of the API that tells them."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import jsonschema_rs
import pytest

from imagefleet.api import http
from imagefleet.api.http.documents import DOCUMENTS, EXAMPLES, OPERATORS, PRODUCERS, Telling
from imagefleet.jobs.kinds import JobKind, Payload
from tests.support.api import (
    ANY_KEYS_ROUTES,
    OPERATOR_ROUTES,
    PUBLIC_ROUTES,
    ROUTES,
    Running,
    Serve,
    app_of,
    described_whole,
    documents_of,
    of_nobody,
)

# A file with a recipe of its own beside the default.
RECIPES: Final = """
[[recipes.default.variants]]
name = "small"
edge = 640
formats = ["jpeg"]

[[recipes.poster.variants]]
name = "wide"
edge = 900
formats = ["jpeg"]
"""


class Palette(Payload):
    """What another package might ask."""

    colours: int


PALETTE: Final = JobKind(name="image_palette", payload=Palette)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    return documents_of(of_nobody())


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_a_document_is_encoded_once_and_may_be_kept(
    running: Running,
    acme: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    document: Any,  # noqa: ANN401 - one of DOCUMENTS
) -> None:
    first = await acme.get(document.address)
    monkeypatch.setattr(Telling, "_encode", None)

    again = await acme.get(document.address)
    known = await acme.get(document.address, headers={"If-None-Match": first.headers["etag"]})

    assert first.json() == documents_of(app_of(running))[document.address]
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["cache-control"] == "public, max-age=300"
    assert (known.status_code, known.content) == (304, b"")


async def test_nothing_is_described_before_somebody_asks(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes most of a second, and memory that an API keeps which nobody asks."""
    built = Counter[str]()
    encode = Telling._encode

    def counted(telling: Telling) -> tuple[bytes, str]:
        built["documents"] += 1
        return encode(telling)

    monkeypatch.setattr(Telling, "_encode", counted)
    async with serve() as running, running.client() as acme:
        await acme.get("/v1/job-types")
        before = built["documents"]
        await acme.get(PRODUCERS.address)

    assert (before, built["documents"]) == (0, 1)


def bare(path: str) -> str:
    """Without the names of its parameters."""
    return re.sub(r"\{\w+\}", "", path)


def test_the_documents_know_every_route_and_its_problems() -> None:
    paths, _ = described_whole(of_nobody())
    asked = {
        (route.method, bare(route.path.partition("?")[0].replace("/s3/", "/{service}/")))
        for route in (*ROUTES, *ANY_KEYS_ROUTES, *OPERATOR_ROUTES, *PUBLIC_ROUTES)
    }

    told = [*operations({"paths": paths})]

    assert asked == {(method, bare(path)) for method, path, _ in told}
    for _, path, operation in told:
        keys = {"401", "403"} if path.startswith("/v1/") else set()
        assert {"422", "503"} | keys <= set(operation["responses"])
        assert keys == {"401", "403"} & set(operation["responses"])
        for status, answer in operation["responses"].items():
            if status >= "400":
                assert ["application/problem+json"] == list(answer["content"])


def test_each_document_is_for_its_readers_and_holds_what_it_names_and_no_more(
    documents: dict[str, dict[str, Any]],
) -> None:
    producers, operators = documents[PRODUCERS.address], documents[OPERATORS.address]

    assert not any(path.startswith("/v1/operator/") for path in producers["paths"])
    assert all(path.startswith("/v1/operator/") for path in operators["paths"])
    assert "WholeJob" not in producers["components"]["schemas"]
    for document in (producers, operators):
        assert document["openapi"].startswith("3.1.")
        assert document["servers"] == [{"url": "/", "description": "The API that tells this."}]
        named = set(re.findall(r"#/components/schemas/(\w+)", repr(document)))
        assert named == set(document["components"]["schemas"])


def test_an_operation_has_one_name_for_ever_and_one_of_the_tags(
    documents: dict[str, dict[str, Any]],
) -> None:
    """The names become those of functions in generated clients; the golden files pin them."""
    names = Counter[str]()
    for document in documents.values():
        tags = [tag["name"] for tag in document["tags"]]
        used = set()
        for _, _, operation in operations(document):
            names[operation["operationId"]] += 1
            (tag,) = operation["tags"]
            used.add(tag)
        assert used == set(tags)

    assert set(names.values()) == {1}
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names)


async def test_what_may_be_named_is_what_this_api_has(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "recipes.toml"
    file.write_text(RECIPES)
    async with serve(recipes=file) as running, running.client() as acme:
        recipes = [each["name"] for each in (await acme.get("/v1/recipes")).json()["recipes"]]
        told = (await acme.get("/v1/openapi.json")).json()
        types = (await acme.get("/v1/job-types")).json()["jobTypes"]

    assert "poster" in recipes
    for schema in ("StoredUpload", "Reprocessing"):
        assert recipes in named_in(told["components"]["schemas"][schema]["properties"]["recipe"])
    for method, path in (("post", "/v1/images"), ("put", "/v1/images/{image_id}")):
        parameters = told["paths"][path][method]["parameters"]
        (recipe,) = (each["schema"] for each in parameters if each["name"] == "recipe")
        assert recipes in named_in(recipe)
    (reprocessing,) = (each for each in types if each["jobType"] == "reprocess_images")
    assert recipes in named_in(reprocessing["payload"]["properties"]["recipe"])
    assert '"format":"recipe"' not in repr(told).replace("'", '"').replace(" ", "")


def named_in(schema: dict[str, Any]) -> list[list[str]]:
    """The names of each alternative that has some."""
    return [each["enum"] for each in schema.get("anyOf", [schema]) if "enum" in each]


async def test_types_of_other_packages_are_told_like_our_own(
    running: Running, acme: httpx.AsyncClient
) -> None:
    app = app_of(running)
    app.state.tools = replace(
        app.state.tools, known_kinds=app.state.tools.known_kinds.adding(PALETTE)
    )

    types = (await acme.get("/v1/job-types")).json()["jobTypes"]
    new_job = documents_of(app)[PRODUCERS.address]["components"]["schemas"]["NewJob"]

    assert new_job["properties"]["jobType"]["enum"] == [
        "image_palette",
        "noop",
        "reprocess_images",
    ]
    (palette,) = (each for each in types if each["jobType"] == "image_palette")
    assert (palette["lane"], palette["maxAttempts"], palette["timeout"]) == ("general", 5, 1200)
    assert palette["payload"]["required"] == ["colours"]
    assert "madeBy" not in palette


async def test_a_payload_is_taken_where_the_schema_of_its_type_takes_it(
    acme: httpx.AsyncClient,
) -> None:
    types = (await acme.get("/v1/job-types")).json()["jobTypes"]
    taken = Counter[int]()
    payloads: dict[str, list[object]] = {
        "noop": [{}, {"milliseconds": 7}, {"milliseconds": -1}, {"note": "x" * 201}, {"other": 1}],
        "reprocess_images": [
            {"reference": "one", "recipe": "avif"},
            {"reference": ""},
            {"image_ids": ["none"]},
            {"all_images": False},
            {"reference": "one", "recipe": "nobodys"},
            {"reference": "one", "recipe_hashes": {}},
        ],
    }
    for each in types:
        schema = jsonschema_rs.validator_for(each["payload"], validate_formats=True)
        for payload in payloads.pop(each["jobType"], ()):
            job = {"jobType": each["jobType"], "payload": payload}
            status = (await acme.post("/v1/jobs", json=job)).status_code
            taken[status] += 1
            assert (status == 202) == schema.is_valid(payload), payload

    assert payloads == {}
    assert set(taken) == {202, 422}


def models_of(document: dict[str, Any]) -> Iterator[str]:
    """The models of every body and of every answer, problems among them."""
    for _, _, operation in operations(document):
        for part in (operation.get("requestBody", {}), *operation["responses"].values()):
            for content in part.get("content", {}).values():
                if "$ref" in content["schema"]:
                    yield content["schema"]["$ref"].rpartition("/")[2]


@pytest.mark.parametrize("address", [each.address for each in DOCUMENTS])
def test_every_body_and_every_answer_has_an_example_that_is_one(
    documents: dict[str, dict[str, Any]], address: str
) -> None:
    schemas = documents[address]["components"]["schemas"]

    assert {name for name in models_of(documents[address]) if "examples" not in schemas[name]} == (
        set()
    )
    for name, schema in schemas.items():
        for example in schema.get("examples", ()):
            whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
            jsonschema_rs.validate(whole, example, validate_formats=True)
            assert [*strangers(schemas, schema, example)] == [], name


def strangers(schemas: dict[str, Any], schema: dict[str, Any], value: object) -> Iterator[str]:
    """Fields of an example that its schema does not know: it was one once."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for either in schema.get("anyOf", ()):
        yield from strangers(schemas, either, value)
    for each in value if isinstance(value, list) else ():
        yield from strangers(schemas, schema.get("items", {}), each)
    known = schema.get("properties", {})
    for name, inner in value.items() if isinstance(value, dict) and known else ():
        if name in known:
            yield from strangers(schemas, known[name], inner)
        else:
            yield name


def test_what_may_be_answered_besides_is_declared(documents: dict[str, dict[str, Any]]) -> None:
    """A dry run accepts nothing, an edit may change nothing, and types of files are a few."""
    cancelling = documents[OPERATORS.address]["paths"]["/v1/operator/tenants/{tenant}/cancel"]
    editing = documents[PRODUCERS.address]["paths"]["/v1/images/{image_id}"]
    upload = documents[PRODUCERS.address]["components"]["schemas"]["NewUpload"]

    assert {"200", "202"} <= set(cancelling["post"]["responses"])
    assert {"200", "202"} <= set(editing["patch"]["responses"])
    assert "image/avif" in upload["properties"]["contentType"]["enum"]


def test_the_events_of_a_job_are_described_one_by_one(documents: dict[str, dict[str, Any]]) -> None:
    path = documents[PRODUCERS.address]["paths"]["/v1/jobs/{job_id}/events"]

    stream = path["get"]["responses"]["200"]["content"]["text/event-stream"]
    event = stream["itemSchema"]["properties"]
    assert event["event"] == {"const": "job"}
    assert event["data"]["contentSchema"] == {"$ref": "#/components/schemas/JobView"}


def test_no_example_is_of_nothing(documents: dict[str, dict[str, Any]]) -> None:
    shown = {name for each in documents.values() for name in each["components"]["schemas"]}

    examples = json.loads((Path(http.__path__[0]) / EXAMPLES).read_text(encoding="utf-8"))
    assert examples.keys() <= shown


async def test_whoever_does_not_operate_is_not_told_how(serve: Serve) -> None:
    async with serve(operating=False) as running, running.client() as acme:
        assert (await acme.get(PRODUCERS.address)).status_code == 200
        assert (await acme.get(OPERATORS.address)).status_code == 404
