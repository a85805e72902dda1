"""The job types that there are: which may be submitted, what each is asked, and by which rules."""

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from imagefleet.api.http.auth import AnyKey
from imagefleet.api.http.documents import NamesInForce, fill_in
from imagefleet.api.http.openapi import Piece, described
from imagefleet.api.http.requests import Tools, ToolsHere, answer
from imagefleet.api.producers.composing import RESERVED
from imagefleet.api.producers.schemas import JOB_TYPE_FORMAT
from imagefleet.jobs.kinds import RECIPE_FORMAT
from imagefleet.jobs.shapes.rules import JobTypeList, JobTypeView

router = APIRouter(tags=["jobs"])


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
