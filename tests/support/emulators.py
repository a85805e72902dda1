"""AWS emulators for tests: processes of their own, one of a kind for all test processes.

Each test has queues, buckets' prefixes and references of its own, so it never meets another's.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from botocore.loaders import JSONFileLoader, Loader

from imagefleet.aws.session import Credentials, Descriptions
from imagefleet.embedded.emulator import KEY_ID, SECRET, EmbeddedAws
from imagefleet.embedded.machine import free_port

# `fake` is tests/support/cloudfront.py: CloudFront alone, with the limits that no emulator has.
Kind: TypeAlias = Literal["ministack", "moto", "localstack", "fake"]

REGION = "eu-central-1"
CREDENTIALS = Credentials(KEY_ID, SECRET)

# No setting of the product: http://host:port of a LocalStack that is ready.
LOCALSTACK = os.environ.get("TEST_LOCALSTACK_URL")  # noqa: TID251
KINDS: tuple[Kind, ...] = ("ministack", "moto", *(("localstack",) if LOCALSTACK else ()))

# Ends with its parent, as the embedded emulator does.
MOTO = """
import os, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
from moto.server import main
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""


@dataclass(frozen=True, slots=True)
class Emulator:
    kind: Kind
    url: str


@contextmanager
def running_ministack() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="imagefleet-test-aws-") as state,
        EmbeddedAws(Path(state)) as emulator,
    ):
        yield emulator.url


@contextmanager
def running_moto() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", MOTO, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    try:
        wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        process.stdin.close()


START: dict[Kind, Callable[[], AbstractContextManager[str]]] = {
    "ministack": running_ministack,
    "moto": running_moto,
}


_running: dict[Kind, Emulator] = {}
_ends = ExitStack()


@contextmanager
def shared(kind: Kind, folder: Path) -> Iterator[Emulator]:
    """The one emulator of this kind in this process: started by the first, ended with the run.

    None is shared with other processes, and nobody waits for anybody: one starts within a second.
    """
    if kind == "localstack":
        assert LOCALSTACK is not None
        yield Emulator(kind, LOCALSTACK)
        return
    if kind not in _running:
        _running[kind] = Emulator(kind, _ends.enter_context(START[kind]()))
    yield _running[kind]


def remember_descriptions() -> None:
    """For as long as this process runs: what the SDK reads about services it reads once.

    Else it parses some megabytes for every session, and nearly every test has one of its own.
    """
    listed = Loader().list_available_services
    for once in (
        *(
            patch.object(reader, "load_file", staticmethod(cache(reader().load_file)))
            for reader in (JSONFileLoader, Descriptions)
        ),
        patch.object(Loader, "list_available_services", staticmethod(cache(listed))),
    ):
        _ends.enter_context(once)


def end_emulators() -> None:
    """At the end of the run. Those of a process that was killed end by themselves."""
    _running.clear()
    _ends.close()


def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """One folder for all processes of this run."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        if is_listening(f"http://127.0.0.1:{port}"):
            return
        time.sleep(0.02)  # noqa: TID251 - no event loop here
    message = f"nothing listens on {port}; the process says {process.poll()}"
    raise AssertionError(message)


def is_listening(url: str) -> bool:
    """False for what was left behind by a test process that was killed."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=1).close()
    except OSError:
        return False
    return True
