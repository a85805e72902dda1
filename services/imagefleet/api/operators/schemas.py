"""What operators send: the patterns of names, and the bodies of their orders."""

from typing import Annotated, Final, Self

from fastapi import Query
from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from imagefleet.api.producers.schemas import NO_CONTROLS, SENTENCE, Incoming, Reason
from imagefleet.jobs.kinds import TYPE_FORM
from imagefleet.jobs.model import JobId, Lane, PauseScope
from imagefleet.store.fleet.keys import ApiKey

TENANT: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
TYPE: Final = TYPE_FORM
CODE: Final = TYPE_FORM
TARGET: Final = NO_CONTROLS
MOST_WATCHED: Final = 1000
ONE_THING: Final = (
    f"must name one thing: `target` needs tenant and name, `tenant` a tenant, `type` a name, "
    f"`lane` one of {', '.join(Lane)}, and `all` neither"
)
_NOT_OF_A_TARGET: Final = "refuseNew is not for a target: it is not asked at submit"

Why = Annotated[
    str | None,
    Query(alias="reason", pattern=SENTENCE, description="Why; kept in the audit."),
]
"""Of an order without a body."""


def who(key: ApiKey) -> str:
    """The name that people know, and the id that is never given twice."""
    return f"{key.name} ({key.id})"


class Because(Incoming):
    """Why an operator does it."""

    reason: Reason


class NewValue(Incoming):
    """Another value of a live setting."""

    value: StrictBool | StrictInt | StrictFloat | Annotated[str, Field(max_length=200)]
    """No setting is a text; one is refused by a sentence that says what the setting is."""
    reason: Reason


class WatchedJobs(Incoming):
    """Jobs whose outcomes are counted."""

    job_ids: Annotated[list[JobId], Field(min_length=1, max_length=MOST_WATCHED)]


def fits(scope: PauseScope, name: str | None, tenant: str | None) -> bool:
    """Whether this names one thing: everything has no name, a target is a tenant's.

    A tenant is itself, or with the name of a type what it has of that.
    """
    of_a_tenant = scope in {PauseScope.TARGET, PauseScope.TENANT}
    if (tenant is None) == of_a_tenant:
        return False
    if scope is PauseScope.TENANT:
        return True
    if (name is None) != (scope is PauseScope.ALL):
        return False
    return scope is not PauseScope.LANE or name in set(Lane)


class NewPause(Incoming):
    """What is held back from now on; what runs already, finishes."""

    scope: PauseScope
    name: Annotated[str, Field(pattern=TARGET)] | None = None
    tenant: Annotated[str, Field(pattern=TENANT)] | None = None
    refuse_new: bool = False
    reason: Reason

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        if not fits(self.scope, self.name, self.tenant):
            raise PydanticCustomError("one_thing", ONE_THING)
        # Submits are refused by type, lane and tenant; the gate does not ask what a job is about.
        if self.refuse_new and self.scope is PauseScope.TARGET:
            raise PydanticCustomError("not_of_a_target", _NOT_OF_A_TARGET)
        return self
