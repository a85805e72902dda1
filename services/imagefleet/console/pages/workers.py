"""Workers: who is really there, what each has in its hands, and who is gone since when."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.console.concerns import is_silent
from imagefleet.console.showing import Context
from imagefleet.console.visits import VisitHere
from imagefleet.jobs.shapes.fleet import Workers, WorkerView

WORKERS: Final = "/v1/operator/workers"

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Condition:
    """How a worker is, by what it said last and how long ago that was."""

    kind: str
    word: str
    because: str = ""

    @classmethod
    def of(cls, worker: WorkerView) -> "Condition":
        """Honestly: a worker that was not heard of is not known to work."""
        if worker.dead_at is not None and worker.dead_why == "stopped":
            return cls("", "stopped", "it ended in order")
        if worker.dead_at is not None:
            return cls("bad", "lost", (worker.dead_why or "").replace("_", " "))
        if is_silent(worker):
            return cls("warn", "silent", "its jobs are rescued after thirty seconds of silence")
        if worker.draining_since is not None:
            return cls("warn", "draining", "it takes nothing new, and ends what it has")
        if worker.drain_requested_at is not None:
            return cls("warn", "asked to drain", "its next beat tells it so, within two seconds")
        if worker.held:
            return cls("run", "working")
        return cls("ok", "idle")


@router.get("/workers")
async def show_workers(visit: VisitHere, gone: str = "") -> Response:
    """Those that live; with `gone` also those that ended within a day."""

    async def look() -> Context:
        asked = {"all": "true" if gone else None}
        fleet = await visit.look(Workers, WORKERS, asked)
        seen = [(worker, Condition.of(worker)) for worker in fleet.workers]
        alive = [worker for worker in fleet.workers if worker.dead_at is None]
        return {
            "seen": seen,
            "gone": gone,
            "alive": len(alive),
            "silent": sum(is_silent(worker) for worker in alive),
            "busy": sum(len(worker.held) for worker in alive),
            "slots": sum(worker.slots for worker in alive),
            "versions": sorted({worker.version for worker in alive}),
        }

    return await visit.show("workers.html", look)


@router.post("/workers/{worker_id}/drain")
async def drain(visit: VisitHere, worker_id: UUID) -> Response:
    """Let it end what it has, and itself."""
    because = {"reason": visit.form.one("reason")}
    path = f"{WORKERS}/{worker_id}/drain"
    worker = await visit.order(WorkerView, "POST", path, document=because)
    condition = Condition.of(worker)
    return visit.done(f"The worker at {worker.host} is {condition.word}: {condition.because}.")
