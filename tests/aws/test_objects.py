"""S3 as uploads, the worker and the sweeper use it."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiobotocore.httpchecksum import StreamingChecksumBody
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.endpoint_provider import RuleSet
from botocore.loaders import Loader
from botocore.useragent import UserAgentString

from imagefleet.aws.objects import Headers, Objects, Stored
from imagefleet.aws.session import AGENT, UNNAMED, AwsSession
from imagefleet.aws.transfers import PART_BYTES
from imagefleet.embedded.bootstrap import InPlace
from imagefleet.errors import InputRejected, NotFound, Unavailable
from tests.support.aws import Heard, a_name

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

WEBP = Headers(content_type="image/webp")
MEGABYTE = 2**20


async def in_chunks(body: bytes, size: int = 300_000) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def unfinished_uploads(s3: "S3Client", objects: Objects, key: str) -> int:
    answer = await s3.list_multipart_uploads(Bucket=objects.bucket, Prefix=key)
    return len(answer.get("Uploads", ()))


@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_a_small_upload_is_one_request(
    objects: Objects, heard: Heard, tmp_path: Path, size: int
) -> None:
    key, body = a_name("small"), os.urandom(size)

    stored = await objects.upload(key, in_chunks(body), WEBP)

    assert heard.sent_requests == {("s3", "PutObject"): 1}
    assert (size, sha256(body)) == (stored.bytes, stored.sha256)
    fetched = await objects.fetch_to_file(key, tmp_path / "file", max_bytes=MEGABYTE)
    assert fetched == stored
    assert (tmp_path / "file").read_bytes() == body


@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 77])
async def test_a_large_upload_goes_in_parts(
    objects: Objects, heard: Heard, tmp_path: Path, size: int
) -> None:
    key, body = a_name("large"), os.urandom(size)

    stored = await objects.upload(key, in_chunks(body), WEBP)

    assert heard.sent_requests["s3", "UploadPart"] == (
        0 if size == PART_BYTES else -(-size // PART_BYTES)
    )
    assert (size, sha256(body)) == (stored.bytes, stored.sha256)
    assert await objects.fetch_to_file(key, tmp_path / "file", max_bytes=size) == stored
    assert (await objects.head(key)).content_type == "image/webp"


async def test_a_stream_is_taken_no_faster_than_it_is_sent(objects: Objects, heard: Heard) -> None:
    """The stream is asked for more only after what came before is on its way."""
    pulled = 0
    held: list[int] = []

    async def watched() -> AsyncIterator[bytes]:
        nonlocal pulled
        for _ in range(5 * PART_BYTES // MEGABYTE):
            pulled += MEGABYTE
            yield bytes(MEGABYTE)
            held.append(pulled - heard.sent_requests["s3", "UploadPart"] * PART_BYTES)

    await objects.upload(a_name("stream"), watched(), WEBP)

    assert max(held) <= 2 * PART_BYTES


async def test_an_upload_that_breaks_leaves_nothing(objects: Objects, s3: "S3Client") -> None:
    key = a_name("broken")

    async def broken() -> AsyncIterator[bytes]:
        yield os.urandom(PART_BYTES + 1)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await objects.upload(key, broken(), WEBP)

    assert await unfinished_uploads(s3, objects, key) == 0
    with pytest.raises(NotFound):
        await objects.head(key)


async def test_an_upload_that_is_cancelled_leaves_nothing(objects: Objects, s3: "S3Client") -> None:
    key, waiting = a_name("cancelled"), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield os.urandom(PART_BYTES + 1)
        waiting.set()
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        upload = group.create_task(objects.upload(key, endless(), WEBP))
        await waiting.wait()
        upload.cancel()

    assert upload.cancelled()
    assert await unfinished_uploads(s3, objects, key) == 0


async def test_a_put_stores_what_the_edge_serves(objects: Objects) -> None:
    key = a_name("put")
    headers = Headers(
        content_type="image/webp", cache_control="public, max-age=1", cache_tag="image-1"
    )

    stored = await objects.put(key, b"pixels", headers)

    assert isinstance(stored, Stored)
    facts = await objects.head(key)
    assert (facts.bytes, facts.etag, facts.content_type) == (6, stored.etag, "image/webp")
    assert facts.metadata == {"cache-tag": "image-1"}
    assert abs(datetime.now(UTC) - facts.modified_at) < timedelta(seconds=30)


@pytest.mark.parametrize("size", [100, PART_BYTES + 1], ids=["small", "in parts"])
async def test_a_put_never_replaces(
    objects: Objects, s3: "S3Client", tmp_path: Path, size: int
) -> None:
    key, file = a_name("put"), tmp_path / "file"
    file.write_bytes(os.urandom(size))
    first = await objects.put(key, file, WEBP)

    second = await objects.put(key, os.urandom(size), WEBP)

    assert isinstance(first, Stored)
    assert second is None
    assert (await objects.head(key)).etag == first.etag
    assert await unfinished_uploads(s3, objects, key) == 0


@pytest.mark.parametrize("size", [100, PART_BYTES + 1], ids=["small", "of parts"])
async def test_a_copy_is_what_a_put_would_have_stored(
    objects: Objects, s3: "S3Client", heard: Heard, tmp_path: Path, size: int
) -> None:
    source, key, body = a_name("source"), f"{a_name('copy')}/ä b+c.webp", os.urandom(size)
    headers = Headers(content_type="image/webp", cache_control="max-age=1", cache_tag="image-1")
    await objects.upload(source, in_chunks(body), Headers(content_type="image/png"))
    heard.sent_requests.clear()

    await objects.copy(source, key, headers, sha256=sha256(body))

    assert heard.sent_requests == {("s3", "CopyObject"): 1}
    stored = await s3.head_object(Bucket=objects.bucket, Key=key)
    assert ("image/webp", "max-age=1") == (stored["ContentType"], stored["CacheControl"])
    assert stored["Metadata"] == {"cache-tag": "image-1"}
    await objects.fetch_to_file(key, tmp_path / "file", max_bytes=size)
    assert (tmp_path / "file").read_bytes() == body
    assert (await objects.head(source)).content_type == "image/png"


async def test_what_is_not_there_is_not_copied(objects: Objects) -> None:
    key = a_name("copy")

    with pytest.raises(NotFound):
        await objects.copy(a_name("nothing"), key, WEBP, sha256=sha256(b""))

    with pytest.raises(NotFound):
        await objects.head(key)


async def test_a_copy_is_compared_with_the_hash_that_was_known_before(
    objects: Objects, differs: Callable[[str], bool]
) -> None:
    source = a_name("source")
    await objects.put(source, b"pixels", WEBP)

    await objects.copy(source, a_name("copy"), WEBP, sha256=sha256(b"pixels"))
    if differs("copy-tells-no-checksum"):
        await objects.copy(source, a_name("copy"), WEBP, sha256=sha256(b"others"))
        return
    with pytest.raises(Unavailable) as error:
        await objects.copy(source, a_name("copy"), WEBP, sha256=sha256(b"others"))
    assert error.value.code == "s3_unavailable"


async def test_a_put_is_compared_with_the_hash_that_was_known_before(
    objects: Objects, tmp_path: Path, differs: Callable[[str], bool]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"pixels")

    stored = await objects.put(a_name("put"), file, WEBP, sha256=sha256(b"pixels"))

    assert isinstance(stored, Stored)
    assert (6, sha256(b"pixels")) == (stored.bytes, stored.sha256)
    if not differs("checksum-is-not-compared"):
        with pytest.raises(Unavailable):
            await objects.put(a_name("put"), file, WEBP, sha256=sha256(b"others"))


async def test_where_a_bucket_is_is_found_out_once_and_not_for_every_key(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rules that take the SDK longer than all else it does for a request."""
    asked: list[object] = []
    evaluate = RuleSet.evaluate

    def heard(rules: RuleSet, parameters: dict[str, object]) -> object:
        asked.append(parameters)
        return evaluate(rules, parameters)

    keys = [a_name("where") for _ in range(4)]
    await objects.put(keys[0], b"x", WEBP)
    monkeypatch.setattr(RuleSet, "evaluate", heard)
    for key in keys[1:]:
        await objects.put(key, b"x", WEBP)
        await objects.fetch_to_file(key, tmp_path / "file", max_bytes=1)

    assert asked == []


def test_no_rule_of_the_sdk_names_what_is_kept_from_them() -> None:
    rules = Loader().load_service_model("s3", "endpoint-rule-set-1")

    told = json.dumps(rules["rules"])
    assert [name for name in UNNAMED if f'"ref": "{name}"' in told or f"{{{name}}}" in told] == []
    assert set(UNNAMED) <= set(rules["parameters"])


@pytest.mark.parametrize("size", [1, PART_BYTES + 1])
async def test_a_body_is_hashed_once_and_that_hash_is_signed(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Not again by the SDK for its signature, in the event loop."""
    signed: list[AWSRequest] = []
    add_auth = S3SigV4Auth.add_auth

    def seen(auth: S3SigV4Auth, request: AWSRequest) -> None:
        add_auth(auth, request)
        signed.append(request)

    monkeypatch.setattr(S3SigV4Auth, "add_auth", seen)
    await objects.upload(a_name("signed"), in_chunks(b"x" * size), WEBP)

    puts = [request for request in signed if request.method == "PUT"]
    assert puts
    for request in puts:
        assert "UNSIGNED-PAYLOAD" == request.headers["X-Amz-Content-SHA256"]
        assert "x-amz-checksum-sha256" in request.headers["Authorization"]


async def test_what_is_fetched_is_hashed_once(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By us: what the SDK would compare it with was measured by us as well."""
    key, asked = a_name("hashed"), list[AWSRequest]()
    await objects.put(key, b"pixels", WEBP)
    add_auth = S3SigV4Auth.add_auth

    def seen(auth: S3SigV4Auth, request: AWSRequest) -> None:
        asked.append(request)
        add_auth(auth, request)

    monkeypatch.setattr(S3SigV4Auth, "add_auth", seen)
    monkeypatch.setattr(StreamingChecksumBody, "_validate_checksum", lambda _: pytest.fail("again"))
    stored = await objects.fetch_to_file(key, tmp_path / "file", max_bytes=9)

    assert stored.sha256 == sha256(b"pixels")
    assert ["x-amz-checksum-mode" in request.headers for request in asked] == [False]


async def test_who_asks_is_not_put_into_words_for_every_request(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, asked = a_name("agent"), list[AWSRequest]()
    monkeypatch.setattr(
        UserAgentString, "_build_config_metadata", lambda _: pytest.fail("once more")
    )
    add_auth = S3SigV4Auth.add_auth

    def seen(auth: S3SigV4Auth, request: AWSRequest) -> None:
        asked.append(request)
        add_auth(auth, request)

    monkeypatch.setattr(S3SigV4Auth, "add_auth", seen)
    await objects.put(key, b"pixels", WEBP)

    assert [request.headers["User-Agent"].split()[0] for request in asked] == [AGENT]


async def test_of_many_puts_at_once_one_wins(objects: Objects) -> None:
    key = a_name("race")

    answers = await asyncio.gather(*[objects.put(key, bytes([n]), WEBP) for n in range(8)])

    assert 1 == sum(isinstance(answer, Stored) for answer in answers)


async def test_a_damaged_body_is_refused(
    objects: Objects,
    session: AwsSession,
    monkeypatch: pytest.MonkeyPatch,
    differs: Callable[[str], bool],
) -> None:
    """S3 compares the body with the checksum we computed."""
    key = a_name("damaged")
    monkeypatch.setattr(
        "base64.b64encode", lambda _: b"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
    )

    if differs("checksum-is-not-compared"):
        await objects.upload(key, in_chunks(b"damaged"), WEBP)
        return
    with pytest.raises(Unavailable) as error:
        await objects.upload(key, in_chunks(b"damaged"), WEBP)
    assert error.value.code == "s3_unavailable"


async def test_a_fetch_stops_at_the_cap(objects: Objects, tmp_path: Path) -> None:
    key = a_name("fetch")
    await objects.put(key, b"x" * 101, WEBP)

    with pytest.raises(InputRejected) as error:
        await objects.fetch_to_file(key, tmp_path / "file", max_bytes=100)

    assert error.value.code == "too_large"
    assert not (tmp_path / "file").exists()


async def test_a_fetch_of_another_object_than_expected_is_refused(
    objects: Objects, tmp_path: Path
) -> None:
    key = a_name("fetch")
    first = await objects.upload(key, in_chunks(b"first"), WEBP)
    await objects.upload(key, in_chunks(b"second"), WEBP)

    with pytest.raises(InputRejected) as error:
        await objects.fetch_to_file(key, tmp_path / "file", max_bytes=100, expected_etag=first.etag)

    assert error.value.code == "source_changed"


@pytest.mark.parametrize("most_bytes", [1, 100, 300_000, 400_000])
async def test_the_head_of_an_object_is_as_much_of_it_as_is_asked_for(
    objects: Objects, heard: Heard, most_bytes: int
) -> None:
    key, body = a_name("head"), os.urandom(300_000)
    stored = await objects.upload(key, in_chunks(body), WEBP)

    head = await objects.fetch_head(key, most_bytes=most_bytes, expected_etag=stored.etag)

    assert head == body[:most_bytes]
    assert heard.sent_requests["s3", "GetObject"] == 1


async def test_the_head_of_another_object_is_not_given(objects: Objects) -> None:
    key = a_name("head")
    first = await objects.upload(key, in_chunks(b"first"), WEBP)
    await objects.upload(key, in_chunks(b"second"), WEBP)

    with pytest.raises(InputRejected, match="source_changed"):
        await objects.fetch_head(key, most_bytes=3, expected_etag=first.etag)
    with pytest.raises(NotFound):
        await objects.fetch_head("nowhere", most_bytes=3, expected_etag=first.etag)


async def test_a_fetch_may_write_to_an_open_file(objects: Objects, tmp_path: Path) -> None:
    key = a_name("fetch")
    stored = await objects.upload(key, in_chunks(b"pixels"), WEBP)
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)

    await objects.fetch_to_file(key, descriptor, max_bytes=6, expected_etag=stored.etag)

    assert os.pread(descriptor, 10, 0) == b"pixels"
    os.close(descriptor)


async def test_what_does_not_exist_is_not_found(objects: Objects, tmp_path: Path) -> None:
    key = a_name("nothing")

    with pytest.raises(NotFound):
        await objects.head(key)
    with pytest.raises(NotFound):
        await objects.fetch_to_file(key, tmp_path / "file", max_bytes=1)


async def test_a_bucket_that_is_missing_is_unavailable(session: AwsSession, tmp_path: Path) -> None:
    """An emulator that was wiped, before the bootstrap: the job is not to blame."""
    objects = await session.objects(a_name("bucket"))

    with pytest.raises(Unavailable) as error:
        await objects.fetch_to_file("key", tmp_path / "file", max_bytes=1)
    assert error.value.code == "s3_missing"


async def test_a_page_lists_what_lies_below_a_prefix_by_name(objects: Objects) -> None:
    prefix = a_name("list")
    keys = sorted(f"{prefix}/{number}" for number in range(3))
    await asyncio.gather(*[objects.put(key, b"x", WEBP) for key in [*keys, f"{prefix}-other"]])

    listed = (await objects.page(f"{prefix}/")).objects

    assert keys == [entry.key for entry in listed]
    assert {1} == {entry.bytes for entry in listed}


async def test_objects_are_deleted_a_thousand_at_a_time(objects: Objects, heard: Heard) -> None:
    prefix = a_name("delete")
    await objects.put(f"{prefix}/there", b"x", WEBP)
    keys = [f"{prefix}/{number}" for number in range(1500)]

    answer = await objects.delete([*keys, f"{prefix}/there"])

    assert (len(answer.deleted), answer.failures) == (1501, {})
    assert heard.sent_requests["s3", "DeleteObjects"] == 2
    with pytest.raises(NotFound):
        await objects.head(f"{prefix}/there")


@pytest.mark.parametrize("versioned", [False, True], ids=["plain", "versioned"])
async def test_every_version_below_a_prefix_is_deleted(
    session: AwsSession,
    s3: "S3Client",
    applied: InPlace,
    versioned: bool,  # noqa: FBT001
) -> None:
    objects = await session.objects(await a_bucket(s3, versioned=versioned))
    for body in (b"1", b"2"):
        await objects.upload("i/1/a", in_chunks(body), WEBP)
    await objects.upload("i/1/b", in_chunks(b"3"), WEBP)
    await objects.upload("i/10/kept", in_chunks(b"4"), WEBP)
    await objects.delete(["i/1/b"])

    answer = await objects.delete_all("i/1/")

    left = await s3.list_object_versions(Bucket=objects.bucket)
    assert answer.failures == {}
    assert {"i/1/a"} <= {version.key for version in answer.deleted}
    assert len(answer.deleted) == (4 if versioned else 1)
    assert ["i/10/kept"] == [version["Key"] for version in left["Versions"]]
    assert left.get("DeleteMarkers", []) == []
    assert (await objects.delete_all("i/1/")).deleted == ()


async def test_a_whole_bucket_is_never_deleted(objects: Objects) -> None:
    with pytest.raises(ValueError, match="whole bucket"):
        await objects.delete_all("")


async def a_bucket(s3: "S3Client", *, versioned: bool) -> str:
    name = a_name("bucket")
    await s3.create_bucket(
        Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )
    if versioned:
        await s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


async def test_a_page_begins_behind_a_key_and_knows_whether_it_is_the_last(
    objects: Objects,
) -> None:
    prefix = f"{a_name('pages')}/"
    for name in "abc":
        await objects.put(f"{prefix}{name}", b"x", WEBP)

    page = await objects.page(prefix, after=f"{prefix}a")
    beyond = await objects.page(prefix, after=f"{prefix}c")

    assert ([f"{prefix}b", f"{prefix}c"], True) == (
        [entry.key for entry in page.objects],
        page.is_last,
    )
    assert ((), True) == (beyond.objects, beyond.is_last)
