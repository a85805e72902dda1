"""Bytes on their way to S3: cut into parts, hashed, stored all or nothing."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import BufferedRandom
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from botocore.exceptions import ClientError

from imagefleet.aws.calls import Line, answered, unavailable
from imagefleet.errors import FleetError
from imagefleet.runtime import Result, in_thread

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef


PART_BYTES: Final = 8 * 1024 * 1024  # S3 wants 5 MiB at least; one of these is on disk at most
HELD_BYTES: Final = 512 * 1024  # of a stream in memory; a part that is larger waits on disk
SLOWEST_BYTES_PER_SECOND: Final = 512 * 1024  # a transfer slower than this counts as hung


def seconds_for(size_bytes: int) -> float:
    """How much longer a call may take because of what it carries."""
    return size_bytes / SLOWEST_BYTES_PER_SECOND


@dataclass(frozen=True, slots=True)
class Part:
    """What one request carries; S3 compares the checksum."""

    body: bytes | BufferedRandom
    size_bytes: int
    sha256: str

    @property
    def checksum(self) -> str:
        """The hash in the spelling of S3."""
        return base64.b64encode(bytes.fromhex(self.sha256)).decode()


def in_one_part(body: bytes | Path, sha256: str | None) -> Part | Path:
    """What is in memory, or in a file that fits into a part, else the file. For a thread."""
    if isinstance(body, Path):
        if body.stat().st_size > PART_BYTES:
            return body
        body = body.read_bytes()
    return Part(body, len(body), sha256 or _sha256(body))


class Digest:
    """SHA-256 of what is added to it."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def add(self, chunk: bytes | bytearray) -> None:
        self._sha256.update(chunk)
        self.bytes += len(chunk)


async def digest_of(chunks: AsyncIterator[bytes]) -> Digest:
    """Hash a stream that is kept nowhere; in a thread, where a large chunk holds nobody up."""
    digest = Digest()
    async for chunk in chunks:
        await asyncio.to_thread(digest.add, chunk)
    return digest


class Spool:
    """The part that is being cut of a stream: hashed as it comes, and in a file once it is large.

    The file has no name: a process that is killed leaves nothing. Parts are written over parts.
    """

    def __init__(self) -> None:
        self.whole = self._part = Digest()  # the first part is the whole, as far as it goes
        self._held = bytearray()
        self._file: BufferedRandom | None = None

    async def parts(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[tuple[Part, bool], None]:
        """Cut it into parts of PART_BYTES; True marks the last, which may be shorter.

        Each is there until the next is asked for. Unavailable where there is nowhere to write.
        """
        try:
            async for chunk in chunks:
                rest = chunk
                while len(rest) > (room := PART_BYTES - self._part.bytes - len(self._held)):
                    self._held += rest[:room]
                    rest = rest[room:]
                    yield await _written(self._cut), False
                self._held += rest
                if len(self._held) > HELD_BYTES:
                    await _written(self._write)
            yield await _written(self._cut), True
        finally:
            if self._file is not None:
                with suppress(OSError):  # it has told already what it could not write
                    await in_thread(self._file.close)

    def _cut(self) -> Part:
        body: bytes | BufferedRandom
        if self._part.bytes:
            body = self._write()
            body.truncate()
            body.seek(0)
        else:
            body = bytes(self._held)
            self._hash()
        part, self._part = self._part, Digest()
        return Part(body, part.bytes, part.sha256)

    def _write(self) -> BufferedRandom:
        file = self._file = self._file or TemporaryFile()  # noqa: SIM115 - `parts` closes it
        file.seek(self._part.bytes)
        file.write(self._held)
        self._hash()
        return file

    def _hash(self) -> None:
        for digest in {self.whole, self._part}:  # of the first part these are one
            digest.add(self._held)
        self._held = bytearray()


async def require_scratch() -> None:
    """Unavailable where no part of a stream could wait."""
    (await _written(TemporaryFile)).close()


async def _written(write: Callable[[], Result]) -> Result:
    """In a thread, and to its end: what it writes to is closed only then."""
    try:
        return await in_thread(write)
    except OSError as error:
        raise unavailable("scratch_unavailable", f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """What is stored with an object and served with it."""

    content_type: str
    cache_control: str | None = None
    cache_tag: str | None = None
    """Stored as `x-amz-meta-cache-tag`, which the edge takes as the object's tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The object is there, with exactly these bytes."""

    bytes: int
    sha256: str
    etag: str


class _Stored(TypedDict, total=False):
    ContentType: str
    CacheControl: str
    Metadata: dict[str, str]


class OnlyNew(TypedDict, total=False):
    IfNoneMatch: Literal["*"]


@dataclass(frozen=True, slots=True)
class Write:
    """One write of one key, in one request when it fits into a part, else all or nothing.

    S3 compares every request's body with the checksum we send along. None is the answer where
    only a new object was to be written, and there is one.
    """

    client: "S3Client"
    line: Line
    key: str
    headers: Headers
    condition: OnlyNew

    async def run(self, chunks: AsyncIterator[bytes]) -> Stored | None:
        spool = Spool()
        async with aclosing(spool.parts(chunks)) as parts:
            first, is_last = await anext(parts)
            if is_last:
                return await self.put_whole(first)
            upload_id = await self._create()
            stored = None
            try:
                done = [await self._put_part(upload_id, 1, first)]
                async for part, _ in parts:
                    done.append(await self._put_part(upload_id, len(done) + 1, part))
                stored = await self._complete(upload_id, done, spool.whole)
            finally:
                if stored is None:
                    await self._abort(upload_id)
            return stored

    async def put_whole(self, part: Part) -> Stored | None:
        """In one request."""
        async with self.line.calling("PutObject", plus=seconds_for(part.size_bytes)):
            answer = await unless_refused(
                self.client.put_object(
                    Bucket=self.line.resource,
                    Key=self.key,
                    Body=part.body,
                    ChecksumSHA256=part.checksum,
                    **stored_with(self.headers),
                    **self.condition,
                )
            )
        if answer is None:
            return None
        return Stored(bytes=part.size_bytes, sha256=part.sha256, etag=answer["ETag"])

    async def _create(self) -> str:
        async with self.line.calling("CreateMultipartUpload"):
            answer = await self.client.create_multipart_upload(
                Bucket=self.line.resource,
                Key=self.key,
                ChecksumAlgorithm="SHA256",
                **stored_with(self.headers),
            )
        return answer["UploadId"]

    async def _put_part(self, upload_id: str, number: int, part: Part) -> "CompletedPartTypeDef":
        async with self.line.calling("UploadPart", plus=seconds_for(part.size_bytes)):
            answer = await self.client.upload_part(
                Bucket=self.line.resource,
                Key=self.key,
                UploadId=upload_id,
                PartNumber=number,
                Body=part.body,
                ChecksumSHA256=part.checksum,
            )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": part.checksum}

    async def _complete(
        self, upload_id: str, parts: "list[CompletedPartTypeDef]", whole: Digest
    ) -> Stored | None:
        async with self.line.calling("CompleteMultipartUpload"):
            answer = await unless_refused(
                self.client.complete_multipart_upload(
                    Bucket=self.line.resource,
                    Key=self.key,
                    UploadId=upload_id,
                    MultipartUpload={"Parts": parts},
                    **self.condition,
                )
            )
        if answer is None:
            return None
        return Stored(bytes=whole.bytes, sha256=whole.sha256, etag=answer["ETag"])

    async def _abort(self, upload_id: str) -> None:
        # What cannot be aborted now, the bucket's lifecycle rule aborts within a day or two.
        with suppress(FleetError):
            async with self.line.calling("AbortMultipartUpload"):
                await self.client.abort_multipart_upload(
                    Bucket=self.line.resource, Key=self.key, UploadId=upload_id
                )


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def unless_refused(asked: Awaitable[Result]) -> Result | None:
    """The answer; None where it is that If-Match or If-None-Match does not hold."""
    try:
        return await asked
    except ClientError as error:
        if answered(error)[0] == HTTPStatus.PRECONDITION_FAILED:
            return None
        raise


def stored_with(headers: Headers) -> _Stored:
    """These headers in the spelling of the SDK."""
    stored: _Stored = {"ContentType": headers.content_type}
    if headers.cache_control:
        stored["CacheControl"] = headers.cache_control
    if headers.cache_tag:
        stored["Metadata"] = {"cache-tag": headers.cache_tag}
    return stored
