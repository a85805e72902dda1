"""What is billed is told by who sent it: now and then, at the end, and again where nobody heard."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from imagefleet import billing as module
from imagefleet.aws.calls import AwsCalls, Billed
from imagefleet.billing import billing, tell
from imagefleet.store.database import Connection, Pool
from imagefleet.telemetry.metrics import WorkerMetrics
from imagefleet.telemetry.tracing import Tracing
from tests.support.database import Database, Role
from tests.support.eventually import eventually

SUMS = "SELECT coalesce(sum(sqs_requests), 0), coalesce(sum(s3_writes), 0), count(*)"


async def told(superuser: Connection) -> tuple[int, ...]:
    row = await superuser.fetchrow(f"{SUMS} FROM rollup_entries")
    assert row is not None
    return tuple(row)


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    async with database.pool("worker") as pool:
        yield pool


@pytest.mark.parametrize(
    ("service", "operation", "counted"),
    [
        ("sqs", "ReceiveMessage", (1, 0)),
        ("sqs", "SendMessageBatch", (1, 0)),
        ("s3", "PutObject", (0, 1)),
        ("s3", "CopyObject", (0, 1)),
        ("s3", "CreateMultipartUpload", (0, 1)),
        ("s3", "UploadPart", (0, 1)),
        ("s3", "CompleteMultipartUpload", (0, 1)),
        ("s3", "ListObjectsV2", (0, 1)),
        ("s3", "GetObject", (0, 0)),
        ("s3", "HeadObject", (0, 0)),
        ("s3", "DeleteObjects", (0, 0)),
        ("s3", "AbortMultipartUpload", (0, 0)),
        ("cloudfront", "CreateInvalidation", (0, 0)),
    ],
)
def test_requests_that_cost_something_are_counted(
    service: str, operation: str, counted: tuple[int, int]
) -> None:
    calls = AwsCalls(WorkerMetrics(()), Tracing(None))

    calls.sent(service, operation)

    assert counted == (calls.billed.sqs_requests, calls.billed.s3_writes)


@pytest.mark.parametrize("role", ["api", "worker", "maintenance"])
async def test_every_process_tells_what_it_sent_since_it_told_last(
    role: Role, database: Database, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TELL_EVERY", 0.01)
    billed = Billed()
    async with database.pool(role) as pool, billing(pool, billed):
        for sent in (3, 10):
            billed.sqs_requests += sent
            await eventually(lambda: billed.sqs_requests == 0)

    assert (13, 0, 2) == await told(superuser)


async def test_what_is_left_at_the_end_is_told_then_and_nothing_else(
    pool: Pool, superuser: Connection
) -> None:
    billed = Billed()
    async with billing(pool, billed):
        billed.s3_writes += 5
    async with billing(pool, billed):
        pass

    assert (0, 5, 1) == await told(superuser)


async def test_what_nobody_heard_is_told_the_next_time(pool: Pool, superuser: Connection) -> None:
    billed = Billed(sqs_requests=4)
    await superuser.execute("REVOKE INSERT (s3_writes) ON rollup_entries FROM imagefleet_worker")
    with capture_logs() as logs:
        await tell(pool, billed)
    await superuser.execute("GRANT INSERT (s3_writes) ON rollup_entries TO imagefleet_worker")
    billed.sqs_requests += 1

    await tell(pool, billed)

    assert ["billing.untold"] == [line["event"] for line in logs]
    assert (5, 0, 1) == await told(superuser)
