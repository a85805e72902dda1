"""S3: one bucket. A stream is never whole in memory, and every byte is checked on its way."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypedDict

from imagefleet.aws.calls import Line, unavailable
from imagefleet.aws.deletes import Deleted, Deletes, Version
from imagefleet.aws.transfers import (
    Digest,
    Headers,
    Part,
    Stored,
    Write,
    in_one_part,
    seconds_for,
    stored_with,
    unless_refused,
)
from imagefleet.errors import InputRejected
from imagefleet.jobs.lifecycle import failure_sentence

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

__all__ = [
    "Deleted",
    "Headers",
    "Listed",
    "Listing",
    "ObjectFacts",
    "Objects",
    "PostForm",
    "Stored",
    "Version",
]

CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """What S3 knows about an object."""

    bytes: int
    etag: str
    content_type: str
    modified_at: datetime
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An object of a listing."""

    key: str
    bytes: int
    etag: str
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class Listing:
    """Some objects of a listing, by name; there is at least one unless it is the last page."""

    objects: tuple[Listed, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class PostForm:
    """What a browser or curl posts, as multipart/form-data, with the file as the last field."""

    url: str
    fields: Mapping[str, str]


class Objects:
    """One bucket."""

    def __init__(self, bucket: str, *, line: Line, client: "S3Client") -> None:
        self.bucket = bucket
        self._line = line
        self._client = client
        self._deletes = Deletes(client, line)

    async def upload(self, key: str, chunks: AsyncIterator[bytes], headers: Headers) -> Stored:
        """Store a stream of any length, in place of what was there; a broken one leaves nothing."""
        stored = await Write(self._client, self._line, key, headers, {}).run(chunks)
        if stored is None:
            raise unavailable("s3_conflict", f"412 without a condition: {key}")
        return stored

    async def put(
        self, key: str, body: bytes | Path, headers: Headers, *, sha256: str | None = None
    ) -> Stored | None:
        """Store an object; None where one of this name exists, and of several at once one wins.

        S3 refuses what does not have the hash, where that is known beforehand.
        """
        writing = Write(self._client, self._line, key, headers, {"IfNoneMatch": "*"})
        part = await asyncio.to_thread(in_one_part, body, sha256)
        if isinstance(part, Path):
            return await writing.run(_of_file(part))
        return await writing.put_whole(part)

    async def copy(self, source: str, key: str, headers: Headers, *, sha256: str) -> None:
        """Store what lies under `source` under another key too, without its bytes coming here.

        It is stored as `put` would store it; NotFound when there is no source. S3 is asked for the
        hash of what it copied, and where it tells one that is compared.
        """
        async with self._line.calling("CopyObject"):
            answer = await self._client.copy_object(
                Bucket=self.bucket,
                Key=key,
                CopySource={"Bucket": self.bucket, "Key": source},
                MetadataDirective="REPLACE",
                ChecksumAlgorithm="SHA256",
                **stored_with(headers),
            )
        told = answer["CopyObjectResult"].get("ChecksumSHA256")
        if told is not None and told != Part(b"", 0, sha256).checksum:
            raise unavailable("s3_unavailable", f"{source} is not {sha256}, but {told}")

    async def fetch_to_file(
        self, key: str, target: Path | int, *, max_bytes: int, expected_etag: str | None = None
    ) -> Stored:
        """Copy an object to a path or an open file descriptor; on any error the file is worthless.

        InputRejected when it is larger than allowed or is not the one expected.
        """
        condition: _IfMatch = {"IfMatch": expected_etag} if expected_etag else {}
        async with self._line.calling("GetObject", plus=seconds_for(max_bytes)):
            answer = await unless_refused(
                self._client.get_object(Bucket=self.bucket, Key=key, **condition)
            )
            if answer is None:
                raise _changed(key, expected_etag)
            body = answer["Body"]
            async with body:
                if answer["ContentLength"] > max_bytes:
                    sentence = failure_sentence("too_large")
                    detail = f"{key} has more than {max_bytes} bytes"
                    raise InputRejected("too_large", sentence, detail)
                digest = await _save(body, target)
        if digest.bytes != answer["ContentLength"]:
            raise unavailable("s3_unavailable", f"{digest.bytes} bytes only of {key}")
        return Stored(bytes=digest.bytes, sha256=digest.sha256, etag=answer["ETag"])

    async def head(self, key: str) -> ObjectFacts:
        """Ask about an object; NotFound when there is none."""
        async with self._line.calling("HeadObject"):
            answer = await self._client.head_object(Bucket=self.bucket, Key=key)
        return ObjectFacts(
            bytes=answer["ContentLength"],
            etag=answer["ETag"],
            content_type=answer["ContentType"],
            modified_at=answer["LastModified"],
            metadata=answer["Metadata"],
        )

    async def fetch_head(self, key: str, *, most_bytes: int, expected_etag: str) -> bytes:
        """The first bytes of an object that has any; InputRejected when it is another one."""
        async with self._line.calling("GetObject", plus=seconds_for(most_bytes)):
            answer = await unless_refused(
                self._client.get_object(
                    Bucket=self.bucket,
                    Key=key,
                    Range=f"bytes=0-{most_bytes - 1}",
                    IfMatch=expected_etag,
                )
            )
            if answer is None:
                raise _changed(key, expected_etag)
            body, head = answer["Body"], bytearray()
            async with body:
                while chunk := await body.read(most_bytes - len(head)):
                    head += chunk
        if len(head) != min(answer["ContentLength"], most_bytes):
            raise unavailable("s3_unavailable", f"{len(head)} bytes only of {key}")
        return bytes(head)

    async def page(self, prefix: str, *, after: str = "") -> Listing:
        """The first thousand objects below a prefix whose names come behind `after`."""
        async with self._line.calling("ListObjectsV2"):
            page = await self._client.list_objects_v2(
                Bucket=self.bucket, Prefix=prefix, StartAfter=after
            )
        listed = tuple(
            Listed(
                key=entry["Key"],
                bytes=entry["Size"],
                etag=entry["ETag"],
                modified_at=entry["LastModified"],
            )
            for entry in page.get("Contents", ())
        )
        return Listing(listed, is_last=not page["IsTruncated"])

    async def delete(self, keys: Iterable[str]) -> Deleted:
        """Delete objects; in a versioned bucket this only hides them."""
        return await self._deletes.delete([Version(key) for key in dict.fromkeys(keys)])

    async def versions(self, prefix: str) -> AsyncGenerator[list[Version], None]:
        """Every version of every object below a prefix, and the markers of deletions too.

        By name, a page of up to a thousand at a time; what was listed may be deleted meanwhile.
        """
        if not prefix:
            msg = "an empty prefix is the whole bucket"
            raise ValueError(msg)
        async for page in self._deletes.pages(prefix):
            yield page

    async def delete_versions(self, versions: Sequence[Version]) -> Deleted:
        """Delete these versions for good."""
        return await self._deletes.delete(versions)

    async def delete_all(self, prefix: str) -> Deleted:
        """Delete every version of every object below a prefix, and the markers of deletions too."""
        deleted: list[Version] = []
        failures: dict[Version, str] = {}
        errors = 0
        async for page in self.versions(prefix):
            answer = await self.delete_versions(page)
            deleted += answer.deleted
            failures |= answer.failures
            errors += answer.errors
        return Deleted(deleted=tuple(deleted), failures=failures, errors=errors)

    async def presigned_post(
        self, key: str, *, content_type: str, min_bytes: int, max_bytes: int, expires: timedelta
    ) -> PostForm:
        """Let whoever has the form store this key, of this type and size, until it expires."""
        async with self._line.calling("PresignPost"):  # signed here; may ask for credentials
            form = await self._client.generate_presigned_post(
                self.bucket,
                key,
                Fields={"Content-Type": content_type},
                Conditions=[
                    {"Content-Type": content_type},
                    ["content-length-range", min_bytes, max_bytes],
                ],
                ExpiresIn=int(expires.total_seconds()),
            )
        return PostForm(form["url"], form["fields"])

    async def presigned_get(self, key: str, *, name: str, expires: timedelta) -> str:
        """Let whoever has the address download this key, under this name, until it expires."""
        async with self._line.calling("PresignGet"):  # as PresignPost
            return await self._client.generate_presigned_url(
                "get_object",
                Params={
                    "Bucket": self.bucket,
                    "Key": key,
                    # Never shown as a page or picture of its own: it is as a stranger sent it.
                    "ResponseContentDisposition": f'attachment; filename="{name}"',
                    "ResponseCacheControl": "private, no-store",
                },
                ExpiresIn=int(expires.total_seconds()),
            )


class _IfMatch(TypedDict, total=False):
    IfMatch: str


def _changed(key: str, etag: str | None) -> InputRejected:
    why = f"{key} is not {etag}"
    return InputRejected("source_changed", failure_sentence("source_changed"), why)


async def _of_file(path: Path) -> AsyncIterator[bytes]:
    """Stream what is in it."""
    with await asyncio.to_thread(path.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


class _Readable(Protocol):
    async def read(self, amt: int, /) -> bytes: ...


async def _save(source: _Readable, target: Path | int) -> Digest:
    """Write a stream to a path or an open file descriptor."""
    digest = Digest()
    closes = isinstance(target, Path)
    with await asyncio.to_thread(lambda: open(target, "wb", closefd=closes)) as file:
        while chunk := await source.read(CHUNK_BYTES):
            digest.add(chunk)
            file.write(chunk)
    return digest
