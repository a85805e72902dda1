"""Keys, which are made at the database, under the role for them."""

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.store.fleet.keys import find_key
from tests.cli.conftest import Cli
from tests.support.database import Database


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
