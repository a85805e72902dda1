"""SQS as bad as it may be: messages are lost, doubled, late and out of order, calls are refused.

It answers as the product's Queue does, and keeps what it was told until it is asked for, so that a
test knows what was really lost. No emulator can be made to do this.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

from imagefleet.aws.queue import EntryFailure, Failures, Message, Queue, ReceiptHandle, Received
from imagefleet.errors import Unavailable

MOST_AT_ONCE = 10
PATIENCE = 0.02  # seconds between two looks of a long poll


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How often it does what; shares of one."""

    loses: float = 0.0
    doubles: float = 0.0
    latest: float = 0.0
    """Seconds until the slowest message is to be seen; so later ones overtake it."""
    doubts: float = 0.0
    """Of entries that were stored and are reported as failed."""
    forgets: float = 0.0
    """Of deletes that were acknowledged and not done."""


@dataclass(eq=False, slots=True)
class Stored:
    number: int
    body: str
    sent_at: datetime
    visible_at: float
    receives: int = 0


@dataclass(eq=False)
class BadQueue:
    """One lane's queue."""

    dice: random.Random
    manners: Manners = field(default_factory=Manners)
    visibility: float = 30.0
    refuses: bool = False
    stored: dict[int, Stored] = field(default_factory=dict)
    sent: int = 0
    lost: int = 0
    doubled: int = 0
    receives: int = 0
    most: int = 0
    """The most messages that it held at a time."""
    _numbers: int = 0

    def as_queue(self) -> Queue:
        return cast("Queue", self)

    def purge(self) -> int:
        purged = len(self.stored)
        self.stored.clear()
        self.lost += purged
        return purged

    async def send(self, messages: Sequence[Message]) -> Failures:
        await asyncio.sleep(0.002)
        if self.refuses:
            raise Unavailable("sqs_unavailable", "refused")
        failures: list[EntryFailure | None] = []
        for message in messages:
            self.sent += 1
            copies = 1
            if self.dice.random() < self.manners.loses:
                copies, self.lost = 0, self.lost + 1
            elif self.dice.random() < self.manners.doubles:
                copies, self.doubled = 2, self.doubled + 1
            for _ in range(copies):
                self._store(message.body)
            doubtful = self.dice.random() < self.manners.doubts
            failures.append(EntryFailure("Doubtful", "", final=False) if doubtful else None)
        self.most = max(self.most, len(self.stored))
        return tuple(failures)

    def _store(self, body: str) -> None:
        self._numbers += 1
        now = asyncio.get_running_loop().time()
        self.stored[self._numbers] = Stored(
            number=self._numbers,
            body=body,
            sent_at=datetime.now(UTC),
            visible_at=now + self.dice.random() ** 3 * self.manners.latest,
        )

    async def receive(self, *, most: int, wait: timedelta) -> list[Received]:
        clock = asyncio.get_running_loop().time
        until = clock() + wait.total_seconds()
        self.receives += 1
        while True:
            visible = [one for one in self.stored.values() if one.visible_at <= clock()]
            if visible or clock() >= until:
                break
            await asyncio.sleep(PATIENCE)
        taken = self.dice.sample(visible, min(len(visible), most, MOST_AT_ONCE))
        for one in taken:
            one.visible_at = clock() + self.visibility
            one.receives += 1
        return [
            Received(
                receipt=ReceiptHandle(str(one.number), str(one.number)),
                body=one.body,
                receive_count=one.receives,
                sent_at=one.sent_at,
                attributes={},
                redriven_from=None,
            )
            for one in taken
        ]

    async def delete(self, receipts: Sequence[ReceiptHandle]) -> Failures:
        for receipt in receipts:
            if self.dice.random() >= self.manners.forgets:
                self.stored.pop(int(receipt.message_id), None)
        return (None,) * len(receipts)

    async def change_visibility(
        self, changes: Sequence[tuple[ReceiptHandle, timedelta]]
    ) -> Failures:
        now = asyncio.get_running_loop().time()
        for receipt, span in changes:
            one = self.stored.get(int(receipt.message_id))
            if one is not None:
                one.visible_at = now + span.total_seconds()
        return (None,) * len(changes)
