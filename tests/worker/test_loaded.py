"""What a process has loaded when it is up: each megabyte is there as long as it lives."""

import pytest

from tests.support.fleet import Place, Process, Running, running

SERVING = {"LISTEN_PORT": "0", "LISTEN_HOST": "127.0.0.1", "PUBLIC_BASE_URL": "http://127.0.0.1"}
TELLING = {"PYTHONPROFILEIMPORTTIME": "1"}
"""Python's own: each import is a line."""

OF_NOBODY = {"PIL", "aioboto3", "boto3", "httpx", "pygments", "rich", "s3transfer", "typer"}
UNLOADED: dict[Process, set[str]] = {
    "api": OF_NOBODY,
    "maintenance": OF_NOBODY | {"fastapi", "uvicorn"},
    "worker": OF_NOBODY | {"fastapi", "uvicorn"},
}
UP: dict[Process, str] = {
    "api": "http.listening",
    "maintenance": "maintenance.started",
    "worker": "worker.started",
}


def loaded_by(run: Running) -> set[str]:
    """Packages with something in them: of what was refused there is a line too."""
    names = [line.rpartition("|")[2].strip() for line in run.errors if "import time:" in line]
    return {package for package, dot, _ in (name.partition(".") for name in names) if dot}


@pytest.mark.parametrize("process", UP)
async def test_a_process_loads_nothing_that_it_does_not_use(place: Place, process: Process) -> None:
    environment = {**TELLING, **(SERVING if process == "api" else {})}
    async with running(place, process, started=False, environment=environment) as run:
        await run.tells(UP[process])

        loaded = loaded_by(run)

    assert {"botocore", "asyncpg", "structlog"} <= loaded
    assert loaded & UNLOADED[process] == set()
