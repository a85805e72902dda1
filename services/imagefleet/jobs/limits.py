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
KEY_OPEN_JOBS: Final = "key_open_jobs"
"""Counted only where it was turned: its default is no lower than any quota may be."""
MOST_OPEN_JOBS: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit. Nought is none at all, where it is allowed."""

    name: str
    default: int
    highest: int
    """Beyond what a process has places for, or a statement should count, a limit is none."""
    unit: str
    meaning: str
    counted: Counted = Counted.PROCESS
    lowest: int = 0


# fmt: off
_DECLARED: Final = (
    # name, default, most, unit; meaning
    Limit("requests", 200, 1_000_000, "a second",
          "Requests of a tenant; twice as many at once after a rest. A batch counts as one and "
          "another for every twenty jobs in it; JSON beyond 16 KiB as another for each 16 KiB. "
          "An image that is refused for its first 256 KB counts as twenty more."),
    Limit("key_requests", 200, 1_000_000, "a second",
          "The same of one key."),
    Limit("bytes", 64 * 2**20, 100 * 2**30, "bytes a second",
          "Bodies that a tenant sends; ten seconds' worth at once after a rest. What goes beyond "
          "it comes in, and is waited for before the next request."),
    Limit("key_bytes", 64 * 2**20, 100 * 2**30, "bytes a second",
          "The same of one key."),
    Limit("uploads", 32, 64, "at once",
          "Uploads of a tenant that are read at a time, of the 64 that a process reads."),
    Limit("key_uploads", 24, 64, "at once",
          "The same of one key."),
    Limit("uploads_waiting", 256, 1024, "at once",
          "Uploads of a tenant that wait, unread, for their turn."),
    Limit("bodies", 16 * 2**20, 64 * 2**20, "bytes",
          "JSON bodies of a tenant that have come in part, of the 64 MiB of a process; and "
          "256 of them at once, however small. Of one key three quarters of each."),
    Limit("streams", 1000, 2000, "at once",
          "Requests of a tenant that wait for a job or listen to its events, of 2000."),
    Limit("key_streams", 500, 2000, "at once",
          "The same of one key."),
    # Less would leave nobody who could undo it.
    Limit("operator_requests", 200, 1_000_000, "a second",
          "Requests of one key to the operators' routes, which count nowhere else.",
          lowest=10),
    Limit(OPEN_JOBS, 1_000_000, MOST_OPEN_JOBS, "at once",
          "Jobs of a tenant that are not over. Kept in `tenants.max_open_jobs`.",
          counted=Counted.FLEET, lowest=1),
    Limit(KEY_OPEN_JOBS, MOST_OPEN_JOBS, MOST_OPEN_JOBS, "at once",
          "Jobs of one key that are not over, those of its sets among them. By default no less "
          "than any quota, and so not counted at all.",
          counted=Counted.FLEET, lowest=1),
    Limit("forms", 2000, 100_000, "at once",
          "Upload forms of a tenant that became no image yet, and whose objects were not swept: "
          "that is a day after they expired.",
          counted=Counted.FLEET),
    Limit("form_bytes", 100 * 2**30, 100 * 2**40, "bytes",
          "What may be posted by all those forms together.",
          counted=Counted.FLEET),
)
# fmt: on

LIMITS: Final[Mapping[str, Limit]] = MappingProxyType({limit.name: limit for limit in _DECLARED})
