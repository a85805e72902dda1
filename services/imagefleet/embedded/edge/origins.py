"""Where answers come from: the bucket, with a signed request of our own, and the API."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

import aiohttp
import yarl

from imagefleet.embedded.edge.cache import LARGEST_BODY, TAG_HEADER, Answer
from imagefleet.embedded.edge.freshness import MANAGED, Policy
from imagefleet.embedded.topology import EdgeDescription
from imagefleet.errors import Misconfigured

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_s3.client import S3Client

SIGNED_FOR: Final = 60  # seconds
UPSTREAM_WITHIN: Final = aiohttp.ClientTimeout(total=30, connect=3)
PASSED_ON: Final = (
    "Accept-Ranges", "Cache-Control", "Content-Range", "Content-Type", "Date", "ETag", "Expires",
    "Last-Modified", "Location", "Retry-After", TAG_HEADER,
)  # fmt: skip
UNREACHABLE: Final = (502, "the origin is not there")
SILENT: Final = (504, "the origin does not answer")

Response: TypeAlias = aiohttp.ClientResponse


@dataclass(frozen=True, slots=True)
class TooLarge:
    """There is an answer, and the edge will not hold all of it."""


class Origins:
    """The two origins of the distribution, told apart by path as its behaviours do it."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        s3: "S3Client",
        description: EdgeDescription,
        *,
        bucket: str,
        api_url: str,
    ) -> None:
        self._http = http
        self._s3 = s3
        self._bucket = bucket
        self._api_url = api_url
        self._pointers = _pattern(description.pointers_path)
        self._served_policy = _policy(description.served_cache_policy)
        self._pointers_policy = _policy(description.pointers_cache_policy)

    def policy(self, path: str) -> Policy:
        """The times of the behaviour that this path falls under."""
        return self._pointers_policy if self._is_pointer(path) else self._served_policy

    async def ask(self, path: str, etag: str | None) -> Answer | TooLarge:
        """The whole answer; with an ETag 304 says that it still holds.

        An origin that is away is an answer too: CloudFront makes one up.
        """
        headers = {} if etag is None else {"If-None-Match": etag}
        try:
            async with self.answering(path, headers) as response:
                body = await _whole(response)
                if body is None:
                    return TooLarge()
                return Answer(response.status, passed_on(response.headers), body)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            status, why = SILENT if isinstance(error, TimeoutError) else UNREACHABLE
            said = f"{why} ({type(error).__name__})\n".encode()
            return Answer(status, {"Content-Type": "text/plain"}, said)

    @asynccontextmanager
    async def answering(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[Response]:
        """An answer as it comes."""
        url = await self._url(path)
        async with self._http.get(
            yarl.URL(url, encoded=True), headers=headers, allow_redirects=False
        ) as response:
            yield response

    async def _url(self, path: str) -> str:
        if self._is_pointer(path):
            return f"{self._api_url}{path}"
        return await self._s3.generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "Key": unquote(path.removeprefix("/"))},
            ExpiresIn=SIGNED_FOR,
        )

    def _is_pointer(self, path: str) -> bool:
        return self._pointers.fullmatch(path) is not None


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """What a viewer hears of an origin's headers, each under the one name it has here."""
    return {name: headers[name] for name in PASSED_ON if name in headers}


async def _whole(response: Response) -> bytes | None:
    """Its body; None when that is too large."""
    if (response.content_length or 0) > LARGEST_BODY:
        return None
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > LARGEST_BODY:
            return None
    return bytes(body)


def _pattern(path: str) -> re.Pattern[str]:
    """A behaviour's path pattern: `*` is anything, `?` one character."""
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(c, re.escape(c)) for c in path), re.DOTALL)


def _policy(policy_id: str) -> Policy:
    if policy_id not in MANAGED:
        detail = f"the embedded edge does not know the cache policy {policy_id}"
        raise Misconfigured(detail)
    return MANAGED[policy_id]
