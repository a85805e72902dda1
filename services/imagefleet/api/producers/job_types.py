"""The job types that there are: which may be submitted, and what becomes of one that is."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import orjson
from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from imagefleet.api.http.auth import AnyKey
from imagefleet.api.http.documents import NamesInForce, fill_in
from imagefleet.api.http.openapi import Piece, Routes, described
from imagefleet.api.http.requests import Tools, ToolsHere, answer
from imagefleet.api.producers.schemas import JOB_TYPE_FORMAT, MAX_PAYLOAD_BYTES, NewJob
from imagefleet.api.producers.submitting import draft, fingerprint, known
from imagefleet.errors import RequestRejected
from imagefleet.jobs.kinds import (
    RECIPE_FORMAT,
    JobKind,
    Kinds,
    ReprocessImages,
    choose_lane,
    validate_payload,
)
from imagefleet.jobs.model import JobId, Submission
from imagefleet.jobs.shapes.rules import JobTypeList, JobTypeView
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.images.recipes import names_one_version

router = Routes(tags=["jobs"])

# These act on images and jobs, whose owner is looked at on their own routes.
RESERVED: Final = MappingProxyType(
    {
        "process_image": "Jobs of this type are made by POST /v1/images.",
        "delete_image": "Jobs of this type are made by DELETE /v1/images/{id}.",
        "cancel_job": "Jobs of this type are made by POST /v1/jobs/{id}/cancel.",
        "cancel_jobs": "Jobs of this type are made by POST /v1/targets/{target}/cancel.",
        "preview_original": "Jobs of this type are made by operators.",
        "replay_jobs": "Jobs of this type are made by operators.",
    }
)

# Of the tenant, by whose key it is looked at, and yet not for its keys to stop.
OF_OPERATORS: Final = frozenset({"cancel_jobs", "preview_original", "replay_jobs"})

_NOT_THEIRS: Final = "recipe_hashes is not for producers: the versions in force are taken."


@router.get("/v1/job-types", **described("List job types", JobTypeList))
async def list_job_types(_key: AnyKey, tools: ToolsHere) -> Response:
    """Those of this API, with the schema of each one's payload and the policies in force."""
    in_force = names_in_force(tools)
    shown = [
        JobTypeView(
            job_type=kind.name,
            made_by=RESERVED.get(kind.name),
            lane=kind.lane,
            max_attempts=kind.retry.max_attempts,
            timeout=tools.live.now.timeout(kind, kind.lane),
            payload=_schema(kind.payload, in_force),
            result=kind.result_visible and _schema(kind.result_visible, in_force),
        )
        for kind in tools.kinds.values()
    ]
    return answer(JobTypeList(job_types=shown))


def names_in_force(tools: Tools) -> NamesInForce:
    """What requests may name here, which need not be what another API has."""
    submitted = sorted(set(tools.known_kinds) - RESERVED.keys())
    return {RECIPE_FORMAT: [*tools.recipes], JOB_TYPE_FORMAT: submitted}


def _schema(model: type[BaseModel], in_force: NamesInForce) -> Piece:
    schema = model.model_json_schema()
    fill_in(schema, in_force)
    return schema


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
        **known(job),
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


def _kind_of(kinds: Kinds, name: str) -> JobKind:
    if name in RESERVED:
        raise RequestRejected("use_another_route", RESERVED[name])
    kind = kinds.get(name)
    if kind is None:
        known = ", ".join(sorted(set(kinds) - RESERVED.keys()))
        sentence = f"There is no such job type; known are: {known}."
        raise RequestRejected("unknown_job_type", sentence)
    return kind
