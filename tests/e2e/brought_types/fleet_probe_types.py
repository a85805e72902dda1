"""Job types that a test installs, the kinds of both: only one of them has a handler."""

from typing import Final

from imagefleet.jobs.kinds import JobKind, Payload


class Nothing(Payload):
    """A payload without fields."""


PROBE: Final = JobKind(name="isolation_probe", payload=Nothing)
ORPHAN: Final = JobKind(name="orphan", payload=Nothing)
