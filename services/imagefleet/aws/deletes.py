"""Deletions from S3, a thousand a call; what one refused is asked for again, one by one."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypedDict

from imagefleet.aws.calls import Line
from imagefleet.errors import Unavailable

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import ObjectIdentifierTypeDef


MOST_DELETES: Final = 1000  # of one call
MOST_ALONE: Final = 100  # of one call: when S3 refuses everything, asking a thousand times is worse
TRIES_ALONE: Final = 2  # after the one with the others
PAUSE: Final = 0.1  # seconds before a try alone, doubled each time
REMAINS: Final = "Not everything could be deleted yet."


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
    errors: int = 0
    """Refusals of single versions, whether they were deleted in the end or not."""

    def in_all(self) -> int:
        """How many were deleted; Unavailable unless it is all of them."""
        if self.failures:
            version, code = min(self.failures.items())
            detail = f"{len(self.failures)} versions were refused, {version.key} with {code}"
            raise Unavailable("objects_remain", REMAINS, detail)
        return len(self.deleted)


class Deletes:
    """Deletions in one bucket."""

    def __init__(self, client: "S3Client", line: Line) -> None:
        self._client = client
        self._line = line
        self._bucket = line.resource

    async def delete(self, versions: Sequence[Version]) -> Deleted:
        """Delete these, however many; those that S3 refuses are asked for again by themselves."""
        failures: dict[Version, str] = {}
        errors = 0
        for start in range(0, len(versions), MOST_DELETES):
            refused = await self._call(versions[start : start + MOST_DELETES])
            errors += len(refused)
            for version in list(refused)[:MOST_ALONE]:
                errors += await self._delete_alone(version, refused)
            failures |= refused
        return Deleted(
            deleted=tuple(version for version in versions if version not in failures),
            failures=failures,
            errors=errors,
        )

    async def _delete_alone(self, version: Version, refused: dict[Version, str]) -> int:
        """Take it out of `refused` when it is deleted; how often it was refused again."""
        for attempt in range(TRIES_ALONE):
            await asyncio.sleep(PAUSE * 2**attempt)
            again = await self._call([version])
            if not again:
                del refused[version]
                return attempt
            refused |= again
        return TRIES_ALONE

    async def _call(self, versions: Sequence[Version]) -> dict[Version, str]:
        """The error code of each that was refused."""
        async with self._line.calling("DeleteObjects"):
            answer = await self._client.delete_objects(
                Bucket=self._bucket,
                Delete={"Objects": [_identifier(version) for version in versions], "Quiet": True},
            )
        return {
            Version(error["Key"], error.get("VersionId")): error["Code"]
            for error in answer.get("Errors", ())
        }

    async def pages(self, prefix: str) -> AsyncIterator[list[Version]]:
        """Every version and delete marker below a prefix, by name, up to a thousand at a time."""
        after: _VersionsAfter = {}
        while True:
            async with self._line.calling("ListObjectVersions"):
                page = await self._client.list_object_versions(
                    Bucket=self._bucket, Prefix=prefix, **after
                )
            entries = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            if entries:
                yield [Version(entry["Key"], entry["VersionId"]) for entry in entries]
            if not page["IsTruncated"]:
                return
            after = {
                "KeyMarker": page["NextKeyMarker"],
                "VersionIdMarker": page["NextVersionIdMarker"],
            }


class _VersionsAfter(TypedDict, total=False):
    KeyMarker: str
    VersionIdMarker: str


def _identifier(version: Version) -> "ObjectIdentifierTypeDef":
    if version.version_id is None:
        return {"Key": version.key}
    return {"Key": version.key, "VersionId": version.version_id}
