"""CloudFront's part of the topology: one distribution with two origins."""

from typing import TYPE_CHECKING, Final, TypedDict

from imagefleet.embedded.topology import EdgeDescription

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_cloudfront.client import CloudFrontClient
    from types_aiobotocore_cloudfront.type_defs import DistributionConfigTypeDef, OriginTypeDef

SERVED: Final = "outputs"  # names of the two origins inside the distribution
POINTERS: Final = "api"
NO_OBJECT: Final = "nothing"


class _After(TypedDict, total=False):
    Marker: str


async def ensure_distribution(
    client: "CloudFrontClient",
    edge: EdgeDescription,
    *,
    prefix: str,
    bucket_domain: str,
    api_domain: str,
) -> tuple[str, str]:
    """Id and ARN of the distribution with this prefix as its comment; it is made when missing."""
    found = await _find_distribution(client, prefix)
    if found is not None:
        return found
    access_control = await _ensure_access_control(client, prefix)
    config = _config(
        edge,
        prefix=prefix,
        origins=[_bucket_origin(bucket_domain, access_control), _api_origin(api_domain)],
    )
    made = await client.create_distribution(DistributionConfig=config)
    return made["Distribution"]["Id"], made["Distribution"]["ARN"]


async def _find_distribution(client: "CloudFrontClient", comment: str) -> tuple[str, str] | None:
    after: _After = {}
    while True:
        page = (await client.list_distributions(**after))["DistributionList"]
        for item in page.get("Items", ()):
            if item["Comment"] == comment:
                return item["Id"], item["ARN"]
        if not page["IsTruncated"]:
            return None
        after = {"Marker": page["NextMarker"]}


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


def _bucket_origin(domain: str, access_control: str) -> "OriginTypeDef":
    return {
        "Id": SERVED,
        "DomainName": domain,
        "OriginAccessControlId": access_control,
        "S3OriginConfig": {"OriginAccessIdentity": ""},
    }


def _api_origin(domain: str) -> "OriginTypeDef":
    return {
        "Id": POINTERS,
        "DomainName": domain,
        "CustomOriginConfig": {
            "HTTPPort": 80,
            "HTTPSPort": 443,
            "OriginProtocolPolicy": "https-only",
            "OriginSslProtocols": {"Quantity": 1, "Items": ["TLSv1.2"]},
        },
    }


def _config(
    edge: EdgeDescription, *, prefix: str, origins: "list[OriginTypeDef]"
) -> "DistributionConfigTypeDef":
    return {
        "CallerReference": prefix,  # two starts at once make one distribution
        "Comment": prefix,
        "Enabled": True,
        # Who asks for `/` would else be given a listing of the bucket, which the edge may list.
        "DefaultRootObject": NO_OBJECT,
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
