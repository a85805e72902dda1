"""The host of every published address on this machine, in the place of CloudFront.

Images come from the bucket, with a signed request of our own, as nobody else may read it; pointers
(`/i/*/current/*`) come from the API. It keeps nothing, so it never disagrees with either.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig
from aiohttp import web

from imagefleet.embedded.ports import HOST

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_s3.client import S3Client

POINTER: Final = re.compile(r"/i/[^/]+/current/[^/]+")
SIGNED_FOR: Final = 60  # seconds
UPSTREAM_WITHIN: Final = aiohttp.ClientTimeout(total=30, connect=3)
ASKED: Final = ("Range", "If-None-Match", "If-Modified-Since")
ANSWERED: Final = (
    "Accept-Ranges", "Cache-Control", "Content-Length", "Content-Range", "Content-Type", "ETag",
    "Last-Modified", "Location", "Retry-After",
)  # fmt: skip
CONFIG: Final = AioConfig(
    signature_version="s3v4", s3={"addressing_style": "path"}, ignore_configured_endpoint_urls=True
)


class Front:
    """Answers GET and HEAD."""

    def __init__(
        self, http: aiohttp.ClientSession, s3: "S3Client", *, bucket: str, api_url: str
    ) -> None:
        self._http = http
        self._s3 = s3
        self._bucket = bucket
        self._api_url = api_url

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Pass on what the bucket or the API says."""
        target = await self._target(request)
        asked = {name: request.headers[name] for name in ASKED if name in request.headers}
        try:
            async with self._http.request(
                request.method, target, headers=asked, allow_redirects=False
            ) as found:
                answer = web.StreamResponse(status=found.status, headers=_passed_on(found.headers))
                await answer.prepare(request)
                async for chunk in found.content.iter_any():
                    await answer.write(chunk)
                return answer
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=f"{type(error).__name__}\n") from error

    async def _target(self, request: web.Request) -> str:
        if POINTER.fullmatch(request.path):
            return f"{self._api_url}{request.path_qs}"
        operation: Literal["head_object", "get_object"] = (
            "head_object" if request.method == "HEAD" else "get_object"
        )
        return await self._s3.generate_presigned_url(
            operation,
            Params={"Bucket": self._bucket, "Key": request.path.removeprefix("/")},
            ExpiresIn=SIGNED_FOR,
        )


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in ANSWERED if name in headers}


@asynccontextmanager
async def serve_front(
    port: int, *, aws: Mapping[str, str], bucket: str, api_url: str
) -> AsyncIterator[None]:
    """Serve until the end of the context."""
    session = aioboto3.Session(
        region_name=aws["AWS_REGION"],
        aws_access_key_id=aws["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=aws["AWS_SECRET_ACCESS_KEY"],
    )
    async with AsyncExitStack() as stack:
        s3 = await stack.enter_async_context(
            session.client("s3", endpoint_url=aws["AWS_ENDPOINT_URL"], config=CONFIG)
        )
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=UPSTREAM_WITHIN))
        front = Front(http, s3, bucket=bucket, api_url=api_url)
        application = web.Application()
        application.router.add_get("/i/{path:.*}", front.answer)
        runner = web.AppRunner(
            application, handle_signals=False, access_log=None, shutdown_timeout=1
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, HOST, port).start()
        yield
