"""Rows in any state, made the way the product makes them wherever that is possible."""

from collections.abc import Sequence
from datetime import datetime
from uuid import uuid4

from imagefleet.jobs.model import (
    JobId,
    JsonObject,
    Lane,
    Submission,
    TenantId,
    WorkerId,
    new_job_id,
)
from imagefleet.store.control import WorkerCard, register_worker
from imagefleet.store.database import Connection

TENANT = TenantId("acme")
ALL_LANES = tuple(Lane)
TYPES = ("process_image", "delete_image", "cancel_job", "noop")


def a_submission(
    *,
    job_id: JobId | None = None,
    tenant_id: TenantId = TENANT,
    type: str = "noop",  # noqa: A002 - the field's own name
    lane: Lane = Lane.FAST,
    priority: int = 100,
    max_attempts: int = 5,
    payload: JsonObject | None = None,
    target: str | None = None,
    preempts: bool = False,
    services: tuple[str, ...] = (),
    run_at: datetime | None = None,
    idempotency_key: str | None = None,
    fingerprint: str = "",
    dedup_key: str | None = None,
    replay_of: JobId | None = None,
) -> Submission:
    return Submission(
        job_id=job_id or new_job_id(),
        tenant_id=tenant_id,
        type=type,
        lane=lane,
        priority=priority,
        max_attempts=max_attempts,
        payload=payload or {},
        target=target,
        preempts=preempts,
        services=services,
        run_at=run_at,
        idempotency_key=idempotency_key,
        fingerprint=fingerprint,
        dedup_key=dedup_key,
        replay_of=replay_of,
        generation=0 if replay_of is None else 1,
        correlation_id="tests",
        created_by="tests",
    )


async def a_worker(
    worker: Connection,
    *,
    lanes: Sequence[Lane] = ALL_LANES,
    types: Sequence[str] = TYPES,
) -> WorkerId:
    worker_id = WorkerId(uuid4())
    card = WorkerCard(
        worker_id=worker_id,
        host="tests",
        pid=1,
        version="0",
        lanes=tuple(lanes),
        types=tuple(types),
        slots=8,
    )
    await register_worker(worker, card)
    return worker_id
