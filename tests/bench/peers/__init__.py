"""Others, each in the words of its own documentation, in an environment that only they have.

Their versions are pinned in requirements.txt. The environment is made when a row first needs it,
below .bench/ of the checkout, and made anew when a pin or the Python changes; nothing of it is in
uv.lock. Beside this file lie the programs that run there: they import nothing of ours, are told
what to do by one JSON argument, and answer with one JSON line.
"""

import asyncio
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.wheels import ROOT, pinned_environment

HERE: Final = Path(__file__).parent
REQUIREMENTS: Final = HERE / "requirements.txt"
WITHIN: Final = 600.0  # seconds for one program
NOT_THERE: Final = "the others could not be installed; --no-peers measures ours without them"


@dataclass(frozen=True, slots=True)
class Peers:
    """Where the others live."""

    cache: Path = ROOT / ".bench"

    @property
    def python(self) -> Path:
        """Their interpreter; makes the environment unless it is there."""
        try:
            return pinned_environment(REQUIREMENTS, self.cache)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(NOT_THERE) from error

    async def start(
        self, *words: str, environment: dict[str, str] | None = None, log: Path | None = None
    ) -> asyncio.subprocess.Process:
        """Begin a program of theirs, with the standard output in a pipe or this file."""
        python = await asyncio.to_thread(lambda: self.python)
        given = {"PATH": os.defpath, "PYTHONPATH": str(HERE), **(environment or {})}
        output = asyncio.subprocess.PIPE if log is None else log.open("ab")
        try:
            return await asyncio.create_subprocess_exec(
                python,
                *words,
                env=given,
                cwd=self.cache,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.PIPE if log is None else asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            if not isinstance(output, int):
                output.close()

    async def ask(self, program: str, asked: object, **environment: str) -> dict[str, Any]:
        """What a program of this folder answers."""
        words = [str(HERE / f"{program}.py"), json.dumps(asked)]
        process = await self.start(*words, environment=environment)
        try:
            async with asyncio.timeout(WITHIN):
                said, complained = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, f"{program}: {complained.decode()[-4000:]}"
        answer: dict[str, Any] = json.loads(said.decode().strip().splitlines()[-1])
        return answer
