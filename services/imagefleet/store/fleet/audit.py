"""Who did what: an append-only row for everything that a person changes.

It is written in the transaction that changes it: what could not be told was not done. The time and
the role are Postgres's own; the rest is what the process knows of who asked. What processes do by
themselves (a worker starts, a breaker opens) is told by triggers, but for what an act tells.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from imagefleet.errors import NotFound
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.shapes.rules import AuditLines, AuditLineView
from imagefleet.store.database import Connection

LONGEST_NAME: Final = 200  # characters of an actor's


class Actor(NamedTuple):
    """Who acts."""

    name: str
    key_id: UUID | None = None
    """The API key it acts by; none for a person who is at Postgres itself."""
    address: str | None = None
    """Where the request came from; none: where the session at Postgres does."""


class Act(NamedTuple):
    """What was done, to what, and why."""

    action: str
    """A verb of ours: pause, resume, replay, set, reset, create, revoke..."""
    kind: str
    """What sort of thing: pause, job, dead_letter, circuit_breaker, setting, key, tenant..."""
    name: str
    """Which one."""
    tenant_id: TenantId | None = None
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    reason: str | None = None


# The triggers of migrations/0013_audit.sql leave the telling to whoever says that they act.
BEGIN_ACT: Final = """
SELECT set_config('imagefleet.acting', 'yes', true)
"""

# The fields of an Actor and of an Act. Who is at Postgres himself is known by where his session
# comes from.
RECORD_ACT: Final = """
INSERT INTO audit (actor, key_id, address, action, kind, name, tenant_id, before, after, reason)
VALUES ($1, $2, coalesce($3, host(inet_client_addr())), $4, $5, $6, $7, $8, $9, $10)
"""

# A transaction has an id from the first row that it writes or locks.
HAS_WRITTEN: Final = """
SELECT pg_current_xact_id_if_assigned() IS NOT NULL
"""

# Of people only, and before any row: acts on one thing come one after the other, so that what each
# of them found is what the one before it left.
TAKE_TURNS: Final = """
SELECT pg_advisory_xact_lock(hashtextextended('audit/' || $1 || '/' || $2, 0))
"""


HAS_AUDIT: Final = """
SELECT to_regclass('audit') IS NOT NULL
"""


async def has_audit(connection: Connection) -> bool:
    """Whether this database has one already: before 0013 there is none."""
    return bool(await connection.fetchval(HAS_AUDIT))


class Acting:
    """A transaction of somebody who changes something, and has to say what."""

    def __init__(self, connection: Connection, by: Actor) -> None:
        self.connection = connection
        self._by = by
        self._told = False

    async def take_turns(self, kind: str, name: str) -> None:
        """Wait for others who act on this thing; to be asked before its state is read."""
        await self.connection.execute(TAKE_TURNS, kind, name)

    async def record(self, act: Act) -> None:
        """Write it down; it stands or falls with what was done."""
        self._told = True
        await self.connection.execute(RECORD_ACT, *self._by, *act)

    def found_nothing(self) -> None:
        """Say that the statements have answered that nothing was changed.

        A row that was locked, and turned out to be changed by somebody else meanwhile, looks to
        Postgres as one that was written.
        """
        self._told = True

    async def refuse_untold(self) -> None:
        """Raise if something was changed and nothing was told: a bug, and nothing is changed."""
        if not self._told and await self.connection.fetchval(HAS_WRITTEN):
            message = "something was changed that the audit is not told of"
            raise RuntimeError(message)


@asynccontextmanager
async def acting(connection: Connection, by: Actor) -> AsyncIterator[Acting]:
    """The one way to change something on a person's behalf: a transaction that must be told of."""
    async with connection.transaction():
        await connection.execute(BEGIN_ACT)
        begun = Acting(connection, by)
        yield begun
        await begun.refuse_untold()


_LINE: Final = "line"
MOST_LOOKED_AT: Final = 5_000
"""Lines that a page reads where a filter has no index; then it ends, and says where to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines; everything that is set must hold."""

    since: datetime | None = None
    until: datetime | None = None
    """Not itself."""
    actor: str | None = None
    key_id: UUID | None = None
    action: str | None = None
    kind: str | None = None
    name: str | None = None
    tenant_id: TenantId | None = None


_LOOK: Final = """
WITH looked AS MATERIALIZED (
    SELECT audit.id, audit.at, audit.actor, audit.key_id, audit.action, audit.kind, audit.name,
           audit.tenant_id
      FROM audit
     WHERE (audit.at, audit.id) < (coalesce($1::timestamptz, 'infinity'), coalesce($2::bigint, 0))
       AND audit.at >= coalesce($3::timestamptz, '-infinity')
"""

_FIND: Final = """
     ORDER BY audit.at DESC, audit.id DESC
     LIMIT $4
),
found AS (
    SELECT looked.id, looked.at
      FROM looked
     WHERE ($6::text IS NULL OR looked.actor = $6)
       AND ($7::uuid IS NULL OR looked.key_id = $7)
       AND ($8::text IS NULL OR looked.action = $8)
       AND ($9::text IS NULL OR looked.kind = $9)
       AND ($10::text IS NULL OR looked.name = $10)
       AND ($11::text IS NULL OR looked.tenant_id = $11)
     ORDER BY looked.at DESC, looked.id DESC
     LIMIT $5
)
SELECT (SELECT count(*) FROM looked) AS looked,
       (SELECT looked.id FROM looked ORDER BY looked.at, looked.id LIMIT 1) AS last,
       audit.id, audit.at, audit.role, audit.actor, audit.key_id, audit.address, audit.action,
       audit.kind, audit.name, audit.tenant_id, audit.before, audit.after, audit.reason
  FROM (SELECT) AS always
  LEFT JOIN found ON true
  LEFT JOIN audit ON audit.id = found.id
 ORDER BY audit.at DESC, audit.id DESC
"""

LIST_AUDIT: Final = f"{_LOOK}{_FIND}"
LIST_AUDIT_ON_A_THING: Final = f"{_LOOK} AND audit.kind = $9 AND audit.name = $10 {_FIND}"
LIST_AUDIT_BY_AN_ACTOR: Final = f"{_LOOK} AND audit.actor = $6 {_FIND}"
LIST_AUDIT_BY_A_KEY: Final = f"{_LOOK} AND audit.key_id = $7 {_FIND}"
LIST_AUDIT_OF_A_TENANT: Final = f"{_LOOK} AND audit.tenant_id = $11 {_FIND}"

_ASKED: Final = ("actor", "key_id", "action", "kind", "name", "tenant_id")
"""What all of them are given as $6 to $11."""

FIND_LINE: Final = """
SELECT audit.at FROM audit WHERE audit.id = $1
"""


async def list_audit(
    connection: Connection, chosen: AuditFilter, *, after: int | None = None, limit: int
) -> AuditLines:
    """The newest first; a page may be short, or empty, and yet not be the last."""
    before, line = chosen.until, 0
    if after is not None:
        at = await connection.fetchval(FIND_LINE, after)
        if at is None:
            raise NotFound(_LINE)
        if before is None or at < before:
            before, line = at, after
    asked = {name: getattr(chosen, name) for name in _ASKED}
    statement, is_exact = _by_index({name for name, what in asked.items() if what is not None})
    most = limit + 1 if is_exact else MOST_LOOKED_AT
    rows = await connection.fetch(
        statement, before, line, chosen.since, most, limit + 1, *asked.values()
    )
    looked, last = rows[0]["looked"], rows[0]["last"]
    lines = [AuditLineView.of(row) for row in rows if row["id"] is not None]
    if len(lines) > limit:
        return AuditLines(lines=lines[:limit], next_cursor=lines[limit - 1].id)
    more = last if not is_exact and looked == MOST_LOOKED_AT else None
    return AuditLines(lines=lines, next_cursor=more)


def _by_index(asked: set[str]) -> tuple[str, bool]:
    """The statement whose index tells the most, and whether it tells everything."""
    for known, statement in (
        ({"kind", "name"}, LIST_AUDIT_ON_A_THING),
        ({"key_id"}, LIST_AUDIT_BY_A_KEY),
        ({"actor"}, LIST_AUDIT_BY_AN_ACTOR),
        ({"tenant_id"}, LIST_AUDIT_OF_A_TENANT),
    ):
        if known <= asked:
            return statement, known == asked
    return LIST_AUDIT, not asked
