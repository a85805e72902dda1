"""Chromium: Debian's headless shell, which the system has or which is unpacked beside it.

Nothing is installed. Where there is no such browser and none can be had, a test that asks for one
is skipped, which needs its row in tests/SKIPS.md.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, ConsoleMessage, Error, Page, Request, async_playwright

from tests.support.packages import unpacked
from tests.support.wheels import ROOT

CACHE: Final = ROOT / ".bench" / "chromium"
SHELL: Final = "chromium-headless-shell"
COMMANDS: Final = ("chromium-headless-shell", "chromium", "chromium-browser")
IN_PACKAGE: Final = Path("usr/lib/chromium/chromium-headless-shell")
LIBRARIES: Final = (
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/pulseaudio",
    "usr/lib/chromium",
)
NONE_THERE: Final = "no Chromium is here and none could be fetched"


@dataclass(frozen=True, slots=True)
class Program:
    """A browser to start."""

    executable: Path
    root: Path | None = None
    """Where the libraries are that the system lacks."""

    def environment(self, home: str) -> dict[str, str]:
        libraries = [] if self.root is None else [str(self.root / each) for each in LIBRARIES]
        return {"PATH": "/usr/bin:/bin", "HOME": home, "LD_LIBRARY_PATH": ":".join(libraries)}


def program(cache: Path = CACHE) -> Program | None:
    """The browser to start; None where there is none and none can be had."""
    for command in COMMANDS:
        if there := shutil.which(command):
            return Program(Path(there))
    found = unpacked(SHELL, cache, IN_PACKAGE)
    return Program(found, cache) if found else None


@asynccontextmanager
async def chromium(home: Path) -> AsyncIterator[Browser]:
    """A browser without a window, as long as this lasts; each page of it is a visitor's first."""
    found = program()
    if found is None:
        pytest.skip(NONE_THERE)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found.executable,
            env={**found.environment(str(home))},
            args=["--no-sandbox", "--force-color-profile=srgb"],
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Watched:
    """What a page complained of, and whom it asked."""

    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of its console, what it threw, what its policy refused, what failed."""
    asked: list[str] = field(default_factory=list)
    """The address of each request, in order."""

    @property
    def hosts(self) -> set[str]:
        return {urlsplit(address).netloc for address in self.asked if "//" in address}


def watched(page: Page) -> Watched:
    """Watch a page from before its first request on."""
    seen = Watched()

    def told(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            seen.complaints.append(message.text)

    def threw(error: Error) -> None:
        seen.complaints.append(str(error))

    def failed(request: Request) -> None:
        seen.complaints.append(f"{request.url}: {request.failure}")

    page.on("console", told)
    page.on("pageerror", threw)
    page.on("requestfailed", failed)
    page.on("request", lambda request: seen.asked.append(request.url))
    return seen
