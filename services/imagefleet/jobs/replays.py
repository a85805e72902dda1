"""What a replay is made of: the snapshot in a dead letter becomes a new job's submission."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from imagefleet.jobs.images import Focal, image_of_target
from imagefleet.jobs.kinds import BUILT_IN, JobKind, choose_lane
from imagefleet.jobs.model import JsonObject, Lane, Submission, new_job_id

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
    ORIGINAL_GONE = "original_gone"
    """Its original is not kept any more."""
    NOT_REPLAYABLE = "not_replayable"
    """No job: a message that nobody could read, or whose job nobody knows."""


_SUBMISSION: Final = TypeAdapter(Submission)
_OF_A_REQUEST: Final[JsonObject] = {"idempotency_key": None, "fingerprint": "", "run_at": None}
"""What the first job had, and a replay has not."""


def compose_replay(
    snapshot: JsonObject, order: ReplayOrder, kinds: Mapping[str, JobKind]
) -> Submission:
    """The same job once more; raises ValueError for what is not the snapshot of a job."""
    of_order = {
        "created_by": order.by,
        "replay_reason": order.reason,
        "traceparent": order.traceparent,
        "tracestate": order.tracestate,
    }
    told = {**snapshot, **_OF_A_REQUEST, **of_order, "job_id": snapshot.get("id")}
    failed = _SUBMISSION.validate_python(told)
    return replace(
        failed,
        job_id=new_job_id(),
        lane=_lane(failed, kinds.get(failed.type)),
        payload=_payload(failed, snapshot.get("target_seq")),
        replay_of=failed.job_id,
        generation=failed.generation + 1,
    )


def _lane(failed: Submission, kind: JobKind | None) -> Lane:
    """Where it was submitted to: out of quarantine, somebody must have found out what it was."""
    if failed.lane is not Lane.QUARANTINE:
        return failed.lane
    return Lane.GENERAL if kind is None else choose_lane(kind, failed.priority)


def image_of(submission: Submission) -> UUID | None:
    """The image that a replay cannot do without; None for what deletes it, or is about none."""
    return None if submission.preempts else image_of_target(submission.target)


def aimed(replay: Submission, source_seq: int | None, focal: Focal | None) -> Submission:
    """Cut around the point that its image has by now: one that was asked for later stands.

    It is one of the newest source; a replay of an older one keeps its own.
    """
    if replay.type != _PINNED or replay.payload["source_seq"] != source_seq:
        return replay
    return replace(replay, payload={**replay.payload, "focal": focal and [*focal]})


def _payload(failed: Submission, target_seq: object) -> JsonObject:
    """As it was, but an image's source keeps its own age, whatever revision the replay becomes.

    Else the replay of an old failure would be newer than a source that was uploaded since.
    """
    if failed.type == _PINNED and failed.payload.get("source_seq") is None:
        return {**failed.payload, "source_seq": target_seq}
    return failed.payload
