"""What a picture takes, from its upload to its variants, by how many megapixels it has.

The fleet as it is deployed, one process of each: a photo is uploaded over HTTP, stored, announced,
claimed, rendered by the shipped default recipe, stored again, settled. Counted is what each part of
it computes, what is asked of SQS and S3, what Postgres writes to its log, and how many bytes stay.
Two at a time, as one picture alone has every message to itself: see `counts` for batches.
`imagefleet capacity` reckons with these figures, and docs/capacity.md tells them.
"""

import asyncio
import io
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import aiohttp
from aiohttp import web
from PIL import Image

from tests.bench.ground import Ground, until_over
from tests.bench.images import another, seconds_of
from tests.bench.processes import Started, started, unlimited_key
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.aws import forwarding, operation_of
from tests.support.database import driver_of
from tests.support.fleet import Place

SIZES: Final = {
    0.5: (816, 612), 2: (1632, 1224), 12: (4000, 3000), 24: (6000, 4000), 48: (8000, 6000),
}  # fmt: skip
AT_ONCE: Final = 2
WITHIN: Final = 300.0  # seconds
KEPT: Final = """
SELECT (SELECT sum(bytes) FROM image_sources)::bigint AS original,
       (SELECT sum(bytes) FROM variants)::bigint AS variants,
       (SELECT count(*) FROM variants) AS files,
       (SELECT count(*) FROM jobs WHERE state = 'completed') AS jobs,
       (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 AS log
"""
# Not of maintenance, whose looks go by the clock.
BACKENDS: Final = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND usename IN ('imagefleet_api', 'imagefleet_worker')
"""
MANY: Final = 20_000
# The rows of one image again and again, under ids that sort by time as the product's do.
MULTIPLY: Final = """
INSERT INTO {table}
SELECT (jsonb_populate_record({table}, {changed})).*
  FROM {table}
 CROSS JOIN (SELECT (lpad(to_hex(numbers.n), 12, '0') || '7' || substr(md5(numbers.n::text), 1, 19)
                    )::uuid::text AS id
               FROM generate_series($2::bigint, $3::bigint) AS numbers (n)) AS new
 WHERE {of}
"""
OF_AN_IMAGE: Final = {
    "images": ("images.id = $1", "jsonb_build_object('id', new.id)"),
    "image_sources": (
        "image_id = $1",
        "jsonb_build_object('image_id', new.id, 'key', overlay(key placing new.id from 3 for 36))",
    ),
    "image_revisions": (
        "image_id = $1",
        "jsonb_build_object('image_id', new.id, 'job_id', new.id)",
    ),
    "variants": (
        "image_id = $1",
        "jsonb_build_object('image_id', new.id, 'key', overlay(key placing new.id from 3 for 36))",
    ),
    "targets": (
        "target = 'image:' || $1::uuid",
        "jsonb_build_object('target', 'image:' || new.id)",
    ),
}
SIZE: Final = """
SELECT sum(pg_total_relation_size(oid))::float8 FROM pg_class
 WHERE relkind = 'r' AND relname = ANY ($1::text[])
"""
ROWS: Final = "rows of an image"
TAKEN: Final = {
    "worker": "ms", "api": "ms", "Postgres": "ms", "SQS": "", "S3 writes": "", "S3 reads": "",
    "log": "kB", "original": "kB", "variants": "kB", "files": "",
}  # fmt: skip


def photo(size: tuple[int, int]) -> bytes:
    """As the one of `images`, at any size."""
    grain = Image.effect_noise((size[0] // 4, size[1] // 4), 40).resize(size)
    tone = Image.radial_gradient("L").resize(size)
    picture = Image.merge("RGB", (grain, tone, Image.blend(grain, tone, 0.5)))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=90, subsampling="4:2:0")
    return out.getvalue()


async def looked_at(place: Place, processes: dict[str, Started]) -> dict[str, float]:
    """All that only grows, so far."""
    async with place.database.connect("superuser") as superuser:
        row = await superuser.fetchrow(KEPT)
        pids = [backend["pid"] for backend in await superuser.fetch(BACKENDS)]
    assert row is not None
    computed = {name: 1000 * seconds_of(process.tree()) for name, process in processes.items()}
    kilobytes = {name: (row[name] or 0) / 1000 for name in ("log", "original", "variants")}
    counted = {name: float(row[name]) for name in ("files", "jobs")}
    return {**computed, "Postgres": 1000 * seconds_of(pids), **kilobytes, **counted}


async def taken(
    place: Place,
    heard: Counter[str],
    processes: dict[str, Started],
    key: str,
    megapixels: float,
    pictures: int,
) -> Measured:
    """Of each of so many pictures of one size."""
    content, gate = photo(SIZES[megapixels]), asyncio.Semaphore(AT_ONCE)
    before, asked = await looked_at(place, processes), heard.copy()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "image/jpeg"}
    async with aiohttp.ClientSession(headers=headers) as http:

        async def upload() -> None:
            url = f"{processes['api'].url}/v1/images"
            async with gate, http.post(url, data=another(content)) as answer:
                assert answer.status == 202, await answer.text()
                job = (await answer.json())["jobId"]
                jobs = f"{processes['api'].url}/v1/jobs/{job}?wait=20"
                async with http.get(jobs) as ended:
                    assert (await ended.json())["status"] == "completed", await ended.text()

        async with asyncio.TaskGroup() as group:
            for _ in range(pictures):
                group.create_task(upload())
    await until_over(place.database)
    after = await looked_at(place, processes)
    assert after["jobs"] - before["jobs"] == pictures
    grown = {name: after[name] - before[name] for name in after} | (heard - asked)
    return {f"{what}, {megapixels:g}": grown.get(what, 0) / pictures for what in TAKEN}


async def multiplied(place: Place) -> Measured:
    """Kilobytes of all rows of an image with its variants, and their indexes, among many."""
    async with place.database.connect("superuser") as superuser:
        driver = driver_of(superuser)
        one = await driver.fetchval("SELECT id FROM images WHERE revision IS NOT NULL LIMIT 1")
        first = await driver.fetchval("SELECT count(*) FROM images")
        before = await driver.fetchval(SIZE, [*OF_AN_IMAGE])
        async with driver.transaction():
            await driver.execute("SET LOCAL session_replication_role = replica")
            await driver.execute("SET LOCAL statement_timeout = 0")
            for table, (of, changed) in OF_AN_IMAGE.items():
                statement = MULTIPLY.format(table=table, of=of, changed=changed)
                last = first + MANY - 1
                await driver.execute(statement, one, first, last, timeout=WITHIN)
        after = await driver.fetchval(SIZE, [*OF_AN_IMAGE])
    return {ROWS: (after - before) / 1000 / MANY}


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    pictures = max(AT_ONCE, asked.jobs_of(ROW))
    heard: Counter[str] = Counter()

    async def hear(request: web.Request) -> web.StreamResponse:
        if request.headers.get("X-Amz-Target", "").startswith("AmazonSQS"):
            heard["SQS"] += operation_of(request) != "GetQueueAttributes"
        else:
            heard["S3 reads" if request.method in {"GET", "HEAD"} else "S3 writes"] += 1
        raise NotImplementedError

    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(forwarding(ground.emulator.url, instead=hear))
        place = await stack.enter_async_context(ground.place(by_way_of=proxy.url))
        key = await unlimited_key(place.database)
        processes = {}
        for process in ("maintenance", "api", "worker"):
            begun = started(place, process, ground.folder)
            processes[process] = await stack.enter_async_context(begun)
        del processes["maintenance"]  # it looks by the clock, and not by the picture
        await taken(place, heard, processes, key, 0.5, AT_ONCE)  # they are warm now
        yield {
            f"{megapixels:g}": partial(taken, place, heard, processes, key, megapixels, pictures)
            for megapixels in SIZES
        } | {ROWS: partial(multiplied, place)}


ROW: Final = Row(
    name="picture-sizes",
    about="what a photo of half a megapixel to 48 takes, from its upload to its variants",
    figures=[
        Figure(
            title=f"{what} a picture of {megapixels:g} megapixels",
            unit=unit,
            ours=f"{what}, {megapixels:g}",
        )
        for what, unit in TAKEN.items()
        for megapixels in SIZES
    ]
    + [Figure(title=f"{ROWS}, among {MANY:,}", unit="kB", ours=ROWS)],
    open=sides,
    jobs=12,
    by_name=True,
)
