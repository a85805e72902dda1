"""The audit: nobody rewrites it, what changes something is told once, and what does not is not."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import uuid4

import asyncpg
import pytest

from imagefleet.errors import NotFound, StoreRejected
from imagefleet.jobs.model import PauseScope, TenantId
from imagefleet.store.fleet import audit
from imagefleet.store.fleet.audit import Act, Actor, AuditFilter, acting, list_audit
from imagefleet.store.fleet.keys import create_key, find_key, revoke_key
from imagefleet.store.fleet.pauses import Pause, find_pause, pause, resume
from tests.conftest import OpenConnection
from tests.support.database import Database, Role, driver_of
from tests.support.races import meanwhile
from tests.support.rows import audit_rows

ADA = Actor(name="ada", key_id=uuid4(), address="192.0.2.7")
EVERYTHING = Pause(scope=PauseScope.ALL)
MINT = """
INSERT INTO api_keys (id, tenant_id, name, secret_sha256, scopes)
VALUES (gen_random_uuid(), 'tenant', 'mine', sha256('x'), '{operate}')
"""
NOTHING = Act(action="pause", kind="pause", name="all")
ROLES = tuple(role for role in get_args(Role) if role != "superuser")
TENANT = TenantId("tenant")


# Nobody rewrites it.


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET actor = 'nobody'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "DELETE FROM audit WHERE false",
    ],
)
async def test_no_role_changes_a_line_or_takes_one_away(
    database: Database, admin: OpenConnection, role: Role, statement: str
) -> None:
    await create_key(admin, TENANT, name="k", scopes=["read"], by=ADA)
    before = await audit_rows(admin)

    async with database.connect(role) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await driver_of(connection).execute(statement)

    assert before == await audit_rows(admin)
    assert len(before) == 2


@pytest.mark.parametrize("role", [role for role in ROLES if role != "owner"])
@pytest.mark.parametrize("column", ["id", "at", "role"])
async def test_no_process_says_when_or_under_which_role_it_was(
    database: Database, role: Role, column: str
) -> None:
    value = {"id": "7", "at": "now() - interval '1 year'", "role": "'imagefleet_admin'"}[column]

    async with database.connect(role) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await driver_of(connection).execute(
                f"INSERT INTO audit ({column}, actor, action, kind, name)"  # noqa: S608 - of ours
                f" OVERRIDING SYSTEM VALUE VALUES ({value}, 'a', 'a', 'a', 'a')"
            )


async def test_a_transaction_that_was_begun_long_ago_tells_of_now(
    operator: OpenConnection,
) -> None:
    async with operator.transaction():
        begun = await operator.fetchval("SELECT now()")
        await operator.execute("SELECT pg_sleep(0.01)")
        async with acting(operator, ADA) as act:
            await act.record(NOTHING)

    (line,) = await audit_rows(operator)
    assert line["at"] > begun
    assert ("imagefleet_operator", "ada", ADA.key_id, "192.0.2.7") == (
        line["role"],
        line["actor"],
        line["key_id"],
        line["address"],
    )


@pytest.mark.parametrize(
    "act",
    [
        Act(action="No Word", kind="pause", name="all"),
        Act(action="pause", kind="", name="all"),
        Act(action="pause", kind="pause", name="x" * 601),
        Act(action="pause", kind="pause", name="all", reason="x" * 1001),
        Act(action="pause", kind="pause", name="all", after={"x": "y" * 10_000_000}),
    ],
    ids=["action", "kind", "name", "reason", "value"],
)
async def test_a_line_is_bounded(operator: OpenConnection, act: Act) -> None:
    with pytest.raises(StoreRejected):
        async with acting(operator, ADA) as begun:
            await begun.record(act)

    assert [] == await audit_rows(operator)


# Whoever acts tells.


async def test_what_is_changed_and_not_told_is_not_changed(operator: OpenConnection) -> None:
    with pytest.raises(RuntimeError, match="the audit is not told"):
        async with acting(operator, ADA) as act:
            await pause(act.connection, EVERYTHING, by="ada", reason="why")

    assert await find_pause(operator, EVERYTHING) is None
    assert [] == await audit_rows(operator)


async def test_what_was_only_looked_at_need_not_be_told(operator: OpenConnection) -> None:
    async with acting(operator, ADA) as act:
        await act.take_turns("pause", "all")
        assert await find_pause(act.connection, EVERYTHING) is None
        assert not await resume(act.connection, EVERYTHING)

    assert [] == await audit_rows(operator)


async def test_an_act_that_fails_is_neither_done_nor_told(operator: OpenConnection) -> None:
    async def fails() -> None:
        async with acting(operator, ADA) as act:
            await pause(act.connection, EVERYTHING, by="ada", reason="why")
            await act.record(NOTHING)
            raise NotFound("pause")

    with pytest.raises(NotFound):
        await fails()

    assert await find_pause(operator, EVERYTHING) is None
    assert [] == await audit_rows(operator)


async def test_acts_on_one_thing_come_one_after_the_other(
    operator: OpenConnection, owner: OpenConnection, superuser: OpenConnection
) -> None:
    """So that what the second one found is what the first one left, though no row was there."""

    async def second() -> str | None:
        async with acting(owner, Actor(name="ben")) as act:
            await act.take_turns("pause", "all")
            standing = await find_pause(act.connection, EVERYTHING)
            await act.record(NOTHING)
            return None if standing is None else str(standing["reason"])

    transaction = driver_of(operator).transaction()
    await transaction.start()
    async with acting(operator, ADA) as act:
        await act.take_turns("pause", "all")
        await pause(act.connection, EVERYTHING, by="ada", reason="first")
        await act.record(NOTHING)
    async with meanwhile(superuser, operator, owner, second()) as task:
        await transaction.commit()

    assert "first" == task.result()


# Keys.


async def test_who_makes_and_ends_a_key_is_told_and_the_secret_is_not(
    admin: OpenConnection,
) -> None:
    secret = await create_key(
        admin, TENANT, name="uploader", scopes=["submit"], by=ADA, reason="a new shop"
    )
    key = await find_key(admin, secret)
    assert key is not None
    await revoke_key(admin, key.id, by=ADA, reason="leaked")
    await revoke_key(admin, key.id, by=ADA, reason="again")

    tenant, made, ended = await audit_rows(admin)
    assert [
        ("create", "tenant", "tenant", "a new shop"),
        ("create", "key", str(key.id), "a new shop"),
        ("revoke", "key", str(key.id), "leaked"),
    ] == [
        (line["action"], line["kind"], line["name"], line["reason"])
        for line in (tenant, made, ended)
    ]
    assert {("ada", "tenant", "imagefleet_admin")} == {
        (line["actor"], line["tenant_id"], line["role"]) for line in (tenant, made, ended)
    }
    assert {"name": "uploader", "scopes": ["submit"], "expires_at": None} == made["after"]
    assert ended["before"]["revoked_at"] is None
    assert ended["after"]["revoked_at"] is not None
    assert secret not in str([tenant, made, ended])


async def test_of_two_who_end_a_key_at_once_one_is_told(
    database: Database, admin: OpenConnection, superuser: OpenConnection
) -> None:
    secret = await create_key(admin, TENANT, name="uploader", scopes=["submit"], by=ADA)
    key = await find_key(admin, secret)
    assert key is not None
    async with database.connect("admin") as other:
        first = driver_of(other).transaction()
        await first.start()
        await revoke_key(other, key.id, by=ADA, reason="first")
        second = revoke_key(admin, key.id, by=ADA, reason="second")
        async with meanwhile(superuser, other, admin, second):
            await first.commit()

    ended = [row for row in await audit_rows(admin) if row["action"] == "revoke"]
    assert ["first"] == [line["reason"] for line in ended]


async def test_a_row_that_was_changed_must_be_told_whoever_else_found_nothing(
    operator: OpenConnection,
) -> None:
    with pytest.raises(RuntimeError, match="not told"):
        async with acting(operator, ADA) as act:
            await pause(act.connection, EVERYTHING, by="ada", reason="why", refuse_new=False)


@pytest.mark.parametrize("role", ["api", "worker", "maintenance", "operator"])
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO tenants (id, name) VALUES ('mine', 'mine')",
        MINT,
        "UPDATE api_keys SET revoked_at = NULL",
        "UPDATE api_keys SET expires_at = NULL",
        "UPDATE api_keys SET scopes = '{operate}'",
        "UPDATE api_keys SET secret_sha256 = sha256('x')",
        "DELETE FROM api_keys",
    ],
)
async def test_no_process_can_mint_revive_extend_or_widen_a_key(
    database: Database, admin: OpenConnection, role: Role, statement: str
) -> None:
    await create_key(
        admin, TENANT, name="k", scopes=["read"], expires_in=timedelta(seconds=-1), by=ADA
    )

    async with database.connect(role) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await driver_of(connection).execute(statement)


@pytest.mark.parametrize("role", ["admin", "owner", "superuser"])
async def test_a_revoked_key_stays_revoked_for_everybody(
    database: Database, admin: OpenConnection, role: Role
) -> None:
    secret = await create_key(admin, TENANT, name="k", scopes=["read"], by=ADA)
    key = await find_key(admin, secret)
    assert key is not None
    await revoke_key(admin, key.id, by=ADA)

    async with database.connect(role) as connection:
        for value in ("NULL", "now() + interval '1 year'"):
            with pytest.raises(asyncpg.PostgresError, match="a revoked key stays revoked"):
                await driver_of(connection).execute(f"UPDATE api_keys SET revoked_at = {value}")  # noqa: S608

    assert await find_key(admin, secret) is None


async def test_who_makes_keys_cannot_extend_or_widen_them_either(admin: OpenConnection) -> None:
    await create_key(admin, TENANT, name="k", scopes=["read"], by=ADA)

    for change in ("expires_at = NULL", "scopes = '{operate}'", "tenant_id = 'other'"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await driver_of(admin).execute(f"UPDATE api_keys SET {change}")  # noqa: S608 - of ours


# Reading it.


@pytest.fixture
async def history(superuser: OpenConnection) -> list[int]:
    """Sixty lines, a minute apart, by three people on four things of two tenants."""
    rows = await superuser.fetch(
        "INSERT INTO audit (at, actor, key_id, action, kind, name, tenant_id)"
        " SELECT '2026-01-01T00:00:00Z'::timestamptz + interval '1 minute' * n,"
        "        'person ' || n % 3, CASE WHEN n % 3 = 0 THEN $1::uuid END,"
        "        CASE n % 2 WHEN 0 THEN 'open' ELSE 'reset' END, 'circuit_breaker', 's' || n % 4,"
        "        CASE n % 5 WHEN 0 THEN 'rare' END"
        "   FROM generate_series(0, 59) AS n RETURNING id",
        ADA.key_id,
    )
    return [row["id"] for row in rows]


NOON = datetime(2026, 1, 1, tzinfo=UTC)
FILTERS: Mapping[str, tuple[AuditFilter, Any]] = {
    "all": (AuditFilter(), lambda _: True),
    "since": (AuditFilter(since=NOON + timedelta(minutes=30)), lambda n: n >= 30),
    "until": (AuditFilter(until=NOON + timedelta(minutes=30)), lambda n: n < 30),
    "actor": (AuditFilter(actor="person 1"), lambda n: n % 3 == 1),
    "key": (AuditFilter(key_id=ADA.key_id), lambda n: n % 3 == 0),
    "action": (AuditFilter(action="reset"), lambda n: n % 2 == 1),
    "kind": (AuditFilter(kind="circuit_breaker"), lambda _: True),
    "thing": (AuditFilter(kind="circuit_breaker", name="s3"), lambda n: n % 4 == 3),
    "tenant": (AuditFilter(tenant_id=TenantId("rare")), lambda n: n % 5 == 0),
    "several": (
        AuditFilter(
            since=NOON + timedelta(minutes=5),
            until=NOON + timedelta(minutes=55),
            actor="person 2",
            action="open",
            kind="circuit_breaker",
            name="s0",
        ),
        lambda n: 5 <= n < 55 and n % 3 == 2 and n % 4 == 0,
    ),
    "nothing": (AuditFilter(kind="nothing"), lambda _: False),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("looked_at", [7, 5000])
async def test_pages_have_every_line_that_a_filter_names_once_the_newest_first(
    operator: OpenConnection,
    history: list[int],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    looked_at: int,
) -> None:
    monkeypatch.setattr(audit, "MOST_LOOKED_AT", looked_at)
    chosen, holds = FILTERS[name]

    ids: list[int] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        page = await list_audit(operator, chosen, after=after, limit=4)
        assert len(page.lines) <= 4
        ids += [line.id for line in page.lines]
        after, pages = page.next_cursor, pages + 1
        assert pages < 40

    assert [id_ for n, id_ in reversed(list(enumerate(history))) if holds(n)] == ids


async def test_a_line_that_nobody_wrote_is_no_place_to_go_on(operator: OpenConnection) -> None:
    with pytest.raises(NotFound):
        await list_audit(operator, AuditFilter(), after=77, limit=4)
