"""`imagefleet audit`, and that no verb which changes the database by itself leaves no line."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from textwrap import dedent
from types import FunctionType
from typing import Any, Final

import pytest
import typer

from imagefleet.cli import main as command_line
from imagefleet.cli.output import ExitCode
from imagefleet.store.database import Connection, connect
from imagefleet.store.fleet.audit import Act, Actor, acting
from imagefleet.store.fleet.keys import create_key
from tests.cli.conftest import Cli
from tests.support.api import ACME
from tests.support.database import Database
from tests.support.rows import audit_rows
from tests.support.sources import parsed

CONNECTS: Final = "imagefleet.store.database"

# Verbs that go past the API, whose routes have a list of their own; and why a verb is not told.
CHANGES: Final = frozenset({"keys create", "keys revoke"})
OTHERS: Final[Mapping[str, str]] = {
    "keys list": "only reads",
    "migrate": "schema_migrations says what was applied; --roles is told, by the owner"
    " (tests/cli/test_migrating.py)",
    "migrate status": "only reads",
    "doctor": "only reads Postgres",
    "up": "makes keys of its own, as `up`: see tests/embedded/test_stack.py",
}


def verbs_of(app: typer.Typer, group: str = "") -> Iterator[tuple[str, Any]]:
    for command in (app.registered_callback, *app.registered_commands):
        if command is not None and command.callback is not None:
            name = getattr(command, "name", None) or command.callback.__name__.replace("_", "-")
            own = command is app.registered_callback
            yield (group if own else f"{group} {name}".strip()), command.callback
    for inner in app.registered_groups:
        assert inner.typer_instance is not None
        yield from verbs_of(inner.typer_instance, f"{group} {inner.name}".strip())


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is none: a name inside a module
        return False


def imported(tree: ast.AST) -> set[str]:
    """The modules of ours that a piece of code imports."""
    names = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if isinstance(node, ast.ImportFrom) and node.module
            else []
        )
    }
    return {name for name in names if name.startswith("imagefleet.") and is_module(name)}


def reaches_postgres(module: str, seen: set[str]) -> bool:
    """Whether a module of the command line imports, itself or by another one, what connects."""
    if module in seen:
        return False
    seen.add(module)
    __import__(module)
    ours = imported(parsed(inspect.getsource(sys.modules[module])))
    return CONNECTS in ours or any(
        reaches_postgres(name, seen)
        for name in ours
        if name.startswith(("imagefleet.cli", "imagefleet.doctor", "imagefleet.embedded"))
        and name != "imagefleet.cli.main"
    )


def used(function: FunctionType, seen: set[FunctionType]) -> set[str]:
    """The modules that a function of `main` uses, or another one of it does that it calls."""
    if function in seen:
        return set()
    seen.add(function)
    tree = parsed(dedent(inspect.getsource(function)))
    modules = imported(tree)
    for node in ast.walk(tree):
        thing = vars(command_line).get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(thing, FunctionType) and thing.__module__ == command_line.__name__:
            modules |= used(thing, seen)
        elif thing is not None:
            modules.add(str(getattr(thing, "__module__", None) or getattr(thing, "__name__", "")))
    return modules


def is_at_postgres(callback: Any) -> bool:  # noqa: ANN401 - any verb
    """By what its module imports; `main` imports every verb, so there by what it uses itself."""
    if callback.__module__ != command_line.__name__:
        return reaches_postgres(callback.__module__, set())
    return any(
        name == CONNECTS or (name.startswith("imagefleet.") and reaches_postgres(name, set()))
        for name in used(callback, set())
    )


@pytest.mark.parametrize("inside", [False, True])
def test_a_verb_of_the_main_module_that_connects_is_seen(
    monkeypatch: pytest.MonkeyPatch,
    inside: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    def imports_it() -> None:
        from imagefleet.store import database  # noqa: F401, PLC0415 - what it is seen by

    def calls_it() -> None:
        rotate()  # type: ignore[name-defined]  # noqa: F821 - of the module that it pretends to be of

    verb = imports_it if inside else calls_it
    monkeypatch.setattr(verb, "__module__", command_line.__name__)
    monkeypatch.setattr(command_line, "rotate", connect, raising=False)

    assert is_at_postgres(verb)
    assert not is_at_postgres(command_line.version)


def test_every_verb_that_goes_past_the_api_is_told_of_or_says_why_not() -> None:
    past = {
        verb
        for verb, callback in verbs_of(command_line.app)
        if verb and verb not in command_line.STARTED_ELSEWHERE and is_at_postgres(callback)
    }

    assert {*CHANGES, *OTHERS} == past


@pytest.mark.parametrize("verb", sorted(CHANGES))
async def test_a_verb_at_the_database_leaves_one_line_with_who_and_why(
    cli: Cli,
    database: Database,
    admin: Connection,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("admin"))
    monkeypatch.setenv("IMAGEFLEET_ACTOR", "ada@laptop")
    secret = await create_key(admin, ACME, name="uploader", scopes=["read"])
    key_id = await admin.fetchval("SELECT id FROM api_keys")
    last = len(await audit_rows(admin))
    arguments = {
        "keys create": ["--tenant", ACME, "--name", "other"],
        "keys revoke": [str(key_id)],
    }

    ended = await cli(*verb.split(), *arguments[verb], "--reason", "why")

    assert ExitCode.DONE == ended.code, ended.err
    (line,) = (await audit_rows(admin))[last:]
    assert (verb.split()[1], "key", "ada@laptop", "why", ACME, "imagefleet_admin") == (
        line["action"],
        line["kind"],
        line["actor"],
        line["reason"],
        line["tenant_id"],
        line["role"],
    )
    assert line["after"] is not None
    assert secret not in str(line)
    assert ended.out.strip() not in str(line)


async def test_a_person_without_another_name_is_the_user_of_the_machine(
    cli: Cli, database: Database, admin: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url("admin"))
    monkeypatch.delenv("IMAGEFLEET_ACTOR", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "bastion" * 100)

    ended = await cli("keys", "create", "--tenant", "shop", "--name", "uploader")

    assert ExitCode.DONE == ended.code, ended.err
    assert ["tenant", "key"] == [line["kind"] for line in await audit_rows(admin)]
    for line in await audit_rows(admin):
        user, _, host = line["actor"].partition("@")
        assert user
        assert host.startswith("bastion")


async def test_what_operators_do_is_told_with_their_reasons(
    operate: Cli, terminal: Callable[[int], None]
) -> None:
    await operate("queue", "pause", "--type", "noop", "--reason", "a bad day")
    await operate("queue", "resume", "--type", "noop", "--reason", "a better one")
    await operate("breaker", "open", "--reason", "moving", "s3")
    await operate("breaker", "reset", "--reason", "moved", "s3")

    table = await operate("audit", "--since", "1h", "--by", "of tests")
    document = await operate("audit", "--since", "1h", "--on", "circuit_breaker/s3", "--json")
    terminal(80)
    narrow = await operate("audit", "--since", "1h", "--by", "of tests")

    assert ExitCode.DONE == table.code, table.err
    rows = table.out.splitlines()
    assert ["at", "(UTC)", "by", "did", "why"] == rows[0].split()
    assert [
        ("reset circuit_breaker s3", "moved"),
        ("open circuit_breaker s3", "moving"),
        ("resume pause type noop", "a better one"),
        ("pause pause type noop", "a bad day"),
    ] == [tuple(part.strip() for part in row.split("  ") if part.strip())[2:] for row in rows[1:]]
    assert all("of tests from 127.0.0.1" in row for row in rows[1:])
    assert all(len(row) <= 80 for row in narrow.out.splitlines())
    assert {"circuit_breaker", "noop", "moving", "127.0.0.1"} <= set(narrow.out.split())
    page = document.json()
    assert ["reset", "open"] == [line["action"] for line in page["lines"]]
    assert "open" == page["lines"][0]["before"]["state"]
    assert "nextCursor" not in page


async def test_the_audit_is_read_page_after_page_and_says_where_to_go_on(
    operate: Cli, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.cli.fleet.AUDIT_PAGE", 3)
    async with acting(operator, Actor(name="many")) as act:
        for number in range(10):
            await act.record(Act(action="pause", kind="pause", name=f"type t{number}"))

    whole = await operate("audit", "--by", "many", "--json")
    part = await operate("audit", "--by", "many", "--limit", "4", "--json")
    page = part.json()
    rest = await operate("audit", "--by", "many", "--cursor", str(page["nextCursor"]), "--json")
    table = await operate("audit", "--by", "many", "--limit", "4")

    names = [f"type t{number}" for number in reversed(range(10))]
    everything = whole.json()
    others = rest.json()
    assert names == [line["name"] for line in everything["lines"]]
    assert names[:4] == [line["name"] for line in page["lines"]]
    assert names[4:] == [line["name"] for line in others["lines"]]
    assert f"--cursor {page['nextCursor']}" in table.err


@pytest.mark.parametrize("since", ["yesterday", "1y", "2026-13-01", "99999999w", "-1h", ""])
async def test_a_time_that_cannot_be_read_is_refused_with_the_forms(
    operate: Cli, since: str
) -> None:

    ended = await operate("audit", "--since", since)

    assert ExitCode.USAGE == ended.code
    assert "90s, 15m, 1h, 2d or 1w ago, or 2026-03-01T00:00:00Z" in ended.err
