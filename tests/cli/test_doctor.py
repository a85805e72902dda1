"""`imagefleet doctor`, where something is missing."""

import pytest

from imagefleet.cli.output import ExitCode
from tests.cli.conftest import Cli
from tests.support.database import Database


async def test_doctor_looks_on_when_something_is_missing(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("worker"))

    ended = await cli("doctor", "--as", "worker", "--json")

    assert ExitCode.FAILED == ended.code
    document = ended.json()
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["postgres"]["ok"]
    assert checks["postgres: schema"]["ok"]
    assert checks["postgres: role"]["found"] == "imagefleet_worker"
    assert not checks["settings: aws"]["ok"]
    assert "FAST_QUEUE_URL" in checks["settings: aws"]["found"]


@pytest.mark.parametrize("role", ["owner", "superuser", "api"])
async def test_doctor_finds_the_wrong_role(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    url = {"owner": "owner", "superuser": "superuser", "api": "api"}[role]
    monkeypatch.setenv("DATABASE_URL", database.url(url))  # type: ignore[arg-type]

    ended = await cli("doctor", "--as", "worker", "--json")

    document = ended.json()
    (wrong,) = [check for check in document["checks"] if check["name"] == "postgres: role"]
    assert not wrong["ok"]
    assert wrong["advice"]


async def test_doctor_finds_a_database_that_is_not_migrated(
    cli: Cli, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database.url("api"))

    ended = await cli("doctor", "--json")

    document = ended.json()
    (schema,) = [check for check in document["checks"] if check["name"] == "postgres: schema"]
    assert not schema["ok"]
    assert "imagefleet migrate" in schema["advice"]


async def test_doctor_says_when_nobody_answers(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://imagefleet_api:secret@127.0.0.1:1/imagefleet")

    ended = await cli("doctor")

    assert ExitCode.FAILED == ended.code
    assert "may this machine reach it?" in " ".join(ended.out.split())
    assert "secret" not in ended.out
