"""A shell for somebody on call: lines as pages have them, and the programs that they name.

`imagefleet` is the command line itself, in a process that has imported it already and forks for
every call: a page a second would be spent on imports otherwise. `kubectl` and `aws` are answered by
the test, which knows the stack.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tests.support.eventually import eventually

WITHIN: Final = 90.0  # seconds that a line may take: one waits for the edge
PLACEHOLDER: Final = re.compile(r"\b[A-Z][A-Z_]{2,}\b(?![=_])")
COLUMNS: Final = "200"
LONGEST: Final = 1 << 20

# -I -S: starts within 20 ms. What is asked ends with a line; imagefleet is lent our files.
PROGRAM: Final = """#!{python} -IS
import json, os, socket, sys
asked = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
channel = socket.socket(socket.AF_UNIX)
channel.connect({path!r})
socket.send_fds(channel, [b"+"], [0, 1, 2])
channel.sendall(json.dumps(asked).encode() + b"\\n")
told = json.loads(b"".join(iter(lambda: channel.recv(65536), b"")) or b'{{"code": 70}}')
sys.stdout.write(told.get("out", ""))
sys.stderr.write(told.get("err", ""))
sys.exit(told["code"])
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a line ended."""

    code: int
    out: str
    err: str = ""

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}{self.err}"


Answer: TypeAlias = Callable[[Sequence[str]], Awaitable[Ended]]


@dataclass(frozen=True, slots=True)
class Shell:
    """Where lines are run."""

    folder: Path
    environment: Mapping[str, str]

    async def run(self, line: str, words: Mapping[str, str] | None = None) -> Ended:
        """Run it as it stands on the page, but for the words that are left to be filled in."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", filled(line, words or {})),
            cwd=self.folder,
            env={**self.environment, "PATH": f"{self.folder}:{os.defpath}"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(WITHIN):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())


def filled(line: str, words: Mapping[str, str]) -> str:
    """With the words of a situation; what it does not know is the page's fault, or its own."""
    unknown = [word for word in placeholders(line) if word not in words]
    assert unknown == [], f"nobody knows what {unknown} is: {line}"
    return PLACEHOLDER.sub(lambda word: words[word[0]], line)


def placeholders(line: str) -> list[str]:
    """Words in capitals that are arguments, or end one; not names of variables that are set."""
    return PLACEHOLDER.findall(line)


@asynccontextmanager
async def a_shell(
    folder: Path, environment: Mapping[str, str], answers: Mapping[str, Answer]
) -> AsyncIterator[Shell]:
    """One that knows `imagefleet`, and these."""
    command = [sys.executable, "-m", "tests.runbooks.shell", str(folder / "imagefleet.socket")]
    forking = await asyncio.create_subprocess_exec(*command)
    servers = [await _answering(folder, name, answer) for name, answer in answers.items()]
    _put(folder, "imagefleet")
    try:
        await eventually((folder / "imagefleet.socket").exists, within=30)
        yield Shell(folder, {**environment, "COLUMNS": COLUMNS, "HOME": str(folder)})
    finally:
        forking.kill()
        await forking.wait()
        for server in servers:
            server.close()


async def _answering(folder: Path, name: str, answer: Answer) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads((await reader.readline()).lstrip(b"+"))
        try:
            told = await answer(asked["arguments"])
        except Refused as refused:
            told = Ended(1, "", f"{name}: {refused}\n")
        writer.write(json.dumps({"code": told.code, "out": told.out, "err": told.err}).encode())
        writer.close()

    _put(folder, name)
    return await asyncio.start_unix_server(serve, folder / f"{name}.socket", limit=LONGEST)


def _put(folder: Path, name: str) -> None:
    program = folder / name
    path = str(folder / f"{name}.socket")
    program.write_text(PROGRAM.format(python=sys.executable, path=path))
    program.chmod(0o755)


class Refused(Exception):
    """A program was asked for what it does not know."""


def words_of(line: str) -> list[str]:
    """As the shell would hand them on."""
    return shlex.split(line)


def fork_for_each(path: str) -> None:
    """Serve `imagefleet`: a child for each call, with its caller's files and environment."""
    from imagefleet.cli import main  # noqa: F401, PLC0415 - what each child would import

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: they tell by themselves
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path + ".new")
        listening.listen()
        Path(path + ".new").rename(path)
        while True:
            channel, _ = listening.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _be_asked(channel)
            channel.close()


def _be_asked(channel: socket.socket) -> None:
    code = 70
    try:
        _, files, _, _ = socket.recv_fds(channel, 1, 3)
        asked = json.loads(channel.makefile().readline())
        for place, file in enumerate(files):
            os.dup2(file, place)
        os.chdir(asked["folder"])
        os.environ.clear()  # noqa: TID251 - it is as if it had begun with the caller's
        os.environ.update(asked["environment"])  # noqa: TID251
        from imagefleet.__main__ import main  # noqa: PLC0415 - see above

        code = main(asked["arguments"])
    finally:
        sys.stdout.flush()
        channel.sendall(json.dumps({"code": code}).encode())
        os._exit(0)


if __name__ == "__main__":
    fork_for_each(sys.argv[1])
