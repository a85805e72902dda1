"""Batch calls, whose entries have an answer each; what one refused is tried again, one by one.

Of SQS ten entries at most, of deletes from S3 a thousand.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict

from imagefleet.aws.calls import Line
from imagefleet.errors import FleetError, Unavailable

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import ObjectIdentifierTypeDef
    from types_aiobotocore_sqs.type_defs import BatchResultErrorEntryTypeDef


MOST_ENTRIES: Final = 10
MOST_BYTES: Final = 256 * 1024  # what every SQS has taken since 2013; newer ones take 1 MiB
MOST_DELETES: Final = 1000  # of one call
MOST_ALONE: Final = 100  # of one call: when S3 refuses everything, asking a thousand times is worse
TRIES_ALONE: Final = 2  # after the one with the others
PAUSE: Final = 0.1  # seconds before a try alone, doubled each time

BatchCall: TypeAlias = Callable[
    [Sequence[int]], Awaitable[Sequence["BatchResultErrorEntryTypeDef"]]
]
"""Sends the entries of these indices, each with its index as id, and gives back `Failed`."""


@dataclass(frozen=True, slots=True)
class EntryFailure:
    """Why one entry was not taken, or is not known to have been."""

    code: str
    detail: str
    final: bool
    """The same entry would be refused again."""


Failures: TypeAlias = tuple[EntryFailure | None, ...]
"""One answer an entry, in the order of the entries; None is success."""


async def in_batches(sizes: Sequence[int], call: BatchCall) -> Failures:
    """Send entries of these sizes, and those that failed once more, one by one.

    When SQS cannot be reached at all, what was not sent yet is not tried either.
    """
    failures: list[EntryFailure | None] = [None] * len(sizes)
    unreached: EntryFailure | None = None
    for batch in _batches(sizes):
        if unreached is None:
            failed, unreached = await _send(batch, call)
            for index, failure in failed.items():
                failures[index] = failure
                if unreached is None and not failure.final:
                    failures[index], unreached = await _send_alone(index, failure, call)
        else:
            for index in batch:
                failures[index] = unreached
    return tuple(failures)


async def _send(
    batch: Sequence[int], call: BatchCall
) -> tuple[dict[int, EntryFailure], EntryFailure | None]:
    """The entries that failed; the second is set when SQS was not reached."""
    try:
        answers = await call(batch)
    except Unavailable as error:
        unreached = EntryFailure(error.code, str(error), final=False)
        return dict.fromkeys(batch, unreached), unreached
    except FleetError as error:
        # The request as a whole was refused: one entry may have spoiled it for the others.
        refused = EntryFailure(error.code, str(error), final=len(batch) == 1)
        return dict.fromkeys(batch, refused), None
    failed = {
        int(answer["Id"]): EntryFailure(
            answer["Code"], answer.get("Message", ""), answer["SenderFault"]
        )
        for answer in answers
    }
    return failed, None


async def _send_alone(
    index: int, failure: EntryFailure, call: BatchCall
) -> tuple[EntryFailure | None, EntryFailure | None]:
    """What became of the entry; the second is set when SQS was not reached."""
    for attempt in range(TRIES_ALONE):
        await asyncio.sleep(PAUSE * 2**attempt)
        failed, unreached = await _send([index], call)
        if index not in failed:
            return None, None
        failure = failed[index]
        if failure.final or unreached is not None:
            return failure, unreached
    return failure, None


def _batches(sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    batch: list[int] = []
    filled_bytes = 0
    for index, size in enumerate(sizes):
        if len(batch) == MOST_ENTRIES or (batch and filled_bytes + size > MOST_BYTES):
            yield batch
            batch, filled_bytes = [], 0
        batch.append(index)
        filled_bytes += size
    if batch:
        yield batch


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
            found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            if found:
                yield [Version(entry["Key"], entry["VersionId"]) for entry in found]
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
