"""Prepare a LocalStack for the fleet: wait for it, apply `topology`, look whether it is so.

    python -m imagefleet.embedded.localstack --files FOLDER

LocalStack is where its own client looks for it (LOCALSTACK_HOST or AWS_ENDPOINT_URL, else port 4566
of this machine). That client, which is plain boto3 and shares nothing with what applied the
topology, also reads back what is there. LocalStack has no CloudFront: `--cloudfront-endpoint` names
who stands in, or `none`.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from localstack_client.config import get_service_endpoint  # type: ignore[import-untyped]
from localstack_client.session import Session  # type: ignore[import-untyped]

from imagefleet.aws.session import Credentials
from imagefleet.embedded.bootstrap import DAY, DEFAULT_REGION, PREFIX, Endpoints, InPlace, apply
from imagefleet.embedded.topology import DEAD_LETTER, described
from imagefleet.errors import FleetError, Misconfigured, Unavailable

CREDENTIALS: Final = Credentials("test", "test")  # LocalStack takes any
WAIT: Final = 60.0  # seconds for LocalStack to come up
LOOK_EVERY: Final = 0.5
WITHIN: Final = Config(connect_timeout=3, read_timeout=10, retries={"total_max_attempts": 1})

# Neither localstack-client nor the boto3 clients that it makes bring types.
Client = Any


def endpoint_of(service: str) -> str:
    """Where LocalStack's own client finds a service."""
    endpoint: str | None = get_service_endpoint(service)
    if endpoint is None:
        msg = f"localstack-client knows no endpoint of {service}; set LOCALSTACK_HOST"
        raise Misconfigured(msg)
    return endpoint


def wait_for(session: Session, *, seconds: float) -> None:
    """Return when LocalStack answers for both services."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            session.client("sqs", config=WITHIN).list_queues()
            session.client("s3", config=WITHIN).list_buckets()
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                sentence = f"no LocalStack at {endpoint_of('sqs')} for {seconds:.0f} s: {error}"
                raise Unavailable("localstack_unavailable", sentence) from error
            time.sleep(LOOK_EVERY)  # a command: nothing else waits for this thread
        else:
            return


def read_back(session: Session, applied: InPlace) -> list[str]:
    """What is not as described, in words."""
    sqs: Client = session.client("sqs", config=WITHIN)
    wrong = []
    for key, url in applied.queue_urls.items():
        there = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        wanted = described().queues[key]
        numbers = {
            "VisibilityTimeout": wanted.visibility_seconds,
            "MessageRetentionPeriod": wanted.retention_days * DAY,
            "ReceiveMessageWaitTimeSeconds": described().long_poll_seconds,
        }
        wrong += [
            f"{key}: {name} is {there.get(name)}, not {number}"
            for name, number in numbers.items()
            if there.get(name) != str(number)
        ]
        redrive = json.loads(there.get("RedrivePolicy", "{}"))
        expected = None if wanted.max_receives is None else applied.queue_arns[DEAD_LETTER]
        if redrive.get("deadLetterTargetArn") != expected:
            wrong.append(f"{key}: its dead letters go to {redrive.get('deadLetterTargetArn')}")
    s3: Client = session.client("s3", config=WITHIN)
    buckets = {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
    return wrong + [f"no bucket {name}" for name in applied.buckets.values() if name not in buckets]


def write_files(folder: Path, environment: dict[str, str]) -> None:
    """One file a variable, which processes read by the same name with `_FILE` behind it."""
    for name, value in environment.items():
        made = folder / f".{name}"
        made.write_text(value + "\n")
        made.replace(folder / name)


class _PrepareArguments(argparse.Namespace):
    cloudfront_endpoint: str
    region: str
    prefix: str
    files: Path | None
    wait: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare it as a command, for compose and for people."""
    parser = argparse.ArgumentParser(prog="localstack", description=__doc__.partition("\n")[0])
    parser.add_argument("--cloudfront-endpoint", default="none", help="'none': there is none")
    parser.add_argument("--region", default=DEFAULT_REGION)
    parser.add_argument("--prefix", default=PREFIX)
    parser.add_argument("--files", type=Path, help="a folder for one file a variable")
    parser.add_argument("--wait", type=float, default=WAIT, help="seconds for it to come up")
    given = parser.parse_args(arguments, namespace=_PrepareArguments())
    session = Session(
        region_name=given.region,
        aws_access_key_id=CREDENTIALS.key_id,
        aws_secret_access_key=CREDENTIALS.secret,
    )
    cloudfront = given.cloudfront_endpoint
    try:
        endpoints = Endpoints(
            sqs=endpoint_of("sqs"),
            s3=endpoint_of("s3"),
            cloudfront=None if cloudfront == "none" else cloudfront,
        )
        wait_for(session, seconds=given.wait)
        applied = asyncio.run(
            apply(endpoints, region=given.region, credentials=CREDENTIALS, prefix=given.prefix)
        )
    except FleetError as error:
        print(f"not prepared: {error.detail or error.public_message}")
        return 1
    wrong = read_back(session, applied)
    for line in wrong:
        print(f"not as described: {line}")
    for name, value in applied.environment().items():
        print(f"{name}={value}")
    if given.files is not None and not wrong:
        write_files(given.files, applied.environment())
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
