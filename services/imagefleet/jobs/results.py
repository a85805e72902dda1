"""What a job came to, as far as its producer may read it.

A kind says so by a model: what it does not name stays with the operators, and so does the whole
result of a kind that has none. What does not fit the model, of a worker of another release, is not
shown either.
"""

from typing import Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from imagefleet.jobs.model import JsonObject


class VisibleResult(BaseModel):
    """What producers may read of a result; by itself, nothing but why the job is completed."""

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


REASON: Final = "reason"


def read_result(model: type[BaseModel], result: JsonObject | None, reason: str) -> JsonObject:
    """The result as its producer reads it: why the job is completed, and what the model names."""
    try:
        told = model.model_validate(result or {})
    except ValidationError:
        return {REASON: reason}
    return told.model_dump(mode="json", by_alias=True, exclude_none=True) | {REASON: reason}
