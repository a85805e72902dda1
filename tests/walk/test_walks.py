"""docs/architecture.md names every module that walks run through, and none that there is not."""

import re
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.walk.trace import PACKAGE, Walk
from tests.walk.walking import WALKS, walked

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "architecture.md"
MOST_OUTSIDE_IMAGING: Final = 69  # modules of an upload; less is better
NAMED: Final = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")

pytestmark = pytest.mark.timeout(150)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def walks() -> dict[str, Walk]:
    return {walk.name: walk for walk in await walked()}


def named() -> set[str]:
    return set(NAMED.findall(PAGE.read_text(encoding="utf-8")))


def is_there(path: str) -> bool:
    """A module of the product, a test of the project, or one beside the test named before it."""
    tests = () if "/" in path else (ROOT / "tests").rglob(path)
    return any(file.is_file() for file in (PACKAGE / path, ROOT / path, *tests))


def test_the_page_names_no_module_that_there_is_not() -> None:
    assert [] == [path for path in sorted(named()) if not is_there(path)]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", WALKS)
async def test_every_module_of_a_walk_is_on_the_page(walks: dict[str, Walk], name: str) -> None:
    assert [] == [module for module in walks[name].modules if module not in named()]


@pytest.mark.asyncio(loop_scope="module")
async def test_an_upload_is_traced_from_the_request_into_the_child_and_to_its_end(
    walks: dict[str, Walk],
) -> None:
    upload = walks["upload"]
    processes = list(dict.fromkeys(step.process for step in upload.steps))

    assert ["api", "worker", "zygote", "child"] == [
        one for one in processes if one != "maintenance"
    ]
    assert "imaging/render.py" in upload.modules
    assert "store/jobs/claims.py CLAIM_JOBS" in upload.statements


@pytest.mark.asyncio(loop_scope="module")
async def test_an_upload_runs_through_no_more_modules_than_it_did(walks: dict[str, Walk]) -> None:
    assert len(walks["upload"].outside_imaging) <= MOST_OUTSIDE_IMAGING
