"""Migrations: applied, and before that asked for and foretold, without changing anything."""

from pathlib import Path

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.store.database import Connection
from imagefleet.store.schema.migration_files import shipped_migrations
from imagefleet.store.schema.migrations import TRIES
from tests.cli.conftest import Cli
from tests.support.database import PASSWORDS, Database

NEWEST = shipped_migrations()[-1]
WRITTEN = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_xact_user_tables"
APPLIED = "INSERT INTO schema_migrations VALUES ($1, 'newer', repeat('0', 64), $2, now(), 1)"


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


async def test_check_says_that_the_schema_is_current_to_any_process(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("api"))

    ended = await cli("migrate", "--check")

    assert (ExitCode.DONE, f"current: at {NEWEST}\n") == (ended.code, ended.out)


async def test_check_fails_where_the_schema_is_behind_and_changes_nothing(
    cli: Cli, database: Database, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("owner"))
    await superuser.execute("DELETE FROM schema_migrations WHERE version = $1", NEWEST.version)

    ended = await cli("migrate", "--check", "--json")

    assert ExitCode.FAILED == ended.code
    told = ended.json()
    assert ("behind", [str(NEWEST)]) == (told["state"], told["pending"])
    assert NEWEST.version - 1 == await superuser.fetchval(
        "SELECT max(version) FROM schema_migrations"
    )


async def test_check_fails_where_nobody_ever_migrated_and_makes_nothing(
    cli: Cli, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database.url("owner"))

    ended = await cli("migrate", "--check")

    assert ExitCode.FAILED == ended.code
    assert ended.out.startswith("behind: at nothing,")
    async with empty_database.connect("owner") as owner:
        assert await owner.fetchval("SELECT to_regclass('schema_migrations') IS NULL")


@pytest.mark.parametrize("breaking", [False, True])
async def test_check_lets_a_process_start_on_a_newer_schema_that_does_not_break_it(
    cli: Cli,
    database: Database,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
    breaking: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Pods of the release before are started again amid a rollout, too."""
    monkeypatch.setenv("DATABASE_URL", database.url("worker"))
    await superuser.execute(APPLIED, NEWEST.version + 1, breaking)

    ended = await cli("migrate", "--check")

    assert (ExitCode.USAGE if breaking else ExitCode.DONE) == ended.code
    if breaking:
        assert "deploy the newer version" in ended.err
    else:
        assert ended.out.startswith(f"ahead: at {NEWEST.version + 1:04}_newer.sql")


async def test_check_says_by_its_code_that_nobody_answered(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://imagefleet_api:secret@127.0.0.1:1/imagefleet")

    assert ExitCode.UNAVAILABLE == (await cli("migrate", "--check")).code


async def test_a_plan_tells_each_lock_and_takes_none(
    cli: Cli, database: Database, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What 0024 does to images and their revisions, and 0022 to variants, outside a transaction."""
    monkeypatch.setenv("DATABASE_URL", database.url("api"))
    await superuser.execute("DELETE FROM schema_migrations WHERE version > 21")

    async with superuser.transaction():  # even while others lock what it is about
        await superuser.execute("LOCK TABLE images, variants IN ACCESS EXCLUSIVE MODE")
        table = await cli("migrate", "--plan")
    told = (await cli("migrate", "--plan", "--json")).json()

    assert ExitCode.DONE == table.code
    assert [str(each) for each in shipped_migrations()[21:]] == told["pending"]
    assert TRIES == told["tries"]
    locks = [(step, lock) for step in told["steps"] for lock in step["locks"]]
    (index,) = [
        (step, lock)
        for step, lock in locks
        if step["statement"].startswith("CREATE INDEX CONCURRENTLY variants_by_key")
    ]
    assert ("15min", "end of statement") == (index[0]["waits"], index[0]["heldUntil"])
    assert ("variants", "SHARE UPDATE EXCLUSIVE", "scans") == tuple(
        index[1][name] for name in ("table", "mode", "work")
    )
    points = {
        lock["table"]: (step["waits"], lock["mode"], lock["holdsUp"], lock["work"])
        for step, lock in locks
        if step["migration"].startswith("0024")
    }
    everybody = ("2s", "ACCESS EXCLUSIVE", "everybody", None)
    assert {"images": everybody, "image_revisions": everybody} == points
    assert "ACCESS EXCLUSIVE" in table.out


async def test_a_plan_of_nothing_says_so(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("api"))

    assert "nothing to apply\n" == (await cli("migrate", "--plan")).out
