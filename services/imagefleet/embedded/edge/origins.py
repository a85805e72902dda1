"""Where answers come from, the bucket and the API; for how long they hold, and what goes with them.

CloudFront keeps an answer for as long as its origin says, within what the cache policy allows.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

import aiohttp
import yarl

from imagefleet.embedded.edge.cache import LARGEST_BODY, TAG_HEADER, EdgeAnswer
from imagefleet.embedded.topology import EdgeDescription
from imagefleet.errors import Misconfigured

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_s3.client import S3Client


# Nothing in a distribution of ours sets another Error Caching Minimum TTL than CloudFront's own.
ERROR_SECONDS: Final = 10

KEPT: Final = frozenset({200, 203, 300, 301, 302, 307, 308})
ERRORS_KEPT: Final = frozenset({404, 410, 414, 500, 501, 502, 503, 504})
ERRORS_KEPT_IF_ASKED: Final = frozenset({400, 403, 405, 412, 415})  # with a max-age of their own
ERRORS_THAT_MAY_REFUSE: Final = frozenset({404, 410, 414, 501})  # no other error's no-store counts
FORBIDDING: Final = frozenset({"no-cache", "no-store", "private"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The times of a cache policy, in seconds."""

    minimum: int
    """Also for what says that it must not be kept, unless it is 0."""
    default: int
    """For what says nothing."""
    maximum: int

    def within(self, seconds: float) -> float:
        return min(max(seconds, self.minimum), self.maximum)


_OPTIMIZED: Final = Policy(minimum=1, default=86_400, maximum=31_536_000)

# AWS's managed policies, by the ids that are the same in every account.
MANAGED: Final[Mapping[str, Policy]] = {
    "658327ea-f89d-4fab-a63d-7e88639e58f6": _OPTIMIZED,  # CachingOptimized
    "b2884449-e4de-46a7-ac36-70bc7f1ddd6d": _OPTIMIZED,  # CachingOptimizedForUncompressedObjects
    "83da9c7e-98b4-4e11-a168-04f0df8e2c65": Policy(  # UseOriginCacheControlHeaders
        minimum=0, default=0, maximum=31_536_000
    ),
    "4135ea2d-6df8-44a3-9df3-4b5a84be39ad": Policy(  # CachingDisabled
        minimum=0, default=0, maximum=0
    ),
}


# Strict-Transport-Security, which this one has too, is not for an edge without TLS.
_SECURITY: Final = {
    "Referrer-Policy": "strict-origin-when-cross-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "X-XSS-Protection": "1; mode=block",
}
MANAGED_HEADERS: Final[Mapping[str, Mapping[str, str]]] = {
    "67f7725c-6f97-4210-82d7-5512b31e9d03": _SECURITY,  # SecurityHeadersPolicy
    "e61eb60c-9c35-4d20-a928-2b84e02af89c": _SECURITY,  # CORS-and-SecurityHeadersPolicy
}
ACROSS_ORIGINS: Final[Mapping[str, Mapping[str, str]]] = {
    "e61eb60c-9c35-4d20-a928-2b84e02af89c": {"Access-Control-Allow-Origin": "*"}
}
"""What the same policies add where a request says which origin it comes from."""


def seconds_kept(status: int, headers: Mapping[str, str], policy: Policy) -> float:
    """For how long an answer may be given again without asking its origin; 0 is not at all."""
    said = directives(headers.get("Cache-Control", ""))
    asked = _asked(said)
    forbidden = not FORBIDDING.isdisjoint(said)
    if status in KEPT:
        if forbidden:
            return policy.minimum
        told = _until_expiry(headers) if asked is None else asked
        return policy.within(policy.default if told is None else told)
    if status in ERRORS_KEPT:
        if forbidden and status in ERRORS_THAT_MAY_REFUSE:
            return 0
        return max(ERROR_SECONDS, 0 if forbidden else asked or 0)
    if status in ERRORS_KEPT_IF_ASKED and asked is not None and not forbidden:
        return max(ERROR_SECONDS, asked)
    return 0


def directives(cache_control: str) -> dict[str, str]:
    """Of Cache-Control; of one that is said twice the first counts."""
    said: dict[str, str] = {}
    for directive in cache_control.split(","):
        name, _, value = directive.partition("=")
        if name.strip():
            said.setdefault(name.strip().lower(), value.strip().strip('"'))
    return said


def _asked(said: Mapping[str, str]) -> int | None:
    """What is said to caches that many share; nonsense means: old already."""
    for name in ("s-maxage", "max-age"):
        if name in said:
            value = said[name]
            return int(value) if value.isascii() and value.isdigit() else 0
    return None


def _until_expiry(headers: Mapping[str, str]) -> float | None:
    if "Expires" not in headers:
        return None
    try:
        left = moment_of(headers["Expires"]) - moment_of(headers["Date"])
    except (KeyError, ValueError, TypeError):
        return 0
    return max(left, 0)


def moment_of(date: str) -> float:
    """A moment of HTTP, in seconds; ValueError or TypeError where it is none."""
    moment = parsedate_to_datetime(date)
    if moment.tzinfo is None:
        raise ValueError(date)
    return moment.timestamp()


def headers_of(policy_id: str) -> Mapping[str, str]:
    """What this policy adds to every answer, errors included."""
    if policy_id not in MANAGED_HEADERS:
        detail = f"the embedded edge does not know the response headers policy {policy_id}"
        raise Misconfigured(detail)
    return MANAGED_HEADERS[policy_id]


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
        self._pointers = description.pointers_path
        self._served_policy = _policy(description.served_cache_policy)
        self._pointers_policy = _policy(description.pointers_cache_policy)

    def policy(self, path: str) -> Policy:
        """The times of the behaviour that this path falls under."""
        return self._pointers_policy if self._is_pointer(path) else self._served_policy

    async def ask(self, path: str, etag: str | None) -> EdgeAnswer | TooLarge:
        """The whole answer; with an ETag 304 says that it still holds.

        An origin that is away is an answer too: CloudFront makes one up.
        """
        headers = {} if etag is None else {"If-None-Match": etag}
        try:
            async with self.answering(path, headers) as response:
                body = await _whole(response)
                if body is None:
                    return TooLarge()
                return EdgeAnswer(response.status, passed_on(response.headers), body)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            status, why = SILENT if isinstance(error, TimeoutError) else UNREACHABLE
            said = f"{why} ({type(error).__name__})\n".encode()
            return EdgeAnswer(status, {"Content-Type": "text/plain"}, said)

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
        """By a behaviour's path pattern: `*` is anything, `?` one character."""
        return fnmatchcase(path, self._pointers)


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


def _policy(policy_id: str) -> Policy:
    if policy_id not in MANAGED:
        detail = f"the embedded edge does not know the cache policy {policy_id}"
        raise Misconfigured(detail)
    return MANAGED[policy_id]
