"""What Terraform and the bootstrap of emulators made of one topology, as AWS's own API tells it."""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import boto3  # type: ignore[import-untyped]
from botocore.config import Config

from imagefleet.embedded.topology import described

OF_A_QUEUE: Final = (
    "VisibilityTimeout",
    "MessageRetentionPeriod",
    "ReceiveMessageWaitTimeSeconds",
)
OF_A_BEHAVIOUR: Final = (
    "PathPattern",
    "TargetOriginId",
    "ViewerProtocolPolicy",
    "ResponseHeadersPolicyId",
    "Compress",
)


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks at an emulator, with nothing of the product."""

    aws: Mapping[str, str]

    def client(self, service: str) -> Any:  # noqa: ANN401 - boto3 makes its clients as it runs
        return boto3.client(
            service,
            endpoint_url=self.aws["AWS_ENDPOINT_URL"],
            region_name=self.aws["AWS_REGION"],
            aws_access_key_id=self.aws["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.aws["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def everything(self) -> AbstractSet[str]:
        """Every queue, bucket and distribution that there is."""
        distributions = self.client("cloudfront").list_distributions()["DistributionList"]
        return {
            *self.client("sqs").list_queues().get("QueueUrls", ()),
            *(bucket["Name"] for bucket in self.client("s3").list_buckets()["Buckets"]),
            *(one["Id"] for one in distributions.get("Items", ())),
        }

    def made(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """What the processes of this environment find, without the names of it."""
        topology = described()
        queues = {key: environment[f"{_variable(key)}_QUEUE_URL"] for key in topology.queues}
        buckets = {key: environment[f"{_variable(key)}_BUCKET"] for key in topology.buckets}
        return {
            "queues": {key: self._queue(url) for key, url in queues.items()},
            "buckets": {key: self._bucket(name) for key, name in buckets.items()},
            "edge": self._edge(environment["CLOUDFRONT_DISTRIBUTION_ID"]),
        }

    def _queue(self, url: str) -> dict[str, Any]:
        told = self.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        attributes = told["Attributes"]
        redrive = json.loads(attributes.get("RedrivePolicy", "{}"))
        receives = int(redrive["maxReceiveCount"]) if redrive else None
        return {**{name: attributes[name] for name in OF_A_QUEUE}, "receives": receives}

    def _bucket(self, name: str) -> dict[str, Any]:
        s3 = self.client("s3")
        owner = s3.get_bucket_ownership_controls(Bucket=name)["OwnershipControls"]["Rules"]
        cors = s3.get_bucket_cors(Bucket=name)["CORSRules"]
        rules = s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
        closed = s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
        aborted = [rule.get("AbortIncompleteMultipartUpload") for rule in rules]
        return {
            "owner": owner,
            "cors": [{name: _sorted(value) for name, value in rule.items()} for rule in cors],
            "aborted": [rule for rule in aborted if rule],
            "closed": closed,
            "read_by": self._readers(name),
        }

    def _readers(self, name: str) -> list[list[str]]:
        s3 = self.client("s3")
        try:
            policy = json.loads(s3.get_bucket_policy(Bucket=name)["Policy"])
        except s3.exceptions.ClientError:  # the bootstrap gives originals none
            return []
        return sorted(
            [str(one["Principal"]), action]
            for one in policy["Statement"]
            if one["Effect"] == "Allow"
            for action in _listed(one["Action"])
        )

    def _edge(self, distribution: str) -> dict[str, Any]:
        told = self.client("cloudfront").get_distribution_config(Id=distribution)
        config = told["DistributionConfig"]
        behaviours = [config["DefaultCacheBehavior"], *config["CacheBehaviors"]["Items"]]
        return {
            "root": config["DefaultRootObject"],
            "behaviours": [[one.get(name) for name in OF_A_BEHAVIOUR] for one in behaviours],
            "origins": sorted(
                [one["Id"], bool(one.get("OriginAccessControlId")), _protocol(one)]
                for one in config["Origins"]["Items"]
            ),
        }


def _variable(key: str) -> str:
    return key.upper().replace("-", "_")


def _sorted(value: object) -> object:
    return sorted(value) if isinstance(value, list) else value


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _protocol(origin: Mapping[str, Any]) -> str:
    return str(origin.get("CustomOriginConfig", {}).get("OriginProtocolPolicy", "s3"))
