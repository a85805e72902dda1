"""Fixtures that folders take into their conftest.

The API as it is deployed, with its own `main`, real HTTP, Postgres, SQS and S3; and a place for a
fleet: a database, and queues and buckets of its own on an emulator.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from imagefleet.api.http.connections import Server
from imagefleet.api.main import main
from imagefleet.aws.objects import Objects
from imagefleet.aws.session import open_session
from imagefleet.embedded.bootstrap import Endpoints, InPlace, apply
from imagefleet.jobs.model import TenantId
from imagefleet.runtime import Drain
from imagefleet.settings import Api, ApiSettings, Pictures, Recipes, Retry, Telemetry
from imagefleet.settings import Database as DatabaseSettings
from imagefleet.settings.values import Network
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import create_key
from tests.support.api import ACME, MAX_UPLOAD_BYTES, PUBLIC, RIVAL, Running, Serve
from tests.support.aws import a_name, settings_for
from tests.support.database import Database
from tests.support.emulators import CREDENTIALS, REGION, Emulator, shared, shared_folder
from tests.support.fleet import Place

# An API as it is deployed, and who asks it: what a conftest takes as a whole.
__all__ = [
    "acme",
    "applied",
    "aws_credentials",
    "emulator",
    "operating",
    "originals",
    "rival",
    "running",
    "secrets",
    "serve",
]


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Emulator]:
    with shared("ministack", shared_folder(tmp_path_factory, worker_id)) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def applied(emulator: Emulator) -> InPlace:
    """Queues and buckets of this test process."""
    endpoints = Endpoints(sqs=emulator.url, s3=emulator.url, cloudfront=None)
    return asyncio.run(
        apply(endpoints, region=REGION, credentials=CREDENTIALS, prefix=a_name("api"))
    )


@pytest.fixture(autouse=True)
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the SDK finds them by itself, as in a container."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret)


@pytest.fixture
async def originals(emulator: Emulator, applied: InPlace) -> AsyncIterator[Objects]:
    settings = settings_for(emulator.url, applied)
    async with open_session(settings, credentials=CREDENTIALS) as session:
        yield await session.objects(applied.buckets["originals"])


@pytest.fixture
async def secrets(admin: Connection) -> dict[str, str]:
    """Keys by the name that tests call them: what they may do, or what is wrong with them."""

    async def made(tenant: TenantId, *scopes: str, expires_in: timedelta | None = None) -> str:
        return await create_key(
            admin, tenant, name="of tests", scopes=scopes, expires_in=expires_in
        )

    expired = await made(ACME, "submit", "read", expires_in=timedelta(seconds=-1))
    revoked = await made(ACME, "submit", "read")
    await admin.execute(
        "UPDATE api_keys SET revoked_at = now() WHERE id = ("
        "SELECT id FROM api_keys WHERE expires_at IS NULL ORDER BY created_at DESC LIMIT 1)"
    )
    return {
        "acme": await made(ACME, "submit", "read", "originals"),
        "rival": await made(RIVAL, "submit", "read", "originals"),
        "reader": await made(ACME, "read"),
        "submitter": await made(ACME, "submit"),
        "operator": await made(ACME, "operate"),
        "expired": expired,
        "revoked": revoked,
        "unknown": "if_" + "x" * 43,
    }


@pytest.fixture
def serve(
    database: Database, emulator: Emulator, applied: InPlace, secrets: dict[str, str]
) -> Serve:
    @asynccontextmanager
    async def serving(
        *,
        database_url: str | None = None,
        aws_url: str | None = None,
        statement_seconds: float = 8,
        upload_seconds: float = 30,
        max_upload_bytes: int = MAX_UPLOAD_BYTES,
        operating: bool = True,
        trusted_proxies: Sequence[Network] = (),
        allowed_origins: Sequence[str] = (),
        originals_kept_days: int = 0,
        recipes: Path | None = None,
        public_base_url: str = PUBLIC,
    ) -> AsyncIterator[Running]:
        settings = ApiSettings(
            database=DatabaseSettings(
                url=database_url or database.url("api"),
                connect_timeout=timedelta(seconds=2),
                statement_timeout=timedelta(seconds=statement_seconds),
            ),
            aws=settings_for(aws_url or emulator.url, applied, connect_timeout=1, read_timeout=2),
            api=Api(
                port=0,
                public_base_url=public_base_url,
                upload_timeout=timedelta(seconds=upload_seconds),
                shutdown_grace=timedelta(seconds=5),
                operator_database_url=database.url("operator") if operating else None,
                trusted_proxies=tuple(trusted_proxies),
                allowed_origins=tuple(allowed_origins),
                originals_kept_days=originals_kept_days,
            ),
            pictures=Pictures(max_bytes=max_upload_bytes),
            recipes=Recipes(file=recipes),
            retry=Retry(),
            telemetry=Telemetry(health_port=0),
        )
        drain = Drain()
        listening: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            process = group.create_task(main(settings, drain, listening=listening.set_result))
            process.add_done_callback(lambda _: listening.cancel())
            server = await listening
            try:
                yield Running(server, drain, f"http://127.0.0.1:{server.port}", secrets)
            finally:
                drain.request("the test is over")

    return serving


@pytest.fixture
async def running(serve: Serve) -> AsyncIterator[Running]:
    async with serve() as running:
        yield running


@pytest.fixture
async def acme(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with running.client("acme") as client:
        yield client


@pytest.fixture
async def rival(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with running.client("rival") as client:
        yield client


@pytest.fixture
async def operating(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    """In the hands of an operator."""
    async with running.client("operator") as client:
        yield client


@pytest.fixture
async def place(
    database: Database, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    """Queues and buckets that no other test has."""
    # Where the AWS SDK looks for them by itself, in processes and in mains that run in this one.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret)
    endpoints = Endpoints(sqs=emulator.url, s3=emulator.url, cloudfront=None)
    applied = await apply(endpoints, region=REGION, credentials=CREDENTIALS, prefix=a_name("fleet"))
    settings = settings_for(emulator.url, applied)
    async with open_session(settings, credentials=CREDENTIALS) as session:
        yield Place(
            database=database,
            emulator=emulator,
            applied=applied,
            settings=settings,
            session=session,
        )
