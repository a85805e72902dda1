"""Bytes on their way to S3 and back: cut into parts, hashed, stored all or nothing."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypedDict

from botocore.exceptions import ClientError

from imagefleet.aws.calls import Line, answered
from imagefleet.errors import FleetError

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef


PART_BYTES: Final = 8 * 1024 * 1024  # S3 wants 5 MiB at least; two of these are held at most
CHUNK_BYTES: Final = 256 * 1024
SLOWEST_BYTES_PER_SECOND: Final = 512 * 1024  # a transfer slower than this counts as hung


def seconds_for(size_bytes: int) -> float:
    """How much longer a call may take because of what it carries."""
    return size_bytes / SLOWEST_BYTES_PER_SECOND


async def in_parts(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
    """Cut a stream into parts of PART_BYTES; True marks the last, which may be shorter."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) > PART_BYTES:
            part = bytes(buffer[:PART_BYTES])
            del buffer[:PART_BYTES]
            yield part, False
    yield bytes(buffer), True


async def of_body(body: bytes | Path) -> AsyncIterator[bytes]:
    """Stream what is in memory or in a file."""
    if isinstance(body, bytes):
        yield body
        return
    with await asyncio.to_thread(body.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


def in_one_part(body: bytes | Path) -> bytes | None:
    """All of what fits into a part, read at once; None of what does not. For a thread."""
    if isinstance(body, bytes):
        return body if len(body) <= PART_BYTES else None
    return body.read_bytes() if body.stat().st_size <= PART_BYTES else None


class Digest:
    """SHA-256 of the whole, fed part by part, and of each part in the spelling that S3 compares."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> str:
        return self._whole.hexdigest()

    async def add_part(self, part: bytes) -> str:
        """Return the part's own checksum; in a thread, where a large part holds nobody up."""
        return await asyncio.to_thread(self._add_part, part)

    def add(self, chunk: bytes) -> None:
        self._whole.update(chunk)
        self.bytes += len(chunk)

    def _add_part(self, part: bytes) -> str:
        self.add(part)
        return base64.b64encode(hashlib.sha256(part).digest()).decode()


async def digest_of(chunks: AsyncIterator[bytes]) -> Digest:
    """Hash a stream that is kept nowhere."""
    digest = Digest()
    async for part, _ in in_parts(chunks):
        await digest.add_part(part)
    return digest


class Readable(Protocol):
    async def read(self, amt: int, /) -> bytes: ...


async def save(source: Readable, target: Path | int, *, max_bytes: int) -> Digest | None:
    """Write a stream to a path or an open file descriptor; None when it is longer than allowed."""
    digest = Digest()
    closes = isinstance(target, Path)
    with await asyncio.to_thread(lambda: open(target, "wb", closefd=closes)) as file:
        while chunk := await source.read(CHUNK_BYTES):
            digest.add(chunk)
            if digest.bytes > max_bytes:
                return None
            file.write(chunk)
    return digest


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


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """An object of this name exists; it was left as it is."""


class _Stored(TypedDict, total=False):
    ContentType: str
    CacheControl: str
    Metadata: dict[str, str]


class _OnlyNew(TypedDict, total=False):
    IfNoneMatch: Literal["*"]


class Write:
    """One write of one key, in one request when it fits into a part, else all or nothing.

    S3 compares every request's body with the checksum we send along.
    """

    def __init__(
        self,
        client: "S3Client",
        line: Line,
        key: str,
        headers: Headers,
        *,
        only_new: bool,
    ) -> None:
        self._client = client
        self._line = line
        self._bucket = line.resource
        self._key = key
        self._headers = _stored(headers)
        self._condition: _OnlyNew = {"IfNoneMatch": "*"} if only_new else {}
        self._digest = Digest()

    async def run(self, chunks: AsyncIterator[bytes]) -> Stored | AlreadyThere:
        parts = in_parts(chunks)
        first, is_last = await anext(parts)
        if is_last:
            return await self.put_whole(first)
        upload_id = await self._create()
        try:
            done = [await self._put_part(upload_id, 1, first)]
            async for part, _ in parts:
                done.append(await self._put_part(upload_id, len(done) + 1, part))
            stored = await self._complete(upload_id, done)
        except BaseException:
            await self._abort(upload_id)
            raise
        if isinstance(stored, AlreadyThere):
            await self._abort(upload_id)
        return stored

    async def put_whole(self, body: bytes, sha256: str | None = None) -> Stored | AlreadyThere:
        """In one request, of what fits into a part; S3 compares it with the hash, known or not."""
        if sha256 is None:
            sha256 = await asyncio.to_thread(_sha256, body)
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
        async with self._line.calling("PutObject", plus=seconds_for(len(body))):
            try:
                answer = await self._client.put_object(
                    Bucket=self._bucket,
                    Key=self._key,
                    Body=body,
                    ChecksumSHA256=checksum,
                    **self._headers,
                    **self._condition,
                )
            except ClientError as error:
                if is_refused_condition(error):
                    return AlreadyThere()
                raise
        return Stored(bytes=len(body), sha256=sha256, etag=answer["ETag"])

    async def _create(self) -> str:
        async with self._line.calling("CreateMultipartUpload"):
            answer = await self._client.create_multipart_upload(
                Bucket=self._bucket, Key=self._key, ChecksumAlgorithm="SHA256", **self._headers
            )
        return answer["UploadId"]

    async def _put_part(self, upload_id: str, number: int, part: bytes) -> "CompletedPartTypeDef":
        checksum = await self._digest.add_part(part)
        async with self._line.calling("UploadPart", plus=seconds_for(len(part))):
            answer = await self._client.upload_part(
                Bucket=self._bucket,
                Key=self._key,
                UploadId=upload_id,
                PartNumber=number,
                Body=part,
                ChecksumSHA256=checksum,
            )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": checksum}

    async def _complete(
        self, upload_id: str, parts: "list[CompletedPartTypeDef]"
    ) -> Stored | AlreadyThere:
        async with self._line.calling("CompleteMultipartUpload"):
            try:
                answer = await self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=self._key,
                    UploadId=upload_id,
                    MultipartUpload={"Parts": parts},
                    **self._condition,
                )
            except ClientError as error:
                if is_refused_condition(error):
                    return AlreadyThere()
                raise
        digest = self._digest
        return Stored(bytes=digest.bytes, sha256=digest.sha256, etag=answer["ETag"])

    async def _abort(self, upload_id: str) -> None:
        # What cannot be aborted now, the bucket's lifecycle rule aborts within a day or two.
        with suppress(FleetError):
            async with self._line.calling("AbortMultipartUpload"):
                await self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._key, UploadId=upload_id
                )


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def is_refused_condition(error: ClientError) -> bool:
    """Whether S3 answered that If-Match or If-None-Match does not hold."""
    return answered(error)[0] == HTTPStatus.PRECONDITION_FAILED


def _stored(headers: Headers) -> _Stored:
    stored: _Stored = {"ContentType": headers.content_type}
    if headers.cache_control:
        stored["CacheControl"] = headers.cache_control
    if headers.cache_tag:
        stored["Metadata"] = {"cache-tag": headers.cache_tag}
    return stored
