"""What is asked without the API: Postgres itself, as a person, by `imagefleet keys`; `doctor`.

Each verb is under the role that it needs: there is no key yet, or nobody to take one.
"""

import os
import pwd
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, TypeVar
from uuid import UUID

import typer

from imagefleet.cli.output import (
    Columns,
    ExitCode,
    GivesWay,
    Table,
    finish,
    run_async,
    say,
    show,
)
from imagefleet.cli.verbs import Json, OfTenant, ReasonIfAny, Tenant, group
from imagefleet.doctor import Stands
from imagefleet.doctor.inside import examine
from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import TenantId
from imagefleet.settings import Database, Person, load
from imagefleet.store.database import Connection, connect
from imagefleet.store.fleet import keys as store
from imagefleet.store.fleet.audit import LONGEST_NAME, Actor
from imagefleet.store.fleet.keys import SCOPES, ApiKey

Answer = TypeVar("Answer")

keys = group("Create, list and revoke API keys (DATABASE_URL of the role imagefleet_admin).")


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


def at_postgres(work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
    """What a verb wants of the database."""

    async def working() -> Answer:
        database = load(Database)
        url = database.url.get_secret_value()
        async with connect(url, process="cli", pooler=database.pooler) as connection:
            return await work(connection)

    return run_async(working())


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


def doctor(
    process: Annotated[
        Stands | None, typer.Option("--for", "--as", help="The process whose environment this is.")
    ] = None,
    replicas: Annotated[
        list[str],
        typer.Option(
            metavar="PROCESS=N",
            help="How many there will be, of N connections a pool: worker=20, worker=20x4, or "
            "pgbouncer=2x25; what is not told is counted. Repeat for more.",
        ),
    ] = [],  # noqa: B006 - Typer reads it, nobody writes it
    as_json: Json = False,
) -> None:
    """Check everything that a process depends on, one line each, from where it stands.

    Run it in the container of the process, which is allowed what it is allowed: for each one what
    it does itself is tried, and no more. Exits with 1 when a check fails. Where the process writes
    to a bucket, one object is written, and deleted if that is allowed.

    All connections that the fleet may open are held against what Postgres lets in.

    For example:

        imagefleet doctor --for worker
        imagefleet doctor --for api --replicas api=6 --replicas worker=40
    """
    checks = run_async(examine(process or "", replicas))
    failed = [check for check in checks if not check.ok]
    columns: Columns = {
        "": lambda check: "ok" if check.ok else "failed",
        "check": "name",
        "found": "found",
        "what to do": "advice",
    }
    document = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    gives_way: GivesWay = {"wraps": ("found", "what to do")}
    show(document, lambda _: Table(checks, columns, gives_way), as_json=as_json)
    finish(ExitCode.FAILED if failed else ExitCode.DONE)
