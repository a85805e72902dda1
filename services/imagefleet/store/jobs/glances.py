"""Quick looks: at jobs that somebody waits for, and whether Postgres answers at all."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection

WATCH_JOBS: Final = """
SELECT jobs.id, jobs.updated_at FROM jobs WHERE jobs.id = ANY ($1::uuid[])
"""


async def watch_jobs(connection: Connection, job_ids: Sequence[JobId]) -> Mapping[JobId, datetime]:
    """When each of these jobs changed last; what does not exist is not in the answer."""
    rows = await connection.fetch(WATCH_JOBS, list(job_ids))
    return {JobId(row["id"]): row["updated_at"] for row in rows}


FIND_TYPES: Final = """
SELECT jobs.id, jobs.type FROM jobs WHERE jobs.id = ANY ($1::uuid[])
"""


async def find_types(connection: Connection, job_ids: Sequence[JobId]) -> dict[JobId, str]:
    """Of what type these jobs are; what does not exist is not in the answer."""
    rows = await connection.fetch(FIND_TYPES, list(job_ids))
    return {JobId(row["id"]): row["type"] for row in rows}


PING: Final = "SELECT 1"


async def ping(connection: Connection) -> None:
    """Return if Postgres answers."""
    await connection.execute(PING)
