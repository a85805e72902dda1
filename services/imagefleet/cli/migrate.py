"""`imagefleet migrate`: bring the database to what this version needs."""

from typing import Annotated

import typer

from imagefleet.cli.connection import whoami
from imagefleet.cli.output import ExitCode, Json, finish, print_json, print_table, run_async, say
from imagefleet.settings import Database, Roles, load
from imagefleet.store.database import connect
from imagefleet.store.fleet.audit import Act, acting, has_audit
from imagefleet.store.schema import migrations
from imagefleet.store.schema.roles import ROLES, ensure_database, ensure_roles

app = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)


@app.callback()
def migrate(
    context: typer.Context,
    roles: Annotated[
        bool,
        typer.Option("--roles", help="First make the roles and the database, as an administrator."),
    ] = False,
    database: Annotated[str, typer.Option(help="The database that --roles makes.")] = "imagefleet",
) -> None:
    """Apply the migrations that are missing (DATABASE_URL of the role imagefleet_owner).

    Any number may run at once, and any of them may be killed. A version may bring a role that the
    one before had not: then --roles is needed once, and this verb says so. It needs
    ADMIN_DATABASE_URL and a password for each role: OWNER_DATABASE_PASSWORD,
    API_DATABASE_PASSWORD, and so on for WORKER, MAINTENANCE, OPERATOR and ADMIN, or the same names
    with _FILE and the path of a file. It sets them all, and the audit says who did:
    IMAGEFLEET_ACTOR, or the user of this machine.

    For example:

        imagefleet migrate
        imagefleet migrate status
        imagefleet migrate --roles
    """
    if context.invoked_subcommand is not None:
        return
    told = True
    if roles:
        run_async(_make_roles(load(Roles), database))
        say(f"roles {', '.join(ROLES)} and database {database} are there")
        told = run_async(_tell_of_roles())
    applied = run_async(migrations.migrate(_url()))
    if not told:
        run_async(_tell_of_roles())
    for migration in applied:
        say(f"applied {migration}")
    if not applied:
        say("nothing to apply")


@app.command()
def status(as_json: Json = False) -> None:
    """Show what is applied and what is missing; exits with 1 when something is missing."""
    found = run_async(_status())
    if as_json:
        print_json(
            {
                "applied": [str(entry) for entry in found.applied],
                "pending": [str(migration) for migration in found.pending],
                "invalidIndexes": found.invalid_indexes,
            }
        )
    else:
        rows = [(entry, "applied") for entry in map(str, found.applied)]
        rows += [(migration, "missing") for migration in map(str, found.pending)]
        rows += [(index, "invalid index") for index in found.invalid_indexes]
        print_table(("migration", "state"), rows)
    finish(ExitCode.FAILED if found.pending or found.invalid_indexes else ExitCode.DONE)


async def _make_roles(settings: Roles, database: str) -> None:
    async with connect(settings.admin_url.get_secret_value(), process="cli") as admin:
        await ensure_roles(admin, settings.passwords())
        await ensure_database(admin, database)


async def _tell_of_roles() -> bool:
    """Who has set all passwords, before a migration may fail; False: there is no audit yet."""
    async with connect(_url(), process="cli") as connection:
        if not await has_audit(connection):
            return False
        async with acting(connection, whoami()) as act:
            await act.record(
                Act(
                    action="set",
                    kind="role",
                    name=" ".join(ROLES),
                    after={"attributes": "set", "limits": "set", "password": "set"},
                )
            )
    return True


async def _status() -> migrations.Status:
    async with connect(_url(), process="cli") as connection:
        return await migrations.status(connection)


def _url() -> str:
    return load(Database).url.get_secret_value()
