"""The host of every published address on this machine, in the place of CloudFront.

A viewer gets all of an answer, a range, its headers alone, or nothing new; and is told beside it
what the distribution's response headers policy says.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig
from aiohttp import web

from imagefleet.embedded.edge.cache import Cache, EdgeAnswer, Fill, Invalidations, Kept
from imagefleet.embedded.edge.origins import (
    ACROSS_ORIGINS,
    ERROR_SECONDS,
    UPSTREAM_WITHIN,
    Origins,
    TooLarge,
    headers_of,
    moment_of,
    passed_on,
    seconds_kept,
)
from imagefleet.embedded.machine import HOST
from imagefleet.embedded.processes import Facts
from imagefleet.embedded.topology import described

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_cloudfront.client import CloudFrontClient
    from types_aiobotocore_s3.client import S3Client

GO_ON_AFTER: Final = frozenset({HTTPStatus.NOT_MODIFIED, *range(500, 600)})
ONE_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
ABOUT_THE_BODY: Final = frozenset({"Content-Type", "Accept-Ranges"})

ASKED_FOR_LARGE: Final = ("Range", "If-Range", "If-None-Match", "If-Modified-Since")
BACKLOG: Final = 128
GALLERY: Final = "/gallery"  # no published key begins so
CONFIG: Final = AioConfig(
    signature_version="s3v4",
    s3={"addressing_style": "path"},
    ignore_configured_endpoint_urls=True,
    connect_timeout=3,
    read_timeout=5,
    retries={"total_max_attempts": 1},
)


@dataclass(frozen=True, slots=True)
class Served:
    """An answer, and how it was come by."""

    answer: EdgeAnswer
    how: str
    age: int | None = None


@dataclass(slots=True, eq=False)
class Flight:
    """One question for all who ask the same at once."""

    fill: Fill
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    kept: Kept | None = None


class EdgeServer:
    """Answers GET and HEAD, from what it keeps if it can."""

    def __init__(self, cache: Cache, origins: Origins) -> None:
        self._cache = cache
        self._origins = origins
        self._flights: dict[str, Flight] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a viewer; the query is no part of an address."""
        path = request.raw_path.partition("?")[0]
        if not path.startswith("/") or {".", ".."} & set(request.path.split("/")):
            raise web.HTTPNotFound
        served = await self.find(path)
        if isinstance(served, TooLarge):
            return await self._pass_through(request, path)
        told = answered(served.answer, request.headers)
        headers = {**told.headers, "X-Cache": f"{served.how} from the embedded edge"}
        if served.age is not None:
            headers["Age"] = str(served.age)
        return web.Response(status=told.status, headers=headers, body=told.body)

    async def find(self, path: str) -> Served | TooLarge:
        """Ask the origin only for what is not kept, and once for all who ask meanwhile."""
        kept = self._cache.find(path)
        if kept is not None and self._cache.is_fresh(kept):
            return Served(kept.answer, "Hit", self._cache.age(kept))
        flight = self._flights.get(path)
        if flight is None or not flight.fill.is_current:
            return await self._fly(path, kept)
        await flight.ended.wait()
        if flight.kept is not None:
            return Served(flight.kept.answer, "Hit", self._cache.age(flight.kept))
        # What may not be kept was an answer to somebody else's question.
        return await self._fill(self._cache.begin(path), None, None)

    async def _fly(self, path: str, stale: Kept | None) -> Served | TooLarge:
        flight = self._flights[path] = Flight(self._cache.begin(path))
        try:
            return await self._fill(flight.fill, stale, flight)
        finally:
            if self._flights.get(path) is flight:
                del self._flights[path]
            flight.ended.set()

    async def _fill(
        self, fill: Fill, stale: Kept | None, flight: Flight | None
    ) -> Served | TooLarge:
        try:
            etag = stale.answer.headers.get("ETag") if stale is not None else None
            answer = await self._origins.ask(fill.path, etag)
            if isinstance(answer, TooLarge):
                return answer
            if stale is not None and answer.status in GO_ON_AFTER:
                return await self._go_on(fill, stale, answer)
            policy = self._origins.policy(fill.path)
            kept = self._cache.keep(
                fill, answer, seconds_kept(answer.status, answer.headers, policy)
            )
            if flight is not None:
                flight.kept = kept
            return Served(answer, "Miss")
        finally:
            self._cache.end(fill)

    async def _go_on(self, fill: Fill, stale: Kept, answer: EdgeAnswer) -> Served:
        """With what was kept too long: it still holds, or nothing better is to be had."""
        policy = self._origins.policy(fill.path)
        if answer.status == HTTPStatus.NOT_MODIFIED:
            seconds = seconds_kept(stale.answer.status, stale.answer.headers, policy)
            self._cache.extend(fill, stale, seconds, confirmed=True)
            return Served(stale.answer, "RefreshHit", 0)
        if self._cache.extend(fill, stale, ERROR_SECONDS, confirmed=False):
            return Served(stale.answer, "Stale", self._cache.age(stale))
        return Served(answer, "Miss")

    async def _pass_through(self, request: web.Request, path: str) -> web.StreamResponse:
        """What is too large to hold goes by, and is asked for every time."""
        asked = {name: request.headers[name] for name in ASKED_FOR_LARGE if name in request.headers}
        try:
            async with self._origins.answering(path, asked) as response:
                headers = passed_on(response.headers)
                if response.content_length is not None:
                    headers["Content-Length"] = str(response.content_length)
                headers["X-Cache"] = "Miss from the embedded edge"
                answer = web.StreamResponse(status=response.status, headers=headers)
                await answer.prepare(request)
                if request.method != "HEAD":
                    async for chunk in response.content.iter_any():
                        await answer.write(chunk)
                return answer
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=f"{type(error).__name__}\n") from error


class _Connection(web.RequestHandler):
    """A viewer's, where what no application ever sees is answered with the same headers."""

    __slots__ = ("_headers",)

    def __init__(self, server: web.Server, headers: Mapping[str, str]) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # as AppRunner hands it on: none is kept
        )
        self._headers = headers

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        answer = super().handle_error(request, status, exc, message)
        answer.headers.update(self._headers)
        return answer


@asynccontextmanager
async def serve_edge(
    port: int,
    *,
    facts: Callable[[], Facts],
    api_url: str,
    host: str = HOST,
    gallery: Callable[[], str | None] = lambda: None,
) -> AsyncIterator[Invalidations]:
    """Serve until the end of the context, as the distribution of these facts.

    Nothing is kept until somebody follows the invalidations, which the caller has to.
    Of its own it has the page that `gallery` tells, where there is one.
    """
    aws, bucket = facts().aws, facts().topology["OUTPUTS_BUCKET"]
    cache = Cache()
    async with AsyncExitStack() as stack:
        s3, cloudfront = await _clients(aws, stack)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=UPSTREAM_WITHIN, auto_decompress=False)
        )
        origins = Origins(http, s3, described().edge, bucket=bucket, api_url=api_url)
        edge = EdgeServer(cache, origins)
        invalidations = Invalidations(
            cloudfront, cache, lambda: facts().topology["CLOUDFRONT_DISTRIBUTION_ID"]
        )
        policy = described().edge.headers_policy
        headers, for_pages = dict(headers_of(policy)), dict(ACROSS_ORIGINS.get(policy, {}))

        async def add_headers(request: web.Request, answer: web.StreamResponse) -> None:
            answer.headers.update(headers | for_pages if "Origin" in request.headers else headers)

        async def show_gallery(_request: web.Request) -> web.Response:
            page = gallery()
            if page is None:
                raise web.HTTPNotFound
            kept = {"Cache-Control": "no-store"}
            return web.Response(text=page, content_type="text/html", headers=kept)

        application = web.Application()
        application.on_response_prepare.append(add_headers)
        application.router.add_get("/i/{path:.*}", edge.answer)
        application.router.add_get(GALLERY, show_gallery)
        runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        # No site of aiohttp's: it knows no other kind of connection.
        server = runner.server
        assert server is not None  # noqa: S101 - set up
        listening = await asyncio.get_running_loop().create_server(
            lambda: _Connection(server, headers), host, port, backlog=BACKLOG
        )
        stack.callback(listening.close)
        yield invalidations


async def _clients(
    aws: Mapping[str, str], stack: AsyncExitStack
) -> "tuple[S3Client, CloudFrontClient]":
    session = aioboto3.Session(
        region_name=aws["AWS_REGION"],
        aws_access_key_id=aws["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=aws["AWS_SECRET_ACCESS_KEY"],
    )
    url = aws["AWS_ENDPOINT_URL"]
    s3 = await stack.enter_async_context(session.client("s3", endpoint_url=url, config=CONFIG))
    elsewhere = aws.get("AWS_ENDPOINT_URL_CLOUDFRONT", url)
    cloudfront = await stack.enter_async_context(
        session.client("cloudfront", endpoint_url=elsewhere, config=CONFIG)
    )
    return s3, cloudfront


def answered(answer: EdgeAnswer, asked: Mapping[str, str]) -> EdgeAnswer:
    """Answer conditions and ranges from the whole; `asked` are the viewer's headers."""
    if answer.status != HTTPStatus.OK:
        return answer
    if _is_known(answer, asked):
        told = {n: v for n, v in answer.headers.items() if n not in ABOUT_THE_BODY}
        return EdgeAnswer(HTTPStatus.NOT_MODIFIED, told)
    wanted = ONE_RANGE.fullmatch(asked.get("Range", ""))  # several at once: all of it, as allowed
    if wanted is None or wanted[0] == "bytes=-" or not _is_the_same(answer, asked):
        return answer
    return _part(answer, wanted[1], wanted[2])


def _part(answer: EdgeAnswer, first: str, last: str) -> EdgeAnswer:
    size = len(answer.body)
    begin = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if first and last and int(last) < begin:
        return answer  # no range at all
    if begin >= size or (not first and int(last) == 0):
        told = {n: v for n, v in answer.headers.items() if n not in ABOUT_THE_BODY}
        told["Content-Range"] = f"bytes */{size}"
        return EdgeAnswer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, told)
    told = {**answer.headers, "Content-Range": f"bytes {begin}-{end}/{size}"}
    return EdgeAnswer(HTTPStatus.PARTIAL_CONTENT, told, answer.body[begin : end + 1])


def _is_known(answer: EdgeAnswer, asked: Mapping[str, str]) -> bool:
    """Whether the viewer has this very answer; tags count before times."""
    etag = answer.headers.get("ETag")
    if "If-None-Match" in asked:
        listed = {tag.strip().removeprefix("W/") for tag in asked["If-None-Match"].split(",")}
        return "*" in listed or (etag is not None and etag.removeprefix("W/") in listed)
    changed, since = answer.headers.get("Last-Modified"), asked.get("If-Modified-Since")
    if changed is None or since is None:
        return False
    try:
        return moment_of(changed) <= moment_of(since)
    except (ValueError, TypeError):
        return False


def _is_the_same(answer: EdgeAnswer, asked: Mapping[str, str]) -> bool:
    """Whether a range continues what the viewer has; else it needs all of it."""
    if "If-Range" not in asked:
        return True
    return asked["If-Range"] in {answer.headers.get("ETag"), answer.headers.get("Last-Modified")}
