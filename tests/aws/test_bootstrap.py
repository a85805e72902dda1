"""The topology: made where it is missing, and left in peace where it is not."""

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from imagefleet.aws.session import open_session
from imagefleet.embedded import bootstrap
from imagefleet.embedded.bootstrap import Endpoints, InPlace, apply
from imagefleet.embedded.topology import described
from imagefleet.settings import load
from imagefleet.settings.slices import Aws
from tests.aws.conftest import sdk
from tests.support.aws import a_name
from tests.support.emulators import CREDENTIALS, REGION, Emulator

if TYPE_CHECKING:
    from types_aiobotocore_cloudfront.client import CloudFrontClient
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_sqs.client import SQSClient


@pytest.fixture
async def cloudfront(emulator: Emulator) -> "AsyncIterator[CloudFrontClient]":
    if emulator.kind == "localstack":
        pytest.skip("this emulator has no CloudFront")
    async with sdk().client("cloudfront", endpoint_url=emulator.url) as client:
        yield client


async def apply_at(emulator: Emulator, prefix: str) -> InPlace:
    return await apply(
        Endpoints(
            sqs=emulator.url,
            s3=emulator.url,
            cloudfront=None if emulator.kind == "localstack" else emulator.url,
        ),
        region=REGION,
        credentials=CREDENTIALS,
        prefix=prefix,
        api_domain="api.example.com",
    )


async def test_applying_twice_changes_nothing(emulator: Emulator) -> None:
    prefix = a_name("twice")

    first = await apply_at(emulator, prefix)
    second = await apply_at(emulator, prefix)

    assert first == second


async def test_queues_are_as_described(sqs: "SQSClient", applied: InPlace) -> None:
    topology = described()
    for key, url in applied.queue_urls.items():
        answer = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        attributes = answer["Attributes"]

        queue = topology.queues[key]
        assert str(queue.visibility_seconds) == attributes["VisibilityTimeout"]
        assert str(queue.retention_days * 86_400) == attributes["MessageRetentionPeriod"]
        assert "20" == attributes["ReceiveMessageWaitTimeSeconds"]
        redrive = json.loads(attributes.get("RedrivePolicy", "{}"))
        if key == "dead-letter":
            assert redrive == {}
        else:
            assert applied.queue_arns["dead-letter"] == redrive["deadLetterTargetArn"]
            assert queue.max_receives == int(redrive["maxReceiveCount"])


async def test_a_changed_queue_is_brought_into_agreement(
    emulator: Emulator, sqs: "SQSClient"
) -> None:
    prefix = a_name("changed")
    url = (await apply_at(emulator, prefix)).queue_urls["fast"]
    await sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "1"})

    await apply_at(emulator, prefix)

    answer = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    assert answer["Attributes"] == {"VisibilityTimeout": "150"}


async def test_buckets_are_private_and_forget_unfinished_uploads(
    s3: "S3Client", applied: InPlace
) -> None:
    for name in applied.buckets.values():
        block = await s3.get_public_access_block(Bucket=name)
        assert set(block["PublicAccessBlockConfiguration"].values()) == {True}
        rules = (await s3.get_bucket_lifecycle_configuration(Bucket=name))["Rules"]
        assert {"DaysAfterInitiation": 1} == rules[0]["AbortIncompleteMultipartUpload"]


async def test_pages_of_any_origin_may_read_what_is_made_and_what_is_signed_for_them(
    s3: "S3Client", applied: InPlace
) -> None:
    for bucket, methods in (("originals", ["GET", "POST"]), ("outputs", ["GET", "HEAD"])):
        (rule,) = (await s3.get_bucket_cors(Bucket=applied.buckets[bucket]))["CORSRules"]
        assert (methods, ["*"]) == (rule["AllowedMethods"], rule["AllowedOrigins"])


async def test_only_the_distribution_reads_outputs(
    s3: "S3Client", cloudfront: "CloudFrontClient", applied: InPlace
) -> None:
    assert applied.distribution_id is not None
    made = await cloudfront.get_distribution(Id=applied.distribution_id)

    policy = json.loads((await s3.get_bucket_policy(Bucket=applied.buckets["outputs"]))["Policy"])

    (statement,) = policy["Statement"]
    assert statement["Principal"] == {"Service": "cloudfront.amazonaws.com"}
    source = statement["Condition"]["StringEquals"]["AWS:SourceArn"]
    assert source == made["Distribution"]["ARN"]


async def test_the_distribution_sends_pointers_to_the_api(
    emulator: Emulator, cloudfront: "CloudFrontClient"
) -> None:
    applied = await apply_at(emulator, a_name("edge"))
    assert applied.distribution_id is not None

    made = await cloudfront.get_distribution_config(Id=applied.distribution_id)

    config = made["DistributionConfig"]
    origins = {origin["Id"]: origin["DomainName"] for origin in config["Origins"]["Items"]}
    (pointers,) = config["CacheBehaviors"]["Items"]
    assert origins["api"] == "api.example.com"
    assert origins["outputs"].startswith(applied.buckets["outputs"])
    assert (pointers["PathPattern"], pointers["TargetOriginId"]) == ("/i/*/current/*", "api")
    assert config["DefaultCacheBehavior"]["TargetOriginId"] == "outputs"
    for_pages = "e61eb60c-9c35-4d20-a928-2b84e02af89c"  # AWS's CORS-and-SecurityHeadersPolicy
    for behaviour in (config["DefaultCacheBehavior"], pointers):
        assert behaviour["ResponseHeadersPolicyId"] == for_pages


async def test_what_was_applied_is_what_a_process_reads(
    emulator: Emulator, applied: InPlace
) -> None:
    environment = {"AWS_REGION": REGION, "AWS_ENDPOINT_URL": emulator.url}

    settings = load(Aws, environment | applied.environment())

    assert applied.queue_urls["dead-letter"] == settings.dead_letter_queue_url
    assert applied.distribution_id == settings.distribution_id
    async with open_session(settings, credentials=CREDENTIALS) as session:
        assert (await (await session.queue(settings.fast_queue_url)).depth()).visible == 0


def test_as_a_command_it_prints_the_variables(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret)
    prefix = a_name("command")
    arguments = ["--endpoint", emulator.url, "--region", REGION, "--prefix", prefix]

    bootstrap.main([*arguments, "--cloudfront-endpoint", "none"])

    printed = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert printed["ORIGINALS_BUCKET"] == f"{prefix}-originals"
    assert printed["FAST_QUEUE_URL"].endswith(f"{prefix}-fast")
    assert "CLOUDFRONT_DISTRIBUTION_ID" not in printed
