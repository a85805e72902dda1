"""Keeps the dead-letter queue in agreement with the letters: sends what failed, sweeps the rest.

The queue is a copy: for people who look there, for alarms, and for SQS's own redrive, which works
as a replay (`worker/messages.py`). So what waits for somebody is left visible between two sweeps,
and everything else is taken away. Nothing is deleted before Postgres knows it.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.aws.queue import Message, Queue, ReceiptHandle, Received
from imagefleet.doorbell import ring_jobs
from imagefleet.errors import InputRejected
from imagefleet.jobs.model import (
    MAX_MESSAGE_BYTES,
    JobId,
    JobMessage,
    Lane,
    encode_message,
    parse_message,
)
from imagefleet.maintenance.duties import Period, Rest, keep_at
from imagefleet.store.database import Pool
from imagefleet.store.letters.dead_letter_queue import (
    STAYS,
    DeadLetterSend,
    DeadMessage,
    Finding,
    forget_sends,
    judge_messages,
    take_due_sends,
)
from imagefleet.store.letters.replays import close_replayed
from imagefleet.telemetry.maintenance import MaintenanceMetrics

PERIOD: Final = timedelta(minutes=5)  # two requests for ten messages that wait, each time
WAIT: Final = timedelta(seconds=1)  # a receive that waits asks all of SQS's servers
SEND_WITHIN: Final = timedelta(seconds=15)
MOST_A_SWEEP: Final = 2000  # messages; SQS gives them in any order, so the next sweep sees others
LONGEST_SWEEP: Final = 20.0  # seconds; then the first ones are about to become visible again
LETTERS_AT_ONCE: Final = 500
LONGEST_CODE: Final = 100  # characters; a handler may have made it up
LONGEST_DETAIL: Final = 200
AT_ONCE: Final = timedelta()

SENTENCES: Final = {
    "unreadable": "This message is not a job message.",
    "unknown_job": "There is no job of this id.",
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sent:
    """What one look did."""

    due: int
    sent: int


class DeadLetterSender:
    """Empties the outbox of the dead-letter queue; any number may run."""

    def __init__(
        self,
        pool: Pool,
        dead_letters: Queue,
        metrics: MaintenanceMetrics,
        *,
        rest: Rest,
        batch: int = 100,
    ) -> None:
        self._pool = pool
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._rest = rest
        self._batch = batch

    async def run_once(self) -> Sent:
        """Send all that is due; what SQS did not take, or we did not forget, is sent again."""
        due = sent = 0

        async def batch() -> bool:
            nonlocal due, sent
            async with self._pool.use("take_due_sends") as connection:
                sends = await take_due_sends(connection, limit=self._batch)
            if not sends:
                return False
            failures = await self._dead_letters.send([announcing(send) for send in sends])
            answers = zip(sends, failures, strict=True)
            taken = [send.letter_id for send, failure in answers if failure is None]
            async with self._pool.use("forget_sends") as connection:
                await forget_sends(connection, taken)
            self._metrics.upkept("announce_letters", len(taken))
            log.info("dead_letter.sent", due=len(sends), sent=len(taken))
            due, sent = due + len(sends), sent + len(taken)
            # What SQS refuses is due again later, and asking on would only be refused on.
            return len(taken) == self._batch

        await keep_at(batch, within=SEND_WITHIN, rest=self._rest)
        return Sent(due=due, sent=sent)


def announcing(send: DeadLetterSend) -> Message:
    """The message that tells of a letter: a job message, and what people want to see at once."""
    job = JobMessage(
        job_id=send.job_id,
        traceparent=send.traceparent,
        tracestate=send.tracestate,
        dead_letter=send.letter_id,
    )
    reason = send.reason[:LONGEST_CODE]
    told = {"type": send.type, "failure": reason, "attempts": send.attempts}
    body = json.dumps({**json.loads(encode_message(job)), **told}, separators=(",", ":"))
    return Message(body=body, group=send.tenant_id, attributes={"reason": reason})


@dataclass(frozen=True, slots=True)
class SweptDeadLetters:
    """What one look did; `taken` is false when another process has the period."""

    taken: bool
    found: Mapping[str, int] = field(default_factory=dict)
    """How many messages were about what."""
    closed: int = 0
    """Letters that a redrive has replayed."""


class DeadLetterSweeper:
    """Looks at every message of the dead-letter queue once a period, whoever comes first."""

    def __init__(
        self,
        pool: Pool,
        dead_letters: Queue,
        queues: Mapping[Lane, Queue],
        holder: UUID,
        metrics: MaintenanceMetrics,
    ) -> None:
        self._pool = pool
        self._dead_letters = dead_letters
        self._queues = queues
        self._period = Period("sweep_dead_letters", PERIOD, pool, holder)
        self._metrics = metrics

    async def run_once(self) -> SweptDeadLetters:
        """Sweep if nobody has taken the current period yet."""
        swept = await self._period.once(self._sweep_all, report=_report)
        return swept or SweptDeadLetters(taken=False)

    async def _sweep_all(self) -> SweptDeadLetters:
        async with self._pool.use("close_replayed") as connection:
            closed = await close_replayed(connection, limit=LETTERS_AT_ONCE)
        by_finding = await self.sweep()
        if by_finding:
            log.info("dead_letter.swept", closed=closed, **by_finding)
        return SweptDeadLetters(taken=True, found=by_finding, closed=closed)

    async def sweep(self) -> Counter[str]:
        """Look at every message once; those that stay are visible again when all are seen."""
        clock = asyncio.get_running_loop().time
        until = clock() + LONGEST_SWEEP
        by_finding: Counter[str] = Counter()
        staying: list[ReceiptHandle] = []
        try:
            while clock() < until and by_finding.total() < MOST_A_SWEEP:
                received = await self._dead_letters.receive(most=10, wait=WAIT)
                if not received:
                    break
                async with self._pool.use("judge_messages") as connection:
                    judgements = await judge_messages(connection, [read(each) for each in received])
                by_finding.update(judgement.found.value for judgement in judgements)
                staying += await self._clear(received, judgements)
        finally:
            await self._dead_letters.change_visibility([(receipt, AT_ONCE) for receipt in staying])
        return by_finding

    async def _clear(
        self, received: Sequence[Received], judgements: Sequence[Finding]
    ) -> list[ReceiptHandle]:
        """Delete what has said what it had to say; what is left."""
        rings = [judgement.ring for judgement in judgements if judgement.ring is not None]
        rung = {ring.job_id for ring in await ring_jobs(self._queues, rings)}
        done: list[ReceiptHandle] = []
        staying: list[ReceiptHandle] = []
        for message, judgement in zip(received, judgements, strict=True):
            unheard = judgement.ring is not None and judgement.ring.job_id not in rung
            stays = judgement.found in STAYS or unheard
            (staying if stays else done).append(message.receipt)
        await self._dead_letters.delete(done)
        return staying


def _report(swept: SweptDeadLetters) -> dict[str, object]:
    return {"found": dict(swept.found), "closed": swept.closed}


def read(received: Received) -> DeadMessage:
    """A message of anybody's making, bounded and fit to be stored."""
    job_id: JobId | None = None
    try:
        job_id = parse_message(received.body).job_id
    except InputRejected:
        reason = "unreadable"
    else:
        reason = "unknown_job"
    came_from = received.redriven_from or received.attributes.get("queue", "")
    queue = _storable(came_from.rpartition(":")[2], LONGEST_DETAIL)
    return DeadMessage(
        job_id=job_id,
        reason=reason,
        message=SENTENCES[reason],
        detail=queue,
        sha256=hashlib.sha256(received.body.encode(errors="replace")).hexdigest(),
        snapshot={"body": _storable(received.body, MAX_MESSAGE_BYTES), "queue": queue},
        sent_at=received.sent_at,
    )


def _storable(text: str, longest: int) -> str:
    return (
        text[:longest].encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    )
