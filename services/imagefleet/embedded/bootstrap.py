"""Make the queues, buckets and the distribution of `topology` where they do not exist yet.

For emulators: in AWS itself they are made by Terraform. Every step may be repeated, at every start
and by several at once; what exists is brought into agreement, only a distribution is left as it is.

    python -m imagefleet.embedded.bootstrap --endpoint http://127.0.0.1:4566

prints the variables that the processes need. Credentials are found by the AWS SDK in its own ways.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import ClientError

from imagefleet.aws.calls import answered, translated
from imagefleet.aws.session import Credentials
from imagefleet.embedded.topology import (
    DEAD_LETTER,
    EdgeDescription,
    Topology,
    described,
    ensure_distribution,
)

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.literals import BucketLocationConstraintType
    from types_aiobotocore_s3.type_defs import CORSRuleTypeDef, LifecycleRuleTypeDef
    from types_aiobotocore_sqs.client import SQSClient
    from types_aiobotocore_sqs.literals import QueueAttributeNameType

DAY: Final = 86_400  # seconds
PREFIX: Final = "imagefleet"
WITHIN: Final = 120.0  # seconds for everything; an emulator takes one
CONFIG: Final = AioConfig(ignore_configured_endpoint_urls=True, s3={"addressing_style": "path"})
DEFAULT_REGION: Final = "us-east-1"  # the one region that a bucket's location must not name


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the three services are."""

    sqs: str
    s3: str
    cloudfront: str | None
    """None where there is no CloudFront: then there is no distribution."""

    @classmethod
    def all_at(cls, url: str) -> "Endpoints":
        return cls(sqs=url, s3=url, cloudfront=url)


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """What exists now."""

    queue_urls: Mapping[str, str]
    queue_arns: Mapping[str, str]
    buckets: Mapping[str, str]
    distribution_id: str | None

    def environment(self) -> dict[str, str]:
        """What the processes read."""
        queues = {
            f"{key.upper().replace('-', '_')}_QUEUE_URL": url
            for key, url in self.queue_urls.items()
        }
        buckets = {f"{key.upper()}_BUCKET": name for key, name in self.buckets.items()}
        edge = {"CLOUDFRONT_DISTRIBUTION_ID": self.distribution_id} if self.distribution_id else {}
        return queues | buckets | edge


async def apply(
    endpoints: Endpoints,
    *,
    region: str,
    credentials: Credentials | None = None,
    prefix: str = PREFIX,
    api_domain: str = "api.invalid",
) -> InPlace:
    """Make what is missing and tell what there is."""
    topology = described()
    session = aioboto3.Session(
        region_name=region,
        aws_access_key_id=credentials.key_id if credentials else None,
        aws_secret_access_key=credentials.secret if credentials else None,
    )
    async with asyncio.timeout(WITHIN):
        with translated("sqs"):
            async with session.client("sqs", endpoint_url=endpoints.sqs, config=CONFIG) as sqs:
                urls, arns = await _ensure_queues(sqs, topology, prefix)
        with translated("s3"):
            async with session.client("s3", endpoint_url=endpoints.s3, config=CONFIG) as s3:
                buckets = await _ensure_buckets(s3, topology, prefix, region)
        served = buckets[topology.edge.served_bucket]
        distribution_id = await _publish(
            session, endpoints, topology.edge, prefix=prefix, bucket=served, api_domain=api_domain
        )
    return InPlace(
        queue_urls=urls, queue_arns=arns, buckets=buckets, distribution_id=distribution_id
    )


async def _publish(
    session: aioboto3.Session,
    endpoints: Endpoints,
    edge: EdgeDescription,
    *,
    prefix: str,
    bucket: str,
    api_domain: str,
) -> str | None:
    """Make the distribution that alone may read the bucket; None where there is no CloudFront."""
    if endpoints.cloudfront is None:
        return None
    with translated("cloudfront"):
        async with session.client(
            "cloudfront", endpoint_url=endpoints.cloudfront, config=CONFIG
        ) as cloudfront:
            distribution_id, arn = await ensure_distribution(
                cloudfront,
                edge,
                prefix=prefix,
                bucket_domain=f"{bucket}.s3.{session.region_name}.amazonaws.com",
                api_domain=api_domain,
            )
    with translated("s3"):
        async with session.client("s3", endpoint_url=endpoints.s3, config=CONFIG) as s3:
            await s3.put_bucket_policy(Bucket=bucket, Policy=_readable_by(arn, bucket))
    return distribution_id


async def _ensure_queues(
    client: "SQSClient", topology: Topology, prefix: str
) -> tuple[dict[str, str], dict[str, str]]:
    urls: dict[str, str] = {}
    arns: dict[str, str] = {}
    for key in sorted(topology.queues, key=lambda key: key != DEAD_LETTER):  # the others name it
        urls[key] = (await client.create_queue(QueueName=f"{prefix}-{key}"))["QueueUrl"]
        answer = await client.get_queue_attributes(QueueUrl=urls[key], AttributeNames=["QueueArn"])
        arns[key] = answer["Attributes"]["QueueArn"]
        await client.set_queue_attributes(
            QueueUrl=urls[key], Attributes=_attributes(topology, key, arns[DEAD_LETTER])
        )
    return urls, arns


def _attributes(
    topology: Topology, key: str, dead_letter_arn: str
) -> "dict[QueueAttributeNameType, str]":
    queue = topology.queues[key]
    attributes: dict[QueueAttributeNameType, str] = {
        "VisibilityTimeout": str(queue.visibility_seconds),
        "MessageRetentionPeriod": str(queue.retention_days * DAY),
        "ReceiveMessageWaitTimeSeconds": str(topology.long_poll_seconds),
    }
    if queue.max_receives is not None:
        attributes["RedrivePolicy"] = json.dumps(
            {"deadLetterTargetArn": dead_letter_arn, "maxReceiveCount": queue.max_receives}
        )
    return attributes


async def _ensure_buckets(
    client: "S3Client", topology: Topology, prefix: str, region: str
) -> dict[str, str]:
    names = {key: f"{prefix}-{key}" for key in topology.buckets}
    for key, description in topology.buckets.items():
        await _ensure_bucket(client, names[key], region)
        await _close_to_the_public(client, names[key])
        await _forget_unfinished_uploads(client, names[key], topology.abort_multipart_after_days)
        await _open_to_pages(client, names[key], description.pages_may)
    return names


async def _ensure_bucket(client: "S3Client", name: str, region: str) -> None:
    try:
        if region == DEFAULT_REGION:
            await client.create_bucket(Bucket=name)
        else:
            location = cast("BucketLocationConstraintType", region)
            await client.create_bucket(
                Bucket=name, CreateBucketConfiguration={"LocationConstraint": location}
            )
    except ClientError as error:
        if answered(error)[1] != "BucketAlreadyOwnedByYou":
            raise


async def _close_to_the_public(client: "S3Client", bucket: str) -> None:
    await client.put_public_access_block(
        Bucket=bucket,
        PublicAccessBlockConfiguration={
            "BlockPublicAcls": True,
            "IgnorePublicAcls": True,
            "BlockPublicPolicy": True,
            "RestrictPublicBuckets": True,
        },
    )
    await client.put_bucket_ownership_controls(
        Bucket=bucket,
        OwnershipControls={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
    )


async def _forget_unfinished_uploads(client: "S3Client", bucket: str, days: int) -> None:
    rule: LifecycleRuleTypeDef = {
        "ID": "abort-multipart-uploads",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
    }
    await client.put_bucket_lifecycle_configuration(
        Bucket=bucket, LifecycleConfiguration={"Rules": [rule]}
    )


async def _open_to_pages(client: "S3Client", bucket: str, methods: Sequence[str]) -> None:
    rule: CORSRuleTypeDef = {
        "AllowedMethods": methods,
        "AllowedOrigins": ["*"],
        "AllowedHeaders": ["*"],
        "ExposeHeaders": ["ETag"],
        "MaxAgeSeconds": 3600,
    }
    await client.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [rule]})


def _readable_by(distribution_arn: str, bucket: str) -> str:
    """Only this distribution reads, and may list: else S3 says 403 of what is merely not there."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "cloudfront.amazonaws.com"},
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}/*", f"arn:aws:s3:::{bucket}"],
        "Condition": {"StringEquals": {"AWS:SourceArn": distribution_arn}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


class _BootstrapArguments(argparse.Namespace):
    endpoint: str
    cloudfront_endpoint: str | None
    region: str
    prefix: str
    api_domain: str


def main(arguments: Sequence[str] | None = None) -> None:
    """Apply it as a command, for compose and for people."""
    parser = argparse.ArgumentParser(prog="bootstrap", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--endpoint", required=True, help="of every service that has none of its own"
    )
    parser.add_argument("--cloudfront-endpoint", help="'none' where there is no CloudFront")
    parser.add_argument("--region", default=DEFAULT_REGION)
    parser.add_argument("--prefix", default=PREFIX)
    parser.add_argument("--api-domain", default="api.invalid", help="who answers the stable URLs")
    given = parser.parse_args(arguments, namespace=_BootstrapArguments())
    cloudfront = given.cloudfront_endpoint or given.endpoint
    endpoints = replace(
        Endpoints.all_at(given.endpoint), cloudfront=None if cloudfront == "none" else cloudfront
    )
    applied = asyncio.run(
        apply(endpoints, region=given.region, prefix=given.prefix, api_domain=given.api_domain)
    )
    for name, value in applied.environment().items():
        print(f"{name}={value}")


if __name__ == "__main__":
    main()
