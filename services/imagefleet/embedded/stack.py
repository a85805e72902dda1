"""What the processes stand on: Postgres and AWS, with everything in them that they expect.

All of it is brought into agreement at every start, so it does not matter what a folder still holds:
roles and their passwords, the database, its schema, the queues, buckets and distribution, two API
keys. Either server is started again when it dies.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from imagefleet.embedded.emulator import KEY_ID, REGION, SECRET, EmbeddedAws
from imagefleet.embedded.machine import HOST, Ports, StateFolder
from imagefleet.embedded.postgres import EmbeddedPostgres
from imagefleet.embedded.processes import Facts
from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import TenantId
from imagefleet.runtime import Drain, in_thread
from imagefleet.store.database import connect
from imagefleet.store.fleet.audit import Actor
from imagefleet.store.fleet.keys import create_key, find_key
from imagefleet.store.schema.migrations import migrate
from imagefleet.store.schema.roles import ROLES, ensure_database, ensure_roles

DATABASE: Final = "imagefleet"
TENANT: Final = TenantId("demo")
KEYS: Final = {
    "api-key": ("submit", "read"),
    "operator-key": ("submit", "read", "operate", "originals"),
}
LOOK_EVERY: Final = timedelta(seconds=0.5)  # between looks at the two servers
MISSED_FOR: Final = 30.0  # seconds, also after it is back: a loop that failed rests for a while


class Stack:
    """Two servers on one state folder."""

    def __init__(self, state: StateFolder, ports: Ports, say: Callable[[str], None]) -> None:
        self.keys: dict[str, str] = {}
        self.restarts = 0
        self._state = state
        self._say = say
        self._edge_port = ports.edge
        self._postgres = EmbeddedPostgres(state.path, port=ports.postgres or None)
        self._aws = EmbeddedAws(state.path, port=ports.aws or None, say=say)
        self._passwords = state.role_passwords(ROLES)
        self._topology: dict[str, str] = {}
        self._missed_at: dict[str, float] = {}

    @property
    def facts(self) -> Facts:
        """What the processes need to know."""
        urls = {
            role.removeprefix("imagefleet_"): self._postgres.url(role, password, DATABASE)
            for role, password in self._passwords.items()
        }
        return Facts(
            database_urls=urls,
            aws=self._aws.environment(),
            topology=self._topology,
            public_base_url=f"http://{HOST}:{self._edge_port}",
        )

    @property
    def pids(self) -> dict[str, int]:
        """The servers that run now."""
        servers = {"aws": self._aws.pid, "postgres": self._postgres.pid}
        return {name: pid for name, pid in servers.items() if pid is not None}

    def has_ended(self, server: str) -> bool:
        """Whether it is away, or was a moment ago."""
        missed_at = self._missed_at.get(server, -MISSED_FOR)
        return server not in self.pids or time.monotonic() - missed_at < MISSED_FOR

    async def start(self) -> None:
        """Start both side by side; return when a process could start."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_postgres())
                group.create_task(self._start_aws())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def stop(self) -> None:
        """Stop AWS, then Postgres."""
        await in_thread(self._aws.stop)
        await in_thread(self._postgres.stop)

    async def watch(self, stop: Drain, changed: Callable[[], None]) -> None:
        """Start a server again that died, on the same port; `changed` when the facts did."""
        servers = {"postgres": self._restart_postgres, "aws": self._restart_aws}
        while not await stop.wait_at_most(LOOK_EVERY):
            for name, restart in servers.items():
                if name not in self.pids:
                    self.restarts += 1
                    self._say(f"{name} ended, starts again (restart {self.restarts})")
                    self._missed_at[name] = time.monotonic()
                    await restart()
                    self._missed_at[name] = time.monotonic()
                    changed()

    async def _restart_postgres(self) -> None:
        await in_thread(self._postgres.stop)
        await in_thread(self._postgres.start)

    async def _restart_aws(self) -> None:
        await in_thread(self._aws.stop)
        await self._start_aws()

    async def _start_postgres(self) -> None:
        await in_thread(self._postgres.start)
        async with connect(self._postgres.url(), process="up") as admin:
            await ensure_roles(admin, self._passwords)
            await ensure_database(admin, DATABASE)
        urls = self.facts.database_urls
        try:
            applied = await migrate(urls["owner"])
        except Misconfigured as error:
            what = "choose another --state-dir, or remove this one with everything in it"
            detail = f"{error.detail}; {self._state.path} was made by another version: {what}"
            raise Misconfigured(detail) from error
        if applied:
            self._say(f"postgres: migrated to {applied[-1]}")
        await self._ensure_keys(urls["admin"])

    async def _start_aws(self) -> None:
        await in_thread(self._aws.start)
        # Imported here, as it takes longer than Postgres and the emulator take to start.
        from imagefleet.aws.session import Credentials  # noqa: PLC0415
        from imagefleet.embedded.bootstrap import Endpoints, apply  # noqa: PLC0415

        applied = await apply(
            Endpoints.all_at(self._aws.url),
            region=REGION,
            credentials=Credentials(KEY_ID, SECRET),
        )
        self._topology = applied.environment()

    async def _ensure_keys(self, admin_url: str) -> None:
        async with connect(admin_url, process="up") as admin:
            for name, scopes in KEYS.items():
                secret = self._state.kept_key(name)
                known = None if secret is None else await find_key(admin, secret)
                if secret is None or known is None or set(known.scopes) != set(scopes):
                    by = Actor(name="up")
                    secret = await create_key(admin, TENANT, name=name, scopes=scopes, by=by)
                    self._state.keep_key(name, secret)
                self.keys[name] = secret
