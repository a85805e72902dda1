"""`imagefleet doctor`: what each process needs, and what is to be done where it is missing."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.doctor import inside
from imagefleet.store.database import Connection, connect
from tests.cli.conftest import Cli
from tests.support.api import Serve
from tests.support.database import Database
from tests.support.fixtures import place
from tests.support.fleet import Place, Process
from tests.support.poolers import pgbouncer

__all__ = ["place"]

SERVING: Final = {"PUBLIC_BASE_URL": "http://127.0.0.1"}
ALONE: Final = """
import sys
sys.modules["typer"] = None
from imagefleet.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
# By process, what is looked at beside its settings.
OF_POSTGRES: Final = [
    "postgres", "postgres: pooler", "postgres: schema", "postgres: role", "clock: postgres",
    "postgres: connections",
]  # fmt: skip
QUEUES: Final = ["sqs: fast", "sqs: general", "sqs: quarantine"]
LOOKS_AT: Final = {
    "api": [
        *OF_POSTGRES, "postgres: operators", *QUEUES, "sqs: dead letters", "s3: originals", "disk",
    ],
    "worker": [
        *OF_POSTGRES, *QUEUES, "s3: originals", "s3: outputs", "disk", "memory", "sandbox",
    ],
    "maintenance": [
        *OF_POSTGRES, *QUEUES, "sqs: dead letters", "s3: originals", "s3: outputs",
    ],
}  # fmt: skip
PUT, HEAD, LIST = "put, head, delete; clock within 30 s of this machine's", "head", "list"
DOES_TO: Final = {
    "api": {"originals": PUT},
    "worker": {"originals": HEAD, "outputs": PUT},
    "maintenance": {"originals": LIST, "outputs": LIST},
}


def environment_of(place: Place, process: Process) -> dict[str, str]:
    more = {"OPERATOR_DATABASE_URL": place.database.url("operator"), **SERVING}
    return {**place.environment(process), **(more if process == "api" else {})}


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in document["checks"]}


@pytest.mark.parametrize("process", ["api", "worker", "maintenance"])
async def test_each_process_has_what_it_needs_looked_at_and_no_more(
    cli: Cli, place: Place, monkeypatch: pytest.MonkeyPatch, process: Process
) -> None:
    for name, value in environment_of(place, process).items():
        monkeypatch.setenv(name, value)

    ended = await cli("doctor", "--for", process, "--json")

    checks = by_name(ended.json())
    assert [check for check in checks.values() if not check["ok"]] == []
    assert ExitCode.DONE == ended.code
    buckets = {bucket: name for name, bucket in place.applied.buckets.items()}
    looked = [name for name in checks if not name.startswith("settings: ")]
    named = [f"s3: {buckets[name[4:]]}" if name.startswith("s3: ") else name for name in looked]
    assert LOOKS_AT[process] == named
    assert DOES_TO[process] == {
        buckets[name[4:]]: checks[name]["found"] for name in looked if name.startswith("s3: ")
    }


async def test_the_console_has_its_api_looked_at_and_the_keys_that_it_was_given(
    cli: Cli, serve: Serve, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"dana": secrets["operator"], "eve": secrets["acme"], "finn": secrets["revoked"]}
    monkeypatch.setenv("CONSOLE_PROXY_KEYS", json.dumps(given))
    async with serve() as running:
        monkeypatch.setenv("IMAGEFLEET_URL", running.url)

        ended = await cli("doctor", "--for", "console", "--json")

    checks = by_name(ended.json())
    looked = {name: check["ok"] for name, check in checks.items()}
    assert looked == {
        "settings: console": True,
        "settings: telemetry": True,
        "api": True,
        "key: dana": True,
        "key: eve": False,
        "key: finn": False,
    }
    assert checks["api"]["found"] == f"{running.url} serves operators, and asks for a key"
    assert checks["key: dana"]["found"] == "may operate"
    assert "scope" in checks["key: eve"]["found"]
    assert not {secret for secret in given.values() if secret in ended.out}
    assert ended.code == ExitCode.FAILED


@pytest.mark.parametrize("serves_nobody", [False, True])
async def test_the_console_is_told_that_its_api_is_not_there_or_not_for_operators(
    cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch, *, serves_nobody: bool
) -> None:
    async with serve(operating=False) as running:
        url = "http://127.0.0.1:9" if serves_nobody else running.url
        monkeypatch.setenv("IMAGEFLEET_URL", url)

        ended = await cli("doctor", "--for", "console", "--json")

    check = by_name(ended.json())["api"]
    assert not check["ok"]
    assert "OPERATOR_DATABASE_URL" in check["advice"]
    assert ("Nothing answers at" in check["found"]) == serves_nobody, check


async def test_a_container_without_the_command_line_answers_as_well(
    place: Place, database: Database
) -> None:
    """As that of each process is."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ALONE, "doctor", "--for", "maintenance", "--json",
        env=place.environment("maintenance"), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()

    assert 0 == process.returncode
    document = json.loads(said)
    assert document["ok"]
    assert {*LOOKS_AT["maintenance"][:6]} < {*by_name(document)}


async def test_a_container_without_the_command_line_says_what_is_wrong() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ALONE, "doctor", "--for", "worker", env={"PATH": "/usr/bin"},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()

    assert 1 == process.returncode
    assert b"failed  settings: database" in said
    assert b"DATABASE_URL: not set" in said


async def connections(cli: Cli, *told: str) -> tuple[int, dict[str, Any]]:
    ended = await cli("doctor", *(word for each in told for word in ("--replicas", each)), "--json")
    return ended.code, by_name(ended.json())["postgres: connections"]


async def test_more_connections_than_postgres_lets_in_are_refused(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch, superuser: Connection
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("api"))
    most = await superuser.fetchval(
        "SELECT current_setting('max_connections')::int"
        " - current_setting('superuser_reserved_connections')::int"
    )
    room = (most - 5 - 20 - 11) // 3

    _, fits = await connections(cli, f"worker={room}")
    code, crowded = await connections(cli, f"worker={room + 1}")
    _, smaller = await connections(cli, f"worker={room + 1}", "api=1x4")

    assert fits["ok"], fits
    assert (
        f"of {most}: api 1 x 20, worker {room} x 3, maintenance 1 x 11, others 5" in fits["found"]
    )
    assert (ExitCode.FAILED, False) == (code, crowded["ok"])
    assert "max_connections" in crowded["advice"]
    assert "DATABASE_POOL_MAX" in crowded["advice"]
    assert smaller["ok"], smaller


async def test_whoever_is_alive_is_counted_where_nobody_told(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("api"))
    async with AsyncExitStack() as stack:
        for process, sessions in (("worker-beat", 3), ("maintenance-rescuer", 2), ("api", 11)):
            url = database.url("worker")
            for _ in range(sessions):
                await stack.enter_async_context(connect(url, process=process))
        _, seen = await connections(cli)

    assert "api 2 x 20, worker 3 x 3, maintenance 2 x 11" in seen["found"]


async def test_a_pool_of_this_environment_counts_for_its_process(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("worker"))
    monkeypatch.setenv("DATABASE_POOL_MAX", "7")

    ended = await cli("doctor", "--for", "worker", "--json")

    assert (
        "worker 1 x 8, maintenance 1 x 11"
        in by_name(ended.json())["postgres: connections"]["found"]
    )


async def test_nobody_can_tell_what_makes_no_sense(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("api"))

    for word in ("worker", "worker=x", "console=2", "worker=2x", "worker=-1"):
        ended = await cli("doctor", "--replicas", word)
        assert (ExitCode.USAGE, True) == (ended.code, word in ended.err)


async def test_a_pooler_is_told_from_postgres_whatever_the_settings_say(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("api"))
    monkeypatch.setenv("DATABASE_POOLER", "pgbouncer")
    without = by_name((await cli("doctor", "--json")).json())

    assert not without["postgres: pooler"]["ok"]
    assert "DATABASE_POOLER" in without["postgres: pooler"]["advice"]


async def test_behind_a_pooler_its_own_sessions_are_counted(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pgbouncer(database, pool_size=1) as pooler:
        monkeypatch.setenv("DATABASE_URL", pooler.url(database, "api"))
        monkeypatch.setenv("DATABASE_POOLER", "pgbouncer")
        _, few = await connections(cli, "pgbouncer=2x25", "worker=5000")
        _, many = await connections(cli, "pgbouncer=4x25")

    assert (True, False) == (few["ok"], many["ok"])
    assert "pgbouncer 2 x 100" in few["found"]


async def test_a_disk_that_is_too_small_is_found(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_UPLOAD_BYTES", str(5 * 2**30))
    monkeypatch.setenv("RENDER_CHILDREN", "64")
    monkeypatch.setenv("WORKER_JOB_TYPES", "knitting")

    checks = by_name((await cli("doctor", "--for", "worker", "--json")).json())

    assert not checks["disk"]["ok"]
    assert "/tmp" in checks["disk"]["advice"]  # noqa: S108 - words
    assert (False, True) == (checks["sandbox"]["ok"], "knitting" in checks["sandbox"]["found"])


async def test_memory_that_the_container_has_not_is_found(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "container_limit", lambda: 512 * 2**20)
    monkeypatch.setenv("RENDER_MEMORY_BYTES", str(400 * 2**20))

    checks = by_name((await cli("doctor", "--for", "worker", "--json")).json())

    assert not checks["memory"]["ok"]
    assert "RENDER_MEMORY_BYTES" in checks["memory"]["advice"]


async def test_doctor_looks_on_when_something_is_missing(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("worker"))

    ended = await cli("doctor", "--for", "worker", "--json")

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

    ended = await cli("doctor", "--for", "worker", "--json")

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
