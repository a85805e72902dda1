"""Whoever takes over a process gets its database role, and with it neither keys nor tenants."""

from contextlib import suppress
from typing import Final

import asyncpg
import pytest

from tests.support.database import driver_of
from tests.support.stack import Producer, Stack

# By processes that strangers reach, and by who scales them.
HELD: Final = ("api", "operator", "worker", "maintenance", "scaler")
FORBIDDEN: Final = {
    "make a key": """
        INSERT INTO api_keys (id, tenant_id, name, secret_sha256, scopes)
        VALUES (gen_random_uuid(), 'demo', 'mine', sha256('mine'), '{submit,read,operate}')
    """,
    "bring a revoked key back": "UPDATE api_keys SET revoked_at = NULL",
    "revoke somebody's key": "UPDATE api_keys SET revoked_at = now()",
    "prolong a key": "UPDATE api_keys SET expires_at = NULL",
    "widen a key": "UPDATE api_keys SET scopes = '{submit,read,operate}'",
    "put its own secret in": "UPDATE api_keys SET secret_sha256 = sha256('mine')",
    "give a key to another tenant": "UPDATE api_keys SET tenant_id = 'demo'",
    "lose a key": "DELETE FROM api_keys",
    "make a tenant": "INSERT INTO tenants (id, name) VALUES ('mine', 'mine')",
    "become who makes them": "SET ROLE imagefleet_admin",
    "become who owns all": "SET ROLE imagefleet_owner",
    "let itself in": "GRANT imagefleet_admin TO CURRENT_USER",
    "make a role": "CREATE ROLE mine LOGIN SUPERUSER",
    "change the table": "ALTER TABLE api_keys ADD COLUMN mine text",
    "change what was done": "UPDATE audit SET actor = 'nobody'",
    "forget what was done": "DELETE FROM audit",
}
SEEN: Final = """
SELECT (SELECT count(*) FROM tenants), (SELECT md5(string_agg(key::text, ',' ORDER BY key.id))
  FROM (SELECT id, tenant_id, name, secret_sha256, scopes, expires_at, revoked_at FROM api_keys)
       AS key)
"""


@pytest.mark.parametrize("role", HELD)
async def test_a_role_that_a_process_holds_makes_and_changes_no_key(
    stack: Stack, role: str
) -> None:
    async with stack.database() as owner, stack.database(role) as taken:
        before = await owner.fetchrow(SEEN)
        with suppress(asyncpg.InsufficientPrivilegeError):
            # Where it may read, Postgres warns that nothing was given, and what follows shows it.
            await driver_of(taken).execute("GRANT ALL ON api_keys, tenants, audit TO CURRENT_USER")
        for what, statement in FORBIDDEN.items():
            try:
                await driver_of(taken).execute(statement)
            except asyncpg.InsufficientPrivilegeError:
                continue
            pytest.fail(f"{role} could {what}")
        assert before == await owner.fetchrow(SEEN)


@pytest.mark.parametrize("role", HELD)
async def test_a_role_that_a_process_holds_leads_to_no_other_database(
    stack: Stack, role: str
) -> None:
    """No superuser, no file of the server, no program on it."""
    async with stack.database(role) as taken:
        for statement in (
            "SELECT rolpassword FROM pg_authid",
            "SELECT pg_read_file('/etc/passwd')",
            "COPY jobs (id) TO PROGRAM 'id'",
            "CREATE TABLE mine (id int)",
            "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await driver_of(taken).execute(statement)


async def test_none_of_that_shows_at_the_api(producer: Producer) -> None:
    assert (await producer.http.get("/v1/jobs")).status_code == 200
    producer.http.headers["authorization"] = "Bearer mine"
    assert (await producer.http.get("/v1/jobs")).status_code == 401
