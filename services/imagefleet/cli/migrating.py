"""`imagefleet migrate`: brings the schema to what this version needs, or says what it would do."""

import textwrap
from typing import Annotated, Final

import typer

from imagefleet.cli.database import at_postgres, whoami
from imagefleet.cli.output import (
    Columns,
    ExitCode,
    Fields,
    GivesWay,
    Table,
    finish,
    run_async,
    say,
    show,
)
from imagefleet.cli.verbs import Json
from imagefleet.settings import Database, Roles, load
from imagefleet.store.database import Connection, connect
from imagefleet.store.fleet.audit import Act, acting, has_audit
from imagefleet.store.schema import locks, migrations
from imagefleet.store.schema.roles import ROLES, ensure_database, ensure_roles

LONGEST_STATEMENT: Final = 60  # characters of it that a table shows
HELD: Final = (
    f"A lock that is not had in time is given up and tried again, {migrations.TRIES} times in all. "
    "What is had is held until the file is done; where it is in no transaction, the statement."
)

migrate = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)


@migrate.callback()
def apply(
    context: typer.Context,
    roles: Annotated[
        bool,
        typer.Option("--roles", help="First make the roles and the database, as an administrator."),
    ] = False,
    database: Annotated[str, typer.Option(help="The database that --roles makes.")] = "imagefleet",
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing: is the schema current?")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Change nothing: what is missing, and what it will lock.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Apply the migrations that are missing (DATABASE_URL of the role imagefleet_owner).

    Any number may run at once, and any of them may be killed. A version may bring a role that the
    one before had not: then --roles is needed once, and this verb says so. It needs
    ADMIN_DATABASE_URL and a password for each role: OWNER_DATABASE_PASSWORD,
    API_DATABASE_PASSWORD, and so on for WORKER, MAINTENANCE, OPERATOR, ADMIN and SCALER, or the
    same names with _FILE and the path of a file. It sets them all, and the audit says who did:
    IMAGEFLEET_ACTOR, or the user of this machine.

    --check and --plan need no more than the role of any process. --check exits with 0 where this
    version can work, on a schema that is current or ahead, with 1 where it is behind, and with 2
    where a newer version has made one that this one cannot work with.

    For example:

        imagefleet migrate
        imagefleet migrate status
        imagefleet migrate --roles
        imagefleet migrate --check
        imagefleet migrate --plan
    """
    if context.invoked_subcommand is not None:
        return
    if check or plan:
        (_check if check else _plan)(as_json=as_json)
        return
    told = True
    if roles:
        run_async(_make_roles(load(Roles), database))
        if not as_json:
            say(f"roles {', '.join(ROLES)} and database {database} are there")
        told = at_postgres(_tell_of_roles)
    applied = run_async(migrations.migrate(load(Database).url.get_secret_value()))
    if not told:
        at_postgres(_tell_of_roles)
    names = [*map(str, applied)]
    show(
        {"applied": names},
        lambda _: [f"applied {name}" for name in names] or "nothing to apply",
        as_json=as_json,
    )


@migrate.command()
def status(as_json: Json = False) -> None:
    """Show what is applied and what is missing; exits with 1 when something is missing.

    For example:

        imagefleet migrate status
    """
    schema = at_postgres(migrations.status)
    applied, pending = [*map(str, schema.applied)], [*map(str, schema.pending)]
    states = {
        **dict.fromkeys(applied, "applied"),
        **dict.fromkeys(pending, "missing"),
        **dict.fromkeys(schema.invalid_indexes, "invalid index"),
    }
    show(
        {"applied": applied, "pending": pending, "invalidIndexes": schema.invalid_indexes},
        lambda _: Fields(states, ("migration", "state")),
        as_json=as_json,
    )
    finish(ExitCode.FAILED if pending or schema.invalid_indexes else ExitCode.DONE)


async def _standing(connection: Connection) -> migrations.Status:
    schema = await migrations.status(connection)
    if schema.unknown:
        await migrations.require_schema(connection)
    return schema


def _check(*, as_json: bool) -> None:
    schema = at_postgres(_standing)
    known = schema.applied[-1] if schema.applied else "nothing"
    if schema.pending:
        state, sentence = "behind", f"at {known}, {schema.pending[-1]} is needed"
    elif schema.unknown:
        state, sentence = "ahead", f"at {known}, which this version can work with"
    else:
        state, sentence = "current", f"at {known}"
    document = {
        "state": state,
        "applied": [*map(str, schema.applied)],
        "pending": [*map(str, schema.pending)],
    }
    show(document, lambda _: f"{state}: {sentence}", as_json=as_json)
    finish(ExitCode.FAILED if schema.pending else ExitCode.DONE)


async def _steps(connection: Connection) -> tuple[locks.Step, ...]:
    schema = await migrations.status(connection)
    return await locks.plan(connection, schema.pending)


def _plan(*, as_json: bool) -> None:
    steps = at_postgres(_steps)
    unknown = locks.TableLock(table="?", mode="not known: read it", work="")
    rows = [
        (step, lock)
        for step in steps
        for lock in ((unknown,) if step.locks is None else step.locks)
    ]
    missing = dict.fromkeys(str(step.migration) for step in steps)
    columns: Columns = {
        "migration": lambda row: row[0].migration,
        "statement": lambda row: textwrap.shorten(row[0].told, LONGEST_STATEMENT, placeholder=""),
        "table": lambda row: row[1].table,
        "lock": lambda row: row[1].mode,
        "holds up": lambda row: locks.HOLDS_UP.get(row[1].mode, "perhaps everybody"),
        "waits": lambda row: row[0].waits,
        "and": lambda row: _work(row[1]),
    }
    gives_way: GivesWay = {
        "wraps": ("statement", "holds up", "and"),
        "none": "no table that is there is locked" if missing else "nothing to apply",
    }
    document = {"pending": [*missing], "tries": migrations.TRIES, "steps": [*map(_document, steps)]}
    show(
        document,
        lambda _: (Table(rows, columns, gives_way), *([HELD] if rows else [])),
        as_json=as_json,
    )


def _work(lock: locks.TableLock) -> str:
    if not lock.work:
        return ""
    return f"{lock.work} {lock.table_rows} rows, {lock.table_bytes / 2**20:.1f} MiB"


def _document(step: locks.Step) -> dict[str, object]:
    return {
        "migration": str(step.migration),
        "statement": step.told,
        "known": step.locks is not None,
        "waits": step.waits,
        "heldUntil": "end of file" if step.migration.transactional else "end of statement",
        "locks": [
            {
                "table": lock.table,
                "mode": lock.mode,
                "holdsUp": locks.HOLDS_UP[lock.mode],
                "work": lock.work or None,
                "tableBytes": lock.table_bytes,
                "tableRows": lock.table_rows,
            }
            for lock in step.locks or ()
        ],
    }


async def _make_roles(settings: Roles, database: str) -> None:
    async with connect(settings.admin_url.get_secret_value(), process="cli") as admin:
        await ensure_roles(admin, settings.passwords())
        await ensure_database(admin, database)


async def _tell_of_roles(connection: Connection) -> bool:
    """Who has set all passwords, before a migration may fail; False: there is no audit yet."""
    if not await has_audit(connection):
        return False
    after = {"attributes": "set", "limits": "set", "password": "set"}
    async with acting(connection, whoami()) as act:
        await act.record(Act(action="set", kind="role", name=" ".join(ROLES), after=after))
    return True
