"""Processes as a container runs them: the first one there is, whom the kernel treats differently.

No signal does anything to it by default, and whatever loses its parent becomes its child.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import create_key
from tests.support.api import ACME
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.fleet import Place, Process, Running, running
from tests.support.rows import attempts_rows, job_row

# Root's children become nobody, which a mapped root could not.
AS_USER = () if os.geteuid() == 0 else ("--user", "--map-current-user")
INTO_USER = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
FIRST = ("unshare", *AS_USER, "--pid", "--fork", "--kill-child")
NO_GRACE = {"SHUTDOWN_GRACE_PERIOD_SECONDS": "0"}
SERVING = {"LISTEN_PORT": "0", "LISTEN_HOST": "127.0.0.1", "PUBLIC_BASE_URL": "http://127.0.0.1"}
BEGUN = {"api": "http.listening", "worker": "worker.started", "maintenance": "maintenance.started"}


@pytest.fixture
def first() -> tuple[str, ...]:
    """How a process is started as the first one of a namespace of its own."""
    tried = subprocess.run([*FIRST, "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("this machine lets nobody make process namespaces")
    return FIRST


def inner(run: Running) -> int:
    """The process itself; what was started is `unshare`, which waits for it."""
    (pid,) = children_of(run.process.pid)
    return pid


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(one) for task in tasks for one in task.read_text().split()]


def names_of_children(pid: int) -> list[str]:
    return [Path(f"/proc/{child}/comm").read_text().strip() for child in children_of(pid)]


@pytest.mark.parametrize("process", BEGUN)
async def test_one_signal_ends_it_in_order(
    place: Place, first: tuple[str, ...], process: Process
) -> None:
    async with running(place, process, started=False, environment=SERVING, under=first) as run:
        await run.tells(BEGUN[process], within=20)
        os.kill(inner(run), signal.SIGTERM)
        assert 0 == await run.ends(), run.story()

    assert "SIGTERM" == run.told("process.draining")[0]["reason"]


async def test_what_a_worker_cannot_finish_is_given_back(
    place: Place, api: Connection, superuser: Connection, first: tuple[str, ...]
) -> None:
    submission = a_submission(payload={"milliseconds": 60_000})
    async with running(place, "worker", environment=NO_GRACE, under=first) as worker:
        await place.submit(api, submission)

        async def begun() -> bool:
            return bool("processing" == (await job_row(api, submission.job_id))["state"])

        await eventually(begun, within=10)
        os.kill(inner(worker), signal.SIGTERM)
        assert 0 == await worker.ends(), worker.story()

    (attempt,) = await attempts_rows(superuser, submission.job_id)
    assert ("released", "drain", False) == (attempt["outcome"], attempt["why"], attempt["charged"])


async def test_it_buries_whoever_is_left_to_it(place: Place, first: tuple[str, ...]) -> None:
    async with running(place, "worker", under=first) as worker:
        pid = inner(worker)
        own = len(children_of(pid))
        enter = ("nsenter", "--target", str(pid), *INTO_USER, "--pid")
        shell = await asyncio.create_subprocess_exec(
            *enter, "sh", "-c", "sleep 1 >/dev/null 2>&1 &"
        )
        assert 0 == await shell.wait()
        await eventually(lambda: "sleep" in names_of_children(pid), within=2)
        await eventually(lambda: len(children_of(pid)) == own, within=10)
        os.kill(pid, signal.SIGTERM)
        assert 0 == await worker.ends(), worker.story()


# What matters there, on machines that let nobody make namespaces.

LEFT_ALONE = """
import ctypes, os, signal, time
from imagefleet.runtime import Undertaker, end_at_once
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans below become ours
if os.fork() == 0:
    if os.fork() == 0:
        os._exit(0)
    os._exit(0)
deadline, undertaker = time.monotonic() + 10, Undertaker()
while time.monotonic() < deadline:
    undertaker.look()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        break
else:
    raise SystemExit("somebody is unburied")
signal.signal(signal.SIGTERM, end_at_once)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(10)
"""


def test_orphans_are_buried_and_a_signal_needs_no_default() -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT_ALONE], check=False, timeout=30)

    assert 128 + signal.SIGTERM == ended.returncode


IN_THE_MIDDLE_OF_ITS_START = """
import os, signal, sys
os.getpid = lambda: 1
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "imagefleet.worker.main":
            print(signal.getsignal(signal.SIGTERM).__name__)
            sys.exit()
sys.meta_path.insert(0, Finder())
from imagefleet.__main__ import main
main(["worker"])
"""


def test_who_is_ended_while_it_still_loads_ends() -> None:
    """To a first process without a handler the kernel does nothing, and a container waits."""
    command = [sys.executable, "-c", IN_THE_MIDDLE_OF_ITS_START]
    told = subprocess.run(command, check=True, timeout=30, capture_output=True, text=True)

    assert "end_at_once" == told.stdout.strip()


# The API, whose clients are in the middle of something.


async def test_an_api_finishes_requests_in_flight(
    place: Place, admin: Connection, superuser: Connection
) -> None:
    key = await create_key(admin, ACME, name="tests", scopes=("submit", "read"), expires_in=None)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    half_sent, go_on = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"jobType": '
        half_sent.set()
        await go_on.wait()
        yield b'"noop"}'

    async with running(place, "api", started=False, environment=SERVING) as run:
        port = (await run.tells("http.listening", within=20))["port"]
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client,
            asyncio.TaskGroup() as group,
        ):
            request = group.create_task(client.post("/v1/jobs", content=body()))
            await half_sent.wait()
            run.signal(signal.SIGTERM)
            await run.tells("process.draining")
            go_on.set()
        assert 202 == request.result().status_code, request.result().text
        assert 0 == await run.ends(), run.story()

    assert 1 == await superuser.fetchval("SELECT count(*) FROM jobs")
