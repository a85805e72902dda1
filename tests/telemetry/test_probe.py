"""The health check of a container: it asks the process beside it, where that one listens."""

import asyncio
import os
import sys

from imagefleet.telemetry.health import serve_health
from imagefleet.telemetry.metrics import ApiMetrics


async def probe(**variables: str) -> tuple[int | None, str]:
    """As the container runs it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "imagefleet.telemetry.probe"),
        env={**os.environ, **variables},  # noqa: TID251 - PATH and PYTHONPATH of the tests
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_a_process_that_lives_is_healthy_wherever_it_listens() -> None:
    async with serve_health("0.0.0.0", 0, ApiMetrics(), vitals={}, readiness={}) as health:  # noqa: S104
        code, said = await probe(
            HEALTH_LISTEN_HOST="0.0.0.0",  # noqa: S104
            HEALTH_LISTEN_PORT=str(health.port),
        )

    assert code == 0, said


async def test_a_process_that_is_stuck_is_not_and_says_with_what() -> None:
    vitals = {"beat": lambda: "silent for 90 s"}
    async with serve_health("127.0.0.1", 0, ApiMetrics(), vitals=vitals, readiness={}) as health:
        code, said = await probe(HEALTH_LISTEN_PORT=str(health.port))

    assert code == 1
    assert "silent for 90 s" in said


async def test_a_process_that_is_not_ready_is_healthy_all_the_same() -> None:
    """It must not be restarted because Postgres is away."""
    readiness = {"database": lambda: "database_unavailable"}
    async with serve_health("127.0.0.1", 0, ApiMetrics(), vitals={}, readiness=readiness) as health:
        code, said = await probe(HEALTH_LISTEN_PORT=str(health.port))

    assert code == 0, said


async def test_nobody_there_is_not_healthy() -> None:
    async with serve_health("127.0.0.1", 0, ApiMetrics(), vitals={}, readiness={}) as health:
        port = health.port

    code, said = await probe(HEALTH_LISTEN_PORT=str(port))

    assert code == 1
    assert "no answer" in said


async def test_a_setting_that_cannot_be_used_is_named() -> None:
    code, said = await probe(HEALTH_LISTEN_PORT="many")

    assert code == 2
    assert "HEALTH_LISTEN_PORT" in said
