"""A console as it is deployed, with its own `main`, before an API as it is deployed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import httpx
import pytest
from playwright.async_api import Browser

from imagefleet.console.main import main
from imagefleet.console.sessions import Session, Sessions
from imagefleet.listening import Listener
from imagefleet.runtime import Drain
from imagefleet.settings import Console, ConsoleSettings, Telemetry
from tests.support.api import UNUSED, Running
from tests.support.browsers import chromium
from tests.support.fixtures import *  # noqa: F403 - those of its `__all__`


@dataclass
class Opened:
    """A console process, and visitors of it."""

    listener: Listener
    sessions: Sessions
    """Who is logged in."""
    drain: Drain
    api: Running

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.port}"

    @property
    def session_or_none(self) -> Session | None:
        """Who logged in first and is not out yet."""
        return next(iter(self.sessions._sessions.values()), None)

    @property
    def session(self) -> Session:
        session = self.session_or_none
        assert session is not None
        return session

    @property
    def origin(self) -> dict[str, str]:
        """What a browser says of a form of ours."""
        return {"Origin": self.url}

    async def post(
        self, visitor: httpx.AsyncClient, path: str, *, back: str = "/", **fields: str | list[str]
    ) -> httpx.Response:
        """Send a form of this session; the page that says what became of it."""
        form = {"csrf": self.session.csrf, "back": back} | fields
        return await visitor.post(path, data=form, headers=self.origin, follow_redirects=True)

    def visitor(self, **headers: str) -> httpx.AsyncClient:
        """Somebody with a browser, and nothing else."""
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, verify=UNUSED)

    @asynccontextmanager
    async def logged_in(
        self, who: str = "operator", **form: str
    ) -> AsyncIterator[httpx.AsyncClient]:
        """Somebody who has logged in with the key of this name."""
        async with self.visitor() as visitor:
            key = {"key": self.api.secrets[who]}
            answer = await visitor.post("/login", data=key | form, headers=self.origin)
            assert answer.status_code == 303, answer.text
            yield visitor


class Opening(Protocol):
    """What the fixture `opening` gives: a console with these differences from the usual."""

    def __call__(self, api: Running, **settings: object) -> AbstractAsyncContextManager[Opened]: ...


@pytest.fixture
def opening() -> Opening:
    @asynccontextmanager
    async def open_console(api: Running, **settings: object) -> AsyncIterator[Opened]:
        given = {"port": 0, "api_url": api.url, "shutdown_grace": timedelta(seconds=2)} | settings
        configured = ConsoleSettings(
            console=Console.model_validate(given), telemetry=Telemetry(health_port=0)
        )
        drain = Drain()
        listening: asyncio.Future[tuple[Listener, Sessions]] = (
            asyncio.get_running_loop().create_future()
        )
        async with asyncio.TaskGroup() as group:
            process = group.create_task(
                main(configured, drain, listening=lambda *both: listening.set_result(both))
            )
            process.add_done_callback(lambda _: listening.cancel())
            listener, sessions = await listening
            try:
                yield Opened(listener, sessions, drain, api)
            finally:
                drain.request("the test is over")

    return open_console


@pytest.fixture
async def console(opening: Opening, running: Running) -> AsyncIterator[Opened]:
    async with opening(running) as console:
        yield console


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with chromium(tmp_path) as browser:
        yield browser
