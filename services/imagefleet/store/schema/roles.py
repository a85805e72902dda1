"""The login roles and the database they share: what an administrator does once, and may repeat.

What each role may touch is granted by migrations/; here is who exists, and how long each may take,
and what a session is to the database.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from imagefleet.errors import Misconfigured, StoreRejected
from imagefleet.store.database import Connection

OWNER = "imagefleet_owner"

# Per role: statement, idle in transaction, waiting for a lock. Longer than any honest use, shorter
# than a stuck session may hold up others; the pools set a tighter statement_timeout of their own.
ROLE_LIMITS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        # An index may be long in the making, a queue behind a lock not.
        OWNER: ("1h", "1min", "2s"),
        "imagefleet_api": ("10s", "10s", "2s"),
        "imagefleet_worker": ("15s", "15s", "5s"),
        "imagefleet_maintenance": ("1min", "30s", "5s"),
        "imagefleet_operator": ("30s", "30s", "2s"),
        "imagefleet_admin": ("30s", "30s", "2s"),
        # Who scales asks again soon, and goes on with what it heard before.
        "imagefleet_scaler": ("5s", "5s", "2s"),
    }
)
ROLES = tuple(ROLE_LIMITS)

SCRAM_ITERATIONS = 4096  # Postgres's own default
# Any number of ours: two administrators at once would collide in pg_authid.
ROLES_LOCK = 0x1F1EE701

IS_SUPERUSER = "SELECT current_setting('is_superuser') = 'on'"


async def ensure_roles(
    admin: Connection, passwords: Mapping[str, str], *, scram_iterations: int = SCRAM_ITERATIONS
) -> None:
    """Make every role, or bring an existing one to these attributes, limits and passwords."""
    missing = [role for role in ROLES if not passwords.get(role)]
    if missing:
        detail = f"no password for {', '.join(missing)}"
        raise Misconfigured(detail)
    async with admin.transaction():
        await admin.execute("SELECT pg_advisory_xact_lock($1)", ROLES_LOCK)
        superuser = await admin.fetchval(IS_SUPERUSER)
        for role in ROLES:
            await _ensure_role(admin, role, superuser=superuser)
            verifier = scram_verifier(passwords[role], iterations=scram_iterations)
            await admin.execute(f"ALTER ROLE {role} PASSWORD '{verifier}'")


async def _ensure_role(admin: Connection, role: str, *, superuser: bool) -> None:
    if not await admin.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", role):
        await admin.execute(f"CREATE ROLE {role}")
    # INHERIT: it is through pg_database_owner that the owner may create in the schema public.
    await admin.execute(f"ALTER ROLE {role} LOGIN INHERIT NOCREATEDB NOCREATEROLE")
    if superuser:  # also needed to take these away, and nobody is it on a managed service
        await admin.execute(f"ALTER ROLE {role} NOSUPERUSER NOREPLICATION NOBYPASSRLS")
    statement, idle, lock = ROLE_LIMITS[role]
    await admin.execute(f"ALTER ROLE {role} SET statement_timeout = '{statement}'")
    await admin.execute(f"ALTER ROLE {role} SET idle_in_transaction_session_timeout = '{idle}'")
    await admin.execute(f"ALTER ROLE {role} SET lock_timeout = '{lock}'")
    # Statements end sooner than they are compiled; behind a pooler nobody but the role can say so.
    await admin.execute(f"ALTER ROLE {role} SET jit = off")


DATABASE_EXISTS = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"


async def ensure_database(admin: Connection, name: str) -> None:
    """Make a missing database; it belongs to the owner, and only our roles may connect."""
    if re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) is None:
        detail = f"a database name is of lower case letters, digits and _, not {name!r}"
        raise Misconfigured(detail)
    if not await admin.fetchval(IS_SUPERUSER):
        # To give it a database one must be able to become it.
        await admin.execute(f"GRANT {OWNER} TO CURRENT_USER")
    if not await admin.fetchval(DATABASE_EXISTS, name):
        try:
            await admin.execute(
                f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE template0 ENCODING 'UTF8'"
            )
        except StoreRejected:
            if not await admin.fetchval(DATABASE_EXISTS, name):
                raise
            # Another administrator was faster.
    await admin.execute(f"ALTER DATABASE {name} OWNER TO {OWNER}")
    await admin.execute(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
    await admin.execute(f"GRANT CONNECT ON DATABASE {name} TO {', '.join(ROLES)}")


def scram_verifier(password: str, *, iterations: int = SCRAM_ITERATIONS) -> str:
    """What Postgres stores; sent instead of the password, which a server's log might show."""
    if not password.isascii() or not password.isprintable():
        detail = "a password of a role is of printable ASCII characters"
        raise Misconfigured(detail)
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    shown = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${iterations}:{shown[0]}${shown[1]}:{shown[2]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSeen:
    """Who we are there, and what there is."""

    role: str
    superuser: bool
    version: str
    tls: str | None
    """Of what leads to Postgres: behind a pooler, from there on."""
    now: datetime


DESCRIBE_SESSION: Final = """
SELECT current_user::text AS role,
       current_setting('is_superuser') = 'on' AS superuser,
       current_setting('server_version') AS version,
       (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS tls,
       clock_timestamp() AS now
"""


async def describe_session(connection: Connection) -> SessionSeen:
    """Ask the database who it takes us for, and what time it is."""
    (row,) = await connection.fetch(DESCRIBE_SESSION)
    return SessionSeen(**dict(row))
