"""The verbs of the holder of the database, `imagefleet keys` and `imagefleet migrate`.

They ask Postgres itself, each under the role that it needs, as a person: there is no key yet, or
nobody to take one.
"""

import os
import pwd
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Final, TypeVar
from uuid import UUID

import typer

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
from imagefleet.cli.verbs import Json, OfTenant, ReasonIfAny, Tenant, group
from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import TenantId
from imagefleet.settings import Database, Person, Roles, load
from imagefleet.store.database import Connection, connect
from imagefleet.store.fleet import keys as store
from imagefleet.store.fleet.audit import Act, Actor, acting, has_audit
from imagefleet.store.fleet.keys import SCOPES, ApiKey
from imagefleet.store.schema import migrations
from imagefleet.store.schema.roles import ROLES, ensure_database, ensure_roles

LONGEST_NAME: Final = 200  # characters, as the audit keeps it

Answer = TypeVar("Answer")

keys = group("Create, list and revoke API keys (DATABASE_URL of the role imagefleet_admin).")
migrate = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)


@keys.command()
def create(
    tenant: Tenant,
    name: Annotated[str, typer.Option(help="What it is for; shown wherever it acts.")],
    scope: Annotated[
        list[str], typer.Option(help=f"What it may do: {', '.join(SCOPES)}. Repeat for more.")
    ] = ["submit", "read"],  # noqa: B006 - Typer reads it, nobody writes it
    days: Annotated[
        float | None, typer.Option(min=0.001, help="It ends after so many; never if not given.")
    ] = None,
    reason: ReasonIfAny = None,
    as_json: Json = False,
) -> None:
    """Make a key, and its tenant if that is new.

    The secret is printed now and never again; what is stored cannot be turned back into it.
    To rotate: create the new key, let both live for a while, revoke the old one.

    For example:

        imagefleet keys create --tenant shop --name uploader
        imagefleet keys create --tenant shop --name oncall --scope operate --days 30
    """
    unknown = sorted(set(scope) - set(SCOPES))
    if unknown:
        detail = f"unknown scope {', '.join(unknown)}; there are {', '.join(SCOPES)}"
        raise Misconfigured(detail)

    async def create_key(connection: Connection) -> str:
        return await store.create_key(
            connection,
            TenantId(tenant),
            name=name,
            scopes=scope,
            expires_in=timedelta(days=days) if days else None,
            by=whoami(),
            reason=reason,
        )

    secret = at_postgres(create_key)
    document = {"key": secret, "tenant": tenant, "name": name, "scopes": scope}
    show(document, lambda _: secret, as_json=as_json)


@keys.command("list")
def list_keys(
    tenant: OfTenant = None,
    as_json: Json = False,
) -> None:
    """List keys; secrets are not known to anybody.

    For example:

        imagefleet keys list --tenant shop
    """
    wanted = TenantId(tenant) if tenant else None
    keys = at_postgres(lambda connection: store.list_keys(connection, wanted))
    columns: Columns = {
        "id": "id", "tenant": "tenant_id", "name": "name",
        "scopes": lambda key: " ".join(key.scopes),
        "created": lambda key: f"{key.created_at:%Y-%m-%d}",
        "last used": lambda key: (
            f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never"
        ),
        "ends": _ends,
    }  # fmt: skip
    gives_way: GivesWay = {
        "wraps": ("name", "scopes"), "drops": ("created", "last used", "scopes"),
        "none": "no keys; `imagefleet keys create` makes one",
    }  # fmt: skip
    show(
        [_document(key) for key in keys], lambda _: Table(keys, columns, gives_way), as_json=as_json
    )


def _ends(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    return f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "never"


def _document(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "tenant": key.tenant_id,
        "name": key.name,
        "scopes": key.scopes,
        "createdAt": key.created_at,
        "expiresAt": key.expires_at,
        "revokedAt": key.revoked_at,
        "lastUsedAt": key.last_used_at,
    }


@keys.command()
def revoke(
    key_id: Annotated[UUID, typer.Argument(metavar="KEY", help="Its id, from `keys list`.")],
    reason: ReasonIfAny = None,
) -> None:
    """End a key for good; requests that it makes from now on are refused.

    Who did it is told by `imagefleet audit --on key`: IMAGEFLEET_ACTOR, or the user of this
    machine.

    For example:

        imagefleet keys revoke --reason leaked 0199a5c2-7d41-7000-8000-000000000001
    """
    at_postgres(lambda connection: store.revoke_key(connection, key_id, by=whoami(), reason=reason))
    say(f"{key_id} is revoked")


@migrate.callback()
def apply(
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
    API_DATABASE_PASSWORD, and so on for WORKER, MAINTENANCE, OPERATOR, ADMIN and SCALER, or the
    same names with _FILE and the path of a file. It sets them all, and the audit says who did:
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
        told = at_postgres(_tell_of_roles)
    applied = run_async(migrations.migrate(_url()))
    if not told:
        at_postgres(_tell_of_roles)
    for migration in applied:
        say(f"applied {migration}")
    if not applied:
        say("nothing to apply")


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


def at_postgres(work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
    """What a verb wants of the database."""

    async def working() -> Answer:
        async with connect(_url(), process="cli") as connection:
            return await work(connection)

    return run_async(working())


def _url() -> str:
    return load(Database).url.get_secret_value()


def whoami() -> Actor:
    """Who is at Postgres himself has no key to be known by."""
    name = load(Person).name
    if name is None:
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # as in containers
            user = f"uid {os.getuid()}"
        name = f"{user}@{socket.gethostname()}"
    return Actor(name=name[:LONGEST_NAME])
