"""Tenants and their API keys. A key is shown once; what is stored is its SHA-256.

256 random bits cannot be guessed, so a slow hash would only slow every request down.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID, uuid4

from imagefleet.errors import NotFound
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act, Actor, acting

PREFIX: Final = "if_"  # so that a leaked key is recognised for what it is by scanners
SCOPES: Final = ("submit", "read", "operate", "originals")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """Who acts: a key of a tenant, and what it may do."""

    id: UUID
    tenant_id: TenantId
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


def digest_of(secret: str) -> bytes:
    """What is stored of a key."""
    return hashlib.sha256(secret.encode()).digest()


CREATE_TENANT: Final = """
INSERT INTO tenants (id, name) VALUES ($1, $1) ON CONFLICT DO NOTHING RETURNING max_open_jobs
"""

CREATE_KEY: Final = """
INSERT INTO api_keys (id, tenant_id, name, secret_sha256, scopes, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + $6::interval)
RETURNING expires_at
"""

SOMEBODY: Final = Actor(name="somebody")


async def create_key(
    connection: Connection,
    tenant_id: TenantId,
    *,
    name: str,
    scopes: Sequence[str],
    expires_in: timedelta | None = None,
    by: Actor = SOMEBODY,
    reason: str | None = None,
) -> str:
    """Make a key, and its tenant if that is new; the secret is returned here and never again."""
    secret, key_id = PREFIX + secrets.token_urlsafe(32), uuid4()
    async with acting(connection, by) as act:
        quota = await connection.fetchval(CREATE_TENANT, tenant_id)
        if quota is not None:
            has = {"max_open_jobs": quota}
            await act.record(Act("create", "tenant", tenant_id, tenant_id, None, has, reason))
        expires_at = await connection.fetchval(
            CREATE_KEY, key_id, tenant_id, name, digest_of(secret), list(scopes), expires_in
        )
        has = {"name": name, "scopes": list(scopes), "expires_at": expires_at}
        await act.record(Act("create", "key", str(key_id), tenant_id, None, has, reason))
    return secret


@dataclass(frozen=True, slots=True)
class DeadKey:
    """A key that was in force once; for those who ask who still uses it."""

    id: UUID
    why: Literal["revoked", "expired"]


FIND_KEYS: Final = """
SELECT api_keys.secret_sha256, api_keys.id, api_keys.tenant_id, api_keys.name, api_keys.scopes,
       api_keys.created_at, api_keys.expires_at, api_keys.revoked_at, api_keys.last_used_at,
       CASE WHEN api_keys.revoked_at IS NOT NULL THEN 'revoked'
            WHEN api_keys.expires_at <= now() THEN 'expired' END AS dead
  FROM api_keys
 WHERE api_keys.secret_sha256 = ANY ($1::bytea[])
"""


async def seek_keys(
    connection: Connection, digests: Sequence[bytes]
) -> dict[bytes, ApiKey | DeadKey]:
    """Those of these keys that there are, by their digests: in force or not."""
    rows = await connection.fetch(FIND_KEYS, digests)
    keys: dict[bytes, ApiKey | DeadKey] = {}
    for row in rows:
        fields = dict(row) | {"scopes": tuple(row["scopes"])}
        digest, why = fields.pop("secret_sha256"), fields.pop("dead")
        keys[digest] = ApiKey(**fields) if why is None else DeadKey(row["id"], why)
    return keys


async def find_key(connection: Connection, secret: str) -> ApiKey | None:
    """The key with this secret, if it is in force now."""
    digest = digest_of(secret)
    key = (await seek_keys(connection, [digest])).get(digest)
    return key if isinstance(key, ApiKey) else None


TOUCH_KEYS: Final = """
UPDATE api_keys SET last_used_at = now()
 WHERE id = ANY ($1::uuid[])
   AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
"""


async def touch_keys(connection: Connection, key_ids: Sequence[UUID]) -> None:
    """Remember that keys were used, to the minute: not one write a request."""
    await connection.execute(TOUCH_KEYS, key_ids)


LIST_KEYS: Final = """
SELECT api_keys.id, api_keys.tenant_id, api_keys.name, api_keys.scopes, api_keys.created_at,
       api_keys.expires_at, api_keys.revoked_at, api_keys.last_used_at
  FROM api_keys
 WHERE $1::text IS NULL OR api_keys.tenant_id = $1
 ORDER BY api_keys.tenant_id, api_keys.created_at
"""


async def list_keys(connection: Connection, tenant_id: TenantId | None = None) -> list[ApiKey]:
    """Every key, or one tenant's; never a secret."""
    rows = await connection.fetch(LIST_KEYS, tenant_id)
    return [ApiKey(**dict(row) | {"scopes": tuple(row["scopes"])}) for row in rows]


REVOKE_KEY: Final = """
UPDATE api_keys SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL
RETURNING tenant_id, name, scopes, expires_at, revoked_at
"""

HAS_KEY: Final = """
SELECT EXISTS (SELECT FROM api_keys WHERE api_keys.id = $1)
"""


async def revoke_key(
    connection: Connection, key_id: UUID, *, by: Actor = SOMEBODY, reason: str | None = None
) -> None:
    """End a key for good. Rotation is: create the new one, let both live for a while, revoke."""
    async with acting(connection, by) as act:
        row = await connection.fetchrow(REVOKE_KEY, key_id)
        if row is None:
            if not await connection.fetchval(HAS_KEY, key_id):
                raise NotFound("key")
            act.found_nothing()
            return  # it has ended before, and that was told then
        after = dict(row)
        tenant_id = TenantId(after.pop("tenant_id"))
        before = after | {"revoked_at": None}
        await act.record(Act("revoke", "key", str(key_id), tenant_id, before, after, reason))
