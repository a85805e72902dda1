"""What a caller is told when a request does not succeed: a problem (RFC 9457) with a stable code.

The code is the contract: each has one status, here. Texts are for people and may change. A body
never holds what the caller sent, nor what only operators may know; those are in the log.

Who has no valid key has no name to count under. Such requests are answered, but not in a hurry:
`Unhurried` lets those from one address wait beyond a few a second, so that whoever sends one after
the other spends his own time. Behind a balancer all have one address; who has a key waits for none
of that.
"""

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from time import monotonic
from types import MappingProxyType
from typing import Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from structlog.contextvars import get_contextvars

from imagefleet.api.http.limiting import Bucket
from imagefleet.errors import FleetError, InputRejected, LimitReached, RequestRejected, Unavailable
from imagefleet.jobs.faults import Fault
from imagefleet.jobs.shapes.shape import Problem
from imagefleet.telemetry.plain import METHODS

log = structlog.get_logger()

PROBLEM_TYPE: Final = "application/problem+json"
EXPLAINED_AT: Final = "/v1/errors"
RETRY_AFTER: Final = 2  # seconds; when the world is away, and nobody knows for how long
CLIENT_LEFT: Final = 499  # never sent; what the log and the metrics say of it

_CODES: Final[Mapping[int, Sequence[str]]] = {
    400: (
        "bad_request", "idempotency_keys_differ", "invalid_form", "invalid_idempotency_key",
        "invalid_json",
    ),
    401: ("unauthorized",),
    403: ("forbidden",),
    404: ("not_found",),
    405: ("method_not_allowed",),
    408: ("request_timeout",),
    409: (
        "image_deleted", "original_gone", "paused_by_operators", "source_changed",
        "upload_incomplete", "upload_used",
    ),
    413: ("payload_too_large", "too_large"),
    414: ("uri_too_long",),
    415: ("type_mismatch", "unsupported", "unsupported_media_type"),
    422: (
        "corrupt", "empty_file", "idempotency_conflict", "invalid_filter", "invalid_payload",
        "invalid_request", "invalid_setting", "too_many_parts",
        "too_many_pixels", "too_much_metadata", "unknown_job_type", "unknown_recipe",
        "use_another_route",
    ),
    429: ("limit_reached", "too_many_open_jobs"),
    431: ("headers_too_large",),
    500: ("internal_error",),
    503: ("busy", "submits_paused", "unavailable"),
}  # fmt: skip
STATUSES: Final = MappingProxyType({code: of for of, codes in _CODES.items() for code in codes})
RETRY_LATER: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
REFUSED_AFTER: Final = 0.5  # seconds: so often does who heeds no Retry-After hear of it
MOST_KEPT_WAITING: Final = 2000  # requests; those beyond are answered at once
UNHURRIED_FROM: Final = 20.0  # answers a second to one address
MOST_ADDRESSES: Final = 10_000
NOT_OURS: Final = "Something went wrong on our side."
_OF_FRAMEWORK: Final = MappingProxyType(
    {
        404: ("not_found", "There is no such route."),
        405: ("method_not_allowed", "This route does not have this method."),
    }
)
_BAD_REQUEST: Final = ("bad_request", "This is not a request that can be answered.")
FAULTS_SHOWN: Final = 20


class InvalidRequest(RequestRejected):
    """The request does not have the form that its route asks for."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        """Name what is wrong, without the values."""
        super().__init__("invalid_request", "The request is not valid.")
        self.faults = list(faults)[:FAULTS_SHOWN]


def problem_of(error: FleetError) -> Problem:
    """What the caller is told about an error of ours."""
    match error:
        case RequestRejected() | InputRejected() if error.code in STATUSES:
            return _problem(
                error.code,
                error.public_message,
                errors=error.faults if isinstance(error, InvalidRequest) else None,
                limit=error.limit if isinstance(error, LimitReached) else None,
            )
        case Unavailable():
            code = error.code if error.code in STATUSES else "unavailable"
            return _problem(code, error.public_message)
        case _:  # ours to repair; which of our parts it was is nobody's business
            return _problem("internal_error", NOT_OURS)


def _problem(
    code: str, detail: str, *, errors: list[Fault] | None = None, limit: str | None = None
) -> Problem:
    status = STATUSES[code]
    return Problem(
        type=f"{EXPLAINED_AT}/{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail,
        request_id=get_contextvars().get("request_id"),
        errors=errors,
        limit=limit,
    )


def response_of(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The problem as it is sent."""
    sent = dict(headers or {})
    if problem.status in RETRY_LATER:
        sent.setdefault("Retry-After", str(RETRY_AFTER))
    if problem.status == HTTPStatus.UNAUTHORIZED:
        sent["WWW-Authenticate"] = "Bearer"
    return Response(problem.encoded(), problem.status, sent, PROBLEM_TYPE)


def refused(code: str, detail: str) -> Response:
    """A problem where there is no error to raise: before or around the framework."""
    return response_of(_problem(code, detail))


def install(app: FastAPI) -> None:
    """Answer every error of this application with a problem."""

    @app.exception_handler(FleetError)
    async def _fleet_error(request: Request, error: FleetError) -> Response:
        problem = problem_of(error)
        request.state.problem = problem.code
        if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("request.failed", code=error.code, detail=error.detail or str(error))
        if isinstance(error, LimitReached):
            app.state.tools.metrics.limited(error.limit)
            await app.state.unhurried.pause()
            return response_of(problem, {"Retry-After": str(error.retry_after)})
        return response_of(problem)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        request.state.problem = "invalid_request"
        faults = Fault.all_of(error.errors(), "query", skip=1)  # which is where it stands
        return response_of(problem_of(InvalidRequest(faults)))

    @app.exception_handler(HTTPException)
    async def _of_framework(request: Request, error: HTTPException) -> Response:
        code, detail = _OF_FRAMEWORK.get(error.status_code, _BAD_REQUEST)
        request.state.problem = code
        headers = {"Allow": _methods_at(request)} if code == "method_not_allowed" else {}
        return response_of(_problem(code, detail), headers)

    @app.exception_handler(ClientDisconnect)
    async def _left(request: Request, error: ClientDisconnect) -> Response:  # noqa: ARG001
        return Response(status_code=CLIENT_LEFT)  # to nobody


def _methods_at(request: Request) -> str:
    """All the methods of this path; the framework knows only those of the first route it has."""
    routes = request.app.router.routes
    return ", ".join(
        method
        for method in METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes
        )
    )


class Unhurried:
    """Lets answers that cost us and help nobody wait, beyond a few a second to one address."""

    def __init__(self, *, wait: float = REFUSED_AFTER) -> None:
        """Begin with nobody."""
        self._wait = wait
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self.waiting = 0

    async def pause(self) -> None:
        """Keep a refused request for a moment: who asks again at once does so twice a second."""
        if self.waiting >= MOST_KEPT_WAITING:
            return
        self.waiting += 1
        try:
            await asyncio.sleep(self._wait)
        finally:
            self.waiting -= 1

    async def answer(self, request: Request) -> None:
        """The same for what has no key to count under, by where it comes from."""
        address = address_of(request)
        bucket = self._addresses.get(address)
        if bucket is None:
            bucket = self._addresses[address] = Bucket()
            if len(self._addresses) > MOST_ADDRESSES:  # whoever has more, waits less
                self._addresses.popitem(last=False)
        else:
            self._addresses.move_to_end(address)
        is_hurried = bucket.wait(UNHURRIED_FROM, 2 * UNHURRIED_FROM, monotonic()) > 0
        if is_hurried:
            await self.pause()
        else:
            bucket.take(1)


def address_of(request: Request) -> str:
    """Where a request comes from: of IPv6 the network, whose addresses all belong to one."""
    host = "" if request.client is None else request.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
