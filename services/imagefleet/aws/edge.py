"""CloudFront: bring the edge into agreement, and hear when that is done."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagefleet.aws.calls import Line

if TYPE_CHECKING:
    from types_aiobotocore_cloudfront.client import CloudFrontClient
    from types_aiobotocore_cloudfront.type_defs import InvalidationTypeDef

MOST_ITEMS: Final = 3000  # in progress at once on one distribution, so in one batch too


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalidation:
    """What CloudFront says about one batch."""

    id: str
    completed: bool
    """False: in progress. No other status exists."""


class Edge:
    """One distribution."""

    def __init__(self, distribution_id: str, *, line: Line, client: "CloudFrontClient") -> None:
        self.distribution_id = distribution_id
        self._line = line
        self._client = client

    async def create_invalidation(
        self, items: Sequence[str], *, caller_reference: str
    ) -> Invalidation:
        """Ask for a batch of paths, wildcards or `#tags`; a repeat by its reference is no second.

        `cloudfront_too_many` and `cloudfront_throttled` mean: later, exactly the same again.
        """
        async with self._line.calling("CreateInvalidation"):
            answer = await self._client.create_invalidation(
                DistributionId=self.distribution_id,
                InvalidationBatch={
                    "Paths": {"Quantity": len(items), "Items": list(items)},
                    "CallerReference": caller_reference,
                },
            )
        return _invalidation(answer["Invalidation"])

    async def get_invalidation(self, invalidation_id: str) -> Invalidation:
        """Ask how far it is; NotFound when CloudFront has forgotten it or never knew."""
        async with self._line.calling("GetInvalidation"):
            answer = await self._client.get_invalidation(
                DistributionId=self.distribution_id, Id=invalidation_id
            )
        return _invalidation(answer["Invalidation"])


def _invalidation(answer: "InvalidationTypeDef") -> Invalidation:
    # AWS says `Completed`, some emulators `COMPLETED`.
    return Invalidation(id=answer["Id"], completed=answer["Status"].lower() == "completed")
