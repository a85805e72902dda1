"""A stream on its way to S3: what is held of it, where it waits, and what is left behind."""

import asyncio
import hashlib
import os
import tempfile
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from io import BufferedRandom
from pathlib import Path

import pytest
from aiohttp import web

from imagefleet.aws import transfers
from imagefleet.aws.objects import Headers, Objects
from imagefleet.aws.session import open_session
from imagefleet.aws.transfers import HELD_BYTES, PART_BYTES, digest_of, require_scratch
from imagefleet.errors import Unavailable
from tests.support.aws import Answer, serving, settings_for
from tests.support.children import files_in
from tests.support.emulators import CREDENTIALS
from tests.support.eventually import eventually

SIZE = 20_000_000
PIECE = 65_536
MIB = 2**20
JPEG = Headers(content_type="image/jpeg")
MOST_HELD = 2 * MIB  # of an upload, with what the transport and this test's S3 have of it

CREATED = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
COMPLETED = '<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>'


class SlowS3:
    """Takes bodies when it is told to, and keeps nothing but their hashes."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0
        self.refusals = 0
        """How many bodies are answered with an error, some of them amid the body."""
        self.taken: list[str] = []

    async def respond(self, request: web.Request) -> Answer:
        if "uploads" in request.query:
            return web.Response(text=CREATED, content_type="application/xml")
        if request.method == "POST":
            return web.Response(text=COMPLETED, content_type="application/xml")
        if request.method == "PUT":
            return await self._take(request)
        return web.Response(status=204)

    async def _take(self, request: web.Request) -> Answer:
        self.waiting += 1
        await self.open.wait()
        if self.refusals:
            self.refusals -= 1
            await request.content.readany()
            return web.Response(status=500)
        digest = hashlib.sha256()
        async for chunk in request.content.iter_any():
            digest.update(chunk)
        self.taken.append(digest.hexdigest())
        return web.Response(headers={"ETag": '"1"'})


@pytest.fixture
def s3() -> SlowS3:
    return SlowS3()


@pytest.fixture
async def bucket(s3: SlowS3) -> AsyncIterator[Objects]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(s3.respond))
        settings = settings_for(server.url, read_timeout=30)
        session = await stack.enter_async_context(open_session(settings, credentials=CREDENTIALS))
        stack.callback(s3.open.set)
        yield await session.objects("bucket")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def a_stream(size: int = SIZE, piece: int = PIECE) -> AsyncIterator[bytes]:
    for start in range(0, size, piece):
        yield bytes(min(piece, size - start))
        await asyncio.sleep(0)


def names_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def held_by(bucket: Objects, s3: SlowS3, uploads: int) -> int:
    """The most bytes that were allocated for so many uploads at once, which S3 kept waiting."""
    s3.open.clear()
    s3.waiting = 0
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        async with asyncio.TaskGroup() as group:
            for number in range(uploads):
                group.create_task(bucket.upload(f"key-{number}", a_stream(), JPEG))
            await eventually(lambda: s3.waiting == uploads, within=60)
            s3.open.set()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


async def test_little_is_held_of_an_upload_however_many_come(bucket: Objects, s3: SlowS3) -> None:
    await held_by(bucket, s3, 1)  # what the SDK makes once

    few, many = await held_by(bucket, s3, 2), await held_by(bucket, s3, 8)

    assert few < 2 * MOST_HELD
    assert many - few < 6 * MOST_HELD
    assert len(s3.taken) == 11 * 3


async def test_a_repeat_that_is_only_hashed_is_not_held_either() -> None:
    tracemalloc.start()
    try:
        digest = await digest_of(a_stream())
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert held < MIB
    assert (digest.bytes, digest.sha256) == (SIZE, hashlib.sha256(bytes(SIZE)).hexdigest())


@pytest.mark.parametrize("size", [HELD_BYTES, HELD_BYTES + 1, PART_BYTES + HELD_BYTES, SIZE])
async def test_a_part_that_is_refused_is_sent_again_as_it_was(
    bucket: Objects, s3: SlowS3, size: int
) -> None:
    s3.open.set()
    s3.refusals = 2
    body = os.urandom(size)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, size, 300_001):
            yield body[start : start + 300_001]

    stored = await bucket.upload("key", chunks(), JPEG)

    parts = [body[start : start + PART_BYTES] for start in range(0, size, PART_BYTES)]
    assert s3.taken == [hashlib.sha256(part).hexdigest() for part in parts]
    assert (stored.bytes, stored.sha256) == (size, hashlib.sha256(body).hexdigest())


async def test_what_waits_has_no_name_and_is_gone_whatever_becomes_of_it(
    bucket: Objects, s3: SlowS3, scratch: Path
) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        async for chunk in a_stream():
            yield chunk
        raise ConnectionResetError

    async def breaks_off() -> None:
        with pytest.raises(ConnectionResetError):
            await bucket.upload("broken", breaks(), JPEG)

    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(bucket.upload("cancelled", a_stream(), JPEG))
        group.create_task(breaks_off())
        await eventually(lambda: s3.waiting == 2, within=60)
        assert (len(files_in(scratch)), names_in(scratch)) == (2, [])
        cancelled.cancel()
        await asyncio.wait([cancelled])
        s3.open.set()
    assert cancelled.cancelled()
    s3.refusals = 1000
    with pytest.raises(Unavailable):
        await bucket.upload("refused", a_stream(), JPEG)
    s3.refusals = 0
    await bucket.upload("stored", a_stream(), JPEG)

    assert (files_in(scratch), names_in(scratch)) == ([], [])


async def test_who_is_cancelled_amid_a_write_leaves_no_file_behind(
    bucket: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    made: list[BufferedRandom] = []

    def slowly() -> BufferedRandom:
        begun.set()
        goes_on.wait()
        made.append(tempfile.TemporaryFile())  # noqa: SIM115 - the product closes it
        return made[0]

    monkeypatch.setattr(transfers, "TemporaryFile", slowly)
    async with asyncio.TaskGroup() as group:
        upload = group.create_task(bucket.upload("key", a_stream(), JPEG))
        await eventually(begun.is_set)
        upload.cancel()
        asyncio.get_running_loop().call_later(0.1, goes_on.set)

    assert upload.cancelled()
    assert [file.closed for file in made] == [True]


async def test_a_small_upload_never_touches_a_disk(
    bucket: Objects, s3: SlowS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    s3.open.set()

    stored = await bucket.upload("key", a_stream(HELD_BYTES), JPEG)

    assert stored.bytes == HELD_BYTES


@pytest.mark.parametrize("what", ["missing", "full"])
async def test_where_nothing_can_be_written_an_upload_is_unavailable(
    bucket: Objects, s3: SlowS3, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "missing":
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    else:
        full = Path("/dev/full")
        monkeypatch.setattr(transfers, "TemporaryFile", lambda: full.open("r+b"))

    with pytest.raises(Unavailable) as error:
        await bucket.upload("key", a_stream(), JPEG)

    assert error.value.code == "scratch_unavailable"
    assert s3.waiting == 0


async def test_who_has_nowhere_to_write_hears_of_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await require_scratch()
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")

    with pytest.raises(Unavailable, match="scratch_unavailable"):
        await require_scratch()
