"""Sessions of the product on an emulator, and servers that misbehave as no emulator can."""

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

import aiohttp
from aiohttp import web

from imagefleet.aws.calls import Call, CallWatcher, Service
from imagefleet.embedded.bootstrap import InPlace
from imagefleet.settings.slices import Aws
from tests.support.emulators import REGION

Answer: TypeAlias = web.StreamResponse
Respond: TypeAlias = Callable[[web.Request], Awaitable[Answer]]

# Of requests; of replies those that belong to one connection alone.
HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


def a_name(what: str) -> str:
    """A name that no other test has."""
    return f"{what}-{secrets.token_hex(6)}"


def settings_for(
    url: str,
    applied: InPlace | None = None,
    *,
    connect_timeout: float = 3,
    read_timeout: float = 10,
) -> Aws:
    """The product's settings, with the queues and buckets that are in place, or with none."""
    nowhere = f"{url}/000000000000/nowhere"
    queue_urls = applied.queue_urls if applied else defaultdict(lambda: nowhere)
    buckets = applied.buckets if applied else defaultdict(lambda: "nowhere")
    return Aws(
        region=REGION,
        endpoint_url=url,
        fast_queue_url=queue_urls["fast"],
        general_queue_url=queue_urls["general"],
        quarantine_queue_url=queue_urls["quarantine"],
        dead_letter_queue_url=queue_urls["dead-letter"],
        originals_bucket=buckets["originals"],
        outputs_bucket=buckets["outputs"],
        connect_timeout=timedelta(seconds=connect_timeout),
        read_timeout=timedelta(seconds=read_timeout),
    )


@dataclass(slots=True)
class Heard(CallWatcher):
    """Watches calls and keeps what it heard."""

    ended_calls: list[tuple[Call, str | None]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sent_requests: Counter[tuple[Service, str]] = field(default_factory=Counter)

    def ended(self, call: Call, seconds: float, error_code: str | None) -> None:
        self.ended_calls.append((call, error_code))
        self.seconds.append(seconds)

    def sent(self, service: Service, operation: str) -> None:
        self.sent_requests[service, operation] += 1


@dataclass(slots=True)
class Server:
    """A server on this machine that counts what it was asked."""

    url: str
    requests: Counter[str] = field(default_factory=Counter)
    """By SQS operation, or by HTTP method."""
    hung: int = 0


@asynccontextmanager
async def serving(respond: Respond) -> AsyncIterator[Server]:
    """Answer every request by this function."""
    server = Server("")

    async def handle(request: web.Request) -> Answer:
        server.requests[operation_of(request)] += 1
        return await respond(request)

    application = web.Application(client_max_size=64 * 2**20)
    application.router.add_route("*", "/{path:.*}", handle)
    # Hung requests are not waited for.
    runner = web.AppRunner(application, shutdown_timeout=0.01, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        _, port = runner.addresses[0][:2]
        server.url = f"http://127.0.0.1:{port}"
        yield server
    finally:
        await runner.cleanup()


def operation_of(request: web.Request) -> str:
    return request.headers.get("X-Amz-Target", request.method).rpartition(".")[2]


@asynccontextmanager
async def forwarding(url: str, *, instead: Respond | None = None) -> AsyncIterator[Server]:
    """A proxy before an emulator. `instead` answers by itself, or raises NotImplementedError."""
    # A connection that an emulator has closed meanwhile would cost a request, and be asked again.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as client:

        async def respond(request: web.Request) -> Answer:
            if instead is not None:
                try:
                    return await instead(request)
                except NotImplementedError:
                    pass
            # The signature covers the host: it must arrive as it was sent.
            headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
            headers["Host"] = request.headers["Host"]
            body = await request.read()
            async with client.request(
                request.method, url + request.raw_path, headers=headers, data=body
            ) as answer:
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
                return web.Response(status=answer.status, headers=kept, body=await answer.read())

        async with serving(respond) as server:
            yield server


async def hang(request: web.Request) -> Answer:
    """Accept, and never answer."""
    await asyncio.Event().wait()
    raise AssertionError


def sqs_error(code: str, status: int = 400) -> Respond:
    async def respond(request: web.Request) -> Answer:
        return web.json_response({"__type": f"com.amazonaws.sqs#{code}"}, status=status)

    return respond


def xml_error(code: str, status: int) -> Respond:
    """What S3 answers; CloudFront wraps it once more, and the SDK reads both."""

    async def respond(request: web.Request) -> Answer:
        error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>no</Message></Error>"
        wrapped = f"<ErrorResponse>{error}</ErrorResponse>"
        text = wrapped if "2020-05-31" in request.path else error
        return web.Response(status=status, text=text, content_type="application/xml")

    return respond
