"""The embedded stack of a test: `imagefleet up` as anybody starts it, and what it says."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Unpack
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import httpx

from imagefleet.store.database import Connection
from tests.faults.director import ALWAYS, Director, directing
from tests.faults.facts import Post
from tests.support.checker import check
from tests.support.database import roomy_memory
from tests.support.eventually import eventually
from tests.support.journal import Journal, Limits, Place, keep_events, read_facts

PLUGIN: Final = Path(__file__).parents[1] / "faults" / "plugin"
READY_WITHIN: Final = 90.0  # seconds; two cores, which other tests use as well
ENDS_WITHIN: Final = 60.0
PREFIX: Final = "imagefleet-e2e-"


Settings = Mapping[str, Mapping[str, str]]
"""Variables by process: `all`, api, worker, maintenance."""


@dataclass(slots=True, kw_only=True)
class Stack:
    """A running one."""

    process: subprocess.Popen[bytes]
    folder: Path
    journal: Journal
    director: Director
    _read: tuple[float, dict[str, Any]] = field(default=(0.0, {}))

    @property
    def facts(self) -> dict[str, Any]:
        """What the ready file says now: process ids change when a process is started again."""
        path = self.folder / "ready.json"
        changed_at = path.stat().st_mtime
        if self._read[0] != changed_at:
            self._read = (changed_at, json.loads(path.read_text()))
        return self._read[1]

    @property
    def said(self) -> str:
        """Everything its terminal showed so far."""
        return (self.folder / "said").read_text(errors="replace")

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def place(self) -> Place:
        facts = self.facts
        return Place(
            owner_url=facts["database_urls"]["owner"],
            aws=facts["aws"],
            queue_urls=facts["queue_urls"],
            originals=facts["buckets"]["originals"],
            outputs=facts["buckets"]["outputs"],
        )

    def pids(self, process: str) -> dict[str, int]:
        """The processes of this kind that run now, by name."""
        return {
            name: pid
            for name, pid in self.facts["processes"].items()
            if name.partition("-")[0] == process
        }

    @asynccontextmanager
    async def database(self, role: str = "owner") -> AsyncIterator[Connection]:
        url = self._superuser_url if role == "superuser" else self.facts["database_urls"][role]
        connection = await asyncpg.connect(url)
        try:
            yield Connection(connection)
        finally:
            await connection.close()

    @property
    def _superuser_url(self) -> str:
        """Nobody is told of it; it is made of what the folder keeps."""
        parts = urlsplit(str(self.facts["database_urls"]["owner"]))
        password = (self.state / "postgres" / "password").read_text().strip()
        place = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"postgres:{quote(password, safe='')}@{place}"))

    @asynccontextmanager
    async def producer(self, *, key: str = "api_key") -> AsyncIterator["Producer"]:
        headers = {"Authorization": f"Bearer {self.facts[key]}"}
        async with httpx.AsyncClient(
            base_url=self.facts["api_url"], headers=headers, timeout=20
        ) as client:
            yield Producer(client, self.journal)

    async def all_ended(self, *, within: float) -> None:
        """Wait until no job is open."""
        async with self.database() as owner:

            async def nothing_open() -> bool:
                left = await owner.fetch(
                    "SELECT state, count(*) FROM jobs WHERE finished_at IS NULL GROUP BY state"
                )
                assert left == [], [tuple(row) for row in left]
                return True

            await eventually(nothing_open, within=within)

    async def breaches(self, **limits: Unpack[Limits]) -> list[str]:
        """What this run did that none may; to be asked once nothing changes any more."""
        facts = await read_facts(self.place, self.journal.posts, **limits)
        return [str(breach) for breach in check(facts)]


class Producer:
    """A client that writes down what it asked for and how it was answered."""

    def __init__(self, client: httpx.AsyncClient, journal: Journal, tenant: str = "demo") -> None:
        self.http = client
        self.tenant = tenant
        self._posts = journal.posts

    async def upload(
        self, image: bytes, content_type: str = "image/jpeg", *, key: str | None = None
    ) -> httpx.Response:
        headers = {"Content-Type": content_type}
        return await self.post("/v1/images", key, f"image {hash(image)}", headers, content=image)

    async def submit(
        self, job_type: str = "noop", payload: object = None, *, key: str | None = None
    ) -> httpx.Response:
        body = {"jobType": job_type, "payload": payload or {}}
        return await self.post("/v1/jobs", key, json.dumps(body), json=body)

    async def submit_many(self, count: int, payload: object = None) -> list[str]:
        """Jobs that do nothing, a hundred to a request; their ids."""
        ids: list[str] = []
        for start in range(0, count, 100):
            job = {"jobType": "noop", "payload": payload or {}}
            body = {"jobs": [job] * min(100, count - start)}
            answer = await self.http.post("/v1/jobs:batch", json=body)
            while answer.status_code == 429:  # as a careful client does
                await asyncio.sleep(float(answer.headers["Retry-After"]))
                answer = await self.http.post("/v1/jobs:batch", json=body)
            assert answer.is_success, answer.text
            ids += [answered["job"]["jobId"] for answered in answer.json()["answers"]]
        self._posts += [
            Post(
                tenant=self.tenant, key=None, asked="noop", outcome="ok", status=202, job_id=job_id
            )
            for job_id in ids
        ]
        return ids

    async def post(
        self,
        path: str,
        key: str | None,
        asked: str,
        headers: Mapping[str, str] | None = None,
        **body: Any,  # noqa: ANN401 - httpx's own
    ) -> httpx.Response:
        """Ask once. Raises what httpx raises, and has written down then that nobody knows."""
        sent = {**(headers or {}), **({"Idempotency-Key": key} if key else {})}
        try:
            answer = await self.http.post(path, headers=sent, **body)
        except httpx.HTTPError:
            self._posts.append(Post(tenant=self.tenant, key=key, asked=asked, outcome="info"))
            raise
        self._posts.append(
            Post(
                tenant=self.tenant,
                key=key,
                asked=asked,
                outcome="ok" if answer.is_success else "fail",
                status=answer.status_code,
                job_id=answer.json().get("jobId") if answer.is_success else None,
            )
        )
        return answer

    async def until_answered(
        self, ask: Callable[[], Any], *, within: float = 30.0
    ) -> httpx.Response:
        """Ask again under the same key until somebody answers, as a careful client does."""

        async def answered() -> httpx.Response | None:
            try:
                answer: httpx.Response = await ask()
            except httpx.HTTPError:
                return None
            return None if answer.status_code >= 500 else answer

        return await eventually(answered, within=within)

    async def ended(self, job_id: str, *, within: float = 30.0) -> dict[str, Any]:
        """The job, once it is completed or failed."""

        async def terminal() -> dict[str, Any] | None:
            answer = await self.http.get(f"/v1/jobs/{job_id}", params={"wait": 5})
            assert answer.status_code == 200, answer.text
            shown: dict[str, Any] = answer.json()
            assert shown["status"] in {"completed", "failed"}, shown
            return shown

        return await eventually(terminal, within=within)

    async def image(self, image_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/images/{image_id}")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown


@asynccontextmanager
async def running_stack(
    *,
    workers: int = 1,
    settings: Settings | None = None,
    points: Sequence[str] = ALWAYS,
    poison: bool = False,
    attempt_seconds: float | None = None,
    walk: Path | None = None,
) -> AsyncIterator[Stack]:
    """Start one in a folder of its own and end it in order, whatever the test did to it."""
    journal = Journal()
    with stack_folder() as folder, directing(journal, points) as director:
        faults = {
            "socket": str(director.path),
            "points": list(points),
            "settings": settings or {},
            "longest_pause": 0.3,
            "poison": poison,
            "attempt_seconds": attempt_seconds,
            **({"walk": str(walk)} if walk else {}),
        }
        process = begin(folder, workers, faults)
        stack = Stack(process=process, folder=folder, journal=journal, director=director)
        try:
            await wait_until_ready(stack)
            await keep_events(stack.place)
            yield stack
        finally:
            director.decide = lambda _: "go"
            for gate in director.closed.values():
                gate.set()
            await asyncio.to_thread(end, process)


def begin(folder: Path, workers: int, faults: Mapping[str, object]) -> subprocess.Popen[bytes]:
    (folder / "tmp").mkdir()
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "imagefleet", "up", "--verbose"),
                *("--state-dir", str(folder / "state")),
                *("--ready-file", str(folder / "ready.json")),
                *("--workers", str(workers)),
                *("--api-port", "0", "--console-port", "0", "--edge-port", "0"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,  # noqa: TID251 - as from a terminal
                "PYTHONPATH": str(PLUGIN),
                "TMPDIR": str(folder / "tmp"),  # a worker that is killed leaves its scratch behind
                "IMAGEFLEET_FAULTS": json.dumps(faults),
            },
            start_new_session=True,
        )


@contextmanager
def stack_folder() -> Iterator[Path]:
    parent = roomy_memory() or Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        folder.chmod(0o711)  # root hands Postgres to an account that has to pass through
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def wait_until_ready(stack: Stack) -> None:
    def is_ready() -> bool:
        code = stack.process.poll()
        if code is not None:
            message = f"`imagefleet up` ended with {code}:\n{stack.said[-4000:]}"
            raise RuntimeError(message)
        return (stack.folder / "ready.json").exists()

    try:
        await eventually(is_ready, within=READY_WITHIN)
    except AssertionError as error:
        message = f"not ready: {stack.said[-4000:]}"
        raise AssertionError(message) from error


def end(process: subprocess.Popen[bytes]) -> None:
    """In order if it can; else it and whatever it started."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()  # its watchdog ends what it started
        process.wait(10)
