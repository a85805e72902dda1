"""Every error this product raises on purpose.

FleetError                 code + public_message (safe to show) + detail (for operators' eyes)
├── RequestRejected        the caller's fault; `api` maps code to a status
│   ├── IdempotencyConflict    the key was used for another request
│   ├── LimitReached           the tenant or the key has taken what it may for now
│   └── NotFound               no such thing, or another tenant's
├── InputRejected          this input can never work: the job fails for good
├── Unavailable            the world's fault: retry later
├── ClaimLost              somebody else owns the job now: stop, write nothing
├── IllegalTransition      the database refused an edge the lifecycle does not have: a bug
├── StoreRejected          the database refused a value or a privilege: a bug, or a poisonous row
└── Misconfigured          refuse to start

Anything else that is raised is a bug: retried up to the limit, logged with its traceback, counted
apart. Foreign exceptions (asyncpg, botocore, PIL) are translated at the border, never seen above.
"""


class FleetError(Exception):
    """Knows three things: a stable code, a sentence anybody may read, a detail for operators."""

    def __init__(self, code: str, public_message: str, detail: str | None = None) -> None:
        super().__init__(f"{code}: {detail or public_message}")
        self.code = code
        self.public_message = public_message
        self.detail = detail


class RequestRejected(FleetError):
    """The request cannot be accepted as it is; sending it again unchanged will not help."""


class IdempotencyConflict(RequestRejected):
    """The idempotency key already belongs to a different request of this tenant."""

    def __init__(self, key: str) -> None:
        super().__init__(
            "idempotency_conflict",
            "This idempotency key was already used for a different request.",
            f"idempotency key {key!r}",
        )


class LimitReached(RequestRejected):
    """The tenant or the key has taken what it may for now; `limit` says of what."""

    def __init__(
        self,
        limit: str,
        public_message: str,
        retry_after: int = 2,
        *,
        code: str = "limit_reached",
    ) -> None:
        """Say which limit it is, and in how many seconds to come back."""
        super().__init__(code, public_message)
        self.limit = limit
        self.retry_after = retry_after


class NotFound(RequestRejected):
    """There is no such thing, or it belongs to another tenant: the two look the same."""

    def __init__(self, what: str) -> None:
        super().__init__("not_found", f"No such {what}.")


class InputRejected(FleetError):
    """This input can never work: the job that needs it fails for good."""


class Unavailable(FleetError):
    """Something outside did not answer, or asked us to come back later."""


class ClaimLost(FleetError):
    """The fence said no: another claim owns the job. Stop, write nothing, count it."""

    def __init__(self, detail: str) -> None:
        super().__init__("claim_lost", "Another worker owns this job now.", detail)

    @classmethod
    def of_job(cls, job_id: object, claim_no: int) -> "ClaimLost":
        """One claim does not stand any more."""
        return cls(f"job {job_id} claim {claim_no}")

    @classmethod
    def of_worker(cls, worker_id: object) -> "ClaimLost":
        """The worker was declared dead, and with it all its claims."""
        return cls(f"worker {worker_id} was declared dead")


class IllegalTransition(FleetError):
    """The database refused a change of state that the lifecycle does not have."""

    def __init__(self, detail: str) -> None:
        super().__init__("illegal_transition", "The job's state does not allow this.", detail)


class StoreRejected(FleetError):
    """The database refused a value or a privilege; the same statement will fail again."""


class Misconfigured(FleetError):
    """The process must not start like this; the message names every fault at once."""

    def __init__(self, detail: str) -> None:
        super().__init__("misconfigured", "The configuration is not usable.", detail)
