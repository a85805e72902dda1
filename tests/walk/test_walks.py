"""docs/architecture.md names every module that the walks run through."""

import re
from itertools import filterfalse
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.walk.trace import Walk
from tests.walk.walking import WALKS, walked

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "architecture.md"
MOST_OUTSIDE_IMAGING: Final = 45  # modules of an upload; less is better
NAMED: Final = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")

pytestmark = [pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def walks() -> dict[str, Walk]:
    return {walk.name: walk for walk in await walked()}


async def test_every_module_of_a_walk_is_on_the_page(walks: dict[str, Walk]) -> None:
    named = set(NAMED.findall(PAGE.read_text(encoding="utf-8")))

    missing = {name: [*filterfalse(named.__contains__, walks[name].modules)] for name in WALKS}

    assert missing == {name: [] for name in WALKS}


async def test_an_upload_is_traced_from_the_request_into_the_child_and_to_its_end(
    walks: dict[str, Walk],
) -> None:
    upload = walks["upload"]
    processes = list(dict.fromkeys(step.process for step in upload.steps))

    assert ["api", "worker", "zygote", "child"] == [
        process for process in processes if process != "maintenance"
    ]
    assert "imaging/render.py" in upload.modules
    assert "store/jobs/claims.py CLAIM_JOBS" in upload.statements


async def test_an_upload_runs_through_no_more_modules_than_it_did(walks: dict[str, Walk]) -> None:
    assert len(walks["upload"].outside_imaging) <= MOST_OUTSIDE_IMAGING
