"""A producer's own order at a target: what waits there, holding it back, an end to all of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Reader, Submitter
from imagefleet.api.http.bodies import read_json, read_json_if_any
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import Tools, ToolsHere, accepted, actor_of, answer
from imagefleet.api.producers.ranges import PageSize
from imagefleet.api.producers.schemas import NO_CONTROLS, TargetCancellation, TargetReason
from imagefleet.api.producers.submitting import (
    Admission,
    draft,
    fingerprint,
    idempotency_header,
    key_of,
)
from imagefleet.errors import NotFound
from imagefleet.jobs.kinds import CancelJobs
from imagefleet.jobs.shapes.images import TargetState, TargetView
from imagefleet.jobs.shapes.shape import AcceptedJob
from imagefleet.store.fleet.audit import LONGEST_NAME, Act, Acting, acting
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.jobs.targets import find_target, list_waiting, told
from imagefleet.store.jobs.targets import pause_target as pause
from imagefleet.store.jobs.targets import resume_target as resume

TargetHere = Annotated[str, Path(pattern=NO_CONTROLS, description="Such as `image:` and an id.")]

router = Routes(tags=["targets"])


@router.get("/v1/targets/{target:whole_target}", **described("Look at a target", TargetView, 404))
async def show_target(
    target: TargetHere,
    key: Reader,
    tools: ToolsHere,
    limit: PageSize = 50,
    cursor: Annotated[int, Query(ge=0, lt=2**63, description="The `nextCursor` before.")] = 0,
) -> Response:
    """Whether it is paused, and its open jobs in the order that they run in."""
    async with tools.pool.use("list_waiting", "jobs") as connection:
        paused = await find_target(connection, key.tenant_id, target)
        jobs, more = await list_waiting(
            connection, key.tenant_id, target, after=cursor, limit=limit
        )
    return answer(TargetView(target=target, pause=paused, jobs=jobs, next_cursor=more))


@router.put(
    "/v1/targets/{target:path}/pause",
    **described("Pause a target", TargetState, 404, 409, takes=json_body(TargetReason)),
)
async def pause_target(
    request: Request, target: TargetHere, key: Submitter, tools: ToolsHere
) -> Response:
    """Hold back what waits there, and what is submitted meanwhile; what runs finishes."""
    asked = await read_json(request, TargetReason)
    async with _acting(request, key, tools, "pause_target") as act:
        connection, by = act.connection, f"{key.name[:LONGEST_NAME]} ({key.id})"
        before = await find_target(connection, key.tenant_id, target)
        await pause(connection, key.tenant_id, target, by=by, reason=asked.reason)
        after = await find_target(connection, key.tenant_id, target)
        whose, became = (f"target {target}", key.tenant_id, told(before)), told(after)
        await act.record(Act("pause", "pause", *whose, became, asked.reason))
    return answer(TargetState(target=target, pause=after))


@router.delete(
    "/v1/targets/{target:path}/pause", **described("Resume a target", TargetState, 404, 409)
)
async def resume_target(
    request: Request, target: TargetHere, key: Submitter, tools: ToolsHere
) -> Response:
    """Lift a pause of yours, or of a job that failed; who stands first there is announced."""
    async with _acting(request, key, tools, "resume_target") as act:
        before = await find_target(act.connection, key.tenant_id, target)
        if before is None:
            raise NotFound("pause")
        await resume(act.connection, key.tenant_id, target)
        await act.record(Act("resume", "pause", f"target {target}", key.tenant_id, told(before)))
    return answer(TargetState(target=target))


@router.post(
    "/v1/targets/{target:path}/cancel",
    **described(
        "Cancel a target's jobs",
        AcceptedJob,
        404,
        status=202,
        takes=json_body(TargetCancellation, required=False) | idempotency_header(),
    ),
)
async def cancel_target(
    request: Request, target: TargetHere, key: Submitter, tools: ToolsHere
) -> Response:
    """Submit one job that cancels whatever is open there by then."""
    asked = await read_json_if_any(request, TargetCancellation)
    wanted = CancelJobs(target=target, **asked.model_dump(exclude={"idempotency_key"}))
    payload = wanted.model_dump(mode="json", exclude_none=True)
    admission: Admission = request.app.state.admission
    async with tools.pool.use("submit_job", "jobs") as connection:
        await find_target(connection, key.tenant_id, target)
        # Also beyond the quota, which it makes room in; then one at a time.
        full = await admission.is_full(connection, key)
        submission = draft(
            request,
            tools.kinds["cancel_jobs"],
            by=key,
            key=key_of(request, asked.idempotency_key),
            dedup_key=fingerprint("cancel", {"target": target}) if full else None,
            priority=0,
        ).whole(payload, fingerprint=fingerprint("POST /v1/targets/{target}/cancel", payload))
        submitted = await submit_job(connection, submission)
    tools.ring([(submission, submitted)])
    return accepted(AcceptedJob.answering(submitted))


@asynccontextmanager
async def _acting(
    request: Request, key: ApiKey, tools: Tools, operation: str
) -> AsyncIterator[Acting]:
    """Under the API's own role, and told to the audit as what operators do is."""
    async with (
        tools.pool.use(operation, "pauses") as connection,
        acting(connection, actor_of(request, key)) as begun,
    ):
        yield begun
