"""Versions of recipes: stored once, found by whoever did not have them."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from uuid import UUID

import pytest

from imagefleet.imaging.recipes import (
    Encoding,
    Fit,
    Focus,
    Lossless,
    Metadata,
    Recipe,
    Truncated,
    VariantSpec,
    Watermark,
)
from imagefleet.jobs.bulk import SetWalk
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.kinds import ReprocessImages
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from imagefleet.store.images.images import get_image
from imagefleet.store.images.recipes import (
    MOST_KEPT,
    StoredRecipes,
    find_recipe,
    names_one_version,
    remember_recipes,
)
from imagefleet.store.images.reprocessing import submit_page
from imagefleet.store.jobs.submissions import submit_job
from tests.support.database import Database
from tests.support.factories import TENANT, a_worker, claim_job, hold_job, settle_job
from tests.support.image_rows import (
    a_publication,
    a_set,
    a_variant,
    an_image,
    asked_for,
    renewal_of,
)
from tests.support.recipes import RECIPES

DEFAULT = RECIPES["default"]
EVERYTHING = Recipe(
    "everything",
    (
        VariantSpec(
            "square",
            300,
            200,
            ImageFormat.WEBP,
            80,
            fit=Fit.COVER,
            or_smaller=(Encoding(ImageFormat.AVIF, 60),),
            focus=Focus.ATTENTION,
            most_bytes=20_000,
            lossless=Lossless.ALWAYS,
            background="#aabbcc",
            sharpen=0.3,
            watermark=Watermark("AAAA", scale=1.0, opacity=0.5),
        ),
    ),
    Metadata.COPYRIGHT,
    Truncated.REFUSE,
)


def of_side(side: int, name: str = "default") -> Recipe:
    """Another version for every side."""
    return Recipe(name, (VariantSpec("thumb", side, side, ImageFormat.JPEG, 80),))


async def test_a_version_is_stored_once_and_by_every_name(
    api: Connection, worker: Connection
) -> None:
    renamed = replace(DEFAULT, name="renamed")
    await remember_recipes(api, RECIPES.values())
    seen = await api.fetch("SELECT * FROM recipes ORDER BY name")

    await remember_recipes(worker, [*RECIPES.values(), renamed])

    rows = await api.fetch("SELECT * FROM recipes ORDER BY name")
    assert seen == rows[:-1]
    assert [(recipe.name, recipe.hash) for recipe in (RECIPES["avif"], DEFAULT, renamed)] == [
        (row["name"], row["hash"]) for row in rows
    ]


async def test_what_is_found_is_what_was_stored(api: Connection, worker: Connection) -> None:
    await remember_recipes(api, [EVERYTHING, DEFAULT])

    found = await find_recipe(worker, "everything", EVERYTHING.hash)

    assert found is not None
    assert (EVERYTHING, EVERYTHING.hash) == (found, found.hash)
    assert await find_recipe(worker, "default", "0" * 32) is None


@pytest.mark.parametrize("what", ["recipe", "variant", "word"])
async def test_what_a_newer_release_says_beyond_this_one_is_not_found(
    api: Connection, worker: Connection, what: str
) -> None:
    variant = asdict(DEFAULT.variants[0])
    newer = {
        "recipe": DEFAULT.document() | {"mood": "blue"},
        "variant": DEFAULT.document() | {"variants": [variant | {"mood": "blue"}]},
        "word": DEFAULT.document() | {"variants": [variant | {"fit": "wrapped"}]},
    }
    await api.execute(
        "INSERT INTO recipes (hash, name, content) VALUES ($1, 'default', $2)",
        "7" * 32,
        newer[what],
    )

    assert await find_recipe(worker, "default", "7" * 32) is None


async def test_what_an_older_release_did_not_say_is_as_it_was_then(
    api: Connection, worker: Connection
) -> None:
    older = DEFAULT.document()
    for variant in older["variants"]:
        del variant["sharpen"]
    await api.execute(
        "INSERT INTO recipes (hash, name, content) VALUES ($1, 'default', $2)", "7" * 32, older
    )

    assert DEFAULT == await find_recipe(worker, "default", "7" * 32)


async def test_a_process_asks_for_each_version_once_and_keeps_a_few(
    database: Database, api: Connection
) -> None:
    others = [of_side(side) for side in range(50, 51 + MOST_KEPT)]
    await remember_recipes(api, others)

    async with database.pool("worker") as pool:
        versions = StoredRecipes(pool)
        first = await versions.find("default", others[0].hash)
        assert others[0] == first
        assert await versions.find("default", others[0].hash) is first
        for other in others[1:]:
            assert other == await versions.find("default", other.hash)
        again = await versions.find("default", others[0].hash)

    assert again == first
    assert again is not first, "the oldest made room"


async def test_a_prefix_names_one_version_of_a_name(api: Connection) -> None:
    hashes = ["12345678" + "0" * 24, "12345678" + "f" * 24, "87654321" + "0" * 24]
    for version in hashes:
        await api.execute(
            "INSERT INTO recipes (hash, name, content) VALUES ($1, 'default', '{}')", version
        )

    for prefix, expected in {
        "12345678": False,
        "12345678f": True,
        hashes[0]: True,
        "87654321": True,
        "00000000": False,
    }.items():
        assert expected is await names_one_version(api, "default", prefix), prefix
    assert not await names_one_version(api, "other", "87654321")


# What an image remembers.


async def published(
    worker: Connection, image_id: UUID, recipe_hash: str, revision: int = 1
) -> None:
    query = "SELECT id FROM jobs WHERE target = $1 AND target_seq = $2"
    job = await hold_job(worker, JobId(await worker.fetchval(query, f"image:{image_id}", revision)))
    thumb = a_variant(f"i/{image_id}/{revision}.{job.claim_no}/thumb.webp")
    publication = a_publication(job, image_id, revision, [thumb], recipe_hash=recipe_hash)
    await settle_job(worker, job, Completed(publication=publication))


async def test_an_image_says_which_version_made_it_and_before_that_which_one_will(
    api: Connection, worker: Connection
) -> None:
    pinned, made = of_side(1).hash, of_side(2).hash
    image_id = await an_image(api, recipe_hash=pinned)

    image = await get_image(api, image_id, TENANT)
    await published(worker, image_id, made)
    ready = await get_image(api, image_id, TENANT)
    await an_image(api, image_id=image_id, recipe_hash=pinned)
    replaced = await get_image(api, image_id, TENANT)

    assert ("pending", "default", pinned) == (image.status, image.recipe, image.recipe_hash)
    assert ("ready", "default", made) == (ready.status, ready.recipe, ready.recipe_hash)
    assert made == replaced.recipe_hash, "what is shown is what it was"


async def older_publishes(worker: Connection, superuser: Connection, image_id: UUID) -> None:
    """A worker of the release before: it writes neither hash, wherever one stood."""
    pinned = "SELECT recipe_hash FROM images WHERE id = $1"
    before = await superuser.fetchval(pinned, image_id)
    await published(worker, image_id, "0" * 32)
    await superuser.execute("UPDATE images SET recipe_hash = $2 WHERE id = $1", image_id, before)
    await superuser.execute(
        "UPDATE image_revisions SET recipe_hash = NULL WHERE image_id = $1", image_id
    )


async def set_of(worker: Connection, **payload: object) -> Sequence[UUID]:
    """The images that a set of one page has submitted jobs for."""
    submission = a_set(**payload)
    await submit_job(worker, submission)
    answer = await claim_job(worker, submission.job_id, await a_worker(worker))
    assert answer.claim is not None
    wanted = ReprocessImages.model_validate(payload)
    await submit_page(worker, answer.claim, renewal_of(answer.claim), wanted, SetWalk())
    return await asked_for(worker, answer.claim.job_id)


async def test_a_set_of_one_version_has_what_it_made_and_what_waits_for_it(
    api: Connection, worker: Connection, superuser: Connection
) -> None:
    old, new = of_side(1).hash, of_side(2).hash
    waiting, made, remade, by_older, before = [
        await an_image(api, recipe_hash=version) for version in (old, old, old, old, None)
    ]
    elsewhere = await an_image(api, recipe="avif", recipe_hash=old)
    await published(worker, made, old)
    await published(worker, remade, new)
    await older_publishes(worker, superuser, by_older)

    of_version = await set_of(worker, recipe_was=f"default@{old[:8]}")
    of_name = await set_of(worker, recipe_was="default")

    assert {waiting, made} == set(of_version)
    assert {waiting, made, remade, by_older, before} == set(of_name)
    assert elsewhere not in of_name
    assert (await get_image(api, by_older, TENANT)).recipe_hash is None


PINNED = """
SELECT payload->>'image_id' AS image_id, payload->>'recipe' AS recipe,
       payload->>'recipe_hash' AS hash
  FROM jobs WHERE parent_job_id IS NOT NULL
"""


@pytest.mark.parametrize("api_is_older", [False, True])
async def test_a_set_is_pinned_to_what_was_in_force_for_its_job(
    api: Connection,
    worker: Connection,
    api_is_older: bool,  # noqa: FBT001 - a parameter
) -> None:
    plain = await an_image(api, recipe_hash="1" * 32)
    gone = await an_image(api, recipe="gone", recipe_hash="2" * 32)
    versions = {"recipe_hashes": {"default": "3" * 32}} if not api_is_older else {}

    await set_of(worker, all_images=True, **versions)

    rows = {
        UUID(row["image_id"]): (row["recipe"], row["hash"]) for row in await worker.fetch(PINNED)
    }
    expected = (None, None) if api_is_older else ("3" * 32, "2" * 32)
    assert {plain: ("default", expected[0]), gone: ("gone", expected[1])} == rows
