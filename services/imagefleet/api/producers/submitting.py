"""From a request to a submission: which kind of job, on whose behalf, and on which terms.

The same request gets the same answer: which key it bears, and what "the same" means, is said here.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final
from uuid import UUID

import orjson
from fastapi import Request

from imagefleet.api.http.openapi import Piece
from imagefleet.api.http.requests import Tools, correlate
from imagefleet.api.producers.schemas import MAX_PAYLOAD_BYTES, NewJob
from imagefleet.api.producers.terms import PRINTABLE_ASCII, Terms
from imagefleet.errors import RequestRejected
from imagefleet.jobs.images import Focal, image_target
from imagefleet.jobs.kinds import (
    Draft,
    JobKind,
    Kinds,
    ReprocessImages,
    choose_lane,
    validate_payload,
)
from imagefleet.jobs.model import JobId, Submission, TenantId, new_job_id
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.recipes import names_one_version
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
        target=kind.target(payload),
        **job.known,
    ).whole(
        given,
        fingerprint=fingerprint("POST /v1/jobs", asked),
        lane=choose_lane(kind, job.priority),
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
    return draft(request, kind, by=key, key=own, target=target, **terms.known)


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
