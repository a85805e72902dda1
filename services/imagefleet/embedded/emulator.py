"""AWS on this machine: SQS, S3 and CloudFront from MiniStack, a process of its own on 127.0.0.1.

It is a child of this process and ends with it: on `stop`, and when this process is killed outright,
because it sees its standard input close. When it ends in order it writes down what it holds: the
next start goes on with the same queues, messages and objects. After a kill, or with the folder
wiped, it comes back without messages or empty; the bootstrap makes what is missing, and every open
job is rung again from Postgres.
"""

import http.client
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from imagefleet.embedded.emulator_software import Say, emulator_python, usable_cache
from imagefleet.embedded.machine import LocalServer, end, end_of, ends_before, free_port, take
from imagefleet.errors import Misconfigured, Unavailable

KEY_ID: Final = "imagefleet"
SECRET: Final = "imagefleet-on-this-machine-only"  # noqa: S105 - guards a port of 127.0.0.1
REGION: Final = "eu-central-1"

START_WITHIN: Final = 30.0  # seconds
STOP_WITHIN: Final = 15.0  # open long polls take three of them
TAKE_WITHIN: Final = 6.0  # an emulator whose parent was killed is still writing its state down
PORT_CHOICES: Final = 5  # a port that was free a moment ago may be taken by the time it is bound

# End of file on the standard input means that whoever started it is gone, however that happened.
PROGRAM: Final = """
import os, signal, sys, threading, time
def follow(within):
    os.read(0, 1)  # unbuffered: a lock on sys.stdin would be in the way of an orderly end
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(within)
    os._exit(1)
threading.Thread(target=follow, args=[float(sys.argv.pop())], daemon=True).start()
from ministack.app import main
main()
"""


class EmbeddedAws(LocalServer):
    """One emulator on one state folder."""

    def __init__(
        self,
        state: Path,
        *,
        port: int | None = None,
        region: str = REGION,
        cache: Path | None = None,
        say: Say = print,
    ) -> None:
        super().__init__()
        self.folder = state.resolve() / "aws"
        self.region = region
        self.port = port or 0
        self._fixed_port = port is not None
        self._cache = cache
        self._say = say

    @property
    def url(self) -> str:
        """The endpoint of all three services."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """What a process needs to take this emulator for AWS, queues and buckets apart."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def start(self) -> None:
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        self._lock = take(self.folder / "lock", within=TAKE_WITHIN)
        try:
            cache = self._cache or usable_cache(self.folder / "software")
            python = emulator_python(cache, say=self._say)
            self._launch_on_a_port(python)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let it write its state down and end."""
        process, self._process = self._process, None
        if process is not None:
            end(process, signal.SIGTERM, signal.SIGKILL, patience=STOP_WITHIN)
            if process.stdin is not None:
                process.stdin.close()
        self._unlock()

    def _launch_on_a_port(self, python: Path) -> None:
        for port in self._ports():
            self.port = port
            self._process = self._launch(python)
            if self._is_ready(self._process):
                (self.folder / "port").write_text(str(self.port))
                return
        detail = f"the AWS emulator did not start{end_of(self.folder / 'log')}"
        raise Misconfigured(detail)

    def _ports(self) -> list[int]:
        if self._fixed_port:
            return [self.port]
        choices = [0] * PORT_CHOICES
        # The last one first: addresses that were handed out go on being right.
        with suppress(OSError):  # none is recorded, or somebody has it
            choices.insert(0, free_port(int((self.folder / "port").read_text())))
        return choices

    def _launch(self, python: Path) -> subprocess.Popen[bytes]:
        self.port = self.port or free_port()
        log = self.folder / "log"
        if log.exists():
            log.replace(log.with_name("log.previous"))
        with log.open("wb") as output:
            # With the lock in its hands too, nobody else gets the folder before it has ended.
            held = [] if self._lock is None else [self._lock]
            return subprocess.Popen(
                [python, "-c", PROGRAM, str(STOP_WITHIN)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._settings(),
                pass_fds=held,
                # Ctrl-C in the terminal is ours to handle: AWS goes after those who use it.
                start_new_session=True,
            )

    def _settings(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "TMPDIR": str(self.folder / "tmp"),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "MINISTACK_HOST": "127.0.0.1",  # in the addresses of queues
            "MINISTACK_REGION": self.region,
            "SERVICES": "sqs,s3,cloudfront,sts",
            "AUTH": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "PERSIST_STATE": "1",
            "STATE_DIR": str(self.folder / "state"),
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self.folder / "s3"),
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
            "LOG_LEVEL": "WARNING",
        }

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        try:
            return not ends_before(process, lambda: _answers(self.port), within=START_WITHIN)
        except TimeoutError:
            detail = f"no answer within {START_WITHIN:.0f} s{end_of(self.folder / 'log')}"
            sentence = "The AWS emulator is not available."
            raise Unavailable("emulator_unavailable", sentence, detail) from None


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/_ministack/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
