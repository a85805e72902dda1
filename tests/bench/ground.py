"""What all sides of a row stand on: one Postgres that writes everything down, one SQS.

Postgres is the embedded one, as durable as in production: `fsync`, `synchronous_commit` and
`full_page_writes` are on, and nobody turns them off for himself. Its files lie in memory unless
`--disk` is asked for: there a commit waits for nothing but its own work. On a disk all wait for the
same fsync, and whoever does more beside it looks the better for it. SQS is the embedded emulator,
MiniStack: its own requests cost more than those of any worker, and more the longer its queues are,
so that only what stood on it side by side, with as many messages, can be compared.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from imagefleet.aws.session import AwsSession, open_session
from imagefleet.embedded.bootstrap import Endpoints, apply
from imagefleet.embedded.postgres import EmbeddedPostgres
from imagefleet.jobs.model import JobId
from imagefleet.store.jobs.submissions import submit_jobs
from tests.bench.peers import Peers
from tests.support.aws import a_name, settings_for
from tests.support.database import Database, Server, copied_database, migrated_template
from tests.support.emulators import CREDENTIALS, REGION, Emulator, running_ministack
from tests.support.factories import a_submission
from tests.support.fleet import Place

AT_ONCE: Final = 500  # jobs submitted in one statement
DURABLE: Final[Mapping[str, str]] = {
    "shared_buffers": "256MB",
    "max_connections": "200",
    "max_wal_size": "4GB",  # no checkpoint because of one side falls into the turn of another
    # Counts only where a row turns it on for its own database.
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}
SOME_ARE_OPEN: Final = "SELECT EXISTS (SELECT FROM jobs WHERE finished_at IS NULL)"
PROMISED: Final = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The servers, and what rows make on them."""

    server: Server
    template: str
    emulator: Emulator
    folder: Path
    """For what processes write."""
    peers: Peers
    notes: list[str] = field(default_factory=list)
    """What rows have to say beside their figures."""

    def database(self) -> AbstractAsyncContextManager[Database]:
        """One of its own, with the schema of migrations/ and nothing in it."""
        return copied_database(self.server, self.template)

    @asynccontextmanager
    async def place(
        self,
        *,
        emulator_url: str | None = None,
        by_way_of: str | None = None,
        kept: Database | None = None,
    ) -> AsyncIterator[Place]:
        """A database, queues and buckets of its own; processes reach these perhaps by a proxy.

        Or with a database that is there already.
        """
        there = emulator_url or self.emulator.url
        url = by_way_of or there
        endpoints = Endpoints(sqs=there, s3=there, cloudfront=None)
        applied = await apply(
            endpoints, region=REGION, credentials=CREDENTIALS, prefix=a_name("bench")
        )
        settings = settings_for(url, applied)
        async with (
            self.database() if kept is None else nullcontext(kept) as database,
            open_session(settings, credentials=CREDENTIALS) as session,
        ):
            yield Place(
                database=database,
                emulator=Emulator(self.emulator.kind, url),
                applied=applied,
                settings=settings,
                session=session,
            )

    def session_of(self, place: Place) -> AbstractAsyncContextManager[AwsSession]:
        """One that goes by no proxy."""
        return open_session(settings_for(self.emulator.url, place.applied), credentials=CREDENTIALS)

    async def promises(self) -> dict[str, str]:
        """What the server says of what it writes down."""
        async with self.server.admin() as admin:
            told = {name: await admin.fetchval(f"SHOW {name}") for name in PROMISED}
            return {**told, "postgres": await admin.fetchval("SHOW server_version")}


@asynccontextmanager
async def durable_ground(
    peers: Peers, parent: Path | None = None, *, keep: Path | None = None
) -> AsyncIterator[Ground]:
    """Servers of this run, their files below this folder; or in one that is there afterwards."""
    with (
        _folder(parent) if keep is None else nullcontext(keep) as folder,
        EmbeddedPostgres(folder, settings=DURABLE) as postgres,
        running_ministack() as emulator_url,
    ):
        server = Server(postgres.url())
        async with migrated_template(server) as template:
            yield Ground(
                server=server,
                template=template,
                emulator=Emulator("ministack", emulator_url),
                folder=folder,
                peers=peers,
            )


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="imagefleet-bench-", dir=parent) as made:
        folder = Path(made)
        folder.chmod(0o711)  # root hands Postgres to an account that has to pass through
        yield folder


async def submitted(database: Database, jobs: int) -> list[JobId]:
    """So many jobs that do nothing, accepted as the API does it; nobody was told of them."""
    ids: list[JobId] = []
    async with database.connect("api") as api:
        for start in range(0, jobs, AT_ONCE):
            wanted = [a_submission() for _ in range(min(AT_ONCE, jobs - start))]
            await submit_jobs(api, wanted)
            ids += [submission.job_id for submission in wanted]
    async with database.connect("superuser") as superuser:
        await superuser.execute("ANALYZE")  # as autovacuum would have by then
    return ids


async def until_over(database: Database, *, within: float = 300.0) -> None:
    """Wait until no job is open, without asking so often that it would be felt."""
    async with asyncio.timeout(within), database.connect("owner") as owner:
        while await owner.fetchval(SOME_ARE_OPEN):  # noqa: ASYNC110 - nobody here is told of an end
            await asyncio.sleep(0.2)
