"""The documents that describe the API to machines: one for producers, one for operators.

Each is made when it is first asked for, as that takes memory and most of a second, and kept as it
is sent. What differs from one API to another is said as it is in this one: the recipes that may be
named, and the job types. A schema marks such a name by a format of ours, which never gets out.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from types import MappingProxyType
from typing import Final, TypeAlias

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from imagefleet.api.http.openapi import NAMED, REF, Piece

DESCRIBED_FOR: Final = 300  # seconds that a description may be kept
EXAMPLES: Final = "examples.json"

NamesInForce: TypeAlias = Mapping[str, Sequence[str]]
"""The names that there are, by the format that marks them."""

_OF_OPERATORS: Final = "/v1/operator/"
_SCHEMAS: Final = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Document:
    """Who it is for, and what it says of itself."""

    title: str
    address: str
    page: str
    """Where people read it."""
    about: str
    tags: Mapping[str, str] = field(repr=False, hash=False)
    """What its routes are about, each with a sentence."""
    of_operators: bool = False

    def tells(self, path: str) -> bool:
        """Whether a route belongs here."""
        return path.startswith(_OF_OPERATORS) == self.of_operators


PRODUCERS: Final = Document(
    title="imagefleet",
    address="/v1/openapi.json",
    page="/docs",
    about="Images and jobs of a tenant. An answer of 202 is a promise: the work is on record, and"
    " will be done. Every request bears an API key, `Authorization: Bearer if_…`.",
    tags=MappingProxyType(
        {
            "images": "Uploaded, replaced, made anew, looked at, deleted.",
            "jobs": "Submitted, waited for, followed, cancelled.",
            "targets": "What waits at one, in its order: looked at, held back, cancelled.",
            "addresses": "Where the current revision of a variant is: for browsers, without a key.",
        }
    ),
)
OPERATORS: Final = Document(
    title="imagefleet for operators",
    address="/v1/operator/openapi.json",
    page="/docs/operators",
    about="Jobs of all tenants, and what holds them back. Every request bears an API key with the"
    " scope `operate`; whatever it changes is a line of the audit.",
    tags=MappingProxyType(
        {
            "jobs": "Any tenant's, with everything about them, and the orders one can give.",
            "images": "Any tenant's, with their past, and orders about them.",
            "dead letters": "What failed for good: looked at, acknowledged, replayed.",
            "pauses": "What is held back.",
            "queues": "What waits and runs, and whether the books agree.",
            "fleet": "Workers, and the circuit breakers of what they need.",
            "edge": "What CloudFront is owed, and what was swept from S3.",
            "tenants": "What each has open and may take.",
            "settings": "What is turned while the fleet runs.",
            "audit": "Who did what.",
        }
    ),
    of_operators=True,
)
DOCUMENTS: Final = (PRODUCERS, OPERATORS)


class Telling:
    """A document as it is sent: anybody may ask for it, and is told without hurry."""

    def __init__(self, app: FastAPI, document: Document, in_force: NamesInForce) -> None:
        """Describe nothing yet."""
        self._app = app
        self._document = document
        self._in_force = in_force
        self._encoding = asyncio.Lock()
        self._encoded: tuple[bytes, str] | None = None

    async def answer(self, request: Request) -> Response:
        """The document, or that it is still the one that is known."""
        await self._app.state.unhurried.answer(request)
        async with self._encoding:
            if self._encoded is None:
                self._encoded = await asyncio.to_thread(self._encode)  # most of a second
        encoded, tag = self._encoded
        headers = {"ETag": tag, "Cache-Control": f"public, max-age={DESCRIBED_FOR}"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(encoded, headers=headers, media_type="application/json")

    def _encode(self) -> tuple[bytes, str]:
        encoded = orjson.dumps(describe(self._app, self._document, self._in_force))
        return encoded, f'"{hashlib.sha256(encoded).hexdigest()[:32]}"'


def describe(app: FastAPI, document: Document, in_force: NamesInForce) -> Piece:
    """The document of an application that has all its routes."""
    contexts = [each for each in iter_route_contexts(app.routes) if document.tells(each.path or "")]
    described: Piece = get_openapi(
        title=document.title,
        version=app.version,
        description=document.about,
        servers=[{"url": "/", "description": "The API that tells this."}],
        tags=[{"name": name, "description": about} for name, about in document.tags.items()],
        routes=contexts,
    )
    _, definitions = models_json_schema([(each, "validation") for each in NAMED], ref_template=REF)
    schemas: Piece = described["components"]["schemas"] | definitions["$defs"]
    used = _reached(schemas, described["paths"])
    examples = json.loads((files(__package__) / EXAMPLES).read_text(encoding="utf-8"))
    described["components"]["schemas"] = {
        name: schema | ({"examples": [examples[name]]} if name in examples else {})
        for name, schema in schemas.items()
        if name in used
    }
    fill_in(described, in_force)
    for each in (*_objects_in(described["paths"]), *_properties_in(described["components"])):
        each.pop("title", None)  # the name once more, in another way
    return described


def fill_in(piece: object, in_force: NamesInForce) -> None:
    """Say which names there are wherever a schema has one of these formats."""
    for each in _objects_in(piece):
        if isinstance(form := each.get("format"), str) and form in in_force:
            del each["format"]
            each["enum"] = [*in_force[form]]


def _properties_in(piece: object) -> Iterator[Piece]:
    for each in _objects_in(piece):
        if isinstance(properties := each.get("properties"), dict):
            yield from properties.values()


def _reached(schemas: Piece, piece: object) -> set[str]:
    """The names of all schemas that this leads to."""
    reached: set[str] = set()
    ahead = [piece]
    while ahead:
        named = {
            ref.removeprefix(_SCHEMAS)
            for each in _objects_in(ahead.pop())
            if isinstance(ref := each.get("$ref"), str)
        }
        ahead.extend(schemas[name] for name in named - reached)
        reached |= named
    return reached


def _objects_in(piece: object) -> Iterator[Piece]:
    """Every object of it, however deep."""
    if isinstance(piece, dict):
        yield piece
    inner: Iterable[object] = piece.values() if isinstance(piece, dict) else ()
    for each in piece if isinstance(piece, list) else inner:
        yield from _objects_in(each)
