"""Two versions of a recipe: whoever takes a job makes the one that it was submitted under."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from imagefleet.api.http.connections import Server
from imagefleet.api.main import main as api_main
from imagefleet.runtime import Drain
from imagefleet.settings import ApiSettings, load
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import create_key
from tests.support.api import ACME, UNUSED, uploaded
from tests.support.fleet import Place, inside
from tests.support.images import quadrants, saved
from tests.support.rows import job_row

OLD, NEW = 24, 32  # pixels; what is uploaded is larger
SERVING = {"LISTEN_PORT": "0", "LISTEN_HOST": "127.0.0.1", "PUBLIC_BASE_URL": "http://127.0.0.1"}
RECIPE = """
[recipes.default]
[[recipes.default.variants]]
name = "thumb"
edge = {edge}
format = "jpeg"
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[int, dict[str, str]]:
    """What each version is started with, by its edge."""
    paths = {edge: tmp_path / f"{edge}.toml" for edge in (OLD, NEW)}
    for edge, path in paths.items():
        path.write_text(RECIPE.format(edge=edge))
    return {edge: {"RECIPES_FILE": str(path)} for edge, path in paths.items()}


@pytest.fixture
async def key(admin: Connection) -> str:
    return await create_key(admin, ACME, name="tests", scopes=("submit", "read"), expires_in=None)


@asynccontextmanager
async def an_api(
    place: Place, key: str, environment: Mapping[str, str]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API of its own."""
    settings = load(ApiSettings, {**place.environment("api"), **SERVING, **environment})
    drain = Drain()
    listening: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        process = group.create_task(api_main(settings, drain, listening=listening.set_result))
        process.add_done_callback(lambda _: listening.cancel())
        url = f"http://127.0.0.1:{(await listening).port}"
        try:
            async with httpx.AsyncClient(
                base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30, verify=UNUSED
            ) as client:
                yield client
        finally:
            drain.request("the test is over")


async def made(client: httpx.AsyncClient, accepted: Mapping[str, Any]) -> dict[str, Any]:
    """The image, once its job is over."""
    job = (await client.get(f"/v1/jobs/{accepted['jobId']}?wait=20")).json()
    assert job["status"] == "completed", job
    image: dict[str, Any] = (await client.get(f"/v1/images/{accepted['imageId']}")).json()
    return image


def edges(image: Mapping[str, Any]) -> set[int]:
    return {max(variant["width"], variant["height"]) for variant in image["variants"]}


async def test_every_image_is_made_by_the_version_that_it_was_submitted_under(
    place: Place, key: str, files: dict[int, dict[str, str]]
) -> None:
    async with an_api(place, key, files[OLD]) as old, an_api(place, key, files[NEW]) as new:
        apis = {OLD: old, NEW: new}
        hashes = {
            edge: (await client.get("/v1/recipes")).json()["recipes"][0]["hash"]
            for edge, client in apis.items()
        }
        for alone in (OLD, NEW):  # so each makes what the other would have made otherwise
            async with inside(place, "worker", environment=files[alone]):
                for edge, client in apis.items():
                    image = await made(client, await uploaded(client))
                    assert ({edge}, hashes[edge]) == (edges(image), image["recipeHash"]), alone

        async with (
            inside(place, "worker", environment=files[OLD]),
            inside(place, "worker", environment=files[NEW]),
        ):
            accepted = [
                (edge, client, await uploaded(client)) for edge, client in (*apis.items(),) * 4
            ]
            for edge, client, answer in accepted:
                assert {edge} == edges(await made(client, answer))

    assert hashes[OLD] != hashes[NEW]


async def test_what_an_edit_affects_is_rendered_again_while_the_old_is_served(
    place: Place, key: str, files: dict[int, dict[str, str]]
) -> None:
    """By a worker that still has the old file, too: the set is pinned by the API that took it."""
    async with (
        an_api(place, key, files[OLD]) as old,
        an_api(place, key, files[NEW]) as new,
        inside(place, "maintenance"),  # what a set submits takes its turn
        inside(place, "worker", environment=files[OLD]) as worker,
    ):
        affected = await made(old, await uploaded(old))
        remains = await made(new, await uploaded(new))
        version = f"default@{affected['recipeHash'][:8]}"
        order = {"jobType": "reprocess_images", "payload": {"recipe_was": version}}
        answer = await new.post("/v1/jobs", json=order)
        assert answer.status_code == 202, answer.text
        await worker.tells("job.completed", times=4)

        again = (await new.get(f"/v1/images/{affected['imageId']}")).json()
        same = (await new.get(f"/v1/images/{remains['imageId']}")).json()

    assert ({OLD}, {NEW}) == (edges(affected), edges(again))
    assert remains["recipeHash"] == again["recipeHash"]
    assert (2, 1) == (again["revision"], same["revision"])


async def test_a_payload_of_the_release_before_is_made_as_the_worker_has_it(
    place: Place, api: Connection, superuser: Connection, files: dict[int, dict[str, str]]
) -> None:
    async with inside(place, "worker", environment=files[NEW]) as worker:
        submission = await place.upload(api, uuid4(), saved(quadrants()))
        await worker.tells("job.completed")

    assert "recipe_hash" not in submission.payload
    stored = await superuser.fetchval("SELECT hash FROM recipes")
    row = await superuser.fetchrow("SELECT * FROM images")
    assert row is not None
    assert stored == row["recipe_hash"]
    assert {NEW} == {row["width"] for row in await superuser.fetch("SELECT width FROM variants")}


async def test_a_version_that_nobody_stored_is_waited_for(
    place: Place, api: Connection, superuser: Connection
) -> None:
    async with inside(place, "worker", environment={"BACKOFF_BASE_SECONDS": "600"}) as worker:
        submission = await place.upload(api, uuid4(), saved(quadrants()), recipe_hash="0" * 32)
        await worker.tells("job.retried")

    row = await job_row(superuser, submission.job_id)
    assert ("failed_retryable", "unavailable") == (row["state"], row["failure_code"])
    assert f"default@{'0' * 32}" in row["failure_detail"]
