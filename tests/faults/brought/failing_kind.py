"""Job types that fail as they are told to, installed as anybody's: by their entry points.

With this folder and the root on PYTHONPATH, `failing-1.0.dist-info` is an installed distribution.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from imagefleet.jobs.kinds import JobKind, Payload


class Failing(Payload):
    """Work for a while, and then fail or not."""

    milliseconds: Annotated[int, Field(ge=0, le=60_000)] = 0
    permanent: bool = False
    times: Annotated[int, Field(ge=0, le=100)] = 0
    """How many attempts fail in a way that may pass; whatever else is charged counts as one."""
    by: Literal["bug", "unavailable"] = "bug"


class Guarded(Failing):
    """The same, for something that has a name."""

    about: Annotated[str, Field(min_length=1, max_length=100)]


def _about(payload: Guarded) -> str:
    return f"guarded:{payload.about}"


class Leaning(Payload):
    """Needs a crutch, which is away for the first attempts."""

    times: Annotated[int, Field(ge=0, le=100)] = 0


LEANING: Final = JobKind(name="leaning", payload=Leaning, services=("crutch",))
FAILING: Final = JobKind(name="failing", payload=Failing)
GUARDED: Final = JobKind(
    name="guarded", payload=Guarded, target=_about, pause_target_on_failure=True
)
