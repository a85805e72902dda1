"""One contract, asked of every emulator: real HTTP, the product's own session."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import aioboto3
import pytest

from imagefleet.aws.objects import Objects
from imagefleet.aws.queue import Queue
from imagefleet.aws.session import AwsSession, open_session
from imagefleet.embedded.bootstrap import Endpoints, InPlace, apply
from tests.aws.differences import DIFFERENCES
from tests.support.aws import Heard, a_name, settings_for
from tests.support.emulators import CREDENTIALS, KINDS, REGION, Emulator, shared, shared_folder

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_sqs.client import SQSClient
    from types_aiobotocore_sqs.literals import QueueAttributeNameType


class MakeQueue(Protocol):
    async def __call__(
        self,
        *,
        visibility_seconds: int = ...,
        dead_letter: Queue | None = ...,
        max_receives: int = ...,
    ) -> Queue: ...


@pytest.fixture(scope="session", params=KINDS)
def emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Iterator[Emulator]:
    with shared(request.param, shared_folder(tmp_path_factory, worker_id)) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def applied(emulator: Emulator) -> InPlace:
    """The product's queues, buckets and distribution, under names of this test process."""
    cloudfront = None if emulator.kind == "localstack" else emulator.url
    endpoints = Endpoints(sqs=emulator.url, s3=emulator.url, cloudfront=cloudfront)
    return asyncio.run(
        apply(endpoints, region=REGION, credentials=CREDENTIALS, prefix=a_name("test"))
    )


@pytest.fixture
def differs(emulator: Emulator) -> Callable[[str], bool]:
    """Whether this emulator has this difference."""

    def ask(name: str) -> bool:
        return emulator.kind in DIFFERENCES[name].instead

    return ask


@pytest.fixture
def heard() -> Heard:
    """What the session's watcher heard."""
    return Heard()


@pytest.fixture
async def session(emulator: Emulator, heard: Heard) -> AsyncIterator[AwsSession]:
    settings = settings_for(emulator.url)
    async with open_session(settings, calls=heard, credentials=CREDENTIALS) as session:
        yield session


@pytest.fixture
async def sqs(emulator: Emulator) -> "AsyncIterator[SQSClient]":
    async with sdk().client("sqs", endpoint_url=emulator.url) as client:
        yield client


@pytest.fixture
async def s3(emulator: Emulator) -> "AsyncIterator[S3Client]":
    async with sdk().client("s3", endpoint_url=emulator.url) as client:
        yield client


@pytest.fixture
def make_queue(session: AwsSession, sqs: "SQSClient") -> MakeQueue:
    """A queue of the test's own."""

    async def make(
        *,
        visibility_seconds: int = 30,
        dead_letter: Queue | None = None,
        max_receives: int = 3,
    ) -> Queue:
        attributes: dict[QueueAttributeNameType, str] = {
            "VisibilityTimeout": str(visibility_seconds)
        }
        if dead_letter is not None:
            policy = {
                "deadLetterTargetArn": await arn_of(sqs, dead_letter),
                "maxReceiveCount": max_receives,
            }
            attributes["RedrivePolicy"] = json.dumps(policy)
        made = await sqs.create_queue(QueueName=a_name("queue"), Attributes=attributes)
        return await session.queue(made["QueueUrl"])

    return make


@pytest.fixture
async def queue(make_queue: MakeQueue) -> Queue:
    return await make_queue()


@pytest.fixture
async def objects(session: AwsSession, applied: InPlace) -> Objects:
    """The bucket of originals; a test's keys begin with a name of its own."""
    return await session.objects(applied.buckets["originals"])


async def arn_of(sqs: "SQSClient", queue: Queue) -> str:
    answer = await sqs.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["QueueArn"])
    return answer["Attributes"]["QueueArn"]


def sdk() -> aioboto3.Session:
    return aioboto3.Session(
        region_name=REGION,
        aws_access_key_id=CREDENTIALS.key_id,
        aws_secret_access_key=CREDENTIALS.secret,
    )
