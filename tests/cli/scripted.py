"""A server that says what the test wants, where no real one can be brought to say it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from imagefleet.client import api


@dataclass
class Script:
    """What the server answers, and what it was asked."""

    answers: dict[str, list[Callable[[], web.StreamResponse]]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    def on(self, route: str, *answers: Callable[[], web.StreamResponse]) -> None:
        """The answers to one route, in turn; the last one again and again."""
        self.answers[route] = list(answers)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        route = f"{request.method} {request.path}"
        self.asked.append((str(request.rel_url), dict(request.headers), await request.read()))
        left = self.answers.get(route)
        if left is None:
            return problem(404, "not_found", "No such thing.")()
        return (left.pop(0) if len(left) > 1 else left[0])()


def ok(document: object, status: int = 200) -> Callable[[], web.Response]:
    return lambda: web.json_response(document, status=status)


def events(*jobs: dict[str, object]) -> Callable[[], web.Response]:
    text = "retry: 2000\n\n" + "".join(
        f"id: 1\nevent: job\ndata: {json.dumps(job)}\n\n" for job in jobs
    )
    return lambda: web.Response(text=text, content_type="text/event-stream")


def problem(status: int, code: str, detail: str, **headers: str) -> Callable[[], web.Response]:
    document = {"type": "urn:x", "title": "x", "status": status, "code": code, "detail": detail}
    return lambda: web.json_response(
        document, status=status, headers=headers, content_type="application/problem+json"
    )


@pytest.fixture
async def script(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Script]:
    script = Script()
    async with serving(script.answer) as url:
        script.url = url
        monkeypatch.setenv("IMAGEFLEET_URL", url)
        monkeypatch.setenv("IMAGEFLEET_KEY", "if_secret")
        monkeypatch.setattr(api, "FIRST_PAUSE", 0.001)
        yield script


@asynccontextmanager
async def serving(
    respond: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
