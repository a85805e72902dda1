"""What decodes strangers' pictures has nothing, in the stack as it runs.

Nobody can have a child run code of theirs without a fault in a decoder. So this stack has one: its
pictures say in their last bytes what the child that decodes them is to attempt
(tests/faults/plugin/poison.py). Every attempt there is, against every barrier by itself, is in
tests/worker/isolation, from inside of real children without a fleet around them.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from imagefleet.imaging.foretelling import decoding_bytes
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.sniff import sniff
from imagefleet.worker.handling import SMALLEST_BYTES, Room
from imagefleet.worker.isolation.zygote import BESIDE_DATA
from tests.support.children import children_of
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.recipes import RECIPES
from tests.support.stack import Producer, Stack, running_stack
from tests.worker.attacks import AT_EMPTY_PATH

UNCLAIMED = {str(number) for number in range(65_520, 65_532)}
MIB = 2**20
MARGIN = 32 * MIB  # over the allowance, where the kernel refuses
LATE = 128 * MIB  # and where it takes a look, of a zygote that waits for a processor
FAR_TOO_MUCH = 1536 * MIB
READ_DETAIL = "SELECT failure_detail FROM jobs WHERE id = $1::uuid"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    settings = {"all": {"BACKOFF_BASE_SECONDS": "1"}}
    async with running_stack(workers=1, settings=settings, poison=True) as stack:
        worker = stack.pids("worker")
        yield stack
        # Whatever the children did, their worker is the one that was started.
        assert worker == stack.pids("worker")
        await stack.all_ended(within=30)
        assert [] == await stack.breaches(backoff_base=1)


def poisoned(
    what: str, how: Mapping[str, object] | None = None, *, picture: bytes | None = None
) -> bytes:
    """A picture whose decoder attempts this, and then tells what it met."""
    healthy = picture or saved(quadrants(40, 25))
    return healthy + f"poison:{what} {json.dumps(how or {})}".encode()


def allowance_of(body: bytes) -> int:
    """What a worker with enough memory lets the child have that decodes this picture."""
    variants = RECIPES["default"].variants
    return Room(1, 1 << 40).allowance(decoding_bytes(sniff(body), len(body), Limits(), variants))


def status_of(pid: int) -> Mapping[str, str]:
    """By field; empty when it ended meanwhile."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in text.splitlines())


def decoders(worker: int) -> list[int]:
    return [child for zygote in children_of(worker) for child in children_of(zygote)]


def peak_of(pid: int) -> int:
    """The most that it ever had in memory, with its page tables now."""
    status = status_of(pid)
    told = (status.get(name, "0 kB") for name in ("VmHWM", "VmPTE", "VmSwap"))
    return 1024 * sum(int(value.split()[0]) for value in told)


@asynccontextmanager
async def sampled(worker: int) -> AsyncIterator[dict[int, int]]:
    """The peaks of this worker's decoders, by process id."""
    peaks: dict[int, int] = {}

    async def sample() -> None:
        while True:
            for child in await asyncio.to_thread(decoders, worker):
                peaks[child] = max(peaks.get(child, 0), peak_of(child))
            await asyncio.sleep(0.005)  # between two looks; nothing waits for it

    async with asyncio.TaskGroup() as group:
        sampling = group.create_task(sample())
        yield peaks
        sampling.cancel()


async def met_by_a_decoder(
    stack: Stack, producer: Producer, what: str, how: Mapping[str, object]
) -> dict[str, Any]:
    """What each attempt came to, by its name; the job has ended as the decoder said."""
    accepted = (await producer.upload(poisoned(what, how))).json()
    ended = await producer.ended(accepted["jobId"])
    assert ("failed", "unsupported") == (ended["status"], ended["failure"]["code"]), ended
    async with stack.database() as owner:
        detail = await owner.fetchval(READ_DETAIL, accepted["jobId"])
    met: dict[str, Any] = json.loads(detail)
    return met


async def goes_on(producer: Producer, width: int) -> None:
    """Pictures of others are made as ever."""
    accepted = (await producer.upload(saved(quadrants(width, 30)))).json()
    assert (await producer.ended(accepted["jobId"]))["status"] == "completed"


async def test_a_picture_is_decoded_by_somebody_without_rights(
    stack: Stack, producer: Producer
) -> None:
    (worker,) = stack.pids("worker").values()
    accepted = (await producer.upload(saved(quadrants(6000, 5000), "PNG"), "image/png")).json()

    def decoder() -> Mapping[str, str] | None:
        for child in decoders(worker):
            status = status_of(child)
            if status.get("Seccomp") == "2":
                return status
        return None

    found = await eventually(decoder, within=30)

    assert found["NoNewPrivs"] == "1"
    assert {found[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    (postgres,) = stack.pids("postgres").values()
    (user,) = set(found["Uid"].split())
    if os.geteuid() == 0:
        assert user in UNCLAIMED
        assert user not in status_of(postgres)["Uid"].split()
    else:
        assert user == str(os.geteuid())
    assert (await producer.ended(accepted["jobId"]))["status"] == "completed"


async def test_a_decoders_stack_is_no_way_to_more_memory(stack: Stack, producer: Producer) -> None:
    (worker,) = stack.pids("worker").values()
    before = peak_of(worker)
    async with sampled(worker) as peaks:
        met = await met_by_a_decoder(stack, producer, "stack", {"bytes": FAR_TOO_MUCH})

    assert {
        "grow_the_stack_mapping": {"refused": 1},
        "walk_down_the_stack": {"refused": 1},
        "grow_every_mapping_near_the_stack": {"answers": [1]},
    } == met
    assert 0 < max(peaks.values()) < SMALLEST_BYTES
    assert peak_of(worker) - before < MARGIN
    await goes_on(producer, 51)


@pytest.mark.parametrize(("what", "over"), [("memory", MARGIN), ("tables", BESIDE_DATA + LATE)])
async def test_a_decoder_that_takes_all_it_can_ends_its_own_job(
    stack: Stack, producer: Producer, what: str, over: int
) -> None:
    """All that it can is what its picture's head tells, and a margin."""
    body = poisoned(what, picture=saved(quadrants(7000, 7000), "PNG"))
    allowed = allowance_of(body)
    assert allowed > 2 * SMALLEST_BYTES, "it is this head that allows it"
    (worker,) = stack.pids("worker").values()
    async with sampled(worker) as peaks:
        accepted = (await producer.upload(body, "image/png")).json()
        ended = await producer.ended(accepted["jobId"])

    assert ("failed", "memory") == (ended["status"], ended["failure"]["code"])
    assert allowed // 2 < max(peaks.values()) < allowed + over
    await goes_on(producer, 52)


async def test_a_decoder_asks_about_no_file_but_its_own(stack: Stack, producer: Producer) -> None:
    (worker,) = stack.pids("worker").values()
    for path in ("/etc/passwd", f"/proc/{worker}/environ"):
        met = await met_by_a_decoder(stack, producer, "look", {"path": path})

        assert {"EPERM"} == set(met.values()), met
        # AT_EMPTY_PATH: of an open file, where there is no path; of the path, where there is one.
        assert {f"stat {path}", f"newfstatat {path} {AT_EMPTY_PATH}"} <= met.keys()
    await goes_on(producer, 53)


def cluster_of(postgres: int) -> list[Path]:
    """Files that its server lives on."""
    data = Path(f"/proc/{postgres}/cwd").resolve(strict=True)
    files = [data / name for name in ("PG_VERSION", "postmaster.pid", "global/pg_control")]
    assert all(path.stat().st_size > 0 for path in files)
    return files


async def test_postgres_is_out_of_a_decoders_reach(stack: Stack, producer: Producer) -> None:
    (postgres,) = stack.pids("postgres").values()
    pids = [postgres, *children_of(postgres)[:3]]
    files = cluster_of(postgres)
    port = urlsplit(stack.facts["database_urls"]["owner"]).port
    # Ten attempts on a process, three on a file; the server has no socket but the port.
    how = {"pids": pids, "files": [*map(str, files)], "port": port, "socket": None}

    met = await met_by_a_decoder(stack, producer, "besiege", how)

    assert {"EPERM"} == set(met), met
    assert len(files) * 3 + len(pids) * 10 + 1 == met["EPERM"][0]
    assert files == cluster_of(postgres)
    await goes_on(producer, 54)
