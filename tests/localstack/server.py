"""LocalStack as a process of this machine, without Docker."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from imagefleet.embedded.machine import HOST, free_port

PYTHON: Final = Path(__file__).parents[2] / ".tools" / "localstack" / "bin" / "python"
READY_WITHIN: Final = 60.0  # seconds; it takes four, on a machine that has nothing else to do
END_WITHIN: Final = 15.0
LOOK_EVERY: Final = 0.1
# End of file on the standard input means that whoever started it is gone, however that happened.
PROGRAM: Final = """
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
from localstack.runtime.main import main
main()
"""


class NotInstalledError(Exception):
    """LocalStack's environment was not made."""


def settings(folder: Path, port: int) -> dict[str, str]:
    """Everything it reads: nothing of this machine's own settings."""
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        # A virtual machine may look like a container to it, and then it writes to system folders.
        "OVERRIDE_IN_DOCKER": "0",
        "FILESYSTEM_ROOT": str(folder),
        # The port alone: 4.14 listens on every address, whatever stands here.
        "GATEWAY_LISTEN": f"{HOST}:{port}",
        "SERVICES": "sqs,s3",
        "SQS_ENDPOINT_STRATEGY": "dynamic",  # queues' addresses are those of who asks
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DNS_ADDRESS": "0",
        "LS_LOG": "warning",  # a line for every request otherwise
    }


@contextmanager
def running_localstack(folder: Path) -> Iterator[str]:
    """Its address, once it is ready; it ends with the context, and with this process."""
    if not PYTHON.exists():
        raise NotInstalledError
    folder.mkdir()
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [PYTHON, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=settings(folder, port),
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        url = f"http://{HOST}:{port}"
        _wait_until_ready(url, process, folder / "log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_WITHIN)
        process.stdin.close()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        if _is_ready(url):
            return
        time.sleep(LOOK_EVERY)  # noqa: TID251 - no event loop here
    message = f"LocalStack is not ready:\n{log.read_text(errors='replace')[-3000:]}"
    raise AssertionError(message)


def _is_ready(url: str) -> bool:
    """As the health check of its container asks: the gateway answers before the rest is there."""
    try:
        answer = httpx.get(f"{url}/_localstack/init/ready", timeout=1)
        return answer.is_success and answer.json()["completed"] is True
    except (httpx.HTTPError, ValueError, KeyError):
        return False
