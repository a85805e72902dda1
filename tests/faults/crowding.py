"""Many jobs of one tenant, and few of another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

import httpx

from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection, connect
from imagefleet.store.fleet.keys import create_key
from tests.support.stack import Producer, Stack

FLOOD: Final = 800
CLAIMED_IN_BETWEEN: Final = """
SELECT count(*)
  FROM jobs AS flood, jobs AS other
 WHERE other.id = $1 AND flood.tenant_id <> other.tenant_id
   AND flood.claimed_at BETWEEN other.created_at AND other.claimed_at
"""


@asynccontextmanager
async def another_tenant(stack: Stack, name: str = "another") -> AsyncIterator[Producer]:
    """A client with a key of its own."""
    async with connect(stack.facts["database_urls"]["admin"], process="test") as connection:
        key = await create_key(connection, TenantId(name), name="tests", scopes=("submit", "read"))
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=stack.facts["api_url"], headers=headers, timeout=20
    ) as client:
        yield Producer(client, stack.journal, name)


async def claimed_in_between(connection: Connection, job_id: str) -> int:
    """How many jobs of others were claimed while this one waited."""
    between: int = await connection.fetchval(CLAIMED_IN_BETWEEN, UUID(job_id))
    return between
