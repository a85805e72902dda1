"""What a 12-megapixel JPEG costs in processor time: through the whole product, and by others.

Everybody makes the ten files of the shipped recipe with the same settings of the same encoders. The
others do nothing else: a file in, ten files out, in warm processes, with the draft that is best for
each. The square of it is cut where attention finds most to be seen, by libvips' own in pyvips and
sharp; bare Pillow has none, and is told where ours would cut.
Ours is all that a worker does for a job: received, claimed, fetched from S3, judged, rendered by a
forked and confined child, checked, stored by ten requests, settled in Postgres, told in the log.
Counted are the worker, its zygote and every child; Postgres and the emulator are nobody's. Beside
it stands the renderer alone, which is what isolation costs. Two pictures are made at a time.
"""

import asyncio
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from PIL import Image

from imagefleet.imaging.attention import attention
from imagefleet.imaging.encoding import ENCODERS
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.sizes import Size, fitted, levels, window
from imagefleet.jobs.images import ImageFormat
from imagefleet.worker.isolation.client import Renderer
from tests.bench.ground import Ground, until_over
from tests.bench.peers import HERE, Peers
from tests.bench.processes import Started, started
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.fleet import Place
from tests.support.recipes import RECIPES

SIZE: Final = Size(4000, 3000)
AT_ONCE: Final = 2
RECIPE: Final = RECIPES["default"]
TICKS: Final = os.sysconf("SC_CLK_TCK")
OURS: Final = "imagefleet"
RENDERER: Final = "its renderer"
PILLOW: Final = "bare Pillow"
PYVIPS: Final = "pyvips"
SHARP: Final = "sharp"
OTHERS: Final = (PILLOW, PYVIPS, SHARP)
SHARPS_VERSION: Final = "0.35.5"
WITHIN: Final = 120.0  # seconds for all pictures of a side
NPM_WITHIN: Final = 300.0  # seconds
# The wait is as it ships; tests wait less.
SETTINGS: Final = {"RECEIVE_WAIT_SECONDS": "20"}
MADE: Final = "SELECT count(*), sum(bytes)::bigint AS bytes FROM variants"


def photo() -> bytes:
    """Something with edges, gradients and grain, of the size of a phone's picture."""
    grain = Image.effect_noise((SIZE.width // 4, SIZE.height // 4), 40).resize(SIZE)
    tone = Image.radial_gradient("L").resize(SIZE)
    picture = Image.merge("RGB", (grain, tone, Image.blend(grain, tone, 0.5)))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=90, subsampling="4:2:0")
    return out.getvalue()


def another(photo: bytes) -> bytes:
    """The same picture in another file: it has a comment."""
    said = uuid4().bytes
    return photo[:2] + b"\xff\xfe" + (2 + len(said)).to_bytes(2, "big") + said + photo[2:]


def seconds_of(pids: Iterable[int]) -> float:
    """Processor time of these processes, and of their children that are over."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(sum(map(int, words[11:15])) for words in stats) / TICKS


# The others.


def in_their_words(picture: Path) -> dict[str, Any]:
    """The recipe, as each library says it: sizes, largest first, and how each is cut, if it is."""
    quality = {variant.format: variant.quality for variant in RECIPE.variants}
    of_webp, of_jpeg = quality[ImageFormat.WEBP], quality[ImageFormat.JPEG]
    webp, jpeg = ENCODERS[ImageFormat.WEBP], ENCODERS[ImageFormat.JPEG]
    sizes = {level.size: level.variants[0] for level in levels(SIZE, RECIPE.variants)}
    largest = next(iter(sizes))
    cut = next((size for size, spec in sizes.items() if fitted(size, spec) != size), largest)
    with Image.open(picture) as file:
        file.draft("RGB", largest)
        seen = attention(file.resize(cut, Image.Resampling.LANCZOS))
    return {
        "sizes": [
            {
                "size": [*size],
                "name": variant.name,
                "window": None if shown == size else [*window(size, shown, seen)],
            }
            for size, variant in sizes.items()
            for shown in [fitted(size, variant)]
        ],
        "shrink": SIZE.width // largest.width,  # pyvips alone has to be told
        "encoders": {
            PILLOW: {"webp": {"quality": of_webp, **webp}, "jpeg": {"quality": of_jpeg, **jpeg}},
            PYVIPS: {
                "webp": {"Q": of_webp, "effort": webp["method"]},
                "jpeg": {"Q": of_jpeg, "subsample_mode": "on", "optimize_coding": jpeg["optimize"]},
            },
            SHARP: {
                "webp": {"quality": of_webp, "effort": webp["method"]},
                "jpeg": {"quality": of_jpeg, "optimiseCoding": jpeg["optimize"]},
            },
        },
    }


async def by(
    engine: str, program: list[str], picture: Path, pictures: int, notes: list[str]
) -> Measured:
    """Warm processes side by side, as many as a worker has children."""
    with tempfile.TemporaryDirectory() as parent:
        asked = {**in_their_words(picture), "engine": engine, "picture": str(picture)}
        asked["times"] = times = max(1, pictures // AT_ONCE)
        folders = [Path(parent) / str(number) for number in range(AT_ONCE)]
        for folder in folders:
            folder.mkdir()
        answers = await asyncio.gather(
            *(answered(*program, json.dumps({**asked, "folder": str(each)})) for each in folders)
        )
    made = answers[0]["bytes"]
    assert len(made) == len(RECIPE.variants), made
    note(notes, engine, sum(made.values()))
    return {engine: 1000 * sum(answer["cpu_seconds"] for answer in answers) / (AT_ONCE * times)}


async def answered(*words: str) -> Mapping[str, Any]:
    """The line of JSON that a program answers with."""
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complained = await process.communicate()
    assert process.returncode == 0, complained.decode()[-4000:]
    answer: dict[str, Any] = json.loads(said)
    return answer


def note(notes: list[str], who: str, size_bytes: int) -> None:
    """That all do the same is seen by what they made."""
    told = f"{who}: ten files of {size_bytes:,} bytes."
    if told not in notes:
        notes.append(told)


async def programs(peers: Peers, asked: Asked, notes: list[str]) -> Mapping[str, list[str]]:
    """How each of them is begun; sharp is left out where there is no npm to fetch it."""
    here = str(HERE / "ten_files.py")
    begun = {PILLOW: [sys.executable, here]}
    if asked.peers:
        begun[PYVIPS] = [str(await asyncio.to_thread(lambda: peers.python)), here]
        try:
            modules = await fetched_sharp(peers)
        except (OSError, AssertionError, TimeoutError) as error:
            notes.append(f"sharp is not measured: {error!r}")
        else:
            begun[SHARP] = ["node", str(HERE / "ten_files.mjs"), str(modules)]
    return begun


async def fetched_sharp(peers: Peers) -> Path:
    """A folder that has it, made once."""
    folder = peers.cache / f"sharp-{SHARPS_VERSION}"
    complete = folder / ".complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        process = await asyncio.create_subprocess_exec(
            *("npm", "install", "--silent", "--no-audit", "--no-fund", f"sharp@{SHARPS_VERSION}"),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(NPM_WITHIN):
            said, _ = await process.communicate()
        assert process.returncode == 0, f"npm: {said.decode().strip()[-300:]}"
        complete.touch()
    return folder


# Ours.


async def renderer_alone(renderer: Renderer, picture: Path, pictures: int) -> Measured:
    """A forked child a picture, judged and checked; nothing fetched, stored or written down."""
    gate = asyncio.Semaphore(AT_ONCE)
    assert renderer.zygote_pid is not None
    pids = (os.getpid(), renderer.zygote_pid)

    async def one() -> None:
        async with gate:
            rendered = await renderer.render(
                picture, RECIPE, Limits(), deadline_seconds=60, scratch=picture.parent
            )
            rendered.discard()

    before = seconds_of(pids)
    await asyncio.gather(*(one() for _ in range(pictures)))
    return {RENDERER: 1000 * (seconds_of(pids) - before) / pictures}


async def whole(
    place: Place, worker: Started, photo: bytes, pictures: int, notes: list[str]
) -> Measured:
    """Every picture is uploaded as the API does it; the worker's time until the last is settled."""
    before = seconds_of(worker.tree())
    async with place.database.connect("api") as api:
        for _ in range(pictures):
            await place.upload(api, uuid4(), another(photo))
    await until_over(place.database, within=WITHIN)
    spent = seconds_of(worker.tree()) - before
    async with place.database.connect("owner") as owner:
        made = await owner.fetchrow(MADE)
        jobs = await owner.fetchval("SELECT count(*) FROM jobs WHERE state = 'completed'")
    assert made is not None
    assert made["count"] == jobs * len(RECIPE.variants), f"{made['count']} files of {jobs} jobs"
    note(notes, OURS, made["bytes"] // jobs)
    return {OURS: 1000 * spent / pictures}


@asynccontextmanager
async def opened(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    pictures = max(AT_ONCE, asked.jobs_of(ROW))
    content, picture = photo(), ground.folder / "photo.jpg"
    picture.write_bytes(content)
    notes = ground.notes
    async with AsyncExitStack() as stack:
        renderer = await stack.enter_async_context(Renderer())
        place = await stack.enter_async_context(ground.place())
        # It rings again for what the worker has no room for, as it does where it is deployed.
        await stack.enter_async_context(started(place, "maintenance", ground.folder))
        worker = await stack.enter_async_context(started(place, "worker", ground.folder, SETTINGS))
        begun = await programs(ground.peers, asked, notes)
        await whole(place, worker, content, AT_ONCE, notes)  # both are warm now
        await renderer_alone(renderer, picture, AT_ONCE)
        yield {
            OURS: partial(whole, place, worker, content, pictures, notes),
            RENDERER: partial(renderer_alone, renderer, picture, pictures),
            **{
                engine: partial(by, engine, program, picture, pictures, notes)
                for engine, program in begun.items()
            },
        }


ROW: Final = Row(
    name="images",
    about="a 12-megapixel JPEG: processor time of all that makes ten files of it",
    figures=[
        Figure(
            title="CPU of a 12-megapixel JPEG, whole product",
            unit="ms",
            ours=OURS,
            other=other,
            at_most=1.05,
        )
        for other in OTHERS
    ]
    + [
        Figure(
            title="CPU of a 12-megapixel JPEG, renderer alone",
            unit="ms",
            ours=RENDERER,
            other=other,
        )
        for other in OTHERS
    ],
    open=opened,
    jobs=12,
)
