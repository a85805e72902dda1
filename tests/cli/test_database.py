"""The verbs that speak to the database, each under its role."""

from pathlib import Path

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.store.fleet.keys import find_key
from tests.cli.conftest import Cli
from tests.support.database import PASSWORDS, Database


async def test_a_key_is_made_listed_and_revoked(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("admin"))

    made = await cli("keys", "create", "--tenant", "shop", "--name", "uploader", "--days", "1")
    secret = made.out.strip()
    listed = await cli("keys", "list", "--tenant", "shop", "--json")
    keys = listed.json()
    revoked = await cli("keys", "revoke", keys[0]["id"])

    assert (ExitCode.DONE, ExitCode.DONE) == (made.code, revoked.code)
    assert secret.startswith("if_")
    assert secret not in listed.out
    assert (["submit", "read"], "uploader") == (keys[0]["scopes"], keys[0]["name"])
    assert keys[0]["expiresAt"] is not None
    async with database.connect("api") as connection:
        assert await find_key(connection, secret) is None


async def test_an_unknown_scope_or_key_is_refused(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("admin"))
    unknown = "0199a5c2-0000-7000-8000-000000000001"

    scope = await cli("keys", "create", "--tenant", "a", "--name", "b", "--scope", "everything")
    key = await cli("keys", "revoke", unknown)

    assert ExitCode.USAGE == scope.code
    assert "submit, read, operate" in scope.err
    assert ExitCode.REFUSED == key.code


async def test_a_role_that_may_not_make_keys_is_told_so(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("worker"))

    ended = await cli("keys", "create", "--tenant", "a", "--name", "b")

    assert ExitCode.FAILED == ended.code
    assert "permission denied" in ended.err
    assert "Traceback" not in ended.err


async def test_migrate_applies_what_is_missing_once(
    cli: Cli, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database.url("owner"))

    before = await cli("migrate", "status")
    first = await cli("migrate")
    second = await cli("migrate")
    after = await cli("migrate", "status", "--json")

    assert ExitCode.FAILED == before.code
    assert "missing" in before.out
    assert "applied 0001_tenants.sql" in first.out
    assert second.out == "nothing to apply\n"
    assert ExitCode.DONE == after.code
    document = after.json()
    assert document["pending"] == []


async def test_migrate_makes_roles_with_passwords_from_files(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ADMIN_DATABASE_URL", database.url("superuser"))
    monkeypatch.setenv("DATABASE_URL", database.url("owner"))
    for role, password in PASSWORDS.items():
        file = tmp_path / role
        file.write_text(password + "\n")
        name = role.removeprefix("imagefleet_").upper()
        monkeypatch.setenv(f"{name}_DATABASE_PASSWORD_FILE", str(file))

    monkeypatch.setenv("IMAGEFLEET_ACTOR", "ada@laptop")
    ended = await cli("migrate", "--roles", "--database", database.name)

    assert ExitCode.DONE == ended.code
    assert "imagefleet_operator" in ended.out
    async with database.connect("worker") as connection:  # with the password as it is now
        assert await connection.fetchval("SELECT 1") == 1
        (line,) = await connection.fetch("SELECT * FROM audit")
    assert ("set", "role", " ".join(PASSWORDS), "ada@laptop", "imagefleet_owner") == tuple(
        line[name] for name in ("action", "kind", "name", "actor", "role")
    )
    for password in PASSWORDS.values():
        assert password not in str(line["after"])


async def test_roles_that_are_made_before_there_is_an_audit_are_told_once_it_is_there(
    cli: Cli, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_DATABASE_URL", empty_database.url("superuser"))
    monkeypatch.setenv("DATABASE_URL", empty_database.url("owner"))
    for role, password in PASSWORDS.items():
        name = role.removeprefix("imagefleet_").upper()
        monkeypatch.setenv(f"{name}_DATABASE_PASSWORD", password)

    ended = await cli("migrate", "--roles", "--database", empty_database.name)

    assert ExitCode.DONE == ended.code, ended.err
    async with empty_database.connect("admin") as connection:
        (line,) = await connection.fetch("SELECT action, kind FROM audit")
    assert ("set", "role") == tuple(line)


async def test_migrate_names_every_password_that_is_missing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = await cli("migrate", "--roles")

    assert ExitCode.USAGE == ended.code
    for name in ("ADMIN_DATABASE_URL", "OWNER_DATABASE_PASSWORD", "WORKER_DATABASE_PASSWORD"):
        assert name in ended.err
