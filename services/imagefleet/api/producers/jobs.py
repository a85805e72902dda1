"""Jobs: submitted one by one or in a batch, looked at, waited for, cancelled."""

import asyncio
from time import monotonic
from typing import Annotated, Final
from uuid import UUID

from fastapi import Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Plain, Reader, Submitter
from imagefleet.api.http.bodies import (
    read_envelope,
    read_json,
    read_json_if_any,
    validated,
)
from imagefleet.api.http.errors import problem_of
from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import TOKEN, Tools, ToolsHere, accepted, answer
from imagefleet.api.producers.accepting import Accepting
from imagefleet.api.producers.events import Watcher, read_job
from imagefleet.api.producers.job_types import OF_OPERATORS, compose
from imagefleet.api.producers.ranges import (
    CURSOR,
    CreatedAfter,
    CreatedBefore,
    IdPrefix,
    IdRange,
    PageSize,
)
from imagefleet.api.producers.schemas import (
    MAX_PAYLOAD_BYTES,
    BatchAnswer,
    BatchAnswers,
    Cancellation,
    NewJob,
    NewJobs,
)
from imagefleet.api.producers.submitting import (
    HEADER,
    Admission,
    Admitted,
    draft,
    fingerprint,
    idempotency_header,
    key_of,
)
from imagefleet.errors import FleetError, LimitReached, RequestRejected
from imagefleet.jobs.images import image_target
from imagefleet.jobs.kinds import TYPE_FORM, CancelJob
from imagefleet.jobs.model import (
    JobId,
    JobState,
    Submission,
    Submitted,
    new_job_id,
)
from imagefleet.jobs.shapes.jobs import JobPage, JobView
from imagefleet.jobs.shapes.shape import AcceptedJob, Problem
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.admissions import is_standing
from imagefleet.store.jobs.reports import JobFilter, get_job, list_jobs
from imagefleet.store.jobs.submissions import find_standing, submit_job

LONGEST_WAIT: Final = 20  # seconds; below what proxies wait for an answer
MOST_JSON_BYTES: Final = MAX_PAYLOAD_BYTES + 16_384  # the payload, and what is said about it
MOST_BATCH_BYTES: Final = 2**20
LONGEST_PIECE: Final = 0.002  # seconds of the event loop, and one job more
JOBS_OF_A_REQUEST: Final = 20  # in a batch; they cost together what one request does

_KEY_OF_WHICH: Final = "A batch has no idempotency key of its own: give one to each of its jobs."
_OF_OPERATORS: Final = "This job is an order of operators; only they cancel it."
_OURS: Final = frozenset({"unavailable", "internal_error"})  # of the batch, not of one job in it

router = Routes(route_class=Plain, tags=["jobs"])


@router.post(
    "/v1/jobs",
    **described(
        "Submit a job", AcceptedJob, 404, status=202, takes=json_body(NewJob) | idempotency_header()
    ),
)
async def create_job(request: Request, key: Submitter, tools: ToolsHere) -> Response:
    """Record a job; it runs later. The same request again gets the same answer."""
    job = await read_json(request, NewJob, most_bytes=MOST_JSON_BYTES)
    idempotency_key = key_of(request, job.idempotency_key)
    submission = await compose(request, tools, job, by=key, key=idempotency_key)
    accepting: Accepting = request.app.state.accepting
    return accepted(AcceptedJob.answering(await accepting.take(key, submission)))


@router.post("/v1/jobs:batch", **described("Submit jobs", BatchAnswers, takes=json_body(NewJobs)))
async def create_jobs(request: Request, key: Submitter, tools: ToolsHere) -> Response:
    """Record up to a hundred jobs; each has an answer of its own, and its own idempotency key."""
    batch = await read_envelope(request, NewJobs, most_bytes=MOST_BATCH_BYTES)
    if HEADER in request.headers:
        raise RequestRejected("invalid_idempotency_key", _KEY_OF_WHICH)
    limiting: Limiting = request.app.state.limiting
    limiting.weigh(key, len(batch.jobs) / JOBS_OF_A_REQUEST)
    # Ids of one millisecond have no order of their own; of two jobs with one key the first counts.
    ids = sorted(new_job_id() for _ in batch.jobs)
    composed: list[Submission | Problem] = []
    begun = monotonic()
    for item, job_id in zip(batch.jobs, ids, strict=True):
        composed.append(await _composed(request, tools, item, by=key, job_id=job_id))
        if monotonic() - begun > LONGEST_PIECE:
            await asyncio.sleep(0)  # whoever asked meanwhile is answered in between
            begun = monotonic()
    accepting: Accepting = request.app.state.accepting
    asked = [item for item in composed if isinstance(item, Submission)]
    answers = iter(await accepting.take_batch(key, asked))
    given = [next(answers) if isinstance(item, Submission) else item for item in composed]
    return answer(BatchAnswers(answers=[_answer_to(each, tools) for each in given]))


async def _composed(
    request: Request, tools: Tools, item: dict[str, object], *, by: ApiKey, job_id: JobId
) -> Submission | Problem:
    try:
        job = validated(item, NewJob, most_bytes=MOST_JSON_BYTES)
        key = job.idempotency_key
        return await compose(request, tools, job, by=by, key=key, job_id=job_id)
    except RequestRejected as error:
        return problem_of(error)


def _told(tools: Tools, error: Exception) -> Problem:
    if isinstance(error, LimitReached):
        tools.metrics.limited(error.limit)
    problem = problem_of(error) if isinstance(error, FleetError) else None
    if problem is None or problem.code in _OURS:
        raise error
    return problem


def _answer_to(given: Submitted | Problem | Exception, tools: Tools) -> BatchAnswer:
    if isinstance(given, Exception):
        given = _told(tools, given)
    if isinstance(given, Problem):
        return BatchAnswer(status=given.status, problem=given)
    return BatchAnswer(status=202, job=AcceptedJob.answering(given))


@router.get("/v1/jobs", **described("List jobs", JobPage))
async def find_jobs(
    key: Reader,
    tools: ToolsHere,
    status: JobState | None = None,
    job_type: Annotated[str | None, Query(alias="jobType", pattern=TYPE_FORM)] = None,
    correlation_id: Annotated[str | None, Query(alias="correlationId", pattern=TOKEN)] = None,
    image_id: Annotated[UUID | None, Query(alias="imageId")] = None,
    parent_job_id: Annotated[JobId | None, Query(alias="parentJobId")] = None,
    id_prefix: IdPrefix = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    limit: PageSize = 50,
    cursor: Annotated[JobId | None, Query(description=CURSOR)] = None,
) -> Response:
    """Newest first, by status and type or by one of the others; of these, some ids."""
    ids = IdRange.asked(id_prefix, created_after, cursor, created_before)
    filters = JobFilter(
        first=ids.first,
        state=status,
        type=job_type,
        correlation_id=correlation_id,
        target=None if image_id is None else image_target(image_id),
        parent_job_id=parent_job_id,
    )
    async with tools.pool.use("list_jobs", "jobs") as connection:
        jobs = await list_jobs(
            connection, key.tenant_id, filters, before=ids.before, limit=limit + 1
        )
    page = jobs[:limit]
    more = page[-1].job_id if len(jobs) > limit else None
    return answer(JobPage(jobs=page, next_cursor=more))


@router.get("/v1/jobs/{job_id}", **described("Look at a job", JobView, 404))
async def show_job(
    request: Request,
    job_id: JobId,
    key: Reader,
    tools: ToolsHere,
    wait: Annotated[
        int, Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for the job's end.")
    ] = 0,
) -> Response:
    """The job as it is now; with `wait`, as soon as it is over, or after that time."""
    job = await read_job(tools, job_id, key.tenant_id)
    if wait and not job.over:
        limiting: Limiting = request.app.state.limiting
        watcher: Watcher = request.app.state.watcher
        with limiting.stream(key):
            job = await watcher.over(job, key.tenant_id, within=wait)
    return answer(job)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    **described(
        "Cancel a job",
        AcceptedJob,
        404,
        status=202,
        unchanged=JobView,
        takes=json_body(Cancellation, required=False) | idempotency_header(),
    ),
)
async def cancel_job(request: Request, job_id: JobId, key: Submitter, tools: ToolsHere) -> Response:
    """Submit a job that cancels this one, and answer with that; 200 and this one if it is over."""
    asked = await read_json_if_any(request, Cancellation, most_bytes=MOST_JSON_BYTES)
    idempotency_key = key_of(request, asked.idempotency_key)
    payload = CancelJob(job_id=job_id, reason=asked.reason).model_dump(mode="json")
    kind = tools.kinds["cancel_job"]
    submission = draft(request, kind, by=key, key=idempotency_key, dedup_key=str(job_id)).whole(
        payload, fingerprint=fingerprint("POST /v1/jobs/{id}/cancel", payload)
    )
    admission: Admission = request.app.state.admission
    async with tools.pool.use("submit_job", "jobs") as connection:
        wanted = await get_job(connection, job_id, key.tenant_id, tools.known_kinds.results)
        if wanted.job_type in OF_OPERATORS:
            raise RequestRejected("forbidden", _OF_OPERATORS)
        if wanted.over and not await is_standing(connection, submission):
            return answer(wanted)
        if await admission.admit_cancel(connection, key, submission, job_id) is Admitted.STANDS:
            submitted = await find_standing(connection, submission)
        else:
            submitted = await submit_job(connection, submission)
    tools.ring([(submission, submitted)])
    return accepted(AcceptedJob.answering(submitted))
