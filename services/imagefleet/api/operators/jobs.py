"""Operators and jobs: any tenant's, with everything about them; and the orders one can give."""

from typing import Annotated, Final

from fastapi import Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import TOKEN, Tools, ToolsHere, answer
from imagefleet.api.operators.explain import explanation
from imagefleet.api.operators.schemas import CODE, TARGET, TENANT, TYPE, Because, WatchedJobs, Why
from imagefleet.api.producers.ranges import (
    CreatedAfter,
    CreatedBefore,
    IdPrefix,
    IdRange,
    PageSize,
)
from imagefleet.api.producers.submitting import draft, fingerprint
from imagefleet.jobs.kinds import CancelJob
from imagefleet.jobs.model import TERMINAL, CancelCode, JobId, JobState, TenantId
from imagefleet.jobs.shapes.explaining import ExplanationView
from imagefleet.jobs.shapes.jobs import (
    Attempts,
    OperatorLinks,
    OrderedJob,
    OutcomesView,
    OverseenJobPage,
    RelatedJob,
    RetryNow,
    WholeJob,
)
from imagefleet.jobs.shapes.letters import WholeLetter
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.breakers import list_breakers
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.fleet.pauses import list_pauses
from imagefleet.store.fleet.statistics import room_for_job
from imagefleet.store.jobs.admissions import is_standing
from imagefleet.store.jobs.inspection import (
    explain_job,
    get_operator_job,
    list_attempts,
    list_neighbours,
)
from imagefleet.store.jobs.overseeing import oversee_jobs
from imagefleet.store.jobs.reports import OverseenFilter
from imagefleet.store.jobs.rings import ring_now
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.letters import get_dead_letters
from imagefleet.store.letters.replays import count_outcomes

MOST_BYTES: Final = 65_536  # of the JSON
_KIND: Final = "job"


router = Routes(tags=["jobs"])


@router.get(
    "/v1/operator/jobs",
    name="oversee_jobs",
    **described("List jobs of any tenant", OverseenJobPage),
)
async def oversee(
    _key: Operator,
    tools: ToolsHere,
    tenant: Annotated[TenantId | None, Query(pattern=TENANT)] = None,
    status: JobState | None = None,
    job_type: Annotated[str | None, Query(alias="jobType", pattern=TYPE)] = None,
    code: Annotated[str | None, Query(pattern=CODE, description="Of failed ones.")] = None,
    correlation_id: Annotated[str | None, Query(alias="correlationId", pattern=TOKEN)] = None,
    target: Annotated[str | None, Query(pattern=TARGET)] = None,
    parent_job_id: Annotated[JobId | None, Query(alias="parentJobId")] = None,
    id_prefix: IdPrefix = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    limit: PageSize = 50,
    cursor: JobId | None = None,
) -> Response:
    """Newest first, those of which all of it is true; a page may be short and not the last."""
    ids = IdRange.asked(id_prefix, created_after, cursor, created_before)
    filters = OverseenFilter(
        first=ids.first,
        tenant_id=tenant,
        state=status,
        type=job_type,
        code=code,
        correlation_id=correlation_id,
        target=target,
        parent_job_id=parent_job_id,
    )
    async with tools.operating("oversee_jobs", "jobs") as connection:
        return answer(await oversee_jobs(connection, filters, before=ids.before, limit=limit))


@router.get(
    "/v1/operator/jobs/{job_id}",
    name="show_whole_job",
    **described("Look at everything about a job", WholeJob, 404),
)
async def show_whole(job_id: JobId, _key: Operator, tools: ToolsHere) -> Response:
    """Its whole row, with payload, claims, keys and its ring."""
    async with tools.operating("get_operator_job", "jobs") as connection:
        return answer(await get_operator_job(connection, job_id))


@router.get(
    "/v1/operator/jobs/{job_id}/attempts", **described("List a job's attempts", Attempts, 404)
)
async def show_attempts(job_id: JobId, _key: Operator, tools: ToolsHere) -> Response:
    """How each claim of it ended, where, why, and what it logged; oldest first."""
    async with tools.operating("list_attempts", "attempts") as connection:
        await get_operator_job(connection, job_id)
        attempts = await list_attempts(connection, job_id)
    return answer(Attempts(attempts=attempts))


@router.get(
    "/v1/operator/jobs/{job_id}/explain",
    name="explain_job",
    **described("Explain why a job does not run", ExplanationView, 404),
)
async def explain(job_id: JobId, _key: Operator, tools: ToolsHere) -> Response:
    """The verdict that a claim of it would get now, from the same rule, and one sentence."""
    async with tools.operating("explain_job", "jobs", of_one_moment=True) as connection:
        facts = await explain_job(connection, job_id)
        room = await room_for_job(connection, facts.lane, facts.type)
        pauses = await list_pauses(connection)
        breakers = await list_breakers(connection)
        letters: list[WholeLetter] = []
        neighbours: tuple[RelatedJob, ...] = ()
        if facts.state is JobState.FAILED:
            letters = await get_dead_letters(connection, [job_id])
        elif facts.target is not None:
            neighbours = await list_neighbours(connection, facts.tenant_id, facts.target)
    letter = letters[0] if letters else None
    return answer(
        explanation(job_id, facts, room, pauses, breakers, letter=letter, neighbours=neighbours)
    )


@router.post(
    "/v1/operator/jobs/{job_id}/cancel",
    name="cancel_any_job",
    **described(
        "Cancel any tenant's job",
        OrderedJob,
        404,
        status=202,
        unchanged=WholeJob,
        takes=json_body(Because),
    ),
)
async def cancel(request: Request, job_id: JobId, key: Operator, tools: ToolsHere) -> Response:
    """Submit a job that ends this one as `cancelled`, without a dead letter; 200 if it is over."""
    return await _end(request, tools, key, job_id, CancelCode.CANCELLED)


@router.post(
    "/v1/operator/jobs/{job_id}/fail",
    name="fail_job",
    **described(
        "Fail a job",
        OrderedJob,
        404,
        status=202,
        unchanged=WholeJob,
        takes=json_body(Because),
    ),
)
async def fail(request: Request, job_id: JobId, key: Operator, tools: ToolsHere) -> Response:
    """Submit a job that fails this one, with a dead letter; 200 and this one if it is over."""
    return await _end(request, tools, key, job_id, CancelCode.FAILED_BY_OPERATOR)


async def _end(
    request: Request, tools: Tools, key: ApiKey, job_id: JobId, code: CancelCode
) -> Response:
    """Both go the road of a producer's cancellation, on behalf of the job's tenant."""
    asked = await read_json(request, Because, most_bytes=MOST_BYTES)
    payload = CancelJob(job_id=job_id, code=code, reason=asked.reason).model_dump(mode="json")
    kind = tools.kinds["cancel_job"]
    async with tools.acting("submit_job", "jobs", request, key) as acting:
        victim = await get_operator_job(acting.connection, job_id)
        submission = draft(
            request,
            kind,
            by=key,
            on_behalf_of=TenantId(victim.tenant),
            dedup_key=f"operator:{code}:{job_id}",
        ).whole(payload, fingerprint=fingerprint("POST /v1/operator/jobs/{id}", payload))
        if victim.status in TERMINAL and not await is_standing(acting.connection, submission):
            acting.found_nothing()
            return answer(victim)
        submitted = await submit_job(acting.connection, submission)
        await acting.record(
            Act(
                action="cancel" if code is CancelCode.CANCELLED else "fail",
                kind=_KIND,
                name=str(job_id),
                tenant_id=submission.tenant_id,
                before=_where_it_is(victim),
                after=_where_it_is(victim) | {"ended_by": submitted.job_id},
                reason=asked.reason,
            )
        )
    tools.ring([(submission, submitted)])
    links = OperatorLinks.from_job(submitted.job_id)
    ordered = OrderedJob(job_id=submitted.job_id, status=submitted.state, links=links)
    return answer(ordered, 202, {"Location": links.self})


@router.post(
    "/v1/operator/jobs/{job_id}/retry-now",
    name="retry_job_now",
    **described("Retry a waiting job now", RetryNow, 404),
)
async def retry_now(
    request: Request, job_id: JobId, key: Operator, tools: ToolsHere, reason: Why = None
) -> Response:
    """Make it due and ring it. A job that is not waiting stays as it is."""
    async with tools.acting("ring_now", "rings", request, key) as acting:
        job = await get_operator_job(acting.connection, job_id)
        rings = await ring_now(acting.connection, job_id)
        became = await get_operator_job(acting.connection, job_id)
        if rings is None:
            acting.found_nothing()
        else:
            await acting.record(
                Act(
                    action="retry_now",
                    kind=_KIND,
                    name=str(job_id),
                    tenant_id=TenantId(job.tenant),
                    before=_where_it_is(job),
                    after=_where_it_is(became),
                    reason=reason,
                )
            )
    tools.doorbell.ring(rings or ())
    return answer(RetryNow(job_id=job_id, status=became.status, rung=bool(rings)))


@router.post(
    "/v1/operator/jobs:outcomes",
    name="count_outcomes",
    **described("Count how jobs fare", OutcomesView, takes=json_body(WatchedJobs)),
)
async def outcomes(request: Request, _key: Operator, tools: ToolsHere) -> Response:
    """How many of these are open, completed and failed: to watch a replay of many."""
    asked = await read_json(request, WatchedJobs, most_bytes=MOST_BYTES)
    async with tools.operating("count_outcomes", "jobs") as connection:
        counted = await count_outcomes(connection, asked.job_ids)
    return answer(counted)


def _where_it_is(job: WholeJob) -> dict[str, object]:
    """What the audit keeps of a job: by then the row may be forgotten."""
    return {
        "type": job.job_type,
        "state": job.status,
        "run_at": job.run_at,
        "ring_due_at": job.ring_due_at,
    }
