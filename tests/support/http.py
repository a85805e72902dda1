"""What is sent to the API and expected of its answers, and pictures for it."""

from functools import cache
from uuid import UUID

import httpx

from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.support.factories import MadeJob, hold_job
from tests.support.images import quadrants, saved

PROBLEM = "application/problem+json"


@cache
def a_jpeg() -> bytes:
    """A small photograph."""
    return saved(quadrants(64, 40))


@cache
def a_png() -> bytes:
    return saved(quadrants(64, 40), "PNG")


def is_problem(answer: httpx.Response, status: int, code: str) -> None:
    """The answer is this problem, in the form that problems have."""
    assert told(answer) == (status, code), answer.text


def told(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an answer that has the form of problems."""
    assert answer.headers["content-type"] == PROBLEM, answer.text
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["type"] == f"/v1/errors/{body['code']}"
    assert body["title"]
    assert body["detail"]
    return answer.status_code, body["code"]


def but_for_its_id(answer: httpx.Response) -> str:
    """The body of a problem without what names the request: of two alike it is the same."""
    return answer.text.replace(answer.json()["requestId"], "")


async def submitted(client: httpx.AsyncClient, **job: object) -> JobId:
    answer = await client.post("/v1/jobs", json={"jobType": "noop"} | job)
    assert answer.status_code == 202, answer.text
    return JobId(UUID(answer.json()["jobId"]))


async def claimed(worker: Connection, job_id: JobId | str) -> MadeJob:
    """The job in the hands of a worker, as an answer names it."""
    return await hold_job(worker, JobId(UUID(str(job_id))))
