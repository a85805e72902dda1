"""What routes say of themselves where the framework cannot know: bodies that we read ourselves."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypedDict

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from imagefleet.api.http.errors import PROBLEM_TYPE
from imagefleet.jobs.shapes.shape import Problem

NAMED: Final[dict[type[BaseModel], None]] = {Problem: None}
"""The models that routes name by themselves, in the order in which they do."""

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


class Routes(APIRouter):
    """Routes of one subject; in the documents each has the name of its function.

    An app takes them as they are, see `take_in`.
    """

    def __init__(
        self,
        tags: Sequence[str] = (),
        *,
        route_class: type[APIRoute] = APIRoute,
        include_in_schema: bool = True,
    ) -> None:
        """Be of these tags."""
        super().__init__(
            tags=[*tags],
            route_class=route_class,
            include_in_schema=include_in_schema,
            generate_unique_id_function=lambda route: to_camel(route.name),
        )

    def take_in(self, app: FastAPI) -> None:
        """Give the app these routes. To include a router is to look at each function once more."""
        app.router.routes.extend(self.routes)


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

    Or with 200 and another shape, where nothing was to be changed.
    """
    of_a_body = OF_A_BODY if takes and "requestBody" in takes else ()
    responses = problems(*of_a_body, *statuses)
    if unchanged is not None:
        responses[200] = {"model": unchanged, "description": "Nothing was changed."}
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
    return {"application/json": {"schema": named(model)}}


def named(model: type[BaseModel]) -> Piece:
    """A reference to this model, which the document holds then."""
    NAMED[model] = None
    return {"$ref": REF.format(model=model.__name__)}
