"""/healthz, /readyz and /metrics of every process, on a port of their own.

/healthz says whether a restart would help: the event loop answers, and each vital sign is there. A
vital sign never asks another service, or an outage of Postgres would restart the whole fleet.
/readyz says whether to send work here, and if not, why. Written by hand, and this was judged:
aiohttp.web would cost 4 MB a process and has no bound on connections. Whoever reaches the port can
cost us little: a request is small, quick and alone on its connection, and of too many connections
the oldest is dropped, so that a probe still gets through.
"""

import asyncio
import inspect
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from itertools import pairwise
from typing import Final, Protocol, TypeAlias

import orjson
import structlog
from structlog.typing import FilteringBoundLogger

from imagefleet.errors import FleetError, Misconfigured
from imagefleet.telemetry.series import CONTENT_TYPE

log: Final[FilteringBoundLogger] = structlog.get_logger()

Vital: TypeAlias = Callable[[], str | None]
Check: TypeAlias = Callable[[], str | Awaitable[str | None] | None]

LONGEST_HEAD: Final = 8192  # bytes
MOST_CONNECTIONS: Final = 64
CONNECTION_WITHIN: Final = timedelta(seconds=5)  # from its first byte to the last one of the answer
CHECK_WITHIN: Final = timedelta(seconds=2)  # a kubelet's patience is set to more than this
FRESH_FOR: Final = timedelta(milliseconds=250)  # checks may ask Postgres; requests may be many
LONGEST_STAY: Final = timedelta(seconds=30)  # for the last scrape; orchestrators allow for it
LAG_INTERVAL: Final = timedelta(milliseconds=500)
LAG_WINDOW: Final = 30  # looks, 15 s: the usual time between two scrapes

_REQUEST: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1023}) HTTP/1\.[01]\r\n")


class Scraped(Protocol):
    """The metrics of a process."""

    def exposition(self) -> bytes:
        """Return them as text."""

    def watch_loop(self, lag: Callable[[], timedelta]) -> None:
        """Take the measure of the event loop."""


class Pulse:
    """A vital sign: something that must be felt again and again, a poll for instance."""

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest
        self._last = time.monotonic()

    def felt(self) -> None:
        self._last = time.monotonic()

    def age(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self._last)

    def __call__(self) -> str | None:
        """Return why it is missing, or None."""
        age = self.age()
        return f"nothing for {age.total_seconds():.0f} s" if age > self._longest else None


class LoopLag:
    """How late the event loop runs what is due: it is deaf to everything for as long."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen: deque[float] = deque([0.0], maxlen=LAG_WINDOW)
        self._next = self._look_again()

    def worst(self) -> timedelta:
        return timedelta(seconds=max(self._seen))

    def stop(self) -> None:
        self._next.cancel()

    def _look_again(self) -> asyncio.TimerHandle:
        due = self._loop.time() + LAG_INTERVAL.total_seconds()
        return self._loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        self._seen.append(max(0.0, self._loop.time() - due))
        self._next = self._look_again()


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    status: HTTPStatus
    body: bytes = b""
    content_type: str = "application/json"
    sent: asyncio.Event | None = None
    """To be set when it has gone out."""

    @classmethod
    def of_checks(cls, reasons: Mapping[str, str | None]) -> "HealthAnswer":
        """Return 200 if no check found anything, else 503; the reasons either way."""
        fine = all(reason is None for reason in reasons.values())
        body = {"status": "ok" if fine else "failing", "checks": reasons}
        return cls(HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE, orjson.dumps(body))

    def encoded(self) -> bytes:
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n"
            + ("Allow: GET\r\n" if self.status is HTTPStatus.METHOD_NOT_ALLOWED else "")
            + "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode("ascii") + self.body


class Readiness:
    """The named checks of /readyz, asked side by side and not more often than they change."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks)
        self._asking = asyncio.Lock()
        self._reasons: Mapping[str, str | None] = {}
        self._checked_at = float("-inf")

    async def reasons(self) -> Mapping[str, str | None]:
        """Return the reason of every check that fails, None of the others."""
        async with self._asking:
            if time.monotonic() - self._checked_at > FRESH_FOR.total_seconds():
                async with asyncio.TaskGroup() as group:
                    asked = {
                        name: group.create_task(_ask(name, check))
                        for name, check in self._checks.items()
                    }
                self._reasons = {name: task.result() for name, task in asked.items()}
                self._checked_at = time.monotonic()
            return self._reasons


async def _ask(name: str, check: Check) -> str | None:
    try:
        async with asyncio.timeout(CHECK_WITHIN.total_seconds()):
            reason = check()
            return await reason if inspect.isawaitable(reason) else reason
    except TimeoutError:
        return f"no answer within {CHECK_WITHIN.total_seconds():.0f} s"
    except FleetError as error:
        return error.code
    except Exception as error:  # a check that is broken has not said yes
        log.warning("check.broke", check=name, exc_info=error)
        return f"broke: {type(error).__name__}"  # the port is not secret, the message may be


class HealthServer:
    """Answers GET on the three paths; made by `serve_health`."""

    def __init__(
        self, metrics: Scraped, vitals: Mapping[str, Vital], readiness: Mapping[str, Check]
    ) -> None:
        self.port = 0
        self._metrics = metrics
        self._vitals = dict(vitals)
        self._readiness = Readiness(readiness)
        self._connections: dict[asyncio.Task[object], None] = {}  # the oldest first
        self._closed = False
        self._scraped_at = deque([time.monotonic()], maxlen=3)
        """When it began, or before the scrape before, then the last two."""
        self._is_scraped = False
        self._last_scrape: asyncio.Event | None = None

    async def answer(self, path: str) -> HealthAnswer:
        """Return what GET of this path gets."""
        match path:
            case "/healthz":
                reasons = {name: await _ask(name, vital) for name, vital in self._vitals.items()}
                return HealthAnswer.of_checks(reasons)
            case "/readyz":
                return HealthAnswer.of_checks(await self._readiness.reasons())
            case "/metrics":
                text = self._metrics.exposition()
                self._scraped_at.append(time.monotonic())
                self._is_scraped = True
                return HealthAnswer(HTTPStatus.OK, text, CONTENT_TYPE, sent=self._last_scrape)
            case _:
                return HealthAnswer(HTTPStatus.NOT_FOUND)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection, and end it whatever happens."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this in one
        if self._closed:  # it was accepted just before
            writer.transport.abort()
            return
        if len(self._connections) >= MOST_CONNECTIONS:
            next(iter(self._connections)).cancel()
        self._connections[task] = None
        try:
            async with asyncio.timeout(CONNECTION_WITHIN.total_seconds()):
                answer = await self._read_and_answer(reader)
                writer.write(answer.encoded())
                writer.close()
                await writer.wait_closed()
                if answer.sent is not None:
                    answer.sent.set()
        except (OSError, asyncio.IncompleteReadError):  # TimeoutError among them
            pass  # their loss, and nothing to log: anybody could fill the disk with it
        except asyncio.CancelledError:
            pass  # dropped for a newer one, or by `close`; it was the last thing this task does
        finally:
            del self._connections[task]
            writer.transport.abort()  # also where the last bytes are not taken

    async def be_scraped_again(self) -> None:
        """Stay for one more scrape, so that what was counted since the last one is seen.

        For twice the time that lay between scrapes lately. Not where there was none for as long:
        whoever looked is gone.
        """
        gaps = [after - before for before, after in pairwise(self._scraped_at)]
        stay = min(2 * max(gaps, default=0.0), LONGEST_STAY.total_seconds())
        if not self._is_scraped or time.monotonic() - self._scraped_at[-1] > 2 * max(gaps):
            return
        self._last_scrape = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(stay):
                await self._last_scrape.wait()

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _read_and_answer(self, reader: asyncio.StreamReader) -> HealthAnswer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return HealthAnswer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        request = _REQUEST.match(head)
        if request is None:
            return HealthAnswer(HTTPStatus.BAD_REQUEST)
        method, target = request.groups()
        if method != b"GET":
            return HealthAnswer(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return await self.answer(target.partition(b"?")[0].decode("ascii"))
        except Exception:  # one broken gauge must not end the server
            log.exception("health.broke")
            return HealthAnswer(HTTPStatus.INTERNAL_SERVER_ERROR)


@asynccontextmanager
async def serve_health(
    host: str,
    port: int,
    metrics: Scraped,
    *,
    vitals: Mapping[str, Vital],
    readiness: Mapping[str, Check],
) -> AsyncIterator[HealthServer]:
    """Serve until the end of the process; port 0 takes a free one, `port` of the server says which.

    A check returns why it fails, or None. However the work ends, who was scraped stays for another
    scrape; but not who is cancelled, by a second signal.
    """
    health = HealthServer(metrics, vitals, readiness)
    try:
        server = await asyncio.start_server(health.serve, host, port, limit=LONGEST_HEAD)
    except OSError as error:
        msg = f"HEALTH_LISTEN_HOST, HEALTH_LISTEN_PORT: cannot listen on {host}:{port}: {error}"
        raise Misconfigured(msg) from error
    health.port = server.sockets[0].getsockname()[1]
    lag = LoopLag()
    metrics.watch_loop(lag.worst)
    try:
        try:
            yield health
        except Exception:
            await health.be_scraped_again()
            raise
        await health.be_scraped_again()
    finally:
        lag.stop()
        server.close()
        await health.close()
        with suppress(OSError):
            await server.wait_closed()
