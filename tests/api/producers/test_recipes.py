"""Recipes over HTTP: what there is to name, and that a job is pinned to what is in force."""

from dataclasses import replace
from uuid import UUID

import httpx
import pytest

from imagefleet.api.http.requests import Tools
from imagefleet.client.api import open_client
from imagefleet.imaging.recipes import Recipe, VariantSpec
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.support.api import ANY_KEYS_ROUTES, JPEG, Running, app_of, published, uploaded
from tests.support.http import a_jpeg, submitted
from tests.support.recipes import RECIPES
from tests.support.rows import job_row

EDITED = Recipe("default", (VariantSpec("thumb", 7, 7, ImageFormat.JPEG, 80),))


def edit(running: Running, *recipes: Recipe) -> None:
    """As if this API had been started with another file."""
    tools: Tools = app_of(running).state.tools
    edited = replace(tools, recipes={recipe.name: recipe for recipe in recipes})
    app_of(running).state.tools = edited


async def pinned(owner: Connection, job: str) -> tuple[object, object]:
    payload = (await job_row(owner, JobId(UUID(job))))["payload"]
    return payload["recipe"], payload.get("recipe_hash")


@pytest.mark.parametrize("who", ["submitter", "reader", "operator"])
async def test_any_key_may_see_what_is_made(running: Running, who: str) -> None:
    async with running.client(who) as client:
        answer = await ANY_KEYS_ROUTES[0].ask(client, None, None)

    assert answer.status_code == 200, answer.text
    shown = {recipe["name"]: recipe for recipe in answer.json()["recipes"]}
    assert list(RECIPES) == list(shown)
    default = RECIPES["default"]
    assert default.hash == shown["default"]["hash"]
    assert len(default.variants) == len(shown["default"]["variants"])
    first = default.variants[0]
    assert {
        "name": first.name,
        "fit": first.fit.value,
        "width": first.width,
        "height": first.height,
        "formats": [made.value for made in first.formats],
        "quality": first.quality,
        "types": ["image/webp"],
        "files": ["thumb.webp"],
    } == shown["default"]["variants"][0]


async def test_the_client_asks_for_them(running: Running) -> None:
    async with open_client(running.url, running.secrets["reader"]) as client:
        reply = await client.recipes()

    assert {name: recipe.hash for name, recipe in RECIPES.items()} == {
        recipe.name: recipe.hash for recipe in reply.shape.recipes
    }


async def test_what_an_api_has_is_stored_before_it_serves(
    running: Running, api: Connection
) -> None:
    stored = {(row["name"], row["hash"]) for row in await api.fetch("SELECT * FROM recipes")}

    assert {(name, recipe.hash) for name, recipe in RECIPES.items()} == stored


async def test_an_upload_and_a_replacement_are_pinned_and_the_image_says_so(
    running: Running, acme: httpx.AsyncClient, owner: Connection, worker: Connection
) -> None:
    image = await uploaded(acme)
    before = (await acme.get(image["links"]["image"])).json()
    edit(running, EDITED)
    replaced = await acme.put(image["links"]["image"], content=a_jpeg(), headers=JPEG)

    assert ("default", RECIPES["default"].hash) == await pinned(owner, image["jobId"])
    assert ("default", EDITED.hash) == await pinned(owner, replaced.json()["jobId"])
    assert ("default", RECIPES["default"].hash) == (before["recipe"], before["recipeHash"])
    await published(worker, image)
    after = (await acme.get(image["links"]["image"])).json()
    assert ("default", "0" * 32) == (after["recipe"], after["recipeHash"])


async def test_an_image_whose_recipe_is_gone_is_made_as_it_was(
    running: Running, acme: httpx.AsyncClient, owner: Connection
) -> None:
    image = await uploaded(acme, recipe="avif")
    path = image["links"]["image"]
    edit(running, EDITED)

    replaced = (await acme.put(path, content=a_jpeg(), headers=JPEG)).json()
    again = (await acme.post(f"{path}/reprocess")).json()

    for answer in (replaced, again):
        assert ("avif", RECIPES["avif"].hash) == await pinned(owner, answer["jobId"])


async def test_a_repeat_after_an_edit_is_answered_by_the_first_job(
    running: Running, acme: httpx.AsyncClient
) -> None:
    headers = JPEG | {"Idempotency-Key": "k"}
    first = await acme.post("/v1/images", content=a_jpeg(), headers=headers)
    edit(running, EDITED)

    again = await acme.post("/v1/images", content=a_jpeg(), headers=headers)

    assert first.content == again.content


async def test_a_set_of_one_version_is_named_by_the_beginning_of_its_hash(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    version = f"default@{RECIPES['default'].hash[:8]}"

    job_id = await submitted(acme, jobType="reprocess_images", payload={"recipe_was": version})

    assert version == (await job_row(owner, job_id))["payload"]["recipe_was"]
