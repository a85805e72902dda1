"""From a request to a submission: on whose behalf, on which terms, and whether it is taken.

The same request gets the same answer: which key it bears, and what "the same" means, is said here.
Pauses that refuse work, and how much may be open, are for what would be new. A repeat of an
accepted request gets its answer in any case, and so does what a job stands for by its dedup key;
but while new work is refused that writes nothing, so that request's own key is not remembered.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson
from fastapi import Request

from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.openapi import Piece
from imagefleet.api.http.requests import Tools, correlate
from imagefleet.api.producers.terms import PRINTABLE_ASCII, Terms
from imagefleet.errors import LimitReached, NotFound, RequestRejected, Unavailable
from imagefleet.jobs.images import Focal, ImageFormat, image_target
from imagefleet.jobs.kinds import Draft, JobKind
from imagefleet.jobs.model import JobId, Lane, Submission, TenantId, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.admissions import (
    find_key_or_refusal,
    find_refusals,
    is_standing,
    list_parents,
    list_standing,
)
from imagefleet.store.jobs.cancelling import is_cancellable
from imagefleet.telemetry.tracing import inject

HEADER: Final = "Idempotency-Key"
_TELLING: Final = set(Terms.model_fields) - {"correlation_id"}
_FORM: Final = re.compile(PRINTABLE_ASCII)
_NO_KEY: Final = "An idempotency key is 1 to 255 printable ASCII characters without spaces."
_TWO_KEYS: Final = "The idempotency keys of the header and of the body differ."
_PARENT: Final = "parent job"
_PAUSED: Final = "New work of this kind is not taken at present."

Asked: TypeAlias = Submission | Draft
Wish: TypeAlias = tuple[ApiKey, Asked]
Refusal: TypeAlias = RequestRejected | Unavailable


def known(terms: Terms) -> dict[str, Any]:
    """What a draft is told of them."""
    return {name: getattr(terms, name) for name in Terms.model_fields}


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
    priority: int = 100,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
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
        priority=priority,
        run_at=run_at,
        max_attempts=max_attempts,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
    )


def draft_of_image(
    request: Request,
    tools: Tools,
    image_id: UUID,
    key: ApiKey,
    terms: Terms,
    in_body: str | None = None,
) -> Draft:
    """What its rendering is asked by; the key is that of the header, or of the body."""
    kind, target = tools.kinds["process_image"], image_target(image_id)
    own = key_of(request, in_body)
    return draft(request, kind, by=key, key=own, target=target, **known(terms))


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


def fingerprint(
    route: str,
    asked: Mapping[str, object],
    *,
    focal: Focal | None = None,
    terms: Terms | None = None,
) -> str:
    """A digest of what is asked; neither the key nor the correlation id is part of that.

    Releases before knew no terms of images, and no focal points: where none is given, it is theirs.
    """
    whole = {**asked, "focal": [*focal]} if focal else {**asked}
    if terms is not None:
        whole |= terms.model_dump(mode="json", include=_TELLING, exclude_defaults=True)
    canonical = orjson.dumps({"route": route, "asked": whole}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()


class Admitted(StrEnum):
    """How a request may go on."""

    NEW = "new"
    """It may be submitted."""
    STANDS = "stands"
    """Nothing new is taken, but a job stands for it already: that is the answer."""


@dataclass(frozen=True, slots=True)
class Gate:
    """How an image may go on, whose lane its header will tell."""

    stands: bool
    """A job stands for it already: it is answered with that, and not stored."""
    refusals: Mapping[Lane, str]

    def let(self, lane: Lane) -> None:
        """Return if it may come to be in this lane."""
        if not self.stands and lane in self.refusals:
            raise Unavailable("submits_paused", _PAUSED, self.refusals[lane])


class Admission:
    """The gate before the store."""

    def __init__(self, limiting: Limiting) -> None:
        self._limiting = limiting

    async def admit_batch(
        self, connection: Connection, wishes: Sequence[Wish], *, counts: bool = True
    ) -> list[Refusal | Admitted]:
        """Whether these may be submitted, or were before, each by itself, in one or two statements.

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
                return NotFound(_PARENT)
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

    async def admit_image(
        self, connection: Connection, key: ApiKey, draft: Draft, makes: Collection[ImageFormat] = ()
    ) -> "Gate":
        """Return if an image may come in: before it is read, and thus before its lane is known.

        RequestRejected or Unavailable if not.
        """
        slow = ImageFormat.AVIF in makes  # whatever the picture is
        lanes = {Lane.GENERAL} if slow else {Lane.FAST, Lane.GENERAL}
        stands, refusals = await find_key_or_refusal(connection, draft, lanes)
        gate = Gate(stands, refusals)
        if not stands:
            parent = draft.parent_job_id
            if parent and (key.tenant_id, parent) not in await list_parents(connection, {parent}):
                raise NotFound(_PARENT)
            if lanes == refusals.keys():
                gate.let(Lane.GENERAL)
            await self.admit_form(connection, key)
        return gate

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
