"""Whether `make bench-console` asks for every page and reads what it says; nothing is timed."""

import re
from pathlib import Path

import pytest

from imagefleet.console.app import PAGES as NOUNS
from tests.bench.console import measured
from tests.bench.filling import Size
from tests.bench.ground import durable_ground
from tests.bench.pages import PAGES, SECOND
from tests.bench.peers import Peers
from tests.support.database import roomy_memory

JOBS = 20_000


@pytest.mark.timeout(120)
async def test_every_page_is_answered_by_processes_as_they_are_deployed(tmp_path: Path) -> None:
    async with durable_ground(Peers(tmp_path), roomy_memory()) as ground:
        asked, statements = await measured(ground, Size(jobs=JOBS), 1, lambda _what, _done: None)

    assert len(asked) == len(PAGES) + len(SECOND)
    assert {name: len(each.seconds) for name, each in asked.items()} == dict.fromkeys(asked, 1)
    assert {name: each.fault for name, each in asked.items() if each.fault} == {}
    assert {name: each.pages for name, each in asked.items() if each.pages == 0} == {}
    assert len(statements) > len(NOUNS)


def test_every_page_of_the_console_is_asked_for() -> None:
    """Those that one can go to: not forms, and not parts."""
    asked = {re.sub("{[^}]*}", "X", address.partition("?")[0]) for address in PAGES.values()}
    asked = {re.sub("/tenants/.+", "/tenants/X", address) for address in asked}
    there = {
        re.sub("{[^}]*}", "X", route.path)
        for noun in NOUNS
        for route in noun.router.routes
        if "GET" in route.methods
    }

    assert asked == there - {"/login", "/images/X/preview"}
