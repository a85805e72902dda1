"""Fixtures: a place for a fleet: a database, and queues and buckets of its own on an emulator."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.database import Database
from tests.support.emulators import CREDENTIALS, Emulator, shared, shared_folder
from tests.support.fleet import Place, a_place


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Emulator]:
    with shared("ministack", shared_folder(tmp_path_factory, worker_id)) as emulator:
        yield emulator


@pytest.fixture
async def place(
    database: Database, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    # Where the AWS SDK looks for them by itself, in processes and in mains that run in this one.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret)
    async with a_place(database, emulator) as place:
        yield place
