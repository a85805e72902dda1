"""The job types: what each one's payload looks like and by which rules it runs.

A kind says everything about a type but how its work is done; that is a handler, in the worker. So
the API can judge a submission and the store can order it without either of them loading a handler.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, PydanticSerializationError, to_json

from imagefleet.errors import Misconfigured, RequestRejected
from imagefleet.jobs.faults import Fault
from imagefleet.jobs.images import ImageSource, image_target
from imagefleet.jobs.model import CancelCode, Intent, JobState, JsonObject, Lane, Submission
from imagefleet.jobs.policies import RetryPolicy

TIMEOUTS: Final[Mapping[Lane, timedelta]] = MappingProxyType(
    {
        Lane.FAST: timedelta(minutes=2),
        Lane.GENERAL: timedelta(minutes=20),
        Lane.QUARANTINE: timedelta(minutes=20),  # a suspect keeps the time its own lane gave it
    }
)
URGENT_BELOW: Final = 50
"""A priority below this asks for the fast lane; a job that does not ask has 100."""
STANDARD_RETRY: Final = RetryPolicy()
"""The policy of a type that names none; the settings may replace it for all of those."""

TYPE_FORM: Final = r"^[a-z][a-z0-9_]{0,62}$"
RECIPE_FORM: Final = r"^[a-z][a-z0-9_-]{0,62}$"
_NUL_IN_JSON: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
MOST_UNKNOWN: Final = 512  # fields; each costs an error
_FAULTS_SHOWN: Final = 10


def no_target(_payload: BaseModel) -> str | None:
    """Say that jobs of this type wait for no other job."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One job type and its policies."""

    name: str
    payload: type[BaseModel]
    lane: Lane = Lane.GENERAL
    retry: RetryPolicy = STANDARD_RETRY
    timeout: timedelta | None = None
    """How long one attempt may take; None is whatever the lane it runs in allows."""
    target: Callable[..., str | None] = no_target
    """From the payload to what it is about: jobs of one target run in order, one at a time."""
    services: tuple[str, ...] = ()
    """Services this type cannot work without: their open circuit breaker holds its jobs back."""
    preempts: bool = False
    """Ignores pauses and the order of its target, though never a running job."""
    pause_target_on_failure: bool = False
    """A failed job stops everything behind it on the same target until somebody looks."""
    result_visible: type[BaseModel] | None = None
    """What of a result its producer may read; None: nothing, it is for operators alone."""

    def __post_init__(self) -> None:
        """Refuse a name that could not be a label, a column's value or a part of a URL."""
        if re.fullmatch(TYPE_FORM, self.name) is None:
            msg = f"job type {self.name!r} does not match {TYPE_FORM}"
            raise Misconfigured(msg)
        if self.lane is Lane.QUARANTINE:
            msg = f"job type {self.name} may not start in quarantine; jobs get there by crashing"
            raise Misconfigured(msg)
        if self.timeout is not None and self.timeout <= timedelta(0):
            msg = f"job type {self.name} may not have a timeout of {self.timeout}"
            raise Misconfigured(msg)


class Kinds(Mapping[str, JobKind]):
    """The job types a process knows, by name. Immutable: `adding` returns another one."""

    def __init__(self, kinds: Iterable[JobKind]) -> None:
        """Take each kind once."""
        by_name: dict[str, JobKind] = {}
        for kind in kinds:
            if kind.name in by_name:
                msg = f"job type {kind.name} is defined twice"
                raise Misconfigured(msg)
            by_name[kind.name] = kind
        self._by_name: Final = by_name
        visible = {kind.name: kind.result_visible for kind in by_name.values()}
        self.results: Final = {name: model for name, model in visible.items() if model is not None}
        """What producers may read of results, by type."""

    def __getitem__(self, name: str) -> JobKind:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def adding(self, *kinds: JobKind) -> "Kinds":
        """Return these kinds and more; a name that is taken is refused."""
        return Kinds((*self.values(), *kinds))

    def with_standard_retry(self, policy: RetryPolicy) -> "Kinds":
        """Give this policy to every kind that names none of its own."""
        return Kinds(
            replace(kind, retry=policy) if kind.retry is STANDARD_RETRY else kind
            for kind in self.values()
        )


_KNOWN_BEFORE: Final = tuple(part.name for part in fields(Intent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft(Intent):
    """A submission before what it asks is known: it may be asked about, and never be inserted."""

    kind: JobKind
    max_attempts: int | None = None
    """None: as many as its kind has."""

    @property
    def type(self) -> str:
        return self.kind.name

    @property
    def lane(self) -> Lane:
        return self.kind.lane

    def whole(
        self,
        payload: JsonObject,
        *,
        fingerprint: str = "",
        lane: Lane | None = None,
    ) -> Submission:
        """The submission that asks this, by the rules of its kind where nothing else is said."""
        return Submission(
            **{name: getattr(self, name) for name in _KNOWN_BEFORE},
            type=self.type,
            lane=lane or self.lane,
            max_attempts=self.max_attempts or self.kind.retry.max_attempts,
            payload=payload,
            preempts=self.kind.preempts,
            services=self.kind.services,
            pause_target_on_failure=self.kind.pause_target_on_failure,
            fingerprint=fingerprint,
        )


def choose_lane(kind: JobKind, priority: int) -> Lane:
    """Return the lane of a new job of this priority: an urgent one never waits behind slow work."""
    return Lane.FAST if priority < URGENT_BELOW else kind.lane


def validate_payload(kind: JobKind, payload: JsonObject) -> BaseModel:
    """Judge what is submitted; a refusal names fields and echoes no value."""
    forbids = kind.payload.model_config.get("extra") == "forbid"
    if forbids and len(payload) > len(kind.payload.model_fields) + MOST_UNKNOWN:
        raise _invalid(kind, "it has hundreds of unknown fields")
    return _read(kind, payload, _as_declared)


def read_payload(kind: JobKind, payload: JsonObject) -> BaseModel:
    """Read what was accepted, perhaps by a newer release: fields unknown to this one are left out.

    At every depth and whatever the models forbid, since else a rolling deploy would fail jobs. The
    row keeps them.
    """
    return _read(kind, payload, _tolerantly)


def _as_declared(model: type[BaseModel], document: bytes) -> BaseModel:
    return model.model_validate_json(document, strict=True)


def _tolerantly(model: type[BaseModel], document: bytes) -> BaseModel:
    try:
        return _as_declared(model, document)  # a model that allows unknown fields has them
    except ValidationError:
        return model.model_validate_json(document, strict=True, extra="ignore")


def _read(
    kind: JobKind, payload: JsonObject, reading: Callable[[type[BaseModel], bytes], BaseModel]
) -> BaseModel:
    try:
        # By way of JSON, where strict still lets a string be a UUID, but no longer lets "5" be 5.
        document = to_json(dict(payload))
        if _NUL_IN_JSON.search(document):
            raise _invalid(kind, "it contains the character NUL, which cannot be stored")
        return reading(kind.payload, document)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        faults = Fault.all_of(errors[:_FAULTS_SHOWN], "payload", list(kind.payload.model_fields))
        told = "; ".join(f"{fault.field} {fault.detail}" for fault in faults)
        more = len(errors) - len(faults)
        raise _invalid(kind, told + (f" and {more} more" if more else "")) from None
    except (PydanticSerializationError, RecursionError):
        raise _invalid(kind, "it cannot be written as JSON") from None


def _invalid(kind: JobKind, why: str) -> RequestRejected:
    return RequestRejected("invalid_payload", f"The payload is not valid for {kind.name}: {why}.")


class Payload(BaseModel):
    """What a job of some type is asked to do; it never changes once it is accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


RECIPE_FORMAT: Final = "recipe"
"""Marks in a schema what names a recipe: which there are, the API knows."""
RecipeName = Annotated[str, Field(pattern=RECIPE_FORM, json_schema_extra={"format": RECIPE_FORMAT})]
RecipeHash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_NAME_OR_VERSION: Final = r"^[a-z][a-z0-9_-]{0,62}(@[0-9a-f]{8,32})?$"
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]


class ProcessImage(Payload):
    """Make the variants of one uploaded original."""

    image_id: UUID
    source_key: Annotated[str, Field(min_length=1, max_length=1024)]
    source_bytes: Annotated[int, Field(ge=1, lt=2**63)]
    source_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    source_etag: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    source_width: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    source_height: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """With these a worker knows whether it has the memory before it fetches."""
    content_type: Annotated[str, Field(min_length=1, max_length=255)]
    recipe: RecipeName = "default"
    recipe_hash: RecipeHash | None = None
    """The version that was in force where the job was submitted; releases before pin none."""
    source_seq: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The revision that brought this original; None says that this job's own revision does."""
    focal: tuple[Share, Share] | None = None
    """What is kept where the picture is cut; workers of releases before leave it out."""
    crops_only: Literal[True] | None = None
    """What is not cut may be taken over from what is shown, where that was made alike."""
    slow: Annotated[str, Field(pattern=r"^[a-z_]{1,63}$")] | None = None
    """Why it was put into the lane general, for who asks: a word of `imaging/lanes.py`."""

    @classmethod
    def payload(cls, source: ImageSource, *, source_seq: int | None = None) -> dict[str, Any]:
        """What a job is told that renders this original."""
        payload = cls(
            image_id=source.image_id,
            source_key=source.key,
            source_bytes=source.bytes,
            source_sha256=source.sha256,
            source_etag=source.etag,
            source_width=source.width,
            source_height=source.height,
            content_type=source.content_type,
            recipe=source.recipe,
            recipe_hash=source.recipe_hash,
            source_seq=source_seq,
            focal=source.focal,
        )
        return payload.model_dump(mode="json", exclude_none=True)


class ReprocessImages(Payload):
    """Render images of the job's tenant again: those that exactly one of these names."""

    recipe: RecipeName | None = None
    """The recipe to render with; None is each image's own."""
    recipe_hashes: SkipJsonSchema[dict[RecipeName, RecipeHash] | None] = None
    """The version of each that was in force where the job was submitted; for the API to say."""
    image_ids: Annotated[tuple[UUID, ...], Field(min_length=1, max_length=1000)] | None = None
    reference: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    recipe_was: Annotated[str, Field(pattern=_NAME_OR_VERSION)] | None = None
    """Images whose recipe is this one when their turn comes: any version of it, or NAME@HASH."""
    all_images: Literal[True] | None = None
    rate: Annotated[float, Field(ge=0.01, le=1000)] | None = None
    """So many images a second at most, on average; None: as many as the tenant has room for."""

    @model_validator(mode="after")
    def _names_one_set(self) -> Self:
        """Nobody should render everything again because of a field that was left out."""
        sets = (self.image_ids, self.reference, self.recipe_was, self.all_images)
        if sum(chosen is not None for chosen in sets) != 1:
            raise PydanticCustomError("one_set", "name exactly one set of images")
        return self


class DeleteImage(Payload):
    """Delete every object of one image and make the edge forget it."""

    image_id: UUID


class CancelJob(Payload):
    """Flag a job, so that it ends as failed with this code."""

    job_id: UUID
    code: CancelCode = CancelCode.CANCELLED
    reason: Annotated[str, Field(max_length=500)] = ""


class OpenJobs(Payload):
    """Open jobs of a tenant: those that all of these let through."""

    job_type: Annotated[str, Field(pattern=TYPE_FORM)] | None = None
    lane: Lane | None = None
    submitted_before: AwareDatetime | None = None
    """None: before the walk began."""
    submitted_after: AwareDatetime | None = None
    status: Literal[JobState.QUEUED, JobState.PROCESSING, JobState.FAILED_RETRYABLE] | None = None
    code: Annotated[str, Field(pattern=TYPE_FORM)] | None = None
    """Why the last attempt of those that are tried again did not work."""
    correlation_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    parent_job_id: UUID | None = None
    target: Annotated[str, Field(min_length=1, max_length=255)] | None = None


class CancelJobs(OpenJobs):
    """Cancel them, everywhere or at one target."""

    every_tenant: bool = False
    """Also what is not of the tenant that this job is of: an order of operators."""
    reason: Annotated[str, Field(max_length=500)] = ""


class ReplayJobs(Payload):
    """Replay what failed, each failure once: the open dead letters that all of these let through.

    Without a tenant those of all of them.
    """

    tenant: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    job_type: Annotated[str, Field(pattern=TYPE_FORM)] | None = None
    code: Annotated[str, Field(pattern=TYPE_FORM)] | None = None
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")] | None = None
    """A part of one is no letter's."""
    died_after: AwareDatetime | None = None
    died_until: AwareDatetime
    """What fails again meanwhile is another letter, and none of these."""
    rate: Annotated[int, Field(ge=1, le=1000)] = 20
    """Jobs a second, at most."""
    reason: Annotated[str, Field(max_length=500)] = ""


class PreviewOriginal(Payload):
    """Make a small inert picture of one original of an image, for operators."""

    image_id: UUID
    source_seq: Annotated[int, Field(ge=0, lt=2**63)]


class Noop(Payload):
    """Wait for a while and succeed: to see whether the fleet is alive, and how fast it is."""

    milliseconds: Annotated[int, Field(ge=0, le=60_000)] = 0
    note: Annotated[str, Field(max_length=200)] = ""


class VisibleResult(BaseModel):
    """What producers may read of a result; by itself, nothing but why the job is completed.

    What it does not name stays with the operators.
    """

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class RenderResult(VisibleResult):
    """Which image was made, as which revision, and in how many files."""

    image_id: UUID
    revision: int
    variants: int | None = None


class DeletionResult(VisibleResult):
    """Which image was deleted, and how many objects with it."""

    image_id: UUID
    deleted: int


class ReprocessingResult(VisibleResult):
    """How many images got a job, and how many need none."""

    submitted: int
    skipped: int


class FlaggingResult(VisibleResult):
    """How many jobs were told to end."""

    flagged: int


def _target_of_image(payload: ProcessImage | DeleteImage) -> str:
    return image_target(payload.image_id)


BUILT_IN: Final = Kinds(
    (
        JobKind(
            name="process_image",
            payload=ProcessImage,
            target=_target_of_image,
            services=("s3",),
            result_visible=RenderResult,
        ),
        JobKind(
            name="delete_image",
            payload=DeleteImage,
            lane=Lane.FAST,
            target=_target_of_image,
            services=("s3",),
            preempts=True,
            result_visible=DeletionResult,
        ),
        JobKind(
            name="cancel_job",
            payload=CancelJob,
            lane=Lane.FAST,
            preempts=True,
            result_visible=VisibleResult,
        ),
        JobKind(
            name="cancel_jobs",
            payload=CancelJobs,
            lane=Lane.FAST,
            timeout=timedelta(hours=1),  # a million jobs at 300 a second
            preempts=True,
            result_visible=FlaggingResult,
        ),
        JobKind(
            name="replay_jobs",
            payload=ReplayJobs,
            timeout=timedelta(hours=1),  # what is left then goes on in another attempt, uncharged
        ),
        JobKind(
            name="preview_original",
            payload=PreviewOriginal,
            timeout=timedelta(minutes=2),
            services=("s3",),
        ),
        JobKind(name="noop", payload=Noop, lane=Lane.FAST, result_visible=VisibleResult),
        JobKind(
            name="reprocess_images",
            payload=ReprocessImages,
            timeout=timedelta(hours=1),  # a million images at 300 a second
            result_visible=ReprocessingResult,
        ),
    )
)
