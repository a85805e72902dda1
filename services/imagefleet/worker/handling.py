"""What a job type is to a worker: its kind, its code, and what that code is given."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from imagefleet.worker.renderer import Renderer
from pydantic import BaseModel

from imagefleet.aws.objects import Objects
from imagefleet.doorbell import Doorbell
from imagefleet.jobs.kinds import JobKind
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import Claim, JobId, JsonObject
from imagefleet.store.database import Pool


class Progress(Protocol):
    """Writes how far a job is; raises when the job should stop."""

    async def __call__(
        self, done: int, total: int | None = None, cursor: JsonObject | None = None
    ) -> None:
        """Write it, and extend the lock with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the worker shares with its handlers."""

    pool: Pool
    originals: Objects
    outputs: Objects
    renderer: Renderer
    doorbell: Doorbell
    scratch: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One attempt, as its handler sees it."""

    claim: Claim
    payload: Any
    """The payload, as an instance of the kind's own model."""
    deadline: float
    """When the attempt is stopped, on the event loop's clock."""
    progress: Progress
    tools: Tools
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the attempt is being stopped: whatever runs outside this loop must end."""

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self.claim.job_id

    @property
    def cursor(self) -> JsonObject | None:
        """Where an earlier attempt of the job left off."""
        return self.claim.cursor

    @property
    def seconds_left(self) -> float:
        """How long until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A job type that this worker can do."""

    kind: JobKind
    run: Callable[[JobContext], Awaitable[Completed]]


Handlers = Mapping[str, Handler]
PayloadModel = BaseModel
