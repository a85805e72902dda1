"""What every request passes first: who asks, whether this may be changed from here, how large.

Closed by default: but for the page to log in and the files that pages load, nothing is answered
without a session, and nothing is changed without its token, from another origin, or by somebody who
only reads. Whatever is answered says that the page may load from here alone, be in no frame, and
be kept by nobody.
"""

import asyncio
import hmac
import re
from collections.abc import Callable, Mapping, MutableMapping
from datetime import timedelta
from time import monotonic
from typing import Any, Final
from urllib.parse import parse_qsl, quote

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from imagefleet.console.borders import (
    LOGIN,
    LOGOUT,
    cookie_name,
    is_trusted,
    origin_of,
    policy,
)
from imagefleet.console.sessions import Session, Sessions
from imagefleet.settings import Console
from imagefleet.telemetry.metrics import ConsoleMetrics

MOST_BYTES: Final = 65_536  # of a form
MOST_FIELDS: Final = 500
MOST_OF_A_FILE: Final = 256 * 2**20  # bytes; what is an image, and how large, the API says
TAKES_FILES: Final = re.compile(r"/images/[0-9a-fA-F-]{36}/replace")
READ_WITHIN: Final = timedelta(seconds=10)
LONGEST_ADDRESS: Final = 8192  # path and query, in bytes
LONGEST_NUMBER: Final = 12  # digits
FORM: Final = "application/x-www-form-urlencoded"
STATIC: Final = "/static/"
OPEN: Final = frozenset({LOGIN, "/favicon.ico"})

_SENTENCES: Final[Mapping[int, str]] = {
    400: "This is not a form of this page.",
    403: "This was not asked from a page of this console, or that page is out of date. "
    "Nothing was changed. Reload the page and try again.",
    405: "Nothing here is asked in this way.",
    411: "Only a file whose length is known is taken here.",
    413: "This is larger than anything that a page here sends.",
    414: "This address is longer than any that a page here has.",
    415: "Only forms are taken here.",
}
_READS_ONLY: Final = (
    "This session only reads. Nothing was changed. "
    "Log out, and in again without “Only look”, to act."
)

log = structlog.get_logger()


class Posted(dict[str, list[str]]):
    """What a page sent."""

    def one(self, name: str, default: str = "") -> str:
        """The value of a field, without what surrounds it."""
        return self.get(name, [default])[-1].strip()


class _TurnedAway(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Guard:
    """The console behind its guard."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Console,
        sessions: Sessions,
        metrics: ConsoleMetrics,
        refused: Callable[[int, str], Response],
    ) -> None:
        """`refused` shows a page with a sentence."""
        self._app = app
        self._settings = settings
        self._sessions = sessions
        self._metrics = metrics
        self._refused = refused
        self._policy = policy(settings.public_base_url)
        self._cookie = cookie_name(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = monotonic()
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._protect(MutableHeaders(scope=message), scope["path"])
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        except Exception:  # a page says so by then; raised on, it would only be told twice
            log.exception("console.broke", path=scope["path"])
        finally:
            if not scope["state"].get("streams"):
                route = getattr(scope.get("route"), "path", None)
                took = timedelta(seconds=monotonic() - began)
                self._metrics.answered(scope["method"], route, status, took)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        request = Request(scope, receive)
        path = scope["path"]
        try:
            _bounded(request)
            if path.startswith(STATIC):
                await self._app(scope, receive, send)
                return
            session = state["session"] = self._session(request)
            if request.method == "POST":
                state["form"] = await self._form(request, session)
        except _TurnedAway as why:
            log.warning("console.refused", status=why.status, path=path, method=request.method)
            await self._refused(why.status, why.sentence)(scope, receive, send)
            return
        if session is None and path not in OPEN:
            await _to_login(request)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _session(self, request: Request) -> Session | None:
        """Whose request this is; whom a trusted proxy names has a session without a cookie."""
        named = self._named(request)
        if named is None:
            session = self._sessions.find(request.cookies.get(self._cookie))
            return session if session is None or session.of_proxy is None else None
        key = self._settings.proxy_keys.get(named)
        if key is None:
            raise _TurnedAway(403, f"Nobody gave {named} a key for this console.")
        known = self._sessions.of_proxy(named)
        if known is None:
            return self._sessions.open(
                key.get_secret_value(),
                name=named,
                of_proxy=named,
                reads_only=self._settings.read_only,
            )
        known.seen_at = monotonic()
        return known

    def _named(self, request: Request) -> str | None:
        header = self._settings.proxy_header
        if header is None or not is_trusted(self._settings, request):
            return None
        return request.headers.get(header) or None

    async def _form(self, request: Request, session: Session | None) -> Posted:
        """What is asked for, if it may be: from a page of ours, by its token, by who may act."""
        self._same_origin(request.headers)
        brings_file = session is not None and TAKES_FILES.fullmatch(request.url.path) is not None
        form = _beside_a_file(request) if brings_file else await _read(request)
        if session is None:
            return form  # of the login, which has none yet
        token = request.headers.get("x-csrf-token") or form.one("csrf")
        if not hmac.compare_digest(token.encode(), session.csrf.encode()):
            raise _TurnedAway(403, _SENTENCES[403])
        if (session.reads_only or self._settings.read_only) and request.url.path != LOGOUT:
            raise _TurnedAway(403, _READS_ONLY)
        return form

    def _same_origin(self, headers: Headers) -> None:
        site = headers.get("sec-fetch-site", "same-origin")
        if headers.get("origin") != origin_of(self._settings, headers) or site != "same-origin":
            raise _TurnedAway(403, _SENTENCES[403])

    def _protect(self, headers: MutableHeaders, path: str) -> None:
        headers["Content-Security-Policy"] = self._policy
        headers["X-Content-Type-Options"] = "nosniff"
        headers["X-Frame-Options"] = "DENY"
        headers["Referrer-Policy"] = "same-origin"  # with none, a form would have no origin
        headers["Cross-Origin-Opener-Policy"] = "same-origin"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
        if not path.startswith(STATIC):
            headers["Cache-Control"] = "no-store"
            headers["Vary"] = "Accept, Cookie, HX-Request"


def _bounded(request: Request) -> None:
    if request.method not in {"GET", "HEAD", "POST"}:
        raise _TurnedAway(405, _SENTENCES[405])
    if len(request.scope["raw_path"]) + len(request.scope["query_string"]) > LONGEST_ADDRESS:
        raise _TurnedAway(414, _SENTENCES[414])


async def _read(request: Request) -> Posted:
    if request.headers.get("content-type", FORM).partition(";")[0].strip().lower() != FORM:
        raise _TurnedAway(415, _SENTENCES[415])
    body = b""
    try:
        async with asyncio.timeout(READ_WITHIN.total_seconds()):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BYTES:
                    raise _TurnedAway(413, _SENTENCES[413])
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
        )
    except (TimeoutError, ValueError) as error:
        raise _TurnedAway(400, _SENTENCES[400]) from error
    form = Posted()
    for name, value in fields:
        form.setdefault(name, []).append(value)
    return form


def _beside_a_file(request: Request) -> Posted:
    """What is said of a file, in the address; but for the token, which is in its header.

    The file itself is read by who passes it on, piece by piece.
    """
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise _TurnedAway(411, _SENTENCES[411])
    if len(length) > LONGEST_NUMBER or int(length) > MOST_OF_A_FILE:
        raise _TurnedAway(413, _SENTENCES[413])
    form = Posted()
    for name, value in request.query_params.multi_items():
        if name != "csrf":
            form.setdefault(name, []).append(value)
    return form


def _to_login(request: Request) -> Response:
    """Where somebody without a session goes; what a page asks for by itself is told so."""
    if "text/event-stream" in request.headers.get("accept", ""):
        return Response(status_code=204)  # a browser asks no more
    there = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("hx-request"):
        return Response(status_code=204, headers={"HX-Redirect": LOGIN})
    if request.method != "GET" or there == "/":
        return RedirectResponse(LOGIN, 303)
    return RedirectResponse(f"{LOGIN}?next={quote(there)}", 303)
