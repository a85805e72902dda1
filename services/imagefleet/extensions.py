"""What other packages bring: job types, which they name as entry points in two groups.

The group of kinds is read by whoever judges or counts jobs (all processes), the group of handlers
by the workers. A package that cannot be used stops the start: a process that left out a
type would look as if that type did not exist.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeVar

from imagefleet.errors import Misconfigured
from imagefleet.jobs.kinds import BUILT_IN, JobKind, Kinds

KINDS: Final = "imagefleet.kinds"
HANDLERS: Final = "imagefleet.handlers"

Brought = TypeVar("Brought")


def load_kinds() -> Kinds:
    """The job types there are: built in, and installed."""
    kinds = BUILT_IN
    for point in entry_points(group=KINDS):
        kind = load_point(point, JobKind)
        if kind.name in kinds:
            raise taken(point, kind.name)
        kinds = kinds.adding(kind)
    return kinds


def load_point(point: EntryPoint, wanted: type[Brought]) -> Brought:
    """What an entry point names; Misconfigured when it is not there or not what is wanted."""
    try:
        found: object = point.load()
    except Exception as error:
        msg = f"entry point {point.name} ({point.value}) cannot be loaded: {error!r}"
        raise Misconfigured(msg) from error
    if not isinstance(found, wanted):
        is_a, is_no = type(found).__name__, wanted.__name__
        msg = f"entry point {point.name} ({point.value}) is a {is_a}, no {is_no}"
        raise Misconfigured(msg)
    return found


def taken(point: EntryPoint, name: str) -> Misconfigured:
    """The error for a second job type of a name."""
    return Misconfigured(f"entry point {point.name}: job type {name} is there already")
