"""Keeping the messages of long jobs invisible, for as long as the database says they are ours.

A message that becomes visible while its job runs does no harm, its receiver is told `busy`. But it
costs a receive, and a queue moves what was received too often to the dead letters.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from imagefleet.aws.queue import Queue
from imagefleet.jobs.model import Fence
from imagefleet.worker.deliveries import Deliveries, Delivery

RENEW_AT: Final = 1 / 3  # of the visibility left: most jobs end before, and are never extended


@dataclass(slots=True)
class _Held:
    delivery: Delivery
    visible_at: float


class Visibility:
    """The messages of the attempts that run here."""

    def __init__(self, deliveries: Deliveries, spans: Mapping[Queue, timedelta]) -> None:
        """Know the visibility timeout of each queue, in which every receive begins."""
        self._deliveries = deliveries
        self._spans = spans
        self._held: dict[Fence, _Held] = {}
        self._now = asyncio.get_running_loop().time

    def keep(self, fence: Fence, delivery: Delivery) -> None:
        """Look after a message that was received a moment ago, for the sake of this claim."""
        span = self._spans[delivery.queue].total_seconds()
        self._held[fence] = _Held(delivery, self._now() + span)

    def let_go(self, fence: Fence) -> None:
        """Look after it no longer."""
        self._held.pop(fence, None)

    def renew(self, standing: Iterable[Fence]) -> None:
        """Extend what would be seen soon; to be called with the claims that a beat confirmed."""
        for fence in standing:
            held = self._held.get(fence)
            if held is None:
                continue
            span = self._spans[held.delivery.queue]
            if held.visible_at - self._now() < span.total_seconds() * RENEW_AT:
                held.visible_at = self._now() + span.total_seconds()
                self._deliveries.defer(held.delivery.queue, held.delivery.received, span)
