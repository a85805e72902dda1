"""Operators and many dead letters: all that a filter names, replayed by one job, at its pace.

A page of a hundred is replayed by the request itself (`letters`), and so is a canary. This is for
the rest, however many they are: who orders it may leave.
"""

from typing import Annotated, Final

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import ToolsHere, answer
from imagefleet.api.operators.letters import LetterChoice
from imagefleet.api.producers.schemas import Incoming, Reason
from imagefleet.api.producers.submitting import draft
from imagefleet.jobs.kinds import ReplayJobs
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.jobs import OperatorLinks
from imagefleet.jobs.shapes.letters import ReplayOrdered
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.tenants import require_tenant
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.faults import with_whole_fault
from imagefleet.store.letters.letters import count_open_letters
from imagefleet.store.letters.replays import READ_CLOCK
from imagefleet.store.letters.walks import letters_of

MOST_COUNTED: Final = 10_000  # letters

router = Routes(tags=["dead letters"])


class ReplayAll(Incoming):
    """Run again whatever this filter names, by one job; nothing in it is every open letter."""

    filter: LetterChoice
    reason: Reason
    rate: Annotated[int, Field(ge=1, le=1000, description="Jobs a second, at most.")] = 20
    dry_run: bool = False


@router.post(
    "/v1/operator/dead-letters:replay-all",
    name="replay_all_letters",
    **described(
        "Replay all dead letters of a filter",
        ReplayOrdered,
        404,
        status=202,
        unchanged=ReplayOrdered,
        takes=json_body(ReplayAll),
    ),
)
async def replay_all(request: Request, key: Operator, tools: ToolsHere) -> Response:
    """Submit one job that replays them, or with `dryRun` only say how many they are."""
    asked = await read_json(request, ReplayAll)
    async with tools.operating("count_open_letters", "dead_letters") as connection:
        wanted = await _wanted(connection, asked)
        counted = await count_open_letters(connection, letters_of(wanted), most=MOST_COUNTED)
    counts = ReplayOrdered(letters=counted, letters_is_at_least=counted >= MOST_COUNTED)
    if asked.dry_run:
        return answer(counts, 200)
    payload = wanted.model_dump(mode="json", exclude_none=True)
    # Of all tenants it is a job of the operator's own.
    tenant_id = asked.filter.tenant or key.tenant_id
    submission = draft(
        request, tools.kinds["replay_jobs"], by=key, on_behalf_of=tenant_id, priority=0
    ).whole(payload)
    async with tools.acting("submit_job", "jobs", request, key) as acting:
        submitted = await submit_job(acting.connection, submission)
        by = asked.filter.model_dump(exclude_none=True)
        await acting.record(
            Act(
                action="replay",
                kind="dead_letter",
                name=" ".join(f"{name}={value}" for name, value in by.items()) or "all",
                tenant_id=asked.filter.tenant,
                before={"letters": counted},
                after={"payload": payload, "replayed_by": submitted.job_id},
                reason=asked.reason,
            )
        )
    tools.ring([(submission, submitted)])
    links = OperatorLinks.from_job(submitted.job_id)
    ordered = {"job_id": submitted.job_id, "status": submitted.state, "links": links}
    return answer(counts.model_copy(update=ordered), 202, {"Location": links.self})


async def _wanted(connection: Connection, asked: ReplayAll) -> ReplayJobs:
    """With the whole fault, and the end of what there is by now."""
    if asked.filter.tenant is not None:
        await require_tenant(connection, TenantId(asked.filter.tenant))
    chosen = await with_whole_fault(connection, asked.filter.filters())
    now = await connection.fetchval(READ_CLOCK)
    return ReplayJobs(
        tenant=chosen.tenant_id,
        job_type=chosen.type,
        code=chosen.reason,
        fingerprint=chosen.fingerprint,
        died_after=chosen.died_after,
        died_until=min(now, chosen.died_until or now),
        rate=asked.rate,
        reason=asked.reason,
    )
