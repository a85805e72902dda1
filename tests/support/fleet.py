"""Processes of the product on a test's own database and queues, and what they wrote."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID, uuid4

import aiohttp
from structlog.testing import capture_logs

from imagefleet.aws.objects import Headers, Objects, Stored
from imagefleet.aws.queue import Message, Queue
from imagefleet.aws.session import AwsSession
from imagefleet.doorbell import ringing
from imagefleet.embedded.bootstrap import InPlace
from imagefleet.jobs.images import NewSource, image_target, original_key
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.model import JobMessage, Lane, Ring, Submission, Submitted, encode_message
from imagefleet.maintenance.main import main as maintenance_main
from imagefleet.runtime import Drain
from imagefleet.settings import MaintenanceSettings, WorkerSettings, load
from imagefleet.settings.slices import Aws
from imagefleet.store.database import Connection
from imagefleet.store.images.images import submit_image
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.worker.main import main as worker_main
from tests.faults.plugin import calls
from tests.support.database import Database
from tests.support.emulators import CREDENTIALS, REGION, Emulator
from tests.support.eventually import eventually
from tests.support.factories import a_submission

Process: TypeAlias = Literal["api", "worker", "maintenance"]
Line: TypeAlias = dict[str, object]

SERVICES = Path(__file__).parents[2] / "services"
STARTS_WITHIN = 30.0  # seconds; two cores may have much else to do
ENDS_WITHIN = 20.0
NOISE = frozenset({"timestamp", "level", "process", "settings"})
SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # messages do not carry it


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a fleet lives in a test: its own database, queues and buckets."""

    database: Database
    emulator: Emulator
    applied: InPlace
    settings: Aws
    session: AwsSession

    async def queue(self, lane: Lane) -> Queue:
        return await self.session.queue(self.applied.queue_urls[lane.value])

    async def queues(self) -> dict[Lane, Queue]:
        return {lane: await self.queue(lane) for lane in Lane}

    async def dead_letters(self) -> Queue:
        return await self.session.queue(self.applied.queue_urls["dead-letter"])

    async def ring(self, submission: Submission) -> None:
        """Send the message that an API would send."""
        ring = Ring(
            job_id=submission.job_id,
            lane=submission.lane,
            next_at=SOME_TIME,
            tenant_id=submission.tenant_id,
            announced_at=datetime.now(UTC),
            traceparent=submission.traceparent,
            tracestate=submission.tracestate,
        )
        assert await (await self.queue(submission.lane)).send([ringing(ring)]) == (None,)

    async def send(self, lane: Lane, *bodies: str) -> None:
        """Put texts on a lane's queue, whatever they say."""
        messages = [Message(body=body, group="tests") for body in bodies]
        assert {None} == set(await (await self.queue(lane)).send(messages))

    async def ring_all(self, submissions: Sequence[Submission]) -> None:
        """Send the messages of many jobs of the fast lane, ten to a call."""
        bodies = [
            encode_message(JobMessage(job_id=submission.job_id)) for submission in submissions
        ]
        await self.send(Lane.FAST, *bodies)

    async def store(self, objects: Objects, key: str, body: bytes) -> Stored:
        stored = await objects.put(key, body, Headers(content_type="image/jpeg"))
        assert isinstance(stored, Stored)
        return stored

    async def submit(self, api: Connection, submission: Submission) -> Submitted:
        """Accept the job and ring for it, as the API does."""
        submitted = await submit_job(api, submission)
        await self.ring(submission)
        return submitted

    async def upload(
        self,
        api: Connection,
        image_id: UUID,
        original: bytes,
        *,
        traceparent: str | None = None,
        **payload: object,
    ) -> Submission:
        """Store an original and accept its job, as the API does."""
        upload_id = uuid4()
        key = original_key(image_id, upload_id)
        originals = await self.session.objects(self.settings.originals_bucket)
        stored = await self.store(originals, key, original)
        submission = an_image_submission(
            image_id,
            source_key=key,
            source_bytes=stored.bytes,
            source_sha256=stored.sha256,
            source_etag=stored.etag,
            **payload,
        )
        submission = replace(submission, traceparent=traceparent)
        source = NewSource(
            image_id=image_id,
            tenant_id=submission.tenant_id,
            key=key,
            bytes=stored.bytes,
            content_type="image/jpeg",
            etag=stored.etag,
            sha256=stored.sha256,
        )
        await submit_image(api, submission, source)
        await self.ring(submission)
        return submission

    def environment(self, process: Process | Literal["console"]) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join((calls.FOLDER, str(SERVICES), str(SERVICES.parent))),
            **calls.environment(),
            **({} if process == "console" else {"DATABASE_URL": self.database.url(process)}),
            "AWS_ENDPOINT_URL": self.emulator.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": CREDENTIALS.key_id,
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret,
            "HEALTH_LISTEN_PORT": "0",
            "RECEIVE_WAIT_SECONDS": "1",
            **self.applied.environment(),
        }


def an_image_submission(image_id: UUID, **payload: object) -> Submission:
    kind = BUILT_IN["process_image"]
    return replace(
        a_submission(
            type=kind.name,
            lane=kind.lane,
            target=image_target(image_id),
            services=kind.services,
            payload={"image_id": str(image_id), "content_type": "image/jpeg", **payload},
        ),
        correlation_id=f"upload-{image_id}",
    )


@dataclass(slots=True)
class Running:
    """A process of the product, and every line it wrote."""

    process: asyncio.subprocess.Process
    lines: list[Line] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def told(self, event: str) -> list[Line]:
        return [line for line in self.lines if line.get("event") == event]

    async def tells(self, event: str, *, times: int = 1, within: float = STARTS_WITHIN) -> Line:
        """Wait until it has written this event so often; the newest of them."""

        def enough() -> Line | None:
            lines = self.told(event)
            assert len(lines) >= times, f"{len(lines)} {event}; {self.story()}"
            return lines[-1]

        return await eventually(enough, within=within)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ends(self, *, within: float = ENDS_WITHIN) -> int:
        async with asyncio.timeout(within):
            return await self.process.wait()

    async def drains(self) -> int:
        self.signal(signal.SIGTERM)
        return await self.ends()

    def story(self) -> str:
        told = [
            json.dumps({key: value for key, value in line.items() if key not in NOISE})
            for line in self.lines
        ]
        return "\n".join([*told[-40:], *self.errors[-20:]])

    async def read(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_lines(self.process.stdout))
            group.create_task(self._read_errors(self.process.stderr))

    async def _read_lines(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.lines.append(json.loads(line))

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.errors.append(line.decode())


@asynccontextmanager
async def running(
    place: Place,
    process: Process,
    *,
    started: bool = True,
    environment: Mapping[str, str] | None = None,
    module: str = "imagefleet",
    under: Sequence[str] = (),
) -> AsyncIterator[Running]:
    """Run it until the end of the context, where it is killed if it has not ended by itself.

    `under` is a command that is told to run it.
    """
    async with AsyncExitStack() as stack:
        child = await asyncio.create_subprocess_exec(
            *under,
            sys.executable,
            "-m",
            module,
            process,
            env={**place.environment(process), **(environment or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        run = Running(child)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(run.read())
        stack.push_async_callback(_end, child)
        if started:
            await run.tells(f"{process}.started")
        yield run


async def _end(child: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        child.kill()
    await child.wait()


@dataclass(slots=True)
class Inside:
    """A process of the product, run by this one; `lines` are those it wrote so far."""

    drain: Drain
    lines: list[MutableMapping[str, object]]

    def told(self, event: str) -> list[MutableMapping[str, object]]:
        return [line for line in self.lines if line.get("event") == event]

    async def tells(
        self, event: str, *, times: int = 1, within: float = STARTS_WITHIN
    ) -> MutableMapping[str, object]:
        """Wait until it has written this event so often; the newest of them."""

        def enough() -> MutableMapping[str, object]:
            lines = self.told(event)
            assert len(lines) >= times, f"{len(lines)} {event}; {self.lines[-20:]}"
            return lines[-1]

        return await eventually(enough, within=within)

    async def ask(self, path: str) -> tuple[int, str]:
        """GET from its health server."""
        (started,) = [line for line in self.lines if "health_port" in line]
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{started['health_port']}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def counted(self, series: str) -> float:
        """The sum of all samples whose name and labels begin like this."""
        _, text = await self.ask("/metrics")
        lines = [line for line in text.splitlines() if line.startswith(series)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@asynccontextmanager
async def inside(
    place: Place, process: Process, *, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Inside]:
    """Run the process's own main in this one: all but its signals, and no time to start it."""
    given = {**place.environment(process), **(environment or {})}
    drain = Drain()
    with capture_logs() as lines:
        running_main = asyncio.create_task(  # noqa: TID251 - awaited below
            worker_main(load(WorkerSettings, given), drain)
            if process == "worker"
            else maintenance_main(load(MaintenanceSettings, given), drain)
        )
        run = Inside(drain, lines)
        try:
            await eventually(
                lambda: run.told(f"{process}.started") or running_main.done(), within=STARTS_WITHIN
            )
            yield run
        finally:
            drain.request("the test is over")
            async with asyncio.timeout(ENDS_WITHIN):
                await running_main
