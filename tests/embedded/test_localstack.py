"""The bootstrap of a LocalStack: applied, read back by another client, and handed on in files.

An emulator stands in that answers the same; LocalStack itself is prepared by `make localstack`.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from localstack_client.session import Session  # type: ignore[import-untyped]

from imagefleet.embedded.bootstrap import Endpoints, apply
from imagefleet.embedded.localstack import CREDENTIALS, read_back
from imagefleet.embedded.topology import described
from imagefleet.settings import Aws, load
from tests.support.aws import a_name
from tests.support.emulators import REGION, running_ministack
from tests.support.journal import Client


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_ministack() as url:
        yield url


def prepare(url: str | None, prefix: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    host = "127.0.0.1:1" if url is None else url.removeprefix("http://")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "imagefleet.embedded.localstack",
            "--prefix",
            prefix,
            "--region",
            REGION,
            *arguments,
        ],
        env={**os.environ, "LOCALSTACK_HOST": host, "AWS_REGION": REGION},  # noqa: TID251
        capture_output=True,
        text=True,
        check=False,
    )


def test_processes_can_read_what_it_hands_on(url: str, tmp_path: Path) -> None:
    prefix = a_name("files")

    done = prepare(url, prefix, "--files", str(tmp_path), "--cloudfront-endpoint", url)

    assert done.returncode == 0, done.stdout + done.stderr
    files = {f"{file.name}_FILE": str(file) for file in tmp_path.iterdir()}
    settings = load(Aws, {"AWS_REGION": REGION, **files})
    assert settings.fast_queue_url.endswith(f"/{prefix}-fast")
    assert settings.outputs_bucket == f"{prefix}-outputs"
    assert settings.distribution_id is not None


def test_it_may_be_repeated_and_mends_what_was_changed(url: str) -> None:
    prefix = a_name("again")
    first = prepare(url, prefix)
    printed = dict(line.split("=", 1) for line in first.stdout.splitlines())
    sqs = client(url, "sqs")
    sqs.set_queue_attributes(
        QueueUrl=printed["FAST_QUEUE_URL"], Attributes={"VisibilityTimeout": "1"}
    )

    second = prepare(url, prefix)

    assert second.returncode == 0, second.stdout
    assert second.stdout == first.stdout
    there = sqs.get_queue_attributes(
        QueueUrl=printed["FAST_QUEUE_URL"], AttributeNames=["VisibilityTimeout"]
    )
    expected = described().queues["fast"].visibility_seconds
    assert there["Attributes"]["VisibilityTimeout"] == str(expected)


def test_what_is_not_as_described_is_named(url: str) -> None:
    prefix = a_name("drift")
    endpoints = Endpoints(sqs=url, s3=url, cloudfront=None)
    applied = asyncio.run(apply(endpoints, region=REGION, credentials=CREDENTIALS, prefix=prefix))
    client(url, "sqs").set_queue_attributes(
        QueueUrl=applied.queue_urls["general"],
        Attributes={"VisibilityTimeout": "7", "RedrivePolicy": ""},
    )
    client(url, "s3").delete_bucket(Bucket=applied.buckets["originals"])

    wrong = read_back(session(url), applied)

    assert any("general: VisibilityTimeout is 7, not 300" in line for line in wrong)
    assert f"no bucket {prefix}-originals" in wrong


def test_nobody_there_is_said_in_a_sentence() -> None:
    done = prepare(None, "nobody", "--wait", "0")

    assert done.returncode == 1
    assert "no LocalStack at http://127.0.0.1:1" in done.stdout
    assert "Traceback" not in done.stderr


def session(url: str) -> Session:
    return Session(
        region_name=REGION,
        aws_access_key_id=CREDENTIALS.key_id,
        aws_secret_access_key=CREDENTIALS.secret,
        aws_session_token=None,
        localstack_host=url.removeprefix("http://"),
    )


def client(url: str, service: str) -> Client:
    return session(url).client(service)
