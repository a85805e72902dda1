"""The login roles and who may enter the database, on a server of their own: roles are global."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from imagefleet.errors import Misconfigured
from imagefleet.store.database import Connection, connect
from imagefleet.store.schema.migration_files import shipped_migrations
from imagefleet.store.schema.migrations import applied, migrate
from imagefleet.store.schema.roles import (
    OWNER,
    ROLES,
    ensure_database,
    ensure_roles,
    scram_verifier,
)
from tests.support.database import Server, driver_of, own_server

PASSWORDS = {role: secrets.token_urlsafe(16) for role in ROLES}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as server:
        yield server


@pytest.fixture
async def admin(server: Server) -> AsyncIterator[Connection]:
    async with server.admin() as connection:
        yield connection


def url(server: Server, role: str, password: str, database: str) -> str:
    place = server.url(database).rpartition("@")[2]
    return f"postgresql://{role}:{password}@{place}"


async def enter(server: Server, role: str, password: str, database: str = "fleet") -> str:
    async with connect(url(server, role, password, database), process="test") as connection:
        return str(await connection.fetchval("SELECT current_user"))


async def test_roles_may_log_in_and_no_more(admin: Connection) -> None:
    await ensure_roles(admin, PASSWORDS)

    rows = await admin.fetch("SELECT * FROM pg_roles WHERE rolname = ANY($1)", list(ROLES))
    assert {row["rolname"] for row in rows} == set(ROLES)
    for row in rows:
        assert row["rolcanlogin"]
        assert not any(
            row[right]
            for right in (
                "rolsuper",
                "rolcreatedb",
                "rolcreaterole",
                "rolreplication",
            )
        )
        assert "jit=off" in row["rolconfig"]
        limits = {setting.partition("=")[0] for setting in row["rolconfig"]} - {"jit"}
        assert limits == {
            "statement_timeout",
            "idle_in_transaction_session_timeout",
            "lock_timeout",
        }


async def test_repeating_it_corrects_what_has_drifted(admin: Connection, server: Server) -> None:
    await ensure_roles(admin, PASSWORDS)
    await ensure_database(admin, "fleet")
    await admin.execute("ALTER ROLE imagefleet_api SUPERUSER PASSWORD 'forgotten'")

    await ensure_roles(admin, PASSWORDS)

    assert await enter(server, "imagefleet_api", PASSWORDS["imagefleet_api"]) == "imagefleet_api"
    assert not await admin.fetchval(
        "SELECT rolsuper FROM pg_roles WHERE rolname = 'imagefleet_api'"
    )


async def test_a_new_password_takes_the_place_of_the_old_one(
    admin: Connection, server: Server
) -> None:
    await ensure_roles(admin, PASSWORDS)
    await ensure_database(admin, "fleet")
    await ensure_roles(admin, {**PASSWORDS, "imagefleet_worker": "another-one"})

    assert await enter(server, "imagefleet_worker", "another-one") == "imagefleet_worker"
    with pytest.raises(Misconfigured) as refused:
        await enter(server, "imagefleet_worker", PASSWORDS["imagefleet_worker"])
    assert PASSWORDS["imagefleet_worker"] not in str(refused.value)


async def test_administrators_may_do_it_at_the_same_time(server: Server) -> None:
    async def once() -> None:
        async with server.admin() as admin:
            await ensure_roles(admin, PASSWORDS)
            await ensure_database(admin, "at_once")

    async with asyncio.timeout(20):
        await asyncio.gather(*(once() for _ in range(4)))

    assert await enter(server, OWNER, PASSWORDS[OWNER], "at_once") == OWNER


async def test_only_our_roles_may_enter_the_database(admin: Connection, server: Server) -> None:
    await ensure_roles(admin, PASSWORDS)
    await ensure_database(admin, "fleet")
    await admin.execute("CREATE ROLE stranger LOGIN PASSWORD 'stranger'")

    for role in ROLES:
        assert await enter(server, role, PASSWORDS[role]) == role
    with pytest.raises(Exception, match="permission denied for database"):
        await enter(server, "stranger", "stranger")
    owner = await admin.fetchval(
        "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'fleet'"
    )
    assert owner == OWNER


async def test_an_administrator_without_superuser_is_enough() -> None:
    """As on managed services, where nobody is superuser."""
    with own_server() as server:
        async with server.admin() as superuser:
            await superuser.execute("CREATE ROLE landlord LOGIN CREATEDB CREATEROLE PASSWORD 'x'")
        for _again in range(2):
            async with connect(
                url(server, "landlord", "x", "postgres"), process="test"
            ) as landlord:
                await ensure_roles(landlord, PASSWORDS)
                await ensure_database(landlord, "fleet")

        assert await enter(server, OWNER, PASSWORDS[OWNER]) == OWNER


async def test_a_missing_password_is_named_and_the_others_are_not(
    admin: Connection,
) -> None:
    known = {**PASSWORDS, "imagefleet_api": ""}

    with pytest.raises(Misconfigured, match=r"no password for imagefleet_api$") as refused:
        await ensure_roles(admin, known)

    assert not any(password in str(refused.value) for password in known.values() if password)


async def test_passwords_never_travel_in_statements(admin: Connection) -> None:
    seen: list[str] = []
    with driver_of(admin).query_logger(lambda record: seen.append(record.query)):
        await ensure_roles(admin, PASSWORDS)

    assert any("SCRAM-SHA-256$4096" in statement for statement in seen)
    assert not any(password in " ".join(seen) for password in PASSWORDS.values())


@pytest.mark.parametrize("name", ["Fleet", "fleet; DROP TABLE jobs", "", "1fleet"])
async def test_a_database_name_that_needs_quotes_is_refused(admin: Connection, name: str) -> None:
    with pytest.raises(Misconfigured, match="database name"):
        await ensure_database(admin, name)


@pytest.mark.parametrize("password", ["pässword", "tab\there"])
def test_a_password_that_clients_would_normalise_differently_is_refused(password: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        scram_verifier(password)

    assert password not in str(refused.value)


async def test_an_upgrade_without_a_role_of_the_new_version_says_what_to_do_first(
    tmp_path: Path,
) -> None:
    """As from 0.2.0, whose last migration was 0008 and which had no role for keys."""
    with own_server() as server:
        for migration in shipped_migrations()[:8]:
            (tmp_path / f"{migration.version:04}_{migration.name}.sql").write_text(migration.sql)
        async with server.admin() as admin:
            await ensure_roles(admin, PASSWORDS)
            await ensure_database(admin, "fleet")
        owner = url(server, OWNER, PASSWORDS[OWNER], "fleet")
        await migrate(owner, folder=tmp_path)
        async with server.admin() as admin:
            await admin.execute("REVOKE ALL ON DATABASE fleet FROM imagefleet_admin")
            await admin.execute("DROP ROLE imagefleet_admin")

        with pytest.raises(
            Misconfigured, match=r"no role imagefleet_admin, .* `imagefleet migrate --roles`"
        ):
            await migrate(owner)
        async with connect(owner, process="test") as connection:
            assert 8 == len(await applied(connection))
        async with server.admin() as admin:
            await ensure_roles(admin, PASSWORDS)
            await ensure_database(admin, "fleet")

        assert shipped_migrations()[8:] == await migrate(owner)
