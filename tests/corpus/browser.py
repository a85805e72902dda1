"""Chromium, as the judge of what a file shows: a page that draws what it is given.

The page asks a server of this process for one picture after another and posts what it has drawn;
nothing is told to the browser in any other way.
"""

import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Self

from PIL import Image

from tests.support.browsers import Program, program

HERE: Final = Path(__file__).parent
OPTIONS: Final = (
    "--no-sandbox", "--headless", "--disable-gpu", "--force-color-profile=srgb", "--no-first-run",
    "--disable-dev-shm-usage", "--remote-debugging-port=0",
)  # fmt: skip
SHOWN_WITHIN: Final = 40.0  # seconds; the first picture waits for the start, too
POLLED: Final = 5.0  # seconds that the page waits for a picture before it asks again


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture upright, of this size; very large ones were drawn smaller."""

    width: int
    height: int
    picture: Image.Image


@dataclass
class _Order:
    number: int
    content: bytes
    done: threading.Event = field(default_factory=threading.Event)
    shown: Shown | None = None


class Browser:
    """One window, one picture at a time; begun anew when it dies of one."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._waiting: queue.Queue[_Order] = queue.Queue()
        self._orders: dict[int, _Order] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)
        self._stack.callback(self._stop)
        self._address = f"http://127.0.0.1:{server.server_address[1]}/"
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, content: bytes) -> Shown | None:
        """What it draws of this file; None where it draws nothing. One at a time."""
        with self._turn:
            return self._shown(content)

    def _shown(self, content: bytes) -> Shown | None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        order = _Order(len(self._orders) + 1, content)
        self._orders[order.number] = order
        self._waiting.put(order)
        if not order.done.wait(SHOWN_WITHIN):
            self._stop()
        order.content = b""
        shown, order.shown = order.shown, None
        return shown

    def _start(self) -> None:
        profile = self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        self._process = subprocess.Popen(
            [str(self._program.executable), *OPTIONS, f"--user-data-dir={profile}", self._address],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=self._program.environment(profile),
        )  # fmt: skip

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        browser = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/next":
                    self._answer(browser.next_number().encode())
                elif self.path.startswith("/picture/"):
                    # No type: browsers go by the first bytes of a picture anyway.
                    self._answer(browser.content_of(int(self.path.rpartition("/")[2])), None)
                else:
                    self._answer((HERE / "page.html").read_bytes(), "text/html; charset=utf-8")

            def do_POST(self) -> None:
                numbers = [int(word) for word in self.path.split("/")[2:]]
                browser.drawn(numbers, self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(b"")

            def _answer(self, body: bytes, content_type: str | None = "text/plain") -> None:
                self.send_response(200)
                if content_type:
                    self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def next_number(self) -> str:
        try:
            return str(self._waiting.get(timeout=POLLED).number)
        except queue.Empty:
            return ""

    def content_of(self, number: int) -> bytes:
        return self._orders[number].content

    def drawn(self, numbers: list[int], pixels: bytes) -> None:
        number, wide, high, across, down = numbers
        order = self._orders[number]
        if pixels and any(pixels):
            picture = Image.frombytes("RGBA", (across, down), pixels)
            order.shown = Shown(wide, high, picture)
        elif pixels:
            order.shown = Shown(wide, high, Image.new("RGBA", (across, down)))
        order.done.set()


@contextmanager
def browser() -> Iterator[Browser | None]:
    found = program()
    if found is None:
        yield None
        return
    with Browser(found) as started:
        yield started
