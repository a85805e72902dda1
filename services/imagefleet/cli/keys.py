"""`imagefleet keys`: who may use the API. Asks the database, as a role that does nothing else."""

from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer

from imagefleet.cli.connection import whoami
from imagefleet.cli.output import Json, print_json, print_table, run_async, say
from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import TenantId
from imagefleet.settings import Database, load
from imagefleet.store.database import connect
from imagefleet.store.fleet import keys as store
from imagefleet.store.fleet.keys import SCOPES, ApiKey

app = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Create, list and revoke API keys (DATABASE_URL of the role imagefleet_admin).",
)

Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept in the audit.")]
Tenant = Annotated[str, typer.Option(help="Whose key: lower case letters, digits and -.")]


@app.command()
def create(
    tenant: Tenant,
    name: Annotated[str, typer.Option(help="What it is for; shown wherever it acts.")],
    scope: Annotated[
        list[str], typer.Option(help=f"What it may do: {', '.join(SCOPES)}. Repeat for more.")
    ] = ["submit", "read"],  # noqa: B006 - Typer reads it, nobody writes it
    days: Annotated[
        float | None, typer.Option(min=0.001, help="It ends after so many; never if not given.")
    ] = None,
    reason: Reason = None,
    as_json: Json = False,
) -> None:
    """Make a key, and its tenant if that is new.

    The secret is printed now and never again; what is stored cannot be turned back into it.
    To rotate: create the new key, let both live for a while, revoke the old one.

    For example:

        imagefleet keys create --tenant shop --name uploader
        imagefleet keys create --tenant shop --name oncall --scope read --scope operate --days 30
    """
    unknown = sorted(set(scope) - set(SCOPES))
    if unknown:
        detail = f"unknown scope {', '.join(unknown)}; there are {', '.join(SCOPES)}"
        raise Misconfigured(detail)
    secret = run_async(_create(TenantId(tenant), name, scope, days, reason))
    if as_json:
        print_json({"key": secret, "tenant": tenant, "name": name, "scopes": scope})
    else:
        say(secret)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    as_json: Json = False,
) -> None:
    """List keys; secrets are not known to anybody.

    For example:

        imagefleet keys list --tenant shop
    """
    found = run_async(_list(TenantId(tenant) if tenant else None))
    if as_json:
        print_json([_document(key) for key in found])
        return
    rows = [
        (key.id, key.tenant_id, key.name, " ".join(key.scopes), f"{key.created_at:%Y-%m-%d}",
         f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never", _ends(key))
        for key in found
    ]  # fmt: skip
    print_table(("id", "tenant", "name", "scopes", "created", "last used", "ends"), rows)


@app.command()
def revoke(
    key_id: Annotated[UUID, typer.Argument(metavar="KEY", help="Its id, from `keys list`.")],
    reason: Reason = None,
) -> None:
    """End a key for good; requests that it makes from now on are refused.

    Who did it is told by `imagefleet audit --on key`: IMAGEFLEET_ACTOR, or the user of this
    machine.

    For example:

        imagefleet keys revoke --reason "was in a public log" 0b0f1c1e-...
    """
    run_async(_revoke(key_id, reason))
    say(f"{key_id} is revoked")


async def _create(
    tenant: TenantId, name: str, scopes: list[str], days: float | None, reason: str | None
) -> str:
    async with connect(_url(), process="cli") as connection:
        return await store.create_key(
            connection,
            tenant,
            name=name,
            scopes=scopes,
            expires_in=timedelta(days=days) if days else None,
            by=whoami(),
            reason=reason,
        )


async def _list(tenant: TenantId | None) -> list[ApiKey]:
    async with connect(_url(), process="cli") as connection:
        return await store.list_keys(connection, tenant)


async def _revoke(key_id: UUID, reason: str | None) -> None:
    async with connect(_url(), process="cli") as connection:
        await store.revoke_key(connection, key_id, by=whoami(), reason=reason)


def _url() -> str:
    return load(Database).url.get_secret_value()


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
