"""Who may do how much, what is made, who changed what: tenants, settings, recipes, types, audit."""

from datetime import datetime
from typing import Self
from uuid import UUID

from pydantic import Field, StrictBool, StrictFloat, StrictInt

from imagefleet.jobs.model import JobState, Lane
from imagefleet.jobs.shapes.jobs import OperatorLinks
from imagefleet.jobs.shapes.shape import Row, Seconds, Shape


class TenantView(Shape):
    """A tenant in a list; `openJobs` is counted up to a thousand."""

    tenant: str
    created_at: datetime
    weight: int
    max_open_jobs: int
    open_jobs: int
    open_jobs_is_at_least: bool
    paused: bool
    paused_types: list[str]

    @classmethod
    def of(cls, row: Row) -> Self:
        """Of the names of its pauses an empty one is all of them, and the others are types."""
        told = {"paused": "" in row["paused"], "paused_types": [*filter(None, row["paused"])]}
        return super().of(dict(row) | {"tenant": row["id"]} | told)


class TenantPage(Shape):
    """Tenants, by their names."""

    tenants: list[TenantView]
    next_cursor: str | None = None


class LimitView(Shape):
    """A limit: `default` unless it was set; `used` now, where that is known here.

    Of the columns of a tenant, its quota and its weight, the audit says who set them and why.
    """

    name: str
    default: int | None = None
    value: int | None = None
    used: int | None = None
    set_by: str | None = None
    reason: str | None = None
    set_at: datetime | None = None


class WholeTenantView(TenantView):
    """What a tenant has open by state, each counted up to a hundred thousand, and its limits."""

    queued: int
    processing: int
    failed_retryable: int
    limits: list[LimitView]


class CancellationView(Shape):
    """How many jobs it is about, of the newest 10,000 of each state; and the job that does it."""

    jobs: int
    jobs_is_at_least: bool
    job_id: UUID | None = None
    status: JobState | None = None
    links: OperatorLinks | None = None


class SettingView(Shape):
    """A live setting: what is in force, beside what is while nobody turned it."""

    name: str
    """With a `<place>` where nothing is known that could stand in it."""
    value: StrictBool | StrictInt | StrictFloat | None = None
    default: StrictBool | StrictInt | StrictFloat | None = None
    turned: bool
    allowed: str | None = None
    meaning: str | None = None
    processes: list[str] = Field(default_factory=list)
    default_from: str | None = None
    known: bool | None = None
    """Whether this API knows the job type that the name is about."""
    ignored: str | None = None
    """Why what somebody wrote is not in force."""
    set_by: str | None = None
    set_at: datetime | None = None
    reason: str | None = None


class Settings(Shape):
    """Every live setting, in the order of their page."""

    settings: list[SettingView]


class AuditLineView(Shape):
    """One line. `at` and `role` are Postgres's own; the rest is what the process knew."""

    id: int
    at: datetime
    role: str
    actor: str
    key_id: UUID | None = None
    address: str | None = None
    action: str
    kind: str
    name: str
    tenant: str | None = None
    before: dict[str, object] | None = None
    after: dict[str, object] | None = None
    reason: str | None = None


class AuditLines(Shape):
    """The newest first. A page may be short, or empty: there is more where `nextCursor` says so."""

    lines: list[AuditLineView]
    next_cursor: int | None = None


class RecipeVariant(Shape):
    """One file that a recipe makes: a box in pixels, what it may come out as, and its name then."""

    name: str
    fit: str
    width: int
    height: int
    formats: list[str]
    types: list[str]
    files: list[str]
    quality: int


class RecipeView(Shape):
    """A recipe in the version that is in force."""

    name: str
    hash: str
    variants: list[RecipeVariant]


class RecipeList(Shape):
    """Every recipe that may be named."""

    recipes: list[RecipeView]


class JobTypeView(Shape):
    """A job type, by the policies in force for it."""

    job_type: str
    made_by: str | None = None
    """Where such jobs come from, if not from `POST /v1/jobs`."""
    lane: Lane
    max_attempts: int
    timeout: Seconds
    """Of one attempt."""
    payload: dict[str, object]
    """Its JSON Schema."""
    result: dict[str, object] | None = None
    """That of what is shown beside the `reason`; absent where a result is for operators alone."""


class JobTypeList(Shape):
    """Every job type that this API knows."""

    job_types: list[JobTypeView]
