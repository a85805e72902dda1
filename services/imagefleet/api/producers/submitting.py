"""From a request to a submission: which kind of job, by which rules, on whose behalf."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

import orjson
from fastapi import Request

from imagefleet.api.producers.idempotency import correlate, fingerprint
from imagefleet.api.producers.schemas import MAX_PAYLOAD_BYTES, NewJob
from imagefleet.errors import RequestRejected
from imagefleet.imaging.recipes import RECIPES
from imagefleet.jobs.kinds import (
    JobKind,
    Kinds,
    ReprocessImages,
    choose_lane,
    validate_payload,
)
from imagefleet.jobs.model import JobId, Submission, new_job_id
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.telemetry.tracing import inject

# These act on images and jobs, whose owner is looked at on their own routes.
RESERVED: Final = MappingProxyType(
    {
        "process_image": "Jobs of this type are made by POST /v1/images.",
        "delete_image": "Jobs of this type are made by DELETE /v1/images/{id}.",
        "cancel_job": "Jobs of this type are made by POST /v1/jobs/{id}/cancel.",
        "cancel_jobs": "Jobs of this type are made by operators.",
    }
)

# Of the tenant, by whose key it is looked at, and yet not the tenant's to stop.
OF_OPERATORS: Final = frozenset({"cancel_jobs"})


def compose(
    request: Request, kinds: Kinds, job: NewJob, *, by: ApiKey, key: str | None
) -> Submission:
    """The submission that a producer's job comes to; RequestRejected if it cannot be one."""
    kind = _kind_of(kinds, job.job_type)
    if len(orjson.dumps(job.payload)) > MAX_PAYLOAD_BYTES:
        sentence = f"The payload is larger than {MAX_PAYLOAD_BYTES} bytes."
        raise RequestRejected("payload_too_large", sentence)
    payload = validate_payload(kind, job.payload)
    if isinstance(payload, ReprocessImages) and payload.recipe is not None:
        recipe_of(payload.recipe)
    # The payload is JSON already; to dump it as part of the model is another walk through it.
    asked = job.model_dump(mode="json", exclude={"payload", "idempotency_key", "correlation_id"})
    asked["payload"] = job.payload
    return replace(
        draft(request, kind, by=by, key=key, correlation_id=job.correlation_id),
        lane=choose_lane(kind, job.priority),
        priority=job.priority,
        payload=job.payload,
        target=kind.target(payload),
        run_at=job.run_at,
        dedup_key=job.dedup_key,
        parent_job_id=None if job.parent_job_id is None else JobId(job.parent_job_id),
        max_attempts=job.max_attempts or kind.retry.max_attempts,
        fingerprint=fingerprint("POST /v1/jobs", asked),
    )


def draft(
    request: Request, kind: JobKind, *, by: ApiKey, key: str | None, correlation_id: str | None
) -> Submission:
    """A submission by the rules of its kind, still without what is asked."""
    trace = inject()
    return Submission(
        job_id=new_job_id(),
        tenant_id=by.tenant_id,
        type=kind.name,
        lane=kind.lane,
        max_attempts=kind.retry.max_attempts,
        preempts=kind.preempts,
        services=kind.services,
        pause_target_on_failure=kind.pause_target_on_failure,
        idempotency_key=key,
        correlation_id=correlate(request, by.tenant_id, key, correlation_id),
        created_by=str(by.id),
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
    )


def recipe_of(name: str) -> str:
    """The name of a recipe that exists."""
    if name not in RECIPES:
        sentence = f"There is no such recipe; known are: {', '.join(RECIPES)}."
        raise RequestRejected("unknown_recipe", sentence)
    return name


def _kind_of(kinds: Kinds, name: str) -> JobKind:
    if name in RESERVED:
        raise RequestRejected("use_another_route", RESERVED[name])
    kind = kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(set(kinds) - RESERVED.keys()))
        sentence = f"There is no such job type; known are: {known}."
        raise RequestRejected("unknown_job_type", sentence)
    return kind
