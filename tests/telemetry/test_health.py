"""The health port: what it answers, and that nobody who reaches it can harm the process."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from imagefleet.errors import Misconfigured, Unavailable
from imagefleet.telemetry import health
from imagefleet.telemetry.health import Check, HealthServer, Pulse, Vital, serve_health
from imagefleet.telemetry.metrics import ApiMetrics
from tests.support.eventually import eventually

Json: TypeAlias = Any
GET = b"GET %s HTTP/1.1\r\nHost: pod\r\n\r\n"


@asynccontextmanager
async def serving(
    vitals: Mapping[str, Vital] | None = None,
    readiness: Mapping[str, Check] | None = None,
    metrics: ApiMetrics | None = None,
) -> AsyncIterator[HealthServer]:
    async with serve_health(
        "127.0.0.1",
        0,
        metrics or ApiMetrics(),
        vitals=vitals or {},
        readiness=readiness or {},
    ) as server:
        yield server


async def exchange(server: HealthServer, request: bytes) -> bytes:
    """Send these bytes and read to the end; a reset is an end too."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    received = b""
    try:
        writer.write(request)
        await writer.drain()
        while part := await reader.read(65536):
            received += part
    except ConnectionError:
        pass
    finally:
        writer.close()
    return received


async def get(server: HealthServer, path: str) -> tuple[int, Json]:
    async with asyncio.timeout(5):
        head, _, body = (await exchange(server, GET % path.encode())).partition(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
    assert int(length.split(b": ")[1]) == len(body)
    status = int(head.split(b" ")[1])
    return status, json.loads(body) if b"application/json" in head and body else body


async def open_idle(server: HealthServer, sent: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    await writer.drain()
    return writer


async def test_a_process_whose_loop_answers_is_alive() -> None:
    async with serving() as server:
        assert (200, {"status": "ok", "checks": {}}) == await get(server, "/healthz")
        assert 200 == (await get(server, "/healthz?verbose=1"))[0]


async def test_a_vital_sign_that_is_missing_is_named() -> None:
    poll, beat = Pulse(timedelta(0)), Pulse(timedelta(minutes=1))
    async with serving(vitals={"poll": poll, "beat": beat}) as server:
        status, answer = await get(server, "/healthz")

    assert 503 == status
    assert {"status": "failing", "checks": {"poll": "nothing for 0 s", "beat": None}} == answer


def test_a_pulse_that_is_felt_is_there_again() -> None:
    pulse = Pulse(timedelta(seconds=30))
    pulse._last -= 31
    missing = pulse()

    pulse.felt()

    assert ("nothing for 31 s", None) == (missing, pulse())


async def test_liveness_asks_none_of_the_readiness_checks() -> None:
    async with serving(readiness={"database": lambda: "away"}) as server:
        assert 200 == (await get(server, "/healthz"))[0]
        assert 503 == (await get(server, "/readyz"))[0]


async def test_readiness_flips_with_its_reason_and_back() -> None:
    reason: list[str | None] = [None]

    async def database() -> str | None:
        return reason[0]

    async with serving(readiness={"database": database, "drain": lambda: None}) as server:
        before = await get(server, "/readyz")
        reason[0] = "database_unavailable"
        failing = await eventually(lambda: refused(server))
        reason[0] = None
        after = await eventually(lambda: accepted(server))

    fine = {"status": "ok", "checks": {"database": None, "drain": None}}
    assert (200, fine) == before
    assert {"database": "database_unavailable", "drain": None} == failing["checks"]
    assert fine == after


async def refused(server: HealthServer) -> Json:
    status, answer = await get(server, "/readyz")
    return answer if status == 503 else None


async def accepted(server: HealthServer) -> Json:
    status, answer = await get(server, "/readyz")
    return answer if status == 200 else None


async def test_a_check_that_breaks_or_hangs_has_not_said_yes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "CHECK_WITHIN", timedelta(seconds=0.05))

    async def hangs() -> str | None:
        await asyncio.Event().wait()
        return None

    async def unavailable() -> str | None:
        raise Unavailable("database_timeout", "Later.", "canary")

    def bug() -> str | None:
        raise ZeroDivisionError("canary")

    checks: dict[str, Check] = {"hangs": hangs, "unavailable": unavailable, "bug": bug}
    with capture_logs() as logs:
        async with serving(vitals={"bug": bug}, readiness=checks) as server:
            status, ready = await get(server, "/readyz")
            alive = await get(server, "/healthz")

    assert 503 == status
    assert "no answer within" in ready["checks"].pop("hangs")
    expected = {"unavailable": "database_timeout", "bug": "broke: ZeroDivisionError"}
    assert expected == ready["checks"]
    assert 503 == alive[0]
    assert ["check.broke", "check.broke"] == [line["event"] for line in logs]


async def test_many_requests_ask_the_database_once() -> None:
    asked = 0

    async def database() -> str | None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return None

    async with serving(readiness={"database": database}) as server:
        answers = await asyncio.gather(*(get(server, "/readyz") for _ in range(30)))

    assert {200} == {status for status, _ in answers}
    assert asked < 5


async def test_metrics_are_what_the_registry_says() -> None:
    metrics = ApiMetrics()
    metrics.answered("GET", "/v1/jobs", 200, timedelta(seconds=1))
    async with serving(metrics=metrics) as server:
        head, _, body = (await exchange(server, GET % b"/metrics")).partition(b"\r\n\r\n")

    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8" in head
    assert b'http_requests_total{method="GET",route="/v1/jobs",status_code="200"} 1.0' in body


async def test_a_broken_gauge_costs_that_scrape_alone() -> None:
    metrics = ApiMetrics()
    with capture_logs() as logs:
        async with serving(metrics=metrics) as server:
            metrics.watch_loop(lambda: timedelta(seconds=1 // 0))
            assert (500, b"") == await get(server, "/metrics")
            assert 200 == (await get(server, "/healthz"))[0]

    assert ["health.broke"] == [line["event"] for line in logs]


async def test_a_loop_that_was_blocked_is_seen_in_the_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "LAG_INTERVAL", timedelta(milliseconds=10))
    blocked = threading.Event()
    async with serving() as server:
        blocked.wait(0.2)  # deaf, as a decode on the loop would make it

        async def lag() -> float:
            _, body = await get(server, "/metrics")
            (line,) = [x for x in body.decode().split("\n") if x.startswith("event_loop_lag")]
            return float(line.split(" ")[1])

        assert 0.1 < await lag() < 5


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (GET % b"/elsewhere", b"404"),
        (GET % b"/healthz/../etc/passwd", b"404"),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"405"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"405"),
        (b"garbage\r\n\r\n", b"400"),
        (b"GET /healthz\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/2\r\n\r\n", b"400"),
        (b"GET http://else.where/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /\x00 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 20_000, b"431"),
    ],
)
async def test_what_is_no_request_gets_its_status_and_the_connection_ends(
    request_bytes: bytes, status: bytes
) -> None:
    async with serving() as server:
        answer = await exchange(server, request_bytes)

        # With more on its way than was read, the answer may be lost to a reset; the end is not.
        assert answer.startswith(b"HTTP/1.1 " + status) or (answer == b"" and status == b"431")
        assert 200 == (await get(server, "/healthz"))[0]


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(garbage=st.binary(max_size=300), ended=st.booleans())
async def test_no_bytes_at_all_disturb_it(garbage: bytes, ended: bool) -> None:  # noqa: FBT001
    with capture_logs() as logs:
        async with serving() as server:
            writer = await open_idle(server, garbage + (b"\r\n\r\n" if ended else b""))
            writer.close()

            assert 200 == (await get(server, "/healthz"))[0]

    assert [] == logs


async def test_headers_without_end_are_not_kept() -> None:
    async with serving() as server:
        async with asyncio.timeout(5):
            answer = await exchange(server, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1_000_000)

    assert len(answer) < 1000


async def test_slow_senders_are_dropped_and_probes_get_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "MOST_CONNECTIONS", 4)
    async with serving() as server:
        idle = [await open_idle(server, b"GET /healthz HT") for _ in range(20)]

        assert 200 == (await get(server, "/healthz"))[0]
        assert len(server._connections) <= 4
        for writer in idle:
            writer.close()


async def test_a_sender_who_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_WITHIN", timedelta(seconds=0.05))
    async with serving() as server:
        begun = time.monotonic()
        assert b"" == await exchange(server, b"GET /healthz HT")

        assert time.monotonic() - begun < 5
        assert {} == server._connections


async def test_a_reader_who_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_WITHIN", timedelta(seconds=0.1))

    class Endless(ApiMetrics):
        def exposition(self) -> bytes:
            return b"x" * 20_000_000

    async with serving(metrics=Endless()) as server:
        loop = asyncio.get_running_loop()
        with socket.socket() as deaf:
            deaf.setblocking(False)  # noqa: FBT003 - takes no keyword
            await loop.sock_connect(deaf, ("127.0.0.1", server.port))
            await loop.sock_sendall(deaf, GET % b"/metrics")
            await eventually(lambda: server._connections or None)

            assert await eventually(lambda: not server._connections)


async def test_the_end_waits_for_nobody() -> None:
    async with serving() as server:
        writer = await open_idle(server, b"GET /healthz HT")
        await eventually(lambda: server._connections)
        begun = time.monotonic()

    assert time.monotonic() - begun < 5
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_a_port_that_is_taken_names_the_setting() -> None:
    async with serving() as server:
        with pytest.raises(Misconfigured, match="HEALTH_LISTEN_PORT"):
            async with serve_health(
                "127.0.0.1", server.port, ApiMetrics(), vitals={}, readiness={}
            ):
                pass


# The last scrape.


async def scraped(server: HealthServer, *ago: float) -> None:
    """As if it had been scraped so many seconds ago, the last time just now."""
    await get(server, "/metrics")
    now = time.monotonic()
    server._scraped_at.clear()
    server._scraped_at.extend(now - seconds for seconds in ago)


async def test_who_was_scraped_stays_until_what_it_counted_last_was_seen() -> None:
    metrics = ApiMetrics()
    ended = asyncio.Event()
    async with asyncio.TaskGroup() as group, serving(metrics=metrics) as server:
        await scraped(server, 2 * LONG, LONG, 0)

        async def scrape_again() -> None:
            await ended.wait()
            await eventually(lambda: server._last_scrape is not None)
            assert 200 == (await get(server, "/healthz"))[0]
            shown = (await get(server, "/metrics"))[1]
            assert b'auth_failures_total{reason="missing"} 1.0' in shown

        group.create_task(scrape_again())
        metrics.authentication_failed("missing")
        began = time.monotonic()
        ended.set()
    assert time.monotonic() - began < LONG


@pytest.mark.parametrize(
    ("ago", "stays"),
    [
        pytest.param((0.4, 0.2, 0), 0.4, id="twice the gap"),
        pytest.param((0.21, 0.2, 0), 0.4, id="the longer of two gaps: there are two who scrape"),
        pytest.param((0.2, 0), 0.4, id="scraped once: as if it began with a scrape"),
        pytest.param((120.2, 120.1, 120), 0, id="whoever scraped is gone"),
    ],
)
async def test_nobody_stays_longer_than_twice_the_time_between_scrapes(
    ago: tuple[float, ...], stays: float
) -> None:
    async with serving() as server:
        await scraped(server, *ago)
        began = time.monotonic()

    assert stays - 0.05 <= time.monotonic() - began < stays + 5


async def test_nobody_stays_longer_than_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timedelta(seconds=30) == health.LONGEST_STAY
    monkeypatch.setattr(health, "LONGEST_STAY", timedelta(milliseconds=10))
    async with serving() as server:
        await scraped(server, 2 * LONG, LONG, 0)
        began = time.monotonic()

    assert time.monotonic() - began < 5


async def test_who_was_never_scraped_does_not_stay() -> None:
    async with serving() as server:
        server._scraped_at[0] -= LONG
        assert 200 == (await get(server, "/healthz"))[0]
        began = time.monotonic()

    assert time.monotonic() - began < 5


async def test_who_breaks_stays_and_who_is_cancelled_does_not() -> None:
    async def broken() -> None:
        async with serving() as server:
            await scraped(server, 0.4, 0.2, 0)
            raise RuntimeError

    began = time.monotonic()
    with pytest.raises(RuntimeError):
        await broken()
    assert time.monotonic() - began >= 0.35

    entered = asyncio.Event()

    async def work() -> None:
        async with serving() as server:
            await scraped(server, 2 * LONG, LONG, 0)
            entered.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
        await entered.wait()
        began = time.monotonic()
        task.cancel()
    assert time.monotonic() - began < 5


async def test_a_second_signal_ends_the_stay() -> None:
    over = asyncio.Event()

    async def work() -> None:
        async with serving() as server:
            await scraped(server, 2 * LONG, LONG, 0)
            over.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
        await over.wait()
        began = time.monotonic()
        task.cancel()
    assert time.monotonic() - began < 5


LONG = 14.0  # seconds
