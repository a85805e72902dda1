"""From a request to a submission: which kind of job, on whose behalf, and whether it is taken.

The same request gets the same answer: which key it bears, and what "the same" means, is said here.
Pauses that refuse work, and how much may be open, are for what would be new. A repeat of an
accepted request gets its answer in any case, and so does what a job stands for by its dedup key;
but while new work is refused that writes nothing, so that request's own key is not remembered.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

import orjson
from fastapi import Request

from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.openapi import Piece
from imagefleet.api.http.requests import Tools, correlate
from imagefleet.api.producers.schemas import MAX_PAYLOAD_BYTES, PRINTABLE_ASCII, NewJob
from imagefleet.errors import LimitReached, NotFound, RequestRejected, Unavailable
from imagefleet.jobs.images import Focal
from imagefleet.jobs.kinds import (
    Draft,
    JobKind,
    Kinds,
    ReprocessImages,
    choose_lane,
    validate_payload,
)
from imagefleet.jobs.model import JobId, Submission, TenantId, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.recipes import names_one_version
from imagefleet.store.jobs.admissions import (
    find_key_or_refusal,
    find_refusals,
    is_standing,
    list_parents,
    list_standing,
)
from imagefleet.store.jobs.cancelling import is_cancellable
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

HEADER: Final = "Idempotency-Key"
_FORM: Final = re.compile(PRINTABLE_ASCII)
_NO_KEY: Final = "An idempotency key is 1 to 255 printable ASCII characters without spaces."
_TWO_KEYS: Final = "The idempotency keys of the header and of the body differ."
_NOT_THEIRS: Final = "recipe_hashes is not for producers: the versions in force are taken."
_PAUSED: Final = "New work of this kind is not taken at present."

Asked: TypeAlias = Submission | Draft
Wish: TypeAlias = tuple[ApiKey, Asked]
Refusal: TypeAlias = RequestRejected | Unavailable


async def compose(
    request: Request,
    tools: Tools,
    job: NewJob,
    *,
    by: ApiKey,
    key: str | None,
    job_id: JobId | None = None,
) -> Submission:
    """The submission that a producer's job comes to; RequestRejected if it cannot be one."""
    kind, given = _kind_of(tools.kinds, job.job_type), job.payload
    if len(orjson.dumps(job.payload)) > MAX_PAYLOAD_BYTES:
        sentence = f"The payload is larger than {MAX_PAYLOAD_BYTES} bytes."
        raise RequestRejected("payload_too_large", sentence)
    payload = validate_payload(kind, job.payload)
    if isinstance(payload, ReprocessImages):
        given = given | {"recipe_hashes": await versions_of_a_set(tools, payload)}
    # The payload is JSON already; to dump it as part of the model is another walk through it.
    asked = job.model_dump(mode="json", exclude={"payload", "idempotency_key", "correlation_id"})
    asked["payload"] = job.payload
    return draft(
        request,
        kind,
        by=by,
        key=key,
        job_id=job_id,
        correlation_id=job.correlation_id,
        dedup_key=job.dedup_key,
        target=kind.target(payload),
        parent_job_id=None if job.parent_job_id is None else JobId(job.parent_job_id),
    ).whole(
        given,
        fingerprint=fingerprint("POST /v1/jobs", asked),
        lane=choose_lane(kind, job.priority),
        priority=job.priority,
        run_at=job.run_at,
        max_attempts=job.max_attempts,
    )


async def versions_of_a_set(tools: Tools, wanted: ReprocessImages) -> Mapping[str, str]:
    """What the images of a set are made by, each by the version of its recipe; or why not.

    A worker with an older file would make the version that is to be replaced.
    """
    if wanted.recipe_hashes is not None:
        raise RequestRejected("invalid_payload", _NOT_THEIRS)
    if wanted.recipe is not None:
        tools.recipe_of(wanted.recipe)
    name, _, version = (wanted.recipe_was or "").partition("@")
    if version:
        async with tools.pool.use("list_versions", "recipes") as connection:
            if not await names_one_version(connection, name, version):
                sentence = f"There is no one version {version} of a recipe {name}."
                raise RequestRejected("unknown_recipe", sentence)
    return tools.versions


def draft(
    request: Request,
    kind: JobKind,
    *,
    by: ApiKey,
    on_behalf_of: TenantId | None = None,
    key: str | None = None,
    job_id: JobId | None = None,
    correlation_id: str | None = None,
    dedup_key: str | None = None,
    target: str | None = None,
    parent_job_id: JobId | None = None,
) -> Draft:
    """What a request will come to, as far as it is known without its body."""
    trace = inject()
    return Draft(
        job_id=job_id or new_job_id(),
        kind=kind,
        tenant_id=on_behalf_of or by.tenant_id,
        created_by=str(by.id),
        correlation_id=correlate(request, by.tenant_id, key, correlation_id),
        idempotency_key=key,
        dedup_key=dedup_key,
        target=target,
        parent_job_id=parent_job_id,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
    )


def _kind_of(kinds: Kinds, name: str) -> JobKind:
    if name in RESERVED:
        raise RequestRejected("use_another_route", RESERVED[name])
    kind = kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(set(kinds) - RESERVED.keys()))
        sentence = f"There is no such job type; known are: {known}."
        raise RequestRejected("unknown_job_type", sentence)
    return kind


def key_of(request: Request, in_body: str | None = None) -> str | None:
    """The key of this request, from its header or its JSON body."""
    given = set(request.headers.getlist(HEADER))
    if any(_FORM.fullmatch(key) is None for key in given):
        raise RequestRejected("invalid_idempotency_key", _NO_KEY)
    given |= {in_body} if in_body is not None else set()
    if len(given) > 1:
        raise RequestRejected("idempotency_keys_differ", _TWO_KEYS)
    return next(iter(given), None)


def idempotency_header() -> Piece:
    """How a route describes it."""
    header = {
        "name": HEADER,
        "in": "header",
        "required": False,
        "description": "The same request under the same key gets the same answer.",
        "schema": {"type": "string", "pattern": PRINTABLE_ASCII},
    }
    return {"parameters": [header]}


def fingerprint(route: str, asked: Mapping[str, object], *, focal: Focal | None = None) -> str:
    """A digest of what is asked; neither the key nor the correlation id is part of that."""
    whole = {**asked, "focal": [*focal]} if focal else asked  # without, as releases before have it
    canonical = orjson.dumps({"route": route, "asked": whole}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()


class Admitted(StrEnum):
    """How a request may go on."""

    NEW = "new"
    """It may be submitted."""
    STANDS = "stands"
    """Nothing new is taken, but a job stands for it already: that is the answer."""


class Admission:
    """The gate before the store."""

    def __init__(self, limiting: Limiting) -> None:
        self._limiting = limiting

    async def admit(self, connection: Connection, key: ApiKey, asked: Asked) -> Admitted:
        """Return if this may be submitted, or was before; RequestRejected or Unavailable if not."""
        [verdict] = await self.admit_batch(connection, [(key, asked)])
        if isinstance(verdict, Admitted):
            return verdict
        raise verdict

    async def admit_batch(
        self, connection: Connection, wishes: Sequence[Wish], *, counts: bool = True
    ) -> list[Refusal | Admitted]:
        """The same of many jobs, each by itself, for one or two statements.

        What is there after a count is for the first of them; open jobs are counted once, or were
        before.
        """
        if not wishes:
            return []
        wanted = {job.parent_job_id for _, job in wishes if job.parent_job_id is not None}
        parents = await list_parents(connection, wanted) if wanted else set()
        groups = {(job.type, job.lane, key.tenant_id) for key, job in wishes}
        paused = await find_refusals(connection, groups)
        for key, jobs in Counter(key for key, _ in wishes if counts).items():
            await self._limiting.open_jobs(connection, key, jobs)

        def refusal(key: ApiKey, job: Asked) -> Refusal | None:
            parent = job.parent_job_id
            if parent is not None and (key.tenant_id, parent) not in parents:
                return NotFound("parent job")
            why = paused.get((job.type, job.lane, key.tenant_id))
            if why is not None:
                return Unavailable("submits_paused", _PAUSED, why)
            return self._limiting.rooms_of(key).take()

        verdicts = [refusal(key, job) or Admitted.NEW for key, job in wishes]
        refused = [place for place, each in enumerate(verdicts) if each is not Admitted.NEW]
        if refused:
            again = [wishes[place][1] for place in refused]
            for standing in await list_standing(connection, again):
                verdicts[refused[standing]] = Admitted.STANDS
        return verdicts

    async def admit_upload(self, connection: Connection, key: ApiKey, draft: Draft) -> bool:
        """The same before a body is read; whether its key stands for something already.

        Then it is a repeat, or another body, and neither is to be stored.
        """
        stands, why = await find_key_or_refusal(connection, draft)
        if not stands:
            if why is not None:
                raise Unavailable("submits_paused", _PAUSED, why)
            await self.admit_form(connection, key)
        return stands

    async def admit_form(self, connection: Connection, key: ApiKey) -> None:
        """Return if what is posted by a new form could become an image at present."""
        full = await self._full(connection, key)
        if full is not None:
            raise full

    async def admit_deletion(
        self, connection: Connection, key: ApiKey, submission: Submission
    ) -> Admitted:
        """Deletions are always taken; those that repeat one leave nothing at a full quota."""
        if await self._full(connection, key) and await is_standing(connection, submission):
            return Admitted.STANDS
        return Admitted.NEW

    async def admit_cancel(
        self, connection: Connection, key: ApiKey, submission: Submission, job_id: JobId
    ) -> Admitted:
        """Return if a job may be cancelled: beyond the quota, too, but each open job once."""
        full = await self._full(connection, key)
        if full is None:
            return Admitted.NEW
        if await is_standing(connection, submission):
            return Admitted.STANDS
        if not await is_cancellable(connection, job_id):
            raise full
        return Admitted.NEW

    async def _full(self, connection: Connection, key: ApiKey) -> LimitReached | None:
        return (await self._limiting.open_jobs(connection, key, 1)).take()
