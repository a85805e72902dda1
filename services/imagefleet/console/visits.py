"""One request of somebody who is logged in: what a page asks, shows, does and follows.

A page is a function that looks: it asks the API with the session's key and returns what its
template shows. `show` makes the page of that; asked for a stream of events, it looks again every
two seconds and sends those blocks of the template, named `live_...`, that have changed. What the
API says no to, or does not answer, is a state of the page and never a stack.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Annotated, Final, TypeVar

import structlog
from fastapi import Depends, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from imagefleet.client.api import Document
from imagefleet.console.borders import LOGIN, address_of, local
from imagefleet.console.guarding import Posted
from imagefleet.console.sessions import Notice, Session, Sessions
from imagefleet.console.showing import Context, Showing, Trouble
from imagefleet.errors import FleetError, Unavailable
from imagefleet.jobs.shapes.shape import Shape
from imagefleet.settings import Console

ANSWERED_WITHIN: Final = timedelta(seconds=6)  # by the API, with one try more
PASSED_ON_WITHIN: Final = timedelta(minutes=5)  # as long as the API gives an upload
LOOK_EVERY: Final = timedelta(seconds=2)
SPEAK_EVERY: Final = 15.0  # seconds, so that proxies do not take a stream for dead
MOST_STREAMS: Final = 4  # of one session; a browser has six connections to a host
THEME: Final = "imagefleet-theme"

Look = Callable[[], Awaitable[Context]]
Shown = TypeVar("Shown", bound=Shape)
Answer = TypeVar("Answer")

_SENTENCES: Final[Mapping[str, str]] = {
    "api_unreachable": "The API does not answer. What is shown here may be old; "
    "nothing was changed. This page looks again by itself.",
    "forbidden": "The key of this session may not do that: it lacks the scope operate.",
    "late": "The API took too long over this. It may be busy; this page looks again by itself.",
}
_STATUSES: Final[Mapping[str, int]] = {"not_found": 404, "forbidden": 403, "unauthorized": 401}

log = structlog.get_logger()


class Visit:
    """What a page works with."""

    def __init__(self, request: Request) -> None:
        state = request.app.state
        self._request = request
        self._showing: Showing = state.showing
        self._sessions: Sessions = state.sessions
        self._settings: Console = state.settings
        self.session: Session = request.state.session
        address = address_of(self._settings, request)
        self.client = self.session.client.asking_for(address)
        """Bears the key; and says where the reader is, for the audit."""
        self.form: Posted = request.scope["state"].get("form") or Posted()

    @property
    def path(self) -> str:
        """Where the reader is."""
        return self._request.url.path

    @property
    def address(self) -> str:
        """The same with its query, to come back to."""
        query = self._request.url.query
        return f"{self.path}?{query}" if query else self.path

    @property
    def may_act(self) -> bool:
        """Whether anything may be changed; what is not so is hidden, and refused by the guard."""
        return not (self.session.reads_only or self._settings.read_only)

    @property
    def theme(self) -> str:
        """What the reader chose: light, dark, or nothing, which is as their system has it."""
        chosen = self._request.cookies.get(THEME, "")
        return chosen if chosen in {"light", "dark"} else ""

    @property
    def is_partial(self) -> bool:
        """Whether a part of the page asks, and not somebody who goes there."""
        return "hx-request" in self._request.headers

    async def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | None] = {},
        document: object = None,
    ) -> Document:
        """Ask the API; RequestRejected and Unavailable have a sentence for the page."""
        return await within(self.client.ask(method, path, parameters, document))

    async def look(
        self, shape: type[Shown], path: str, parameters: Mapping[str, str | None] = {}
    ) -> Shown:
        """The same of what only looks, as its shape."""
        return await within(self.client.ask_for(shape, "GET", path, parameters))

    async def glance(
        self, shape: type[Shown], path: str, parameters: Mapping[str, str | None] = {}
    ) -> Shown | Trouble:
        """The same of a part that a page can do without."""
        try:
            return await self.look(shape, path, parameters)
        except FleetError as error:
            if error.code == "unauthorized":
                raise
            return Trouble(error.code, sentence_of(error))

    async def order(
        self,
        shape: type[Shown],
        method: str,
        path: str,
        parameters: Mapping[str, str | None] = {},
        document: object = None,
    ) -> Shown:
        """Let the API do something; what it answers."""
        return await within(self.client.ask_for(shape, method, path, parameters, document))

    async def pass_on(
        self, shape: type[Shown], path: str, parameters: Mapping[str, str | None] = {}
    ) -> Shown:
        """Let the API have the file that this request brings, as it comes."""
        file, length = self._request.stream(), int(self._request.headers["content-length"])
        sending = self.client.pass_on(shape, path, parameters, file, length)
        return await within(sending, PASSED_ON_WITHIN)

    async def show(self, template: str, look: Look, **more: object) -> Response:
        """The page, or, for whoever follows it, what changes of it."""
        if "text/event-stream" in self._request.headers.get("accept", ""):
            return self._follow(template, look)
        context = await look()
        return self._html(self._showing.page(template, self._with({**context, **more})))

    def part(self, template: str, block: str, context: Context) -> Response:
        """One block of a page, for a place in it."""
        return self._html(self._showing.block(template, block, self._with(context)))

    def done(self, sentence: str, back: str | None = None) -> Response:
        """What was asked for is done: back to the page, which tells so."""
        return self._back(Notice("done", sentence), back)

    def refused(self, error: FleetError, back: str | None = None) -> Response:
        """It was not, and why."""
        return self._back(Notice("refused", sentence_of(error)), back)

    def trouble(self, error: FleetError) -> Response:
        """A page that says why there is none."""
        if error.code == "unauthorized":
            self._sessions.end(self.session, "key_refused")
            return self._gone(LOGIN)
        status = _STATUSES.get(error.code, 503 if isinstance(error, Unavailable) else 400)
        context = {"status": status, "sentence": sentence_of(error)}
        return self._html(self._showing.page("trouble.html", self._with(context)), status)

    def _back(self, notice: Notice, back: str | None) -> Response:
        self.session.tell(notice)
        return self._gone(local(back or self.form.one("back") or "/"))

    def _gone(self, there: str) -> Response:
        if self.is_partial:
            return Response(status_code=204, headers={"HX-Redirect": there})
        return RedirectResponse(there, 303)

    def _with(self, context: Context) -> Context:
        return {**context, "visit": self}

    def _html(self, text: str, status: int = 200) -> Response:
        return HTMLResponse(text, status)

    def _follow(self, template: str, look: Look) -> Response:
        if self.session.streams >= MOST_STREAMS:
            return Response(status_code=204)  # a browser asks no more
        self._request.scope["state"]["streams"] = True
        return StreamingResponse(self._changes(template, look), media_type="text/event-stream")

    async def _changes(self, template: str, look: Look) -> AsyncIterator[bytes]:
        """Blocks that changed, until the session is over or nobody listens."""
        session = self.session
        session.streams += 1
        try:
            shown: dict[str, str] = {}
            spoke = monotonic()
            while not session.over.is_set():
                news = await self._news(template, look)
                for name, text in news.items():
                    if shown.get(name) != text:
                        shown[name] = text
                        spoke = monotonic()
                        yield event(name, text)
                if monotonic() - spoke > SPEAK_EVERY:
                    spoke = monotonic()
                    yield b": still here\n\n"
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY.total_seconds()):
                        await session.over.wait()
            yield event("over", "")
        finally:
            session.streams -= 1

    async def _news(self, template: str, look: Look) -> dict[str, str]:
        try:
            context = await look()
        except FleetError as error:
            if error.code == "unauthorized":
                self._sessions.end(self.session, "key_refused")
            return {"trouble": sentence_of(error)}
        return {"trouble": "", **self._showing.live(template, self._with(context))}


async def within(asking: Awaitable[Answer], deadline: timedelta = ANSWERED_WITHIN) -> Answer:
    """What the API says, if it does so in time."""
    try:
        async with asyncio.timeout(deadline.total_seconds()):
            return await asking
    except TimeoutError as error:
        raise Unavailable("late", _SENTENCES["late"]) from error


def event(name: str, text: str) -> bytes:
    """One of a stream."""
    data = "\n".join(f"data: {line}" for line in text.split("\n"))
    return f"event: {name}\n{data}\n\n".encode()


def sentence_of(error: FleetError) -> str:
    """Why something did not work, for who reads a page."""
    return _SENTENCES.get(error.code, error.public_message)


async def visit(request: Request) -> Visit:
    """Of this request; the guard has seen to it that there is a session."""
    return Visit(request)


VisitHere = Annotated[Visit, Depends(visit)]
