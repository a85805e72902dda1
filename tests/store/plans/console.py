"""Which statements pages of the console run, and who hears them."""

from typing import Final

import pytest

from imagefleet.store.database import Connection
from tests.store.test_statements import FOUND, RUN_BY

# By the names of their constants. tests/console/test_statements.py asks for every page, and finds
# these and no others; tests/store/test_query_plans.py judges each of them.
OF_THE_CONSOLE: Final = frozenset({
    "audit.LIST_AUDIT", "audit.LIST_AUDIT_BY_AN_ACTOR", "audit.LIST_AUDIT_BY_A_KEY",
    "audit.LIST_AUDIT_OF_A_TENANT", "audit.LIST_AUDIT_ON_A_THING", "breakers.LIST_BREAKERS",
    "deleting.GET_DELETION", "dispatching.FIND_LEVELS", "dispatching.LOOK_AT_HOLDS",
    "dispatching.READ_MANNERS", "elections.FIND_FLUSHER", "elections.LIST_PRUNE_RUNS",
    "faults.COUNT_HOURLY", "faults.GROUP_LETTERS", "inspection.COUNT_PRUNABLE",
    "inspection.EXPLAIN_JOB", "inspection.GET_OPERATOR_JOB", "inspection.LIST_ATTEMPTS",
    "inspection.LIST_NEIGHBOURS", "inspection.LIST_TAKEN", "lanes.COUNT_LEVELS",
    "ledger.READ_LEDGER", "ledger.READ_QUEUE_HEALTH", "letters.COUNT_UNACKNOWLEDGED",
    "letters.GET_LETTERS", "letters.LIST_OPEN_LETTERS", "listing.FILTER_BY_TIME",
    "listing.FILTER_DELETED", "listing.FILTER_FAILED", "listing.FILTER_PENDING",
    "listing.GET_WHOLE_IMAGE", "listing.LIST_IMAGES", "listing.LIST_REVISIONS",
    "listing.LIST_SOURCES", "listing.OVERSEE_BY_REFERENCE", "listing.OVERSEE_IMAGES",
    "live_settings.LIST_TURNED", "live_settings.READ_DEFAULTS", "originals.FIND_SOURCE",
    "overseeing.OVERSEE_ALL", "overseeing.OVERSEE_BY_CODE", "overseeing.OVERSEE_BY_CORRELATION",
    "overseeing.OVERSEE_BY_STATE", "overseeing.OVERSEE_BY_TARGET", "overseeing.OVERSEE_BY_TYPE",
    "overseeing.OVERSEE_TENANT", "pauses.LIST_PAUSES", "rates.FIND_NOW", "rates.READ_COSTS",
    "rates.READ_RATES", "rates.READ_THROUGHPUT", "reports.LIST_BATCHES", "reports.READ_MONTH",
    "reports.SAMPLE_INVALIDATIONS", "statistics.EXPECT_MESSAGES", "statistics.LIST_FAILURES",
    "statistics.LIST_STUCK", "statistics.LOAD_OF_LANES", "statistics.ROOM_FOR_JOB",
    "sweeping.COUNT_SUPERSEDED", "sweeping.LIST_SWEEP_RUNS", "sweeping.READ_WALK",
    "tenants.GET_TENANT", "tenants.LIST_TENANTS", "tenants.RANK_TENANTS", "tenants.READ_LIMITS",
    "workers.LIST_HELD", "workers.LIST_WORKERS",
})  # fmt: skip


class Said:
    """What this process says to Postgres from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._texts: set[str] = set()
        for way in ("fetch", "fetchrow", "fetchval", "execute"):
            self._hear(monkeypatch, way)

    def _hear(self, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        saying = getattr(Connection, way)

        async def say(
            connection: Connection, text: str, *values: object, **more: float | None
        ) -> object:
            self._texts.add(text)
            return await saying(connection, text, *values, **more)

        monkeypatch.setattr(Connection, way, say)

    @property
    def of_operators(self) -> set[str]:
        """The names of those that operators may say."""
        mine = (name for name, roles in RUN_BY.items() if "operator" in roles)
        return {name for name in mine if FOUND[name] in self._texts}
