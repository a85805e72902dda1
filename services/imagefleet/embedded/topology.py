"""What exists in AWS beside our processes, as data: `topology.json`, which other tools read too.

Names are a prefix and the key. Where a number comes from is told in infra/bootstrap/README.md.
CloudFront's part of it, one distribution with two origins, is made here as well.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_cloudfront.client import CloudFrontClient
    from types_aiobotocore_cloudfront.type_defs import DistributionConfigTypeDef, OriginTypeDef

DEAD_LETTER: Final = "dead-letter"
SERVED: Final = "outputs"  # names of the two origins inside the distribution
POINTERS: Final = "api"


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QueueDescription(_Described):
    visibility_seconds: int
    retention_days: int
    max_receives: int | None = None
    """After so many receives SQS itself moves a message to the dead-letter queue; None is never."""


class BucketDescription(_Described):
    pages_may: Sequence[Literal["GET", "HEAD", "POST"]]
    """What a page of any origin may ask of it, where it has leave by a signature or by the edge."""


class EdgeDescription(_Described):
    served_bucket: str
    served_cache_policy: str
    pointers_path: str
    """These addresses are redirects, which the API answers."""
    pointers_cache_policy: str
    headers_policy: str
    """What viewers are told beside what the origins say, of objects and redirects alike."""


class Topology(_Described):
    queues: Mapping[str, QueueDescription]
    long_poll_seconds: int
    buckets: Mapping[str, BucketDescription]
    abort_multipart_after_days: int
    edge: EdgeDescription


@cache
def described() -> Topology:
    """Read the description that comes with this version."""
    return Topology.model_validate_json((files(__package__) / "topology.json").read_bytes())


async def ensure_distribution(
    client: "CloudFrontClient",
    edge: EdgeDescription,
    *,
    prefix: str,
    bucket_domain: str,
    api_domain: str,
) -> tuple[str, str]:
    """Id and ARN of the distribution with this prefix as its comment; it is made when missing."""
    if existing := await _find_distribution(client, prefix):
        return existing
    origins: list[OriginTypeDef] = [
        {
            "Id": SERVED,
            "DomainName": bucket_domain,
            "OriginAccessControlId": await _ensure_access_control(client, prefix),
            "S3OriginConfig": {"OriginAccessIdentity": ""},
        },
        {
            "Id": POINTERS,
            "DomainName": api_domain,
            "CustomOriginConfig": {
                "HTTPPort": 80,
                "HTTPSPort": 443,
                "OriginProtocolPolicy": "https-only",
                "OriginSslProtocols": {"Quantity": 1, "Items": ["TLSv1.2"]},
            },
        },
    ]
    made = await client.create_distribution(DistributionConfig=_config(edge, prefix, origins))
    return made["Distribution"]["Id"], made["Distribution"]["ARN"]


async def _find_distribution(client: "CloudFrontClient", comment: str) -> tuple[str, str] | None:
    async for page in client.get_paginator("list_distributions").paginate():
        for item in page["DistributionList"].get("Items", ()):
            if item["Comment"] == comment:
                return item["Id"], item["ARN"]
    return None


async def _ensure_access_control(client: "CloudFrontClient", name: str) -> str:
    listed = (await client.list_origin_access_controls())["OriginAccessControlList"]
    for item in listed.get("Items", ()):
        if item["Name"] == name:
            return item["Id"]
    made = await client.create_origin_access_control(
        OriginAccessControlConfig={
            "Name": name,
            "SigningProtocol": "sigv4",
            "SigningBehavior": "always",
            "OriginAccessControlOriginType": "s3",
        }
    )
    return made["OriginAccessControl"]["Id"]


def _config(
    edge: EdgeDescription, prefix: str, origins: "list[OriginTypeDef]"
) -> "DistributionConfigTypeDef":
    return {
        "CallerReference": prefix,  # two starts at once make one distribution
        "Comment": prefix,
        "Enabled": True,
        # Who asks for `/` would else be given a listing of the bucket, which the edge may list.
        "DefaultRootObject": "nothing",
        "Origins": {"Quantity": len(origins), "Items": origins},
        "DefaultCacheBehavior": {
            "TargetOriginId": SERVED,
            "ViewerProtocolPolicy": "redirect-to-https",
            "CachePolicyId": edge.served_cache_policy,
            "ResponseHeadersPolicyId": edge.headers_policy,
            "Compress": False,  # images are compressed already
        },
        "CacheBehaviors": {
            "Quantity": 1,
            "Items": [
                {
                    "PathPattern": edge.pointers_path,
                    "TargetOriginId": POINTERS,
                    "ViewerProtocolPolicy": "redirect-to-https",
                    "CachePolicyId": edge.pointers_cache_policy,
                    "ResponseHeadersPolicyId": edge.headers_policy,
                    "Compress": False,
                }
            ],
        },
    }
