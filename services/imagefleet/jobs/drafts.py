"""A submission before what it asks is known: admitted by what it is, and built once, whole."""

from dataclasses import dataclass, field
from datetime import datetime

from imagefleet.jobs.kinds import JobKind
from imagefleet.jobs.model import JobId, JsonObject, Lane, Submission, TenantId, new_job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Whose job of which kind under which keys. It may be asked about, and never be inserted."""

    kind: JobKind
    tenant_id: TenantId
    created_by: str
    correlation_id: str
    idempotency_key: str | None = None
    dedup_key: str | None = None
    target: str | None = None
    parent_job_id: JobId | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    job_id: JobId = field(default_factory=new_job_id)

    @property
    def type(self) -> str:
        """The name of its kind."""
        return self.kind.name

    @property
    def lane(self) -> Lane:
        """The lane of its kind."""
        return self.kind.lane

    def whole(
        self,
        payload: JsonObject,
        *,
        fingerprint: str = "",
        lane: Lane | None = None,
        priority: int = 100,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
    ) -> Submission:
        """The submission that asks this, by the rules of its kind where nothing else is said."""
        return Submission(
            job_id=self.job_id,
            tenant_id=self.tenant_id,
            type=self.kind.name,
            lane=lane or self.kind.lane,
            priority=priority,
            max_attempts=max_attempts or self.kind.retry.max_attempts,
            payload=payload,
            fingerprint=fingerprint,
            target=self.target,
            run_at=run_at,
            preempts=self.kind.preempts,
            services=self.kind.services,
            pause_target_on_failure=self.kind.pause_target_on_failure,
            idempotency_key=self.idempotency_key,
            dedup_key=self.dedup_key,
            correlation_id=self.correlation_id,
            parent_job_id=self.parent_job_id,
            created_by=self.created_by,
            traceparent=self.traceparent,
            tracestate=self.tracestate,
        )
