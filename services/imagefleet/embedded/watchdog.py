"""Ends the processes of a supervisor that was killed outright.

A process of its own that reads process ids from a pipe. When the pipe closes, however that
happened, it asks those still alive to end, and a little later it insists. A pidfd cannot hit
another process that was given the same number.
"""

import subprocess
import sys
from typing import Final

INSIST_AFTER: Final = 5.0  # seconds; what they talk to is on its way out as well

PROGRAM: Final = """
import os, select, signal, sys, time
held = {}
for line in sys.stdin:
    for gone in select.select(list(held), [], [], 0)[0]:
        os.close(gone)
        del held[gone]
    try:
        held[os.pidfd_open(int(line))] = int(line)
    except ProcessLookupError:
        pass
def end(number):
    for pidfd in held:
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            pass
end(signal.SIGTERM)
deadline = time.monotonic() + float(sys.argv[1])
while held and time.monotonic() < deadline:
    for gone in select.select(list(held), [], [], deadline - time.monotonic())[0]:
        del held[gone]
for pidfd, pid in held.items():
    if not select.select([pidfd], [], [], 0)[0]:
        os.killpg(pid, signal.SIGKILL)
"""


class Watchdog:
    """Knows every process that must not outlive this one."""

    def __init__(self) -> None:
        # -I -S: starts in 10 ms and imports nothing that is not Python's own.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, str(INSIST_AFTER)],
            stdin=subprocess.PIPE,
            cwd="/",
            env={},
            start_new_session=True,
            text=True,
        )

    def watch(self, pid: int) -> None:
        """End this process, which leads a group of its own, should we be gone."""
        assert self._process.stdin is not None  # noqa: S101 - see above
        self._process.stdin.write(f"{pid}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Call it off, once every process has ended."""
        self._process.communicate()
