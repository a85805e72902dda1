"""What is told of a walk is what was asked for, from the first process to the last."""

import pytest
import pytest_asyncio

from tests.walk.trace import Walk
from tests.walk.walking import walked

pytestmark = [pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def walks() -> dict[str, Walk]:
    return {walk.name: walk for walk in await walked()}


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
