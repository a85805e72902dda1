"""From a request to a submission: which kind of job, by which rules, on whose behalf."""

from types import MappingProxyType
from typing import Final

import orjson
from fastapi import Request

from imagefleet.api.idempotency import correlate, fingerprint
from imagefleet.api.schemas import MAX_PAYLOAD_BYTES, NewJob
from imagefleet.errors import RequestRejected
from imagefleet.jobs.kinds import JobKind, Kinds, choose_lane, validate_payload
from imagefleet.jobs.model import JobId, Submission, new_job_id
from imagefleet.store.keys import ApiKey
from imagefleet.telemetry.tracing import inject

# These act on images and jobs, whose owner is looked at on their own routes.
RESERVED: Final = MappingProxyType(
    {
        "process_image": "POST /v1/images",
        "delete_image": "DELETE /v1/images/{id}",
        "cancel_job": "POST /v1/jobs/{id}/cancel",
    }
)


def compose(
    request: Request, kinds: Kinds, job: NewJob, *, by: ApiKey, key: str | None
) -> Submission:
    """The submission that a producer's job comes to; RequestRejected if it cannot be one."""
    kind = _kind_of(kinds, job.job_type)
    if len(orjson.dumps(job.payload)) > MAX_PAYLOAD_BYTES:
        sentence = f"The payload is larger than {MAX_PAYLOAD_BYTES} bytes."
        raise RequestRejected("payload_too_large", sentence)
    payload = validate_payload(kind, job.payload)
    asked = job.model_dump(mode="json", exclude={"idempotency_key", "correlation_id"})
    return draft(
        request,
        kind,
        by=by,
        key=key,
        asked_correlation_id=job.correlation_id,
        priority=job.priority,
        changes={
            "payload": job.payload,
            "target": kind.target(payload),
            "run_at": job.run_at,
            "dedup_key": job.dedup_key,
            "parent_job_id": None if job.parent_job_id is None else JobId(job.parent_job_id),
            "max_attempts": job.max_attempts or kind.retry.max_attempts,
            "fingerprint": fingerprint("POST /v1/jobs", asked),
        },
    )
