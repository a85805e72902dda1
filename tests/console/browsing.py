"""Somebody with a browser, logged in; and nothing may be wrong with any page that they saw."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Page

from tests.console.conftest import Opened
from tests.support.browsers import Watched, watched

SHOWN_WITHIN: Final = 30_000  # milliseconds, on a busy machine


@asynccontextmanager
async def visiting(
    browser: Browser, console: Opened, *, at: str | None = None, **look: object
) -> AsyncIterator[tuple[Page, Watched]]:
    """A page of somebody who is logged in; nothing may be wrong with it at the end.

    `at` is where published images are, if there is such a place.
    """
    session = console.sessions.open(console.api.secrets["operator"], reads_only=False)
    context: BrowserContext = await browser.new_context(**look)  # type: ignore[arg-type] # as it takes them
    cookie = console.sessions.cookie_of(session)
    await context.add_cookies([{"name": "imagefleet-console", "value": cookie, "url": console.url}])
    page = await context.new_page()
    page.set_default_timeout(SHOWN_WITHIN)
    seen = watched(page)
    yield page, seen
    await context.close()
    assert [each for each in seen.complaints if not is_a_stream_that_ended(each)] == []
    assert seen.hosts <= {urlsplit(url).netloc for url in (console.url, at or console.url)}


def is_a_stream_that_ended(complaint: str) -> bool:
    """Whoever goes on to another page follows this one no more."""
    return complaint.endswith("net::ERR_ABORTED")
