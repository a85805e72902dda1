"""The least that an HTTP API in Python can be which writes a job down: one route, one INSERT.

FastAPI, uvicorn, asyncpg and pydantic, as anybody would put them together; no key, no limits, no
idempotency, no announcement, no metrics, no log.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID, uuid4

import asyncpg
import orjson
from fastapi import FastAPI, Request
from pydantic import BaseModel

CONNECTIONS: Final = 10  # as many as ours has by default
MAKE: Final = """
CREATE TABLE bare (
    id uuid PRIMARY KEY,
    state text NOT NULL DEFAULT 'queued',
    type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now())
"""
INSERT: Final = "INSERT INTO bare (id, type, payload) VALUES ($1, $2, $3)"
INSERT_MANY: Final = """
INSERT INTO bare (id, type, payload)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::jsonb[])
"""


class Job(BaseModel):
    """What is submitted."""

    jobType: str  # noqa: N815 - the body is the one that ours takes
    payload: dict[str, object]


class Jobs(BaseModel):
    """Many of them."""

    jobs: list[Job]


class Accepted(BaseModel):
    """What is answered."""

    jobId: UUID  # noqa: N815 - the same
    status: str = "queued"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold a pool."""
    url = os.environ["DATABASE_URL"]  # noqa: TID251 - as anybody's API would
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/v1/jobs", status_code=202)
async def create_job(request: Request, job: Job) -> Accepted:
    """Write it down."""
    job_id = uuid4()
    pool: asyncpg.Pool = request.app.state.pool
    await pool.execute(INSERT, job_id, job.jobType, orjson.dumps(job.payload).decode())
    return Accepted(jobId=job_id)


@app.post("/v1/jobs:batch")
async def create_jobs(request: Request, batch: Jobs) -> list[Accepted]:
    """Write them down in one statement."""
    ids = [uuid4() for _ in batch.jobs]
    pool: asyncpg.Pool = request.app.state.pool
    await pool.execute(
        INSERT_MANY,
        ids,
        [job.jobType for job in batch.jobs],
        [orjson.dumps(job.payload).decode() for job in batch.jobs],
    )
    return [Accepted(jobId=job_id) for job_id in ids]
