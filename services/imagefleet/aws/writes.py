"""One object on its way into S3: in one request when it fits into a part, else all or nothing."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, TypedDict

from botocore.exceptions import ClientError

from imagefleet.aws.calls import Line, answered
from imagefleet.aws.transfers import Digest, in_parts, seconds_for
from imagefleet.errors import FleetError

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef


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


class _Condition(TypedDict, total=False):
    IfNoneMatch: Literal["*"]


class Write:
    """One write of one key. S3 compares every request's body with the checksum we send along."""

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
        self._condition: _Condition = {"IfNoneMatch": "*"} if only_new else {}
        self._digest = Digest()

    async def run(self, chunks: AsyncIterator[bytes]) -> Stored | AlreadyThere:
        parts = in_parts(chunks)
        first, is_last = await anext(parts)
        if is_last:
            return await self._put_whole(first)
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

    async def _put_whole(self, body: bytes) -> Stored | AlreadyThere:
        checksum = await self._digest.add_part(body)
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
        return self._stored_as(answer["ETag"])

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
        return self._stored_as(answer["ETag"])

    async def _abort(self, upload_id: str) -> None:
        # What cannot be aborted now, the bucket's lifecycle rule aborts within a day or two.
        with suppress(FleetError):
            async with self._line.calling("AbortMultipartUpload"):
                await self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._key, UploadId=upload_id
                )

    def _stored_as(self, etag: str) -> Stored:
        return Stored(bytes=self._digest.bytes, sha256=self._digest.sha256, etag=etag)


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
