"""Hears of invalidations where everybody does: at the CloudFront API.

The emulator's CloudFront takes invalidations down and says `Completed` at once; nobody carries them
out. So the edge asks it for the list again and again, and applies each that is new, once. For that
long, `LOOK_EVERY` and the answer, a completed invalidation may not be in effect yet.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, TypedDict

import structlog

from imagefleet.aws.calls import translated
from imagefleet.embedded.edge.cache import Cache
from imagefleet.errors import FleetError

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_cloudfront.client import CloudFrontClient

LOOK_EVERY: Final = 0.2  # seconds
AFTER_FAILURE: Final = 1.0
REST: Final = 10  # times as long as a look took, as it takes longer the more were made

log = structlog.get_logger()


class _After(TypedDict, total=False):
    Marker: str


class Invalidations:
    """Applies to the cache what is invalidated at its distribution."""

    def __init__(
        self, client: "CloudFrontClient", cache: Cache, distribution: Callable[[], str]
    ) -> None:
        """`distribution` tells its id now: an emulator that lost everything gets another one."""
        self._client = client
        self._cache = cache
        self._distribution = distribution
        self._watched: str | None = None
        self._known: set[str] = set()
        self._failing = False

    async def follow(self) -> None:
        """Look for ever; while CloudFront is away nobody can invalidate anything either."""
        while True:
            begun = monotonic()
            try:
                await self.look()
            except FleetError as error:
                if not self._failing:
                    log.warning("edge.deaf", code=error.code, detail=error.detail)
                self._failing = True
                await asyncio.sleep(AFTER_FAILURE)
            else:
                self._failing = False
                await asyncio.sleep(max(LOOK_EVERY, REST * (monotonic() - begun)))

    async def look(self) -> None:
        """Apply what is new. The first look only learns what is old, and opens the cache."""
        distribution = self._distribution()
        with translated("cloudfront"):
            listed = await self._list(distribution)
            if distribution != self._watched:
                self._cache.forget_everything()
                self._known = set(listed)
                self._watched = distribution
                self._cache.open()
            for each in listed:
                if each not in self._known:
                    await self._apply(distribution, each)
        self._known.intersection_update(listed)

    async def _apply(self, distribution: str, invalidation: str) -> None:
        found = await self._client.get_invalidation(DistributionId=distribution, Id=invalidation)
        paths = found["Invalidation"]["InvalidationBatch"]["Paths"]
        self._cache.forget(paths.get("Items", ()))
        self._known.add(invalidation)

    async def _list(self, distribution: str) -> list[str]:
        listed: list[str] = []
        after: _After = {}
        while True:
            answer = await self._client.list_invalidations(DistributionId=distribution, **after)
            page = answer["InvalidationList"]
            listed += [item["Id"] for item in page.get("Items", ())]
            if not page["IsTruncated"]:
                return listed
            after = {"Marker": page["NextMarker"]}
