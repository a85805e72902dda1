"""A worker's shift: it registers, works until the drain, gives back what is left, and retires.

The drain: consumers stop receiving and give back what is on its way; running attempts may finish
until the grace ends; then they are stopped and their jobs released, uncharged.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog

from imagefleet.errors import Unavailable
from imagefleet.jobs.model import Lane, WorkerId
from imagefleet.runtime import Drain, supervise
from imagefleet.store.database import Pool
from imagefleet.store.fleet.control import WorkerCard, register_worker, retire_worker, start_drain
from imagefleet.telemetry.health import Check, HealthServer, Vital
from imagefleet.worker.attempt import Stop
from imagefleet.worker.attempts import Attempts
from imagefleet.worker.consumer import Consumer
from imagefleet.worker.handling import Handlers
from imagefleet.worker.lease import Lease
from imagefleet.worker.settler import Settler
from imagefleet.worker.slots import Slots

SETTLE_WITHIN: Final = timedelta(seconds=15)  # after the grace, while Postgres may be away

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A worker that is ready to work."""

    worker_id: WorkerId
    pool: Pool
    settler: Settler
    attempts: Attempts
    lease: Lease
    slots: Mapping[Lane, Slots]
    consumers: Mapping[Lane, Consumer]

    def vitals(self) -> dict[str, Vital]:
        """What a restart would cure."""
        stuck = {f"receive {lane}": one.stuck for lane, one in self.consumers.items()}
        return {"beat": self.lease.pulse, "attempts": self.attempts.late, **stuck}

    def readiness(self, drain: Drain) -> dict[str, Check]:
        """What keeps this worker from taking jobs; all of it known without asking anybody."""
        deaf = {f"queue {lane}": partial(_deaf, one) for lane, one in self.consumers.items()}
        return {"database": self.lease.stale, "drain": lambda: drain.reason, **deaf}

    async def register(self, handlers: Handlers, health: HealthServer) -> None:
        """Enter the registry, without which nothing can be claimed."""
        card = WorkerCard(
            worker_id=self.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("imagefleet"),
            types=tuple(handlers),
            slots={lane: one.total for lane, one in self.slots.items()},
        )
        async with self.pool.connection() as connection:
            await register_worker(connection, card)
        log.info(
            "worker.started",
            worker_id=str(self.worker_id),
            lanes=tuple(card.slots),
            types=card.types,
            health_port=health.port,
        )

    async def work(self, drain: Drain, grace: timedelta) -> None:
        """Take jobs until the drain, and end what runs then."""
        try:
            async with supervise(drain) as parts:
                self.attempts.owned_by(parts)
                for lane, consumer in self.consumers.items():
                    parts.start(f"consumer {lane}", consumer.run(drain))
                parts.start("drain", self._end(drain, grace))
        except asyncio.CancelledError:  # the second signal: what runs was cancelled in the middle
            await self.attempts.give_back()
            self._tell_the_end(drain, at_once=True)
            raise

    async def _end(self, drain: Drain, grace: timedelta) -> None:
        """Once the drain begins: let running jobs finish for the grace, then give them back."""
        await drain.wait()
        self.attempts.tally.clear()  # from here on it tells what became of what was running
        with suppress(Unavailable):
            async with self.pool.connection() as connection:
                await start_drain(connection, self.worker_id)
        if await self._all_free(grace):
            return
        log.warning("drain.grace_over", jobs=len(self.attempts.running))
        self.attempts.stop_all(Stop.DRAIN)
        if not await self._all_free(SETTLE_WITHIN):
            log.error("drain.unsettled", jobs=len(self.attempts.running))
            self.settler.give_up()

    async def _all_free(self, within: timedelta) -> bool:
        try:
            async with asyncio.timeout(within.total_seconds()):
                for one in self.slots.values():
                    await one.all_free()
        except TimeoutError:
            return False
        return True

    async def retire(self, drain: Drain) -> None:
        """Leave the registry; a worker that still holds something is left to the rescuer.

        Unavailable when nobody could be told: then the end was not an orderly one.
        """
        if self.lease.dead:
            self._tell_the_end(drain, dead=True)
            return
        try:
            async with self.pool.connection() as connection:
                retired = await retire_worker(connection, self.worker_id)
        except Unavailable as error:
            # The rescuer will find out: this id does not beat any more.
            self._tell_the_end(drain, code=error.code)
            raise
        self._tell_the_end(drain, holds_nothing=retired)

    def _tell_the_end(self, drain: Drain, **facts: object) -> None:
        """The last line of a worker: why it ended, and what became of what it ran by then."""
        tally = self.attempts.tally
        log.info(
            "worker.ended",
            worker_id=str(self.worker_id),
            reason=drain.reason,
            finished=tally["finished"],
            released=tally["released"],
            abandoned=tally["abandoned"],
            **facts,
        )


def _deaf(consumer: Consumer) -> str | None:
    return consumer.deaf
