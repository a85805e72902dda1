"""TLS before the emulator, as AWS has it: policies refuse what comes without, here as there.

Requests go on as they came, with the header by which a proxy says that they came over TLS.
"""

import asyncio
import datetime as dt
import ipaddress
import os
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

import aiohttp
import yarl
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from imagefleet.embedded.machine import HOST, free_port

A_DAY: Final = dt.timedelta(days=1)
LARGEST: Final = 64 * 2**20
STARTED_WITHIN: Final = 10.0  # seconds
OF_ONE_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})


def certified(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - A_DAY)
        .not_valid_after(now + A_DAY)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    told, kept = folder / "certificate.pem", folder / "key.pem"
    told.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    kept.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return told, kept


@contextmanager
def over_tls(plain: str, folder: Path) -> Iterator[dict[str, str]]:
    """What a process needs to reach the emulator so; this one is told as well.

    It has a thread of its own, as some of those who ask would wait in the loop of the tests.
    """
    certificate, key = certified(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    port, ended = free_port(), threading.Event()
    began: Future[None] = Future()

    async def serve() -> None:
        async with aiohttp.ClientSession(auto_decompress=False) as http:
            application = web.Application(client_max_size=LARGEST)
            application.router.add_route("*", "/{anything:.*}", partial(_passed_on, http, plain))
            runner = web.AppRunner(application, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, HOST, port, ssl_context=context).start()
            began.set_result(None)
            await asyncio.to_thread(ended.wait)
            await runner.cleanup()

    trusted = {"AWS_CA_BUNDLE": str(certificate), "SSL_CERT_FILE": str(certificate)}
    with ThreadPoolExecutor(1) as alone:
        serving = alone.submit(asyncio.run, serve())
        try:
            began.result(STARTED_WITHIN)
            with patch.dict(os.environ, trusted):  # noqa: TID251 - boto3 reads it of this process
                yield {"AWS_ENDPOINT_URL": f"https://{HOST}:{port}", **trusted}
        finally:
            ended.set()
            serving.result()


async def _passed_on(
    http: aiohttp.ClientSession, plain: str, request: web.Request
) -> web.StreamResponse:
    headers = {name: value for name, value in request.headers.items() if _goes_on(name)}
    headers["X-Forwarded-Proto"] = "https"
    url = yarl.URL(f"{plain}{request.raw_path}", encoded=True)
    body = await request.read()
    async with http.request(
        request.method, url, headers=headers, data=body, allow_redirects=False
    ) as answer:
        said = [(name, value) for name, value in answer.headers.items() if _goes_on(name)]
        reply = web.Response(status=answer.status, body=await answer.read())
        for name, value in said:
            if request.method == "HEAD" or name.lower() != "content-length":
                reply.headers[name] = value
        return reply


def _goes_on(name: str) -> bool:
    return name.lower() not in OF_ONE_HOP
