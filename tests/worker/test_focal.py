"""An edit of the focal point in a whole worker: what is cut is rendered, the rest is copied."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from uuid import UUID, uuid4

import pytest
from PIL import Image

from imagefleet.aws.objects import Headers, Objects, Stored
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe
from imagefleet.jobs.images import Focal, image_target
from imagefleet.jobs.kinds import BUILT_IN, Draft
from imagefleet.jobs.model import new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.images.reprocessing import move_focal
from imagefleet.worker import main
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import RenderedFiles
from tests.support.database import driver_of
from tests.support.factories import TENANT
from tests.support.fleet import Inside, Place, inside
from tests.support.images import BLUE, YELLOW, near, opened, pixel, quadrants, saved
from tests.support.recipes import RECIPES

HERE = Focal(0.25, 0.75)
CUT = ("square.jpg", "square.webp")
WHOLE = tuple(
    f"{name}.{end}" for name in ("large", "medium", "small", "thumb") for end in ("jpg", "webp")
)


@dataclass
class Scene:
    """A worker, an image that it has made, and what it did since."""

    place: Place
    api: Connection
    worker: Inside
    image_id: UUID
    jobs: int = 1
    stored: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    rendered: list[tuple[list[str], Focal | None]] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    async def move(self, focal: Focal | None) -> None:
        draft = Draft(
            job_id=new_job_id(),
            kind=BUILT_IN["process_image"],
            tenant_id=TENANT,
            created_by="somebody",
            correlation_id="a-move",
            target=image_target(self.image_id),
        )
        for done in (self.stored, self.copied, self.rendered, self.fetched):
            done.clear()
        answer = await move_focal(self.api, draft, self.image_id, focal)
        assert isinstance(answer, tuple)
        await self.place.ring(answer[0])
        self.jobs += 1
        await self.worker.tells("job.completed", times=self.jobs)

    async def opened(self, key: str) -> Image.Image:
        outputs = await self.place.session.objects(self.place.settings.outputs_bucket)
        with NamedTemporaryFile() as file:
            await outputs.fetch_to_file(key, file.fileno(), max_bytes=2**20)
            return opened(await asyncio.to_thread(Path(file.name).read_bytes))

    async def variants(self, revision: int) -> dict[str, dict[str, Any]]:
        rows = await self.api.fetch("SELECT * FROM variants WHERE revision = $1", revision)
        ends = {"jpeg": "jpg"}
        return {
            f"{row['name']}.{ends.get(row['format'], row['format'])}": dict(row) for row in rows
        }


@pytest.fixture
def recipe() -> Recipe:
    return RECIPES["default"]


@pytest.fixture
async def scene(
    place: Place, api: Connection, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    monkeypatch.setattr(main, "recipes_in_force", lambda _file: {"default": recipe})
    image_id = uuid4()
    async with inside(place, "worker") as worker:
        await place.upload(api, image_id, saved(quadrants(2400, 1500)))
        await worker.tells("job.completed")
        scene = Scene(place, api, worker, image_id)
        watch(scene, monkeypatch)
        yield scene


def watch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    put, copy, fetch, render = Objects.put, Objects.copy, Objects.fetch_to_file, Renderer.render

    async def putting(
        self: Objects, key: str, body: Path, headers: Headers, *, sha256: str
    ) -> Stored | None:
        scene.stored.append(key.rpartition("/")[2])
        return await put(self, key, body, headers, sha256=sha256)

    async def copying(
        self: Objects, source: str, key: str, headers: Headers, *, sha256: str
    ) -> None:
        await copy(self, source, key, headers, sha256=sha256)
        scene.copied.append(key.rpartition("/")[2])

    async def fetching(
        self: Objects, key: str, target: Path, *, max_bytes: int, expected_etag: str | None = None
    ) -> Stored:
        scene.fetched.append(key)
        return await fetch(self, key, target, max_bytes=max_bytes, expected_etag=expected_etag)

    async def rendering(
        self: Renderer,
        source: Path,
        recipe: Recipe,
        limits: Limits,
        **more: Any,  # noqa: ANN401 - passed on
    ) -> RenderedFiles:
        names = sorted({variant.name for variant in recipe.variants})
        scene.rendered.append((names, more["focal"]))
        return await render(self, source, recipe, limits, **more)

    monkeypatch.setattr(Objects, "put", putting)
    monkeypatch.setattr(Objects, "copy", copying)
    monkeypatch.setattr(Objects, "fetch_to_file", fetching)
    monkeypatch.setattr(Renderer, "render", rendering)


async def test_what_is_cut_is_rendered_and_the_rest_is_copied_in_s3(scene: Scene) -> None:
    outputs = await scene.place.session.objects(scene.place.settings.outputs_bucket)
    before = await scene.variants(1)
    assert {*CUT, *WHOLE} == before.keys()

    await scene.move(HERE)

    assert (CUT, WHOLE) == (tuple(sorted(scene.stored)), tuple(sorted(scene.copied)))
    assert [(["square"], HERE)] == scene.rendered
    after = await scene.variants(2)
    own = ("revision", "key")
    for name in WHOLE:
        told, was = after[name], before[name]
        assert {**told, **{each: was[each] for each in own}} == was
        assert f"i/{scene.image_id}/2.1/{name}" == told["key"]
        facts, old = await asyncio.gather(outputs.head(told["key"]), outputs.head(was["key"]))
        assert replace(facts, modified_at=old.modified_at) == old
    square = await scene.opened(after["square.webp"]["key"])
    assert near(BLUE, pixel(square, 120, 150), 12)
    (row,) = await scene.api.fetch(
        "SELECT new.focal_x, new.focal_y,"
        " (new.sha256, new.width, new.thumbhash, new.color, new.encoder, new.source_seq)"
        " = (old.sha256, old.width, old.thumbhash, old.color, old.encoder, old.source_seq) AS same"
        " FROM image_revisions AS old JOIN image_revisions AS new ON new.revision = 2"
        " WHERE old.revision = 1"
    )
    assert (*HERE, True) == (row["focal_x"], row["focal_y"], row["same"])


async def test_an_edit_after_an_edit_copies_again(scene: Scene) -> None:
    await scene.move(HERE)
    await scene.move(Focal(1, 1))

    assert (2, 8, [(["square"], (1, 1))]) == (
        len(scene.stored), len(scene.copied), scene.rendered,
    )  # fmt: skip
    assert {f"i/{scene.image_id}/3.1/{name}" for name in (*CUT, *WHOLE)} == {
        made["key"] for made in (await scene.variants(3)).values()
    }
    square = await scene.opened(f"i/{scene.image_id}/3.1/square.webp")
    assert near(YELLOW, pixel(square, 120, 150), 12)


async def test_what_is_not_there_to_be_copied_is_rendered(scene: Scene) -> None:
    outputs = await scene.place.session.objects(scene.place.settings.outputs_bucket)
    before = await scene.variants(1)
    await outputs.delete([before["medium.webp"]["key"]])

    await scene.move(HERE)

    assert [*sorted(("medium.webp", *CUT))] == sorted(scene.stored)
    assert {*WHOLE} - {"medium.webp"} == {*scene.copied}
    assert {*CUT, *WHOLE} == (await scene.variants(2)).keys()
    assert [(["medium", "square"], HERE)] == scene.rendered


async def test_what_was_made_in_another_way_is_rendered(
    scene: Scene, superuser: Connection
) -> None:
    await superuser.execute("UPDATE image_revisions SET encoder = 'another'")

    await scene.move(HERE)

    assert ([], [*sorted((*CUT, *WHOLE))]) == (scene.copied, sorted(scene.stored))


async def test_names_of_one_object_are_names_of_one_copy(
    scene: Scene, superuser: Connection
) -> None:
    driver = driver_of(superuser)
    await driver.execute("ALTER TABLE variants DROP CONSTRAINT IF EXISTS variants_key_is_unique")
    # What is cut may bear the name of an object that others share, and is made anew beside it.
    await driver.execute(
        "UPDATE variants SET key = square.key FROM variants AS square"
        " WHERE square.name = 'square' AND square.format = 'webp'"
        " AND variants.name IN ('thumb', 'small') AND variants.format = 'webp'"
    )

    await scene.move(HERE)

    after = await scene.variants(2)
    assert after["thumb.webp"]["key"] == after["small.webp"]["key"]
    assert after["square.webp"]["key"] not in {after[name]["key"] for name in WHOLE}
    assert (2, 7) == (len(scene.stored), len(scene.copied))


@pytest.mark.parametrize("recipe", [RECIPES["avif"]], ids=["avif"])
async def test_where_nothing_is_cut_nothing_is_rendered(scene: Scene) -> None:
    await scene.move(HERE)

    assert ([], [], []) == (scene.stored, scene.rendered, scene.fetched)
    assert {made["name"] for made in (await scene.variants(2)).values()} == {
        variant.name for variant in RECIPES["avif"].variants
    }
