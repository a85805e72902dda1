"""What SQS and S3 bill, told by every process of what it has sent: one short row twice a minute.

Nobody else can know: a request that was retried is billed, too, and no job tells how many it took.
A process that is killed has told nothing of its last half minute; one that did not hear whether it
was heard tells it again. So the figures are good for a sum of many, and none is exact.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from imagefleet.aws.calls import Billed
from imagefleet.errors import FleetError
from imagefleet.runtime import tell_missed
from imagefleet.store.database import Pool
from imagefleet.store.fleet.rollups import tell_billed

TELL_EVERY: Final = 30.0  # seconds
TELL_WITHIN: Final = 3.0

log = structlog.get_logger()


@asynccontextmanager
async def billing(pool: Pool, billed: Billed) -> AsyncIterator[None]:
    """Tell it until the end of the context, and what is left then."""
    async with asyncio.TaskGroup() as group:
        telling = group.create_task(_keep_telling(pool, billed), name="billing")
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait([telling])
            await tell(pool, billed)


async def _keep_telling(pool: Pool, billed: Billed) -> None:
    while True:
        await asyncio.sleep(TELL_EVERY)
        await tell(pool, billed)


async def tell(pool: Pool, billed: Billed) -> None:
    """Tell what was sent since it was told last; where nobody hears it, the next time."""
    sqs_requests, s3_writes = billed.sqs_requests, billed.s3_writes
    if not (sqs_requests or s3_writes):
        return
    try:
        async with asyncio.timeout(TELL_WITHIN), pool.connection() as connection:
            await tell_billed(connection, sqs_requests=sqs_requests, s3_writes=s3_writes)
    except FleetError as error:
        tell_missed(error, "billing.untold")
        return
    except TimeoutError:
        log.warning("billing.untold", code="database_timeout")
        return
    billed.sqs_requests -= sqs_requests
    billed.s3_writes -= s3_writes
