"""S3: one bucket. No body is ever whole in memory, and every byte is checked on its way."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from botocore.exceptions import ClientError

from imagefleet.aws.calls import Line, unavailable
from imagefleet.aws.transfers import of_body, save, seconds_for
from imagefleet.aws.writes import AlreadyThere, Headers, Stored, Write, is_refused_condition
from imagefleet.errors import InputRejected
from imagefleet.jobs.lifecycle import failure_sentence

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import ObjectIdentifierTypeDef

__all__ = [
    "AlreadyThere",
    "Deleted",
    "Facts",
    "Form",
    "Headers",
    "Listed",
    "Objects",
    "Stored",
    "Version",
]

MOST_DELETES: Final = 1000  # of one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
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


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """One version of an object, or a delete marker; None is whatever is current."""

    key: str
    version_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """S3's answers to a deletion. What never existed counts as deleted."""

    deleted: tuple[Version, ...] = ()
    failures: Mapping[Version, str] = field(default_factory=dict)
    """The error code of each that is still there."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a browser or curl posts, as multipart/form-data, with the file as the last field."""

    url: str
    fields: Mapping[str, str]


class Objects:
    """One bucket."""

    def __init__(self, bucket: str, *, line: Line, client: "S3Client") -> None:
        self.bucket = bucket
        self._line = line
        self._client = client

    async def upload(self, key: str, chunks: AsyncIterator[bytes], headers: Headers) -> Stored:
        """Store a stream of any length, in place of what was there; a broken one leaves nothing."""
        stored = await self._writing(key, headers, only_new=False).run(chunks)
        if isinstance(stored, AlreadyThere):
            raise unavailable("s3_conflict", f"412 without a condition: {key}")
        return stored

    async def put(self, key: str, body: bytes | Path, headers: Headers) -> Stored | AlreadyThere:
        """Store an object unless one of this name exists; of several at once, one wins."""
        return await self._writing(key, headers, only_new=True).run(of_body(body))

    async def fetch_to_file(
        self, key: str, target: Path | int, *, max_bytes: int, expected_etag: str | None = None
    ) -> Stored:
        """Copy an object to a path or an open file descriptor; on any error the file is worthless.

        InputRejected when it is larger than allowed or is not the one expected.
        """
        condition: _IfMatch = {"IfMatch": expected_etag} if expected_etag else {}
        async with self._line.calling("GetObject", plus=seconds_for(max_bytes)):
            try:
                answer = await self._client.get_object(Bucket=self.bucket, Key=key, **condition)
            except ClientError as error:
                if is_refused_condition(error):
                    raise _changed(key, expected_etag) from error
                raise
            body = answer["Body"]
            async with body:
                if answer["ContentLength"] > max_bytes:
                    raise _too_large(key, max_bytes)
                digest = await save(body, target, max_bytes=max_bytes)
        if digest is None:
            raise _too_large(key, max_bytes)
        if digest.bytes != answer["ContentLength"]:
            raise unavailable("s3_unavailable", f"{digest.bytes} bytes only of {key}")
        return Stored(bytes=digest.bytes, sha256=digest.sha256, etag=answer["ETag"])

    async def head(self, key: str) -> Facts:
        """Ask about an object; NotFound when there is none."""
        async with self._line.calling("HeadObject"):
            answer = await self._client.head_object(Bucket=self.bucket, Key=key)
        return Facts(
            bytes=answer["ContentLength"],
            etag=answer["ETag"],
            content_type=answer["ContentType"],
            modified_at=answer["LastModified"],
            metadata=answer["Metadata"],
        )

    async def listing(self, prefix: str) -> AsyncIterator[Listed]:
        """Every object below a prefix, by name, a thousand to a call."""
        start_after = ""
        while True:
            async with self._line.calling("ListObjectsV2"):
                page = await self._client.list_objects_v2(
                    Bucket=self.bucket, Prefix=prefix, StartAfter=start_after
                )
            for found in page.get("Contents", ()):
                start_after = found["Key"]
                yield Listed(
                    key=found["Key"],
                    bytes=found["Size"],
                    etag=found["ETag"],
                    modified_at=found["LastModified"],
                )
            if not page["IsTruncated"]:
                return

    async def delete(self, keys: Iterable[str]) -> Deleted:
        """Delete objects; in a versioned bucket this only hides them."""
        return await self._delete([Version(key) for key in dict.fromkeys(keys)])

    async def delete_all(self, prefix: str) -> Deleted:
        """Delete every version of every object below a prefix, and the markers of deletions too."""
        if not prefix:
            msg = "an empty prefix is the whole bucket"
            raise ValueError(msg)
        deleted: list[Version] = []
        failures: dict[Version, str] = {}
        async for versions in self._pages_of_versions(prefix):
            answer = await self._delete(versions)
            deleted += answer.deleted
            failures |= answer.failures
        return Deleted(deleted=tuple(deleted), failures=failures)

    async def presigned_post(
        self, key: str, *, content_type: str, min_bytes: int, max_bytes: int, expires: timedelta
    ) -> Form:
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
        return Form(form["url"], form["fields"])

    def _writing(self, key: str, headers: Headers, *, only_new: bool) -> Write:
        return Write(self._client, self._line, key, headers, only_new=only_new)

    async def _delete(self, versions: Sequence[Version]) -> Deleted:
        failures: dict[Version, str] = {}
        for start in range(0, len(versions), MOST_DELETES):
            some = versions[start : start + MOST_DELETES]
            async with self._line.calling("DeleteObjects"):
                answer = await self._client.delete_objects(
                    Bucket=self.bucket,
                    Delete={"Objects": [_identifier(version) for version in some], "Quiet": True},
                )
            for error in answer.get("Errors", ()):
                failures[Version(error["Key"], error.get("VersionId"))] = error["Code"]
        return Deleted(
            deleted=tuple(version for version in versions if version not in failures),
            failures=failures,
        )

    async def _pages_of_versions(self, prefix: str) -> AsyncIterator[list[Version]]:
        after: _After = {}
        while True:
            async with self._line.calling("ListObjectVersions"):
                page = await self._client.list_object_versions(
                    Bucket=self.bucket, Prefix=prefix, **after
                )
            found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            if found:
                yield [Version(entry["Key"], entry["VersionId"]) for entry in found]
            if not page["IsTruncated"]:
                return
            after = {
                "KeyMarker": page["NextKeyMarker"],
                "VersionIdMarker": page["NextVersionIdMarker"],
            }


class _IfMatch(TypedDict, total=False):
    IfMatch: str


class _After(TypedDict, total=False):
    KeyMarker: str
    VersionIdMarker: str


def _identifier(version: Version) -> "ObjectIdentifierTypeDef":
    if version.version_id is None:
        return {"Key": version.key}
    return {"Key": version.key, "VersionId": version.version_id}


def _changed(key: str, etag: str | None) -> InputRejected:
    return InputRejected(
        "source_changed", failure_sentence("source_changed"), f"{key} is not {etag}"
    )


def _too_large(key: str, max_bytes: int) -> InputRejected:
    return InputRejected(
        "too_large", failure_sentence("too_large"), f"{key} has more than {max_bytes} bytes"
    )
