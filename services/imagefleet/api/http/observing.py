"""Around every request: a correlation id, a span, two metrics, one log line, and the last net.

Outermost of all: what the framework could not turn into an answer becomes one here.
"""

import asyncio
import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Any, Final
from uuid import uuid4

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from imagefleet.api.http.errors import CLIENT_LEFT, NOT_OURS, refused
from imagefleet.api.http.limiting import Unhurried
from imagefleet.telemetry.metrics import ApiMetrics
from imagefleet.telemetry.tracing import Tracing, extract

CORRELATION: Final = b"x-correlation-id"
LARGEST_HEADERS: Final = 32_768  # bytes, all together
LARGEST_QUERY: Final = 8192  # bytes; 500 characters of a reason, each of twelve, and some more
MOST_PARAMETERS: Final = 64
SEND_WITHIN: Final = timedelta(seconds=60)  # a client that takes nothing for so long has gone

TOKEN: Final = r"^[A-Za-z0-9._:/@+=-]{1,128}$"  # noqa: S105 - a form, not a secret
_TOKEN: Final = re.compile(TOKEN.encode())
_REFUSED: Final = 4  # hundred and something
_TOO_LARGE: Final = "The headers are larger than they may be."
_TOO_LONG: Final = f"A query may have {LARGEST_QUERY} bytes and {MOST_PARAMETERS} parameters."
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)

log = structlog.get_logger()

State = MutableMapping[str, Any]  # what a request carries along, as the framework types it


@dataclass(frozen=True, slots=True)
class Observed:
    """An application that is watched from outside."""

    app: ASGIApp
    unhurried: Unhurried
    metrics: ApiMetrics
    tracing: Tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and tell what became of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        state: State = scope.setdefault("state", {})
        given = headers.get(CORRELATION, b"")
        state["correlation_given"] = _TOKEN.fullmatch(given) is not None
        state["correlation_id"] = given.decode() if state["correlation_given"] else uuid4().hex
        parent = extract(_text(headers, b"traceparent"), _text(headers, b"tracestate"))
        with (
            self.tracing.span(f"HTTP {scope['method']}", "server", parent=parent),
            bound_contextvars(correlation_id=state["correlation_id"]),
        ):
            await self._watched(scope, receive, send)

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, answer = perf_counter(), _Outgoing(scope, send, self.unhurried)
        try:
            answering = _refusal_of(scope) or self.app
            await answering(scope, receive, answer.send)
        except _Stalled:
            answer.status = CLIENT_LEFT
        except Exception:
            # The framework answers before it lets an error through; without an answer, we do.
            log.exception("request.broke")
            if not answer.started:
                await refused("internal_error", NOT_OURS)(scope, receive, answer.send)
        finally:
            self._tell(scope, answer, perf_counter() - begun)

    def _tell(self, scope: Scope, answer: "_Outgoing", seconds: float) -> None:
        state: State = scope["state"]
        route = getattr(scope.get("route"), "path", None)
        status = answer.status or CLIENT_LEFT
        self.metrics.answered(scope["method"], route, status, timedelta(seconds=seconds))
        log.info(
            "request.answered",
            method=scope["method"],
            route=route,
            status=status,
            problem=state.get("problem"),
            duration_seconds=round(seconds, 4),
            tenant_id=state.get("tenant_id"),
            correlation_id=state["correlation_id"],
        )


class _Stalled(Exception):
    """The client does not take its answer."""


@dataclass(slots=True)
class _Outgoing:
    """The answer on its way out; a refusal to who showed no valid key is in no hurry."""

    scope: Scope
    passed_on: Send
    unhurried: Unhurried
    started: bool = False
    status: int | None = None

    async def send(self, message: Message) -> None:
        state: State = self.scope["state"]
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            if message["status"] // 100 == _REFUSED and "tenant_id" not in state:
                await self.unhurried.answer(Request(self.scope))
            own = {name for name, _ in message.get("headers", ())}
            message["headers"] = [
                *message.get("headers", ()),
                *((name, value) for name, value in _ALWAYS if name not in own),
                (CORRELATION, state["correlation_id"].encode()),
            ]
        try:
            async with asyncio.timeout(SEND_WITHIN.total_seconds()):
                await self.passed_on(message)
        except TimeoutError:
            raise _Stalled from None


def _text(headers: dict[bytes, bytes], name: bytes) -> str | None:
    return headers[name].decode("latin-1") if name in headers else None


def _refusal_of(scope: Scope) -> Response | None:
    """Of what would cost much to read, whoever sends it."""
    query: bytes = scope["query_string"]
    line = len(scope.get("raw_path") or b"") + len(query)
    if line + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > LARGEST_HEADERS:
        return refused("headers_too_large", _TOO_LARGE)
    if len(query) > LARGEST_QUERY or query.count(b"&") >= MOST_PARAMETERS:
        return refused("uri_too_long", _TOO_LONG)
    return None
