"""The description of the API, where the framework cannot know: bodies that we read ourselves."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from imagefleet.api.edge_schemas import NewInvalidations
from imagefleet.api.errors import PROBLEM_TYPE, Problem
from imagefleet.api.fleet_schemas import NewPause
from imagefleet.api.letter_schemas import Acknowledgement, ReplayRequest
from imagefleet.api.operator_schemas import Because, WatchedJobs
from imagefleet.api.schemas import (
    Cancellation,
    NewJob,
    NewJobs,
    NewUpload,
    Reprocessing,
    StoredUpload,
)
from imagefleet.imaging.headers.facts import ImageFormat

# The framework's own type for pieces of a description: JSON, whatever there is in it.
Piece: TypeAlias = dict[str, Any]

REF: Final = "#/components/schemas/{model}"
BODIES: Final[tuple[type[BaseModel], ...]] = (
    NewJob,
    NewJobs,
    Cancellation,
    NewUpload,
    StoredUpload,
    Reprocessing,
    Because,
    WatchedJobs,
    Acknowledgement,
    ReplayRequest,
    NewPause,
    NewInvalidations,
    Problem,
)
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
    415: "A body of this type is not taken.",
    422: "The request can be read, but not be accepted.",
    429: "The tenant has as many open jobs as it may have.",
    431: "The headers are too large.",
    500: "Something went wrong on our side.",
    503: "Not available at the moment; try again later.",
}
EVERYWHERE: Final = (401, 403, 422, 431, 500, 503)
IMAGE_TYPES: Final = tuple(each.mime_type for each in ImageFormat)


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
    """A JSON body that the route reads by itself."""
    return {"requestBody": {"required": required, "content": _json_content(model)}}


def image_body(*, or_json: type[BaseModel] | None = None) -> Piece:
    """An image as it is, one file in a form, or the JSON that stands for it."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    form = {
        "schema": {
            "type": "object",
            "properties": {"file": {"type": "string", "format": "binary"}},
            "required": ["file"],
            "additionalProperties": False,
        }
    }
    content: Piece = {"multipart/form-data": form}
    content |= dict.fromkeys((*IMAGE_TYPES, "application/octet-stream"), binary)
    if or_json is not None:
        content |= _json_content(or_json)
    return {"requestBody": {"required": True, "content": content}}


def idempotency_header() -> Piece:
    """The header that makes a repeat safe."""
    return {
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "The same request under the same key gets the same answer.",
                "schema": {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"},
            }
        ]
    }


def _json_content(model: type[BaseModel]) -> Piece:
    return {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}


class DescribedApp(FastAPI):
    """An application whose description holds the models of those bodies too."""

    def openapi(self) -> Piece:
        """Describe it once."""
        if self.openapi_schema is None:
            described = get_openapi(title=self.title, version=self.version, routes=self.routes)
            _, definitions = models_json_schema(
                [(model, "validation") for model in BODIES], ref_template=REF
            )
            schemas = described.setdefault("components", {}).setdefault("schemas", {})
            schemas |= definitions["$defs"]
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            self.openapi_schema = described
        return self.openapi_schema
