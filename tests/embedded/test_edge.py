"""The embedded edge: a real bucket, a real CloudFront API, and an API that the test plays."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import boto3  # type: ignore[import-untyped]
import httpx
import pytest
from aiohttp import web

from imagefleet.embedded.bootstrap import Endpoints, apply
from imagefleet.embedded.edge import origins
from imagefleet.embedded.edge.server import serve_edge
from imagefleet.embedded.machine import HOST, chosen
from imagefleet.embedded.processes import Facts
from tests.support.aws import Answer, a_name, serving
from tests.support.emulators import CREDENTIALS, REGION, running_ministack
from tests.support.eventually import eventually
from tests.support.journal import Client
from tests.support.published import stays

IMMUTABLE = "public, max-age=31536000, immutable"
POINTER = "/i/1/current/thumb.webp"
OTHER = "/i/2/current/thumb.webp"


@dataclass(slots=True)
class Api:
    """What the API says of stable addresses."""

    location: str = "/old"
    status: int = 302
    cache_control: str = "public, max-age=5, s-maxage=86400"
    hangs_up: bool = False
    asked: Counter[str] = field(default_factory=Counter)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def respond(self, request: web.Request) -> Answer:
        self.asked[request.raw_path] += 1
        location = self.location
        await self.may_answer.wait()
        if self.hangs_up:
            assert request.transport is not None
            request.transport.close()
        headers = {
            "Location": location,
            "Cache-Control": self.cache_control,
            "x-amz-meta-cache-tag": f"img-{request.path.split('/')[2]}",
        }
        return web.Response(status=self.status, headers=headers)


@dataclass(slots=True, kw_only=True)
class Place:
    """An edge, and everything around it."""

    viewer: httpx.AsyncClient
    api: Api
    s3: Client
    bucket: str
    cloudfront: Client
    distribution: str

    def put(self, key: str, body: bytes, cache_control: str = IMMUTABLE) -> None:
        self.s3.put_object(
            Bucket=self.bucket,
            Key=key,
            Body=body,
            ContentType="image/webp",
            CacheControl=cache_control,
            Metadata={"cache-tag": "img-1"},
        )

    def invalidate(self, *items: str) -> None:
        self.cloudfront.create_invalidation(
            DistributionId=self.distribution,
            InvalidationBatch={
                "Paths": {"Quantity": len(items), "Items": list(items)},
                "CallerReference": a_name("batch"),
            },
        )

    async def leads_to(self, path: str = POINTER) -> str:
        return (await self.viewer.get(path)).headers["location"]

    async def is_listening(self) -> None:
        async def kept() -> bool:
            return (await self.viewer.get("/i/0/current/a.webp")).headers["x-cache"][:3] == "Hit"

        await eventually(kept, within=10)


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with running_ministack() as url:
        yield url


@pytest.fixture
async def place(emulator: str) -> AsyncIterator[Place]:
    applied = await apply(
        Endpoints.all_at(emulator), region=REGION, credentials=CREDENTIALS, prefix=a_name("edge")
    )
    keys = {"aws_access_key_id": CREDENTIALS.key_id, "aws_secret_access_key": CREDENTIALS.secret}
    named = {"endpoint_url": emulator, "region_name": REGION, **keys}
    facts = Facts(
        database_urls={},
        aws={
            "AWS_ENDPOINT_URL": emulator,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": CREDENTIALS.key_id,
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret,
        },
        topology=applied.environment(),
        public_base_url="",
    )
    api, port = Api(), chosen(0, what="", option="")
    api.may_answer.set()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(api.respond))
        invalidations = await stack.enter_async_context(
            serve_edge(port, facts=lambda: facts, api_url=server.url)
        )
        group = await stack.enter_async_context(asyncio.TaskGroup())
        following = group.create_task(invalidations.follow())
        stack.callback(following.cancel)
        viewer = httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=20)
        await stack.enter_async_context(viewer)
        place = Place(
            viewer=viewer,
            api=api,
            s3=boto3.client("s3", **named),
            bucket=applied.buckets["outputs"],
            cloudfront=boto3.client("cloudfront", **named),
            distribution=str(applied.distribution_id),
        )
        await place.is_listening()
        yield place


async def test_a_picture_is_fetched_once_and_given_whole_in_part_and_by_its_headers(
    place: Place,
) -> None:
    place.put("i/1/1.1/thumb.webp", b"pixels")
    path = "/i/1/1.1/thumb.webp"

    first = await place.viewer.get(path, headers={"Range": "bytes=0-2"})
    place.s3.delete_object(Bucket=place.bucket, Key=path[1:])
    whole = await place.viewer.get(path)
    head = await place.viewer.head(path)
    known = await place.viewer.get(path, headers={"If-None-Match": whole.headers["etag"]})

    assert (206, b"pix") == (first.status_code, first.content)
    assert "Miss from the embedded edge" == first.headers["x-cache"]
    assert (200, b"pixels", "image/webp", IMMUTABLE) == (
        whole.status_code,
        whole.content,
        whole.headers["content-type"],
        whole.headers["cache-control"],
    )
    assert "Hit from the embedded edge" == whole.headers["x-cache"]
    assert int(whole.headers["age"]) < 10
    assert (200, "6", b"") == (head.status_code, head.headers["content-length"], head.content)
    assert (304, b"") == (known.status_code, known.content)


async def test_what_is_kept_stays_whatever_its_origin_says_until_it_is_invalidated(
    place: Place,
) -> None:
    assert "/old" == await place.leads_to()
    assert "/old" == await place.leads_to(OTHER)
    place.api.location = "/new"

    async def is_old() -> bool:
        return await place.leads_to() == "/old"

    await stays(is_old, seconds=1.5)
    place.invalidate("/i/1/*")

    async def is_new() -> bool:
        return await place.leads_to() == "/new"

    await eventually(is_new, within=5)
    assert "/old" == await place.leads_to(OTHER)
    assert {POINTER: 2, OTHER: 1} == {path: place.api.asked[path] for path in (POINTER, OTHER)}


@pytest.mark.parametrize("item", [POINTER, "/i/1*", "#img-1", "#IMG-1"])
async def test_paths_wildcards_and_tags_are_understood(place: Place, item: str) -> None:
    await place.leads_to()
    await place.leads_to(OTHER)
    place.api.location = "/new"

    place.invalidate(item)

    async def is_new() -> bool:
        return await place.leads_to() == "/new"

    await eventually(is_new, within=5)
    assert "/old" == await place.leads_to(OTHER)


async def test_an_invalidation_is_applied_once(place: Place) -> None:
    await place.leads_to()
    place.api.location = "/new"
    place.invalidate("/i/1/*")

    async def is_new() -> bool:
        return await place.leads_to() == "/new"

    await eventually(is_new, within=5)
    place.api.location = "/newer"
    await stays(is_new, seconds=1)


async def test_an_answer_on_its_way_during_an_invalidation_is_given_and_not_kept(
    place: Place,
) -> None:
    place.api.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        early = group.create_task(place.leads_to())
        await eventually(lambda: place.api.asked[POINTER] == 1)
        place.api.location = "/new"
        place.invalidate("/i/1/*", "/i/0/*")
        late = group.create_task(asked_anew(place))
        await eventually(lambda: place.api.asked[POINTER] == 2, within=5)
        place.api.may_answer.set()

    assert ("/old", "/new") == (early.result(), late.result())
    assert "/new" == await place.leads_to()


async def asked_anew(place: Place) -> str:
    """Ask again and again beside those who wait, until one of them is not their answer."""
    async with asyncio.TaskGroup() as group:
        tasks = []
        while place.api.asked[POINTER] < 2:
            tasks.append(group.create_task(place.leads_to()))
            await asyncio.sleep(0.1)  # between two viewers
    return tasks[-1].result()


async def test_many_who_ask_at_once_are_one_question(place: Place) -> None:
    place.api.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(place.leads_to()) for _ in range(20)]
        await eventually(lambda: place.api.asked[POINTER] == 1)
        place.api.may_answer.set()

    assert {"/old"} == {task.result() for task in tasks}
    assert 1 == place.api.asked[POINTER]


async def test_who_waited_for_what_may_not_be_kept_asks_for_himself(place: Place) -> None:
    place.api.status, place.api.cache_control = 404, "no-store"
    place.api.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(place.viewer.get(POINTER)) for _ in range(3)]
        await eventually(lambda: place.api.asked[POINTER] == 1)
        place.api.may_answer.set()

    assert [404] * 3 == [task.result().status_code for task in tasks]
    assert 3 == place.api.asked[POINTER]
    place.api.status, place.api.cache_control = 302, "public, s-maxage=60"
    assert "/old" == await place.leads_to()


async def test_what_is_too_old_is_confirmed_by_its_origin(place: Place) -> None:
    place.put("i/1/1.1/thumb.webp", b"pixels", "max-age=1")

    async def confirmed() -> httpx.Response | None:
        answer = await place.viewer.get("/i/1/1.1/thumb.webp")
        assert (200, b"pixels") == (answer.status_code, answer.content)
        return answer if answer.headers["x-cache"].startswith("RefreshHit") else None

    assert "0" == (await eventually(confirmed, within=5)).headers["age"]


async def test_an_old_answer_is_better_than_an_error_but_not_after_an_invalidation(
    place: Place,
) -> None:
    place.api.cache_control = "s-maxage=1"
    assert "/old" == await place.leads_to()
    place.api.status, place.api.cache_control = 503, "no-store"

    async def stale() -> bool:
        answer = await place.viewer.get(POINTER)
        assert (302, "/old") == (answer.status_code, answer.headers["location"])
        return answer.headers["x-cache"].startswith("Stale")

    await eventually(stale, within=5)
    place.invalidate("/i/1/*")

    async def fails() -> bool:
        return (await place.viewer.get(POINTER)).status_code == 503

    await eventually(fails, within=5)


async def test_an_origin_that_is_away_is_an_error_of_the_edge(place: Place) -> None:
    place.api.hangs_up = True

    assert 502 == (await place.viewer.get(POINTER)).status_code


async def test_the_query_is_no_part_of_an_address(place: Place) -> None:
    await place.leads_to(f"{POINTER}?one")
    await place.leads_to(f"{POINTER}?two")

    assert Counter({POINTER: 1}) == place.api.asked - Counter({"/i/0/current/a.webp": 99})


async def test_what_is_too_large_to_hold_goes_by(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "LARGEST_BODY", 5)
    place.put("i/1/1.1/large.webp", b"0123456789")

    for _ in range(2):
        whole = await place.viewer.get("/i/1/1.1/large.webp")
        part = await place.viewer.get("/i/1/1.1/large.webp", headers={"Range": "bytes=2-3"})
        head = await place.viewer.head("/i/1/1.1/large.webp")

        assert (200, b"0123456789") == (whole.status_code, whole.content)
        assert (206, b"23") == (part.status_code, part.content)
        assert (200, "10", b"") == (head.status_code, head.headers["content-length"], head.content)
        assert "Miss from the embedded edge" == whole.headers["x-cache"]


async def test_nothing_is_sniffed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "LARGEST_BODY", 8)
    place.put("i/1/1.1/thumb.webp", b"<script>")
    place.put("i/1/1.1/large.webp", b"<script></script>")
    object_ = "/i/1/1.1/thumb.webp"

    answers = [
        await place.viewer.get(object_),
        await place.viewer.get(object_),  # out of the cache
        await place.viewer.head(object_),
        await place.viewer.get(object_, headers={"Range": "bytes=0-1"}),
        await place.viewer.get(object_, headers={"Range": "bytes=99-"}),
        await place.viewer.get(object_, headers={"If-None-Match": "*"}),
        await place.viewer.get("/i/1/1.1/large.webp"),  # goes by
        await place.viewer.get("/i/1/1.1/nothing.webp"),
        await place.viewer.get(POINTER),
    ]
    place.api.hangs_up = True
    answers.append(await place.viewer.get(OTHER))

    assert [200, 200, 200, 206, 416, 304, 200, 404, 302, 502] == [
        answer.status_code for answer in answers
    ]
    assert {"nosniff"} == {answer.headers["x-content-type-options"] for answer in answers}


async def test_pages_of_any_origin_read_what_is_published_and_what_leads_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "LARGEST_BODY", 10)
    for name, body in (("thumb", b"pixels"), ("large", b"many pixels")):
        place.put(f"i/1/1.1/{name}.webp", body)
    paths = ["/i/1/1.1/thumb.webp", "/i/1/1.1/large.webp", "/i/1/1.1/nothing.webp", POINTER]

    # The first of each is kept: who it was asked by is no part of it.
    for origin in ("https://app.example", "null", None):
        headers = {} if origin is None else {"Origin": origin}
        answers = [await place.viewer.get(path, headers=headers) for path in paths]

        assert [200, 200, 404, 302] == [answer.status_code for answer in answers]
        allowed = {answer.headers.get("access-control-allow-origin") for answer in answers}
        assert allowed == {"*" if origin else None}


@pytest.mark.parametrize(
    "request_",
    [
        b"<script> /i/1 HTTP/1.1\r\n\r\n",
        b"GET /i/1 HTTP/1.1\r\n<b>: x\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_not_sniffed_either(place: Place, request_: bytes) -> None:
    reader, writer = await asyncio.open_connection(place.viewer.base_url.host, edge_port(place))
    writer.write(request_)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.0 400")
    assert b"X-Content-Type-Options: nosniff\r\n" in answer.partition(b"\r\n\r\n")[0] + b"\r\n"


async def test_a_missing_picture_is_missing_for_ten_seconds(place: Place) -> None:
    first = await place.viewer.get("/i/1/1.1/thumb.webp")
    place.put("i/1/1.1/thumb.webp", b"pixels")
    second = await place.viewer.get("/i/1/1.1/thumb.webp")

    assert [404, 404] == [first.status_code, second.status_code]
    place.invalidate("/i/1/1.1/thumb.webp")

    async def there() -> bool:
        return (await place.viewer.get("/i/1/1.1/thumb.webp")).status_code == 200

    await eventually(there, within=5)


@pytest.mark.parametrize(
    "path", ["/", "/o/1/original", "/i/../../secrets/key", "/i/%2e%2e/%2e%2e/x", "/i/./x"]
)
async def test_nothing_else_is_served(place: Place, path: str) -> None:
    reader, writer = await asyncio.open_connection(place.viewer.base_url.host, edge_port(place))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 404")
    assert b"Contents" not in answer


def edge_port(place: Place) -> int:
    assert place.viewer.base_url.port is not None
    return place.viewer.base_url.port
