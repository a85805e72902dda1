"""What is counted a tenant and a key, so that nobody takes what all others need.

Only the declaration, for whoever counts, sets or shows a limit. An operator may set each of them
for one tenant, and each but the quota of open jobs for all; those of a key hold for every key of
the tenant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Counted(StrEnum):
    """Where a limit is counted, and thus what it bounds."""

    PROCESS = "process"
    """In the memory of each API process, and by it alone: two of them let through twice as much."""
    FLEET = "fleet"
    """In Postgres, before something is written: for all processes together."""


OPEN_JOBS: Final = "open_jobs"
"""Kept in a column of the tenant, from the day it was made; so there is none for all to turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit. Nought is none at all, where it is allowed."""

    name: str
    default: int
    unit: str
    meaning: str
    counted: Counted = Counted.PROCESS
    lowest: int = 0
    highest: int
    """Beyond what a process has places for, or a statement should count, a limit is none."""


_DECLARED: Final = (
    Limit(
        name="requests",
        default=200,
        highest=1_000_000,
        unit="a second",
        meaning="Requests of a tenant; twice as many at once after a rest. A batch counts as one "
        "and another for every twenty jobs in it; JSON beyond 16 KiB as another for each 16 KiB.",
    ),
    Limit(
        name="key_requests",
        default=200,
        highest=1_000_000,
        unit="a second",
        meaning="The same of one key.",
    ),
    Limit(
        name="bytes",
        default=64 * 2**20,
        highest=100 * 2**30,
        unit="bytes a second",
        meaning="Bodies that a tenant sends; ten seconds' worth at once after a rest. What goes "
        "beyond it comes in, and is waited for before the next request.",
    ),
    Limit(
        name="key_bytes",
        default=64 * 2**20,
        highest=100 * 2**30,
        unit="bytes a second",
        meaning="The same of one key.",
    ),
    Limit(
        name="uploads",
        default=32,
        highest=64,
        unit="at once",
        meaning="Uploads of a tenant that are read at a time, of the 64 that a process reads.",
    ),
    Limit(
        name="key_uploads",
        default=24,
        highest=64,
        unit="at once",
        meaning="The same of one key.",
    ),
    Limit(
        name="uploads_waiting",
        default=256,
        highest=1024,
        unit="at once",
        meaning="Uploads of a tenant that wait, unread, for their turn.",
    ),
    Limit(
        name="bodies",
        default=16 * 2**20,
        highest=64 * 2**20,
        unit="bytes",
        meaning="JSON bodies of a tenant that have come in part, of the 64 MiB of a process; and "
        "256 of them at once, however small. Of one key three quarters of each.",
    ),
    Limit(
        name="streams",
        default=1000,
        highest=2000,
        unit="at once",
        meaning="Requests of a tenant that wait for a job or listen to its events, of 2000.",
    ),
    Limit(
        name="key_streams",
        default=500,
        highest=2000,
        unit="at once",
        meaning="The same of one key.",
    ),
    Limit(
        name="operator_requests",
        default=200,
        highest=1_000_000,
        unit="a second",
        # Less would leave nobody who could undo it.
        lowest=10,
        meaning="Requests of one key to the operators' routes, which count nowhere else.",
    ),
    Limit(
        name=OPEN_JOBS,
        default=1_000_000,
        highest=100_000_000,
        unit="at once",
        meaning="Jobs of a tenant that are not over. Kept in `tenants.max_open_jobs`.",
        counted=Counted.FLEET,
        lowest=1,
    ),
    Limit(
        name="forms",
        default=2000,
        highest=100_000,
        unit="at once",
        meaning="Upload forms of a tenant that became no image yet, and whose objects were not "
        "swept: that is a day after they expired.",
        counted=Counted.FLEET,
    ),
    Limit(
        name="form_bytes",
        default=100 * 2**30,
        highest=100 * 2**40,
        unit="bytes",
        meaning="What may be posted by all those forms together.",
        counted=Counted.FLEET,
    ),
)

LIMITS: Final[Mapping[str, Limit]] = MappingProxyType({limit.name: limit for limit in _DECLARED})
