"""What a replay is made of: the snapshot in a dead letter becomes a new job's submission."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

from imagefleet.jobs.kinds import BUILT_IN, JobKind, choose_lane, image_of_target
from imagefleet.jobs.model import JobId, JsonObject, Lane, Submission, TenantId, new_job_id

_PINNED: Final = BUILT_IN["process_image"].name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOrder:
    """How to replay, and who says so."""

    by: str
    reason: str | None = None
    force: bool = False
    """Also what somebody acknowledged."""
    dry_run: bool = False
    """Find out what would happen, and leave no trace."""
    traceparent: str | None = None
    tracestate: str | None = None


class ReplayOutcome(StrEnum):
    """What became of one letter."""

    REPLAYED = "replayed"
    ALREADY_REPLAYED = "already_replayed"
    ACKNOWLEDGED = "acknowledged"
    """Somebody said that nothing is to be done; `force` overrules."""
    DUPLICATE = "duplicate"
    """An open job has the same dedup key: ask again when that one has ended."""
    IMAGE_DELETED = "image_deleted"
    """What it is about was deleted since, and the original with it."""
    NOT_REPLAYABLE = "not_replayable"
    """No job: a message that nobody could read, or whose job nobody knows."""


class _Snapshot(BaseModel):
    """What a replay needs of the row that failed."""

    id: UUID
    tenant_id: str
    type: str
    lane: Lane
    priority: int
    target: str | None
    target_seq: int | None
    preempts: bool
    services: tuple[str, ...]
    pause_target_on_failure: bool
    max_attempts: int
    payload: dict[str, Any]
    dedup_key: str | None
    correlation_id: str
    parent_job_id: UUID | None
    generation: int


def compose_replay(
    snapshot: JsonObject, order: ReplayOrder, kinds: Mapping[str, JobKind]
) -> Submission:
    """The same job once more; raises ValueError for what is not the snapshot of a job."""
    failed = _Snapshot.model_validate(snapshot)
    return Submission(
        job_id=new_job_id(),
        tenant_id=TenantId(failed.tenant_id),
        type=failed.type,
        lane=_lane(failed, kinds.get(failed.type)),
        priority=failed.priority,
        target=failed.target,
        preempts=failed.preempts,
        services=failed.services,
        pause_target_on_failure=failed.pause_target_on_failure,
        max_attempts=failed.max_attempts,
        payload=_payload(failed),
        dedup_key=failed.dedup_key,
        correlation_id=failed.correlation_id,
        parent_job_id=None if failed.parent_job_id is None else JobId(failed.parent_job_id),
        created_by=order.by,
        replay_of=JobId(failed.id),
        generation=failed.generation + 1,
        replay_reason=order.reason,
        traceparent=order.traceparent,
        tracestate=order.tracestate,
    )


def _lane(failed: _Snapshot, kind: JobKind | None) -> Lane:
    """Where it was submitted to: out of quarantine, somebody must have found out what it was."""
    if failed.lane is not Lane.QUARANTINE:
        return failed.lane
    return Lane.GENERAL if kind is None else choose_lane(kind, failed.priority)


def image_of(submission: Submission) -> UUID | None:
    """The image that a replay cannot do without; None for what deletes it, or is about none."""
    return None if submission.preempts else image_of_target(submission.target)


def _payload(failed: _Snapshot) -> dict[str, Any]:
    """As it was, but an image's source keeps its own age, whatever revision the replay becomes.

    Else the replay of an old failure would be newer than a source that was uploaded since.
    """
    if failed.type == _PINNED and failed.payload.get("source_seq") is None:
        return failed.payload | {"source_seq": failed.target_seq}
    return failed.payload
