"""What a session is to the database: for `imagefleet doctor`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from imagefleet.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Who we are there, and what there is."""

    role: str
    superuser: bool
    version: str
    now: datetime


DESCRIBE_SESSION: Final = """
SELECT current_user::text AS role,
       current_setting('is_superuser') = 'on' AS superuser,
       current_setting('server_version') AS version,
       clock_timestamp() AS now
"""


async def describe_session(connection: Connection) -> Session:
    """Ask the database who it takes us for, and what time it is."""
    row = await connection.fetchrow(DESCRIBE_SESSION)
    assert row is not None  # noqa: S101 - it reads from no table
    return Session(**dict(row))
