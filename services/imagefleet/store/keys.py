"""Tenants and their API keys. A key is shown once; what is stored is its SHA-256.

256 random bits cannot be guessed, so a slow hash would only slow every request down.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

from imagefleet.errors import NotFound
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection, translated

PREFIX: Final = "if_"  # so that a leaked key is recognised for what it is by scanners
SCOPES: Final = ("submit", "read", "operate")


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
INSERT INTO tenants (id, name) VALUES ($1, $1) ON CONFLICT DO NOTHING
"""

CREATE_KEY: Final = """
INSERT INTO api_keys (id, tenant_id, name, secret_sha256, scopes, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + $6::interval)
"""


async def create_key(
    connection: Connection,
    tenant_id: TenantId,
    *,
    name: str,
    scopes: Sequence[str],
    expires_in: timedelta | None = None,
) -> str:
    """Make a key, and its tenant if that is new; the secret is returned here and never again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    with translated():
        async with connection.transaction():
            await connection.execute(CREATE_TENANT, tenant_id)
            await connection.execute(
                CREATE_KEY, uuid4(), tenant_id, name, digest_of(secret), list(scopes), expires_in
            )
    return secret


FIND_KEY: Final = """
SELECT api_keys.id, api_keys.tenant_id, api_keys.name, api_keys.scopes, api_keys.created_at,
       api_keys.expires_at, api_keys.revoked_at, api_keys.last_used_at
  FROM api_keys
 WHERE api_keys.secret_sha256 = $1
   AND api_keys.revoked_at IS NULL
   AND (api_keys.expires_at IS NULL OR api_keys.expires_at > now())
"""


async def find_key(connection: Connection, secret: str) -> ApiKey | None:
    """The key with this secret, if it is in force now."""
    with translated():
        row = await connection.fetchrow(FIND_KEY, digest_of(secret))
    return None if row is None else ApiKey(**dict(row) | {"scopes": tuple(row["scopes"])})


TOUCH_KEY: Final = """
UPDATE api_keys SET last_used_at = now()
 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
"""


async def touch_key(connection: Connection, key_id: UUID) -> None:
    """Remember that the key was used, to the minute: not one write a request."""
    with translated():
        await connection.execute(TOUCH_KEY, key_id)


LIST_KEYS: Final = """
SELECT api_keys.id, api_keys.tenant_id, api_keys.name, api_keys.scopes, api_keys.created_at,
       api_keys.expires_at, api_keys.revoked_at, api_keys.last_used_at
  FROM api_keys
 WHERE $1::text IS NULL OR api_keys.tenant_id = $1
 ORDER BY api_keys.tenant_id, api_keys.created_at
"""


async def list_keys(connection: Connection, tenant_id: TenantId | None = None) -> list[ApiKey]:
    """Every key, or one tenant's; never a secret."""
    with translated():
        rows = await connection.fetch(LIST_KEYS, tenant_id)
    return [ApiKey(**dict(row) | {"scopes": tuple(row["scopes"])}) for row in rows]


REVOKE_KEY: Final = """
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1 RETURNING id
"""


async def revoke_key(connection: Connection, key_id: UUID) -> None:
    """End a key at once. Rotation is: create the new one, let both live for a while, revoke."""
    with translated():
        if await connection.fetchrow(REVOKE_KEY, key_id) is None:
            raise NotFound("key")
