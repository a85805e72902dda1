"""Whatever is sent instead of a picture gets a clear answer soon, and costs little."""

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.images import (
    jpeg_claiming,
    png_claiming,
    quadrants,
    saved,
    scan_bomb,
)
from tests.support.stack import Producer, Stack

WITHIN: Final = 10.0  # seconds, promised for whatever a file may be
MIB: Final = 2**20
CHILD_MIB: Final = 700  # 640 that a child may have, and what it shares with the process it is of
WORKER_MIB: Final = 250  # pictures are never in it
MOST_BYTES: Final = 50 * MIB
LOOK_EVERY: Final = 0.02  # seconds
SVG: Final = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def a_png_bomb() -> bytes:
    """Thirty-six megapixels of nothing much, in few bytes."""
    return saved(quadrants(6000, 6000), "PNG")


def cut_short(image: bytes) -> bytes:
    return image[: len(image) // 2]


FILES: Final = {
    "empty": (b"", "image/jpeg", {"empty_file", "unsupported"}),
    "0x0": (png_claiming(0, 0), "image/png", {"corrupt"}),
    "truncated": (cut_short(saved(quadrants(), "PNG")), "image/png", {"corrupt"}),
    "200 megapixels": (jpeg_claiming(20000, 10000), "image/jpeg", {"too_many_pixels"}),
    "200 megapixels of PNG": (png_claiming(20000, 10000), "image/png", {"too_many_pixels"}),
    "scan bomb": (scan_bomb(2000), "image/jpeg", {"too_many_scans"}),
    "svg": (SVG, "image/svg+xml", {"unsupported", "unsupported_media_type"}),
    "svg as png": (SVG, "image/png", {"unsupported"}),
    "text named jpg": (b"I am no picture.\n" * 100, "image/jpeg", {"unsupported"}),
    "another type": (saved(quadrants()), "image/png", {"type_mismatch"}),
}


@dataclass(slots=True)
class Memory:
    """The most that was seen of a worker, and of any process below it."""

    worker_mib: int = 0
    child_mib: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self, workers: set[int]) -> None:
        while not self._stop.wait(LOOK_EVERY):
            parents = {pid: parent for pid, parent, _ in processes()}
            for pid, _, rss_mib in processes():
                above = pid
                while above in parents and above not in workers:
                    above = parents[above]
                if pid in workers:
                    self.worker_mib = max(self.worker_mib, rss_mib)
                elif above in workers:
                    self.child_mib = max(self.child_mib, rss_mib)


def processes() -> Iterator[tuple[int, int, int]]:
    """Every process: its id, its parent's, and its resident memory in MiB."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(") ")[2].split()
        except OSError:  # ended meanwhile
            continue
        yield int(entry.parent.name), int(fields[1]), int(fields[21]) * 4096 // MIB


@contextmanager
def watched(stack: Stack, what: str) -> Iterator[Memory]:
    memory = Memory()
    workers = stack.pids("worker")
    thread = threading.Thread(target=memory.watch, args=[set(workers.values())])
    thread.start()
    begun = time.monotonic()
    try:
        yield memory
    finally:
        seconds = time.monotonic() - begun
        memory._stop.set()
        thread.join()
        print(  # noqa: T201 - a figure for each file
            f"{what:<24} {seconds:5.2f} s   worker {memory.worker_mib:4} MiB"
            f"   children {memory.child_mib:4} MiB"
        )
    assert seconds < WITHIN
    assert memory.worker_mib < WORKER_MIB
    assert memory.child_mib < CHILD_MIB
    # The same processes as before: none of them had to be started again.
    assert workers == stack.pids("worker")


async def verdict(producer: Producer, answer: httpx.Response) -> str:
    """The code of the refusal, or of the failure, or how the job ended."""
    if answer.status_code == 202:
        ended = await producer.ended(answer.json()["jobId"], within=WITHIN)
        return str(ended.get("failure", {}).get("code", ended["status"]))
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert {"type", "title", "status", "code", "detail"} <= problem.keys()
    return str(problem["code"])


@pytest.mark.parametrize("what", FILES)
async def test_what_is_no_good_picture_is_refused_by_name(
    producer: Producer, stack: Stack, what: str
) -> None:
    body, content_type, expected = FILES[what]

    with watched(stack, what):
        code = await verdict(producer, await producer.upload(body, content_type))

    assert code in expected


async def test_a_png_bomb_stays_within_the_memory_of_its_child(
    producer: Producer, stack: Stack
) -> None:
    bomb = a_png_bomb()
    assert len(bomb) < MIB

    with watched(stack, "png bomb"):
        code = await verdict(producer, await producer.upload(bomb, "image/png"))

    assert code in {"completed", "memory"}


async def test_a_body_over_the_cap_is_refused_before_it_is_read(
    producer: Producer, stack: Stack
) -> None:
    with watched(stack, "over the cap, declared"):
        answer = await producer.post(
            "/v1/images",
            None,
            "too much",
            {"Content-Type": "image/jpeg"},
            content=saved(quadrants()) + bytes(MOST_BYTES),
        )

    assert (413, "too_large") == (answer.status_code, answer.json()["code"])


async def test_a_body_over_the_cap_is_refused_though_it_does_not_say_so(
    producer: Producer, stack: Stack
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield saved(quadrants())
        for _ in range(MOST_BYTES // MIB + 1):
            yield bytes(MIB)

    with watched(stack, "over the cap, chunked"):
        answer = await producer.post(
            "/v1/images", None, "too much", {"Content-Type": "image/jpeg"}, content=chunks()
        )

    assert (413, "too_large") == (answer.status_code, answer.json()["code"])


BROKEN_FORMS: Final = {
    "no boundary": ("multipart/form-data", b"--x\r\n"),
    "never begins": ("multipart/form-data; boundary=x", b"hello"),
    "never ends": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n'
        b"Content-Type: image/jpeg\r\n\r\n" + saved(quadrants()),
    ),
    "no file": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n',
    ),
    "no headers": ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n--x--\r\n"),
}


@pytest.mark.parametrize("what", BROKEN_FORMS)
async def test_a_broken_form_is_refused(producer: Producer, stack: Stack, what: str) -> None:
    content_type, body = BROKEN_FORMS[what]

    with watched(stack, f"form: {what}"):
        answer = await producer.post(
            "/v1/images", None, what, {"Content-Type": content_type}, content=body
        )
        code = await verdict(producer, answer)

    assert code in {"invalid_form", "empty_file"}


@pytest.mark.parametrize(
    "name", [b"\xff\xfe.jpg", b"../../etc/passwd", b"\xe2\x80\xae.jpg", b"a" * 5000 + b".jpg"]
)
async def test_a_files_name_is_nobodys_business(
    producer: Producer, stack: Stack, name: bytes
) -> None:
    """It is neither kept nor read, so whatever it is does no harm; too long a one is no form."""
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="' + name + b'"\r\n'
        b"Content-Type: image/jpeg\r\n\r\n" + saved(quadrants()) + b"\r\n--x--\r\n"
    )

    with watched(stack, f"name: {name[:12]!r}"):
        answer = await producer.post(
            "/v1/images",
            None,
            "named",
            {"Content-Type": "multipart/form-data; boundary=x"},
            content=body,
        )
        code = await verdict(producer, answer)

    assert code in {"completed", "invalid_form"}
