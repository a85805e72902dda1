"""Every process is in Postgres under its own role, and none as the owner of everything."""

from collections import defaultdict

from tests.support.eventually import eventually
from tests.support.stack import Producer, Stack

# By the first word of what a session calls itself.
EXPECTED = {
    "api": {"imagefleet_api", "imagefleet_operator"},
    "worker": {"imagefleet_worker"},
    "maintenance": {"imagefleet_maintenance"},
}
SESSIONS = """
SELECT usename, application_name
  FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend'
   AND pid <> pg_backend_pid()
"""


async def test_each_process_is_logged_in_under_its_own_role(
    stack: Stack, producer: Producer
) -> None:
    await producer.submit()

    async def seen() -> dict[str, set[str]] | None:
        roles = defaultdict(set)
        # Others do not see what a session calls itself.
        async with stack.database("superuser") as superuser:
            for role, name in await superuser.fetch(SESSIONS):
                roles[name.removeprefix("imagefleet-").partition("-")[0]].add(role)
        return roles if EXPECTED.keys() <= roles.keys() else None

    roles = await eventually(seen, within=10)

    for process, expected in EXPECTED.items():
        assert roles[process] <= expected, roles
        assert f"imagefleet_{process}" in roles[process]
    assert "imagefleet_owner" not in set().union(*roles.values()), roles
    assert "postgres" not in set().union(*roles.values()), roles
