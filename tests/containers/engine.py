"""The container engine of this machine, by its command line."""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.containers.contexts import context

COMMAND_WITHIN: Final = 120.0  # seconds
PREFIX: Final = "imagefleet"
GIVEN: Final = "/given"
# What no pod is told: of the host's network, as there may be no other; and how many processes.
TRIAL: Final = """
import os
print(os.getuid())
try:
    open("/opt/imagefleet/here", "w")
except OSError as error:
    print(error.strerror)
"""
BESIDE: Final = ("--network=host", "--pids-limit=256")


def image_of(process: str) -> str:
    return f"{PREFIX}-{process}"


class NoEngine(Exception):
    """Nothing here runs containers; says why."""


@dataclass(frozen=True, slots=True)
class Container:
    """One that was started."""

    name: str
    engine: "Engine"

    def stop(self, within: int) -> float:
        """SIGTERM, and SIGKILL when that is not enough; the seconds it took."""
        begun = time.monotonic()
        self.engine.call("stop", "--time", str(within), self.name, seconds=within + 30)
        return time.monotonic() - begun

    def kill(self) -> None:
        self.engine.call("kill", self.name)

    def start(self) -> None:
        self.engine.call("start", self.name)

    def trial(self) -> list[str]:
        """Who it is inside, and what becomes of writing something there."""
        return self.engine.call("exec", self.name, "python", "-c", TRIAL).splitlines()

    @property
    def state(self) -> dict[str, Any]:
        told: list[dict[str, Any]] = json.loads(self.engine.call("inspect", self.name))
        state: dict[str, Any] = told[0]["State"]
        return state

    @property
    def logs(self) -> str:
        return self.engine.call("logs", self.name, both=True)


class Engine:
    """Docker, or what understands the same words."""

    def __init__(self, command: str = "docker") -> None:
        self._command = command
        self._started: list[str] = []

    def require(self) -> None:
        if shutil.which(self._command) is None:
            message = f"{self._command} is not installed"
            raise NoEngine(message)
        try:
            self.call("info")
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            message = f"no engine answers to {self._command}"
            raise NoEngine(message) from error

    def run(
        self,
        process: str,
        environment: Mapping[str, str],
        *,
        name: str,
        reading: Path | None = None,
    ) -> Container:
        """Start one in the background, as its pod would be. What it reads lies at /given."""
        beside = ["--detach", "--name", name, *_lying(reading)]
        self.call("run", *beside, *_words(process, environment))
        self._started.append(name)
        return Container(name, self)

    def once(
        self,
        process: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        entrypoint: str | None = None,
        reading: Path | None = None,
    ) -> tuple[int, str]:
        """Run one to its end; its exit code and what it said. What it reads lies at /given."""
        other = ["--entrypoint", entrypoint] if entrypoint else []
        other += _lying(reading)
        ran = subprocess.run(
            [self._command, "run", "--rm", *other, *_words(process, environment), *words],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_WITHIN,
        )
        return ran.returncode, ran.stdout

    def size(self, process: str) -> int:
        return int(self._told(process, "{{.Size}}"))

    def user(self, process: str) -> str:
        return self._told(process, "{{.Config.User}}")

    def _told(self, process: str, template: str) -> str:
        return self.call("image", "inspect", "--format", template, image_of(process)).strip()

    def remove_all(self) -> None:
        for name in self._started:
            self.call("rm", "--force", "--volumes", name)

    def call(self, *words: str, seconds: float = COMMAND_WITHIN, both: bool = False) -> str:
        ran = subprocess.run(
            [self._command, *words],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if both else subprocess.PIPE,
            text=True,
            timeout=seconds,
        )
        return ran.stdout


def _lying(reading: Path | None) -> list[str]:
    return ["--volume", f"{reading}:{GIVEN}:ro"] if reading else []


def _words(process: str, environment: Mapping[str, str]) -> list[str]:
    given = [f"--env={key}={value}" for key, value in environment.items()]
    return [*BESIDE, *context(process), *given, image_of(process)]
