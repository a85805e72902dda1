"""How long CloudFront keeps an answer: what its origin says, within what the policy allows."""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

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


# AWS's managed policies, by the ids that are the same in every account.
MANAGED: Final[Mapping[str, Policy]] = {
    "658327ea-f89d-4fab-a63d-7e88639e58f6": Policy(  # CachingOptimized
        minimum=1, default=86_400, maximum=31_536_000
    ),
    "b2884449-e4de-46a7-ac36-70bc7f1ddd6d": Policy(  # CachingOptimizedForUncompressedObjects
        minimum=1, default=86_400, maximum=31_536_000
    ),
    "83da9c7e-98b4-4e11-a168-04f0df8e2c65": Policy(  # UseOriginCacheControlHeaders
        minimum=0, default=0, maximum=31_536_000
    ),
    "4135ea2d-6df8-44a3-9df3-4b5a84be39ad": Policy(  # CachingDisabled
        minimum=0, default=0, maximum=0
    ),
}


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
    found: dict[str, str] = {}
    for one in cache_control.split(","):
        name, _, value = one.partition("=")
        if name.strip():
            found.setdefault(name.strip().lower(), value.strip().strip('"'))
    return found


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
        left = _time(headers["Expires"]) - _time(headers["Date"])
    except (KeyError, ValueError, TypeError):
        return 0
    return max(left, 0)


def _time(date: str) -> float:
    found = parsedate_to_datetime(date)
    if found.tzinfo is None:
        raise ValueError(date)
    return found.timestamp()
