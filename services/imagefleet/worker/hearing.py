"""What this worker has heard of each lane, told with its beat: by it dispatchers know what is lost.

A long poll that brings nothing says that no message was there to be had since it began. A message
by which a job was claimed says that those announced well before it should have come through too.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

from imagefleet.jobs.model import JobMessage, Lane
from imagefleet.store.jobs.leases import Heard


class Hearing:
    """The newest silence and the newest announcement, by lane."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        """Listen to these lanes; what is told of them is told in their order."""
        self._lanes = tuple(lanes)
        self._now = asyncio.get_running_loop().time
        self._silent: dict[Lane, float] = {}
        self._heard: dict[Lane, datetime] = {}

    def silence(self, lane: Lane, began: float) -> None:
        """Take it that a long poll which began then, by this loop's clock, brought nothing."""
        self._silent[lane] = max(began, self._silent.get(lane, began))

    def claimed(self, lane: Lane, message: JobMessage) -> None:
        """Take it that this message came through."""
        at = message.announced_at
        if at is not None:
            self._heard[lane] = max(at, self._heard.get(lane, at))

    def told(self) -> Heard:
        """All of it. A span, as no clock of ours is to be compared with the database's."""
        now = self._now()
        return Heard(
            silent_for=[
                timedelta(seconds=now - self._silent[lane]) if lane in self._silent else None
                for lane in self._lanes
            ],
            heard_at=[self._heard.get(lane) for lane in self._lanes],
        )
