"""Connections: polls have their own."""

import asyncio
import ssl
from datetime import timedelta
from inspect import unwrap
from pathlib import Path

import pytest
from aiohttp import web
from botocore.loaders import JSONFileLoader, Loader

from imagefleet.aws.session import KEPT, Descriptions, open_session
from imagefleet.errors import Unavailable
from tests.support.aws import Answer, hang, operation_of, serving, settings_for
from tests.support.emulators import CREDENTIALS
from tests.support.eventually import eventually

COUNTS = [
    f"ApproximateNumberOf{name}" for name in ("Messages", "MessagesNotVisible", "MessagesDelayed")
]


async def test_polls_keep_nobody_waiting_for_a_connection() -> None:
    async def respond(request: web.Request) -> Answer:
        if operation_of(request) == "ReceiveMessage":
            return await hang(request)
        return web.json_response({"Attributes": dict.fromkeys(COUNTS, "0")})

    async with serving(respond) as server:
        settings = settings_for(server.url, read_timeout=5).model_copy(
            update={"max_connections": 1}
        )
        async with open_session(settings, credentials=CREDENTIALS) as session:
            queue = await session.queue(f"{server.url}/0/queue")
            async with asyncio.TaskGroup() as group:
                poll = group.create_task(queue.receive(most=1, wait=timedelta(seconds=20)))
                await eventually(lambda: server.requests["ReceiveMessage"] == 1)
                async with asyncio.timeout(2):
                    await queue.depth()
                poll.cancel()


async def test_a_session_has_one_client_a_service() -> None:
    async with (
        serving(hang) as server,
        open_session(settings_for(server.url), credentials=CREDENTIALS) as session,
    ):
        first, second = await asyncio.gather(
            session.queue(f"{server.url}/0/a"), session.queue(f"{server.url}/0/b")
        )

        assert first._client is second._client
        assert first._polls is second._polls
        assert first._client is not first._polls


def test_what_is_kept_of_endpoints_is_what_the_sdk_ships() -> None:
    file = f"{Loader.BUILTIN_DATA_PATH}/endpoints"
    ours, theirs = (unwrap(reader().load_file)(file) for reader in (Descriptions, JSONFileLoader))

    for mine, partition in zip(ours["partitions"], theirs["partitions"], strict=True):
        services = partition["services"]
        assert {**partition, "services": mine["services"]} == mine
        assert {name: services[name] for name in KEPT & services.keys()} == mine["services"]
    assert KEPT == ours["partitions"][0]["services"].keys()


async def test_no_client_is_made_for_whom_nobody_asked() -> None:
    async with open_session(settings_for("http://127.0.0.1:1"), credentials=CREDENTIALS) as session:
        await session.queue("http://127.0.0.1:1/0/queue")

        assert session._s3 is None
        assert session._cloudfront is None


async def test_whose_certificate_nobody_signed_is_not_spoken_to(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1")
    said = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    openssl = await asyncio.create_subprocess_exec(*made, *said, stderr=asyncio.subprocess.DEVNULL)
    assert 0 == await openssl.wait()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    seen: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_session(settings_for(url), credentials=CREDENTIALS) as session:
            with pytest.raises(Unavailable):
                await (await session.queue(f"{url}/0/queue")).depth()

    assert seen == []


async def test_where_there_is_no_tls_nobody_reads_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes each client of a process 15 ms and a megabyte."""
    read: list[object] = []

    async def respond(_: web.Request) -> Answer:
        return web.json_response({"Attributes": dict.fromkeys(COUNTS, "0")})

    def noted(context: ssl.SSLContext, *given: object) -> None:
        read.append(given)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    async with (
        serving(respond) as server,
        open_session(settings_for(server.url), credentials=CREDENTIALS) as session,
    ):
        await (await session.queue(f"{server.url}/0/queue")).depth()

        assert 1 == sum(server.requests.values())
        assert read == []
