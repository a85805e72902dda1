"""The description of the API, where the framework cannot know: bodies that we read ourselves."""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypedDict

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from imagefleet.api.http.errors import PROBLEM_TYPE
from imagefleet.jobs.shapes.shape import Problem

_BODIES: Final[dict[type[BaseModel], None]] = {Problem: None}  # and those that routes name, below

# The framework's own type for pieces of a description: JSON, whatever there is in it.
Piece: TypeAlias = dict[str, Any]

REF: Final = "#/components/schemas/{model}"
RETRY_AFTER: Final[Piece] = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
}
MEANINGS: Final[Mapping[int, str]] = {
    400: "The request cannot be read.",
    401: "No valid API key.",
    403: "The API key lacks the scope.",
    404: "There is no such thing, or it is another tenant's.",
    408: "The body did not arrive in time.",
    409: "The state of things does not allow this.",
    413: "The body is too large.",
    414: "The query is too long.",
    415: "A body of this type is not taken.",
    422: "The request can be read, but not be accepted.",
    429: "The tenant or the key has taken what it may for now; `limit` says of what.",
    431: "The headers are too large.",
    500: "Something went wrong on our side.",
    503: "Not available at the moment; try again later.",
}
EVERYWHERE: Final = (401, 403, 414, 422, 429, 431, 500, 503)
OF_A_BODY: Final = (400, 408, 413, 415)
DESCRIBED_FOR: Final = 300  # seconds that a description may be kept


class Described(TypedDict):
    """What the framework is told about a route."""

    summary: str
    response_model: type[BaseModel]
    status_code: int
    responses: dict[int | str, Piece]
    openapi_extra: Piece | None


def described(
    summary: str,
    shape: type[BaseModel],
    *statuses: int,
    status: int = 200,
    takes: Piece | None = None,
    unchanged: type[BaseModel] | None = None,
) -> Described:
    """A route that answers with this shape, or with problems: who takes a body may refuse it.

    Or with 200 and another shape, where nothing would change.
    """
    of_a_body = OF_A_BODY if takes and "requestBody" in takes else ()
    responses = problems(*of_a_body, *statuses)
    if unchanged is not None:
        responses[200] = {"model": unchanged, "description": "Nothing would change."}
    return Described(
        summary=summary,
        response_model=shape,
        status_code=status,
        responses=responses,
        openapi_extra=takes,
    )


def problems(*statuses: int) -> dict[int | str, Piece]:
    """The problems that a route answers with, and those that every route does."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}}
    described: dict[int | str, Piece] = {}
    for status in sorted({*EVERYWHERE, *statuses}):
        described[status] = {"description": MEANINGS[status], "content": content}
        if status in {429, 503}:
            described[status]["headers"] = RETRY_AFTER
    return described


def json_body(model: type[BaseModel], *, required: bool = True) -> Piece:
    """A JSON body that the route reads by itself, once it knows whose it is."""
    return {"requestBody": {"required": required, "content": json_content(model)}}


def json_content(model: type[BaseModel]) -> Piece:
    """The same as one of the contents that a body may have."""
    _BODIES[model] = None
    return {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}


class DescribedApp(FastAPI):
    """An application whose description holds the models of those bodies too.

    Anybody may ask for it: it is encoded once, and told without hurry.
    """

    _encoded: tuple[bytes, str] | None = None

    def setup(self) -> None:
        """Show it; the framework would encode it again for each who asks."""
        self._encoding = asyncio.Lock()
        if self.openapi_url is not None:
            self.add_route(self.openapi_url, self._describe, include_in_schema=False)

    async def _describe(self, request: Request) -> Response:
        await self.state.unhurried.answer(request)
        async with self._encoding:
            if self._encoded is None:
                self._encoded = await asyncio.to_thread(self._encode)  # most of a second
        encoded, tag = self._encoded
        headers = {"ETag": tag, "Cache-Control": f"public, max-age={DESCRIBED_FOR}"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(encoded, headers=headers, media_type="application/json")

    def _encode(self) -> tuple[bytes, str]:
        encoded = orjson.dumps(self.openapi())
        return encoded, f'"{hashlib.sha256(encoded).hexdigest()[:32]}"'

    def openapi(self) -> Piece:
        """Describe it once."""
        if self.openapi_schema is None:
            described = get_openapi(title=self.title, version=self.version, routes=self.routes)
            _, definitions = models_json_schema(
                [(model, "validation") for model in _BODIES], ref_template=REF
            )
            schemas = described.setdefault("components", {}).setdefault("schemas", {})
            schemas |= definitions["$defs"]
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            self.openapi_schema = described
        return self.openapi_schema
