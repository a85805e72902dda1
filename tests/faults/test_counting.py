"""The metrics of all processes add up to the attempts on record, however and by whomever they end.

And every end is one line, with all that its row says.
"""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from imagefleet.store.database import Connection
from tests.faults.counting import KILLED, SERIES, Bookkeeper, Books, Death, Life, Told
from tests.faults.director import ALWAYS, Reached
from tests.faults.killing import age_rings
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved, without_pixels
from tests.support.stack import Producer, Stack, running_stack

SLOTS = 4
SETTINGS = {
    "all": {"BACKOFF_BASE_SECONDS": "1", "LOG_FORMAT": "json"},
    "worker": {
        "WORKER_FAST_SLOTS": "2",
        "WORKER_GENERAL_SLOTS": "2",
        "RENDER_CHILDREN": "1",
        "SHUTDOWN_GRACE_PERIOD_SECONDS": "1",
    },
    "maintenance": {"RESCUE_AFTER": "4"},
}
LOCK_SECONDS = 3
TRACED = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
FOR_EVER = {"milliseconds": 60_000}
LATER = timedelta(hours=1)
PAUSE = "INSERT INTO pauses (scope, paused_by, reason) VALUES ('all', 'tests', 'to flag a job')"
RESUME = "DELETE FROM pauses"
SHORTEN_LOCKS = "UPDATE fleet SET lock_timeout = make_interval(secs => $1)"
STANDARD_LOCKS = "UPDATE fleet SET lock_timeout = interval '10 minutes'"
# Who stands still renews no lock; nobody else may look as if it did.
IS_EXPIRED = """
SELECT locked_at < now() - lock_timeout FROM jobs CROSS JOIN fleet WHERE id = $1::uuid
"""
HOLDER = """
SELECT workers.pid FROM jobs JOIN workers ON workers.id = jobs.locked_by
 WHERE jobs.id = $1::uuid AND jobs.state = 'processing'
"""
OUTCOMES = "SELECT outcome FROM attempts WHERE job_id = $1::uuid ORDER BY claim_no"


class Hands:
    """What this test does to a stack."""

    def __init__(
        self, stack: Stack, producer: Producer, operator: Producer, owner: Connection
    ) -> None:
        self.stack = stack
        self.producer = producer
        self.operator = operator
        self.owner = owner

    async def submit(self, **job: object) -> str:
        body = {"jobType": "noop", "payload": FOR_EVER, **job}
        answer = await self.producer.http.post("/v1/jobs", json=body, headers=TRACED)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["jobId"]
        return job_id

    async def holder(self, job_id: str, *, other_than: int | None = None) -> int:
        """The worker that has it now."""

        async def held() -> int | None:
            pid: int | None = await self.owner.fetchval(HOLDER, job_id)
            return None if pid == other_than else pid

        return await eventually(held, within=30)

    async def outcome(self, job_id: str, *expected: str) -> None:
        async def ended() -> bool:
            await age_rings(self.owner)
            outcomes = [row["outcome"] for row in await self.owner.fetch(OUTCOMES, job_id)]
            assert [*expected] == outcomes
            return True

        await eventually(ended, within=30)

    async def cancel(self, job_id: str) -> None:
        answer = await self.producer.http.post(f"/v1/jobs/{job_id}/cancel", json={})
        assert answer.status_code == 202, answer.text
        await self.failed(job_id, "cancelled")

    async def fail(self, job_id: str) -> None:
        path = f"/v1/operator/jobs/{job_id}/fail"
        answer = await self.operator.http.post(path, json={"reason": "it blocks"})
        assert answer.status_code == 202, answer.text
        await self.failed(job_id, "failed_by_operator")

    async def failed(self, job_id: str, code: str) -> None:
        ended = await self.producer.ended(job_id)
        assert ("failed", code) == (ended["status"], ended["failure"]["code"])

    async def message(self, job_id: str) -> None:
        """A second one of the same job, as SQS may deliver it."""
        url = self.stack.place.queue_urls["fast"]
        body = f'{{"v":1,"job_id":"{job_id}"}}'
        self.stack.place.client("sqs").send_message(
            QueueUrl=url, MessageBody=body, **({"MessageGroupId": "x"} if "fifo" in url else {})
        )


async def ordinary_ends(hands: Hands) -> None:
    picture = saved(quadrants())
    asked = [await hands.producer.upload(picture) for _ in range(4)]
    asked += [await hands.producer.upload(without_pixels(picture))]
    asked += [await hands.producer.submit("noop", {"milliseconds": n}) for n in range(6)]
    for one in asked:
        await hands.producer.ended(one.json()["jobId"])


async def a_poisonous_picture(hands: Hands) -> None:
    picture = saved(quadrants(40, 25)) + b"poison:segfault"
    accepted = (await hands.producer.upload(picture)).json()
    await hands.failed(accepted["jobId"], "poison")


async def orders_to_end(hands: Hands) -> None:
    """Of jobs that wait, and of jobs that run."""
    for order in (hands.cancel, hands.fail):
        await order(await hands.submit(runAt=(datetime.now(UTC) + LATER).isoformat()))
        running = await hands.submit()
        await hands.holder(running)
        await order(running)


async def a_deleted_image(hands: Hands) -> None:
    await hands.owner.execute(PAUSE)
    accepted = (await hands.producer.upload(saved(quadrants(48, 30)))).json()
    deleted = await hands.producer.http.delete(f"/v1/images/{accepted['imageId']}")
    assert deleted.status_code == 202, deleted.text
    await hands.failed(accepted["jobId"], "image_deleted")
    await hands.producer.ended(deleted.json()["jobId"])
    await hands.owner.execute(RESUME)


async def a_drain(hands: Hands) -> None:
    job_id = await hands.submit()
    os.kill(await hands.holder(job_id), signal.SIGTERM)
    await hands.outcome(job_id, "released")
    await hands.cancel(job_id)


async def a_rescue(hands: Hands) -> None:
    job_id = await hands.submit()
    assert hands.stack.director.kill_anywhere(await hands.holder(job_id), "worker")
    await hands.outcome(job_id, "rescued")
    await hands.cancel(job_id)


async def a_kill_after_the_commit(hands: Hands) -> None:
    """It has counted, or was about to; whether anybody has seen that, nobody can say."""
    director, before = hands.stack.director, len(hands.stack.journal.kills)

    def decide(reached: Reached) -> str:
        fresh = len(hands.stack.journal.kills) == before
        return "kill" if fresh and reached.point == "not yet deleted" else "go"

    director.decide = decide  # type: ignore[assignment]
    accepted = await hands.producer.submit("noop", {"milliseconds": 1})
    await hands.producer.ended(accepted.json()["jobId"])
    await eventually(lambda: len(hands.stack.journal.kills) > before, within=20)
    director.decide = lambda _: "go"


async def a_kill_of_maintenance(hands: Hands, books: Bookkeeper) -> None:
    """What it had told of rescues so far was seen, and the next one tells on."""
    await books.look()
    (pid,) = hands.stack.pids("maintenance").values()
    assert hands.stack.director.kill_anywhere(pid, "maintenance")
    await a_rescue(hands)


@asynccontextmanager
async def frozen(*pids: int) -> AsyncIterator[None]:
    for pid in pids:
        os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGCONT)


async def an_expired_lock(hands: Hands, *outcomes: str, **job: object) -> str:
    """Its worker stands still, and so does whoever would rescue it: the next message finds it."""
    await hands.owner.execute(SHORTEN_LOCKS, LOCK_SECONDS)
    job_id = await hands.submit(**job)
    holder = await hands.holder(job_id)

    async def is_expired() -> bool:
        return bool(await hands.owner.fetchval(IS_EXPIRED, job_id))

    async with frozen(*hands.stack.pids("maintenance").values(), holder):
        await eventually(is_expired, within=20)
        await hands.message(job_id)
        await hands.outcome(job_id, *outcomes)
    await hands.owner.execute(STANDARD_LOCKS)
    return job_id


async def all_ends(hands: Hands, books: Bookkeeper) -> None:
    await ordinary_ends(hands)
    await a_poisonous_picture(hands)
    await orders_to_end(hands)
    await a_deleted_image(hands)
    await a_drain(hands)
    await a_rescue(hands)
    await a_kill_after_the_commit(hands)
    await a_kill_of_maintenance(hands, books)
    await an_expired_lock(hands, "exhausted", maxAttempts=1)
    await hands.cancel(await an_expired_lock(hands, "taken_over"))


@pytest.mark.timeout(240)
async def test_every_end_is_counted_once_and_told_once_by_whichever_process_wrote_it() -> None:
    async with (
        running_stack(workers=2, settings=SETTINGS, points=ALWAYS, poison=True) as stack,
        stack.producer() as producer,
        stack.producer(key="operator_key") as operator,
        stack.database() as owner,
        Bookkeeper(stack).watching() as keeper,
    ):
        await all_ends(Hands(stack, producer, operator, owner), keeper)
        await stack.all_ended(within=60)
        books = await keeper.close()

    for name, value in books.figures():
        print(f"{name:<36}{value:>8}")  # noqa: T201 - the figures are half of the test
    assert [] == books.wrong()
    assert ALL == {row["outcome"] for row in books.rows}
    assert {"cancelled", "failed_by_operator", "image_deleted", "poison"} <= {
        row["why"] for row in books.rows
    }
    assert {"a" * 32} <= {line.get("trace_id") for line in books.lines}
    # What may be missing is what a killed process held at that moment, and had just settled.
    assert [] == [lines for lines in books.unshown_lines.values() if len(lines) > SLOTS * 2]
    assert len(books.untold) <= SLOTS * 2 * len(books.deaths)
    assert 0 < sum(life.how == "ended with exit code 0" for life in books.lives)


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def books_of_one(*, how: str, told_before: timedelta, shown: int = 1) -> Books:
    """Of a worker that told two ends, and ended."""
    told_at = (MOMENT - told_before).isoformat()
    ends: list[Told] = [
        {
            "timestamp": told_at,
            "event": "job.completed",
            "outcome": "completed",
            "why": "done",
            "state": "completed",
            "job_type": "noop",
            "worker_id": "w",
            "correlation_id": "c",
            "trace_id": "",
            "duration_seconds": 0.5,
            "job_id": str(number),
            "claim_no": 1,
        }
        for number in range(2)
    ]
    rows = [
        {**end, "type": "noop", "status": "completed", "duration": 0.5, "ended_at": 0.0}
        for end in ends
    ]
    seen = Counter({("noop", "completed"): shown})
    death = Death(process="worker", worker_id="w", at=MOMENT.timestamp())
    return Books(
        rows=rows,
        lives=[Life(name="worker-1", worker_id="w", ends=ends, how=how)],
        shown={0: dict.fromkeys(SERIES, seen)},
        living=frozenset(),
        deaths=[death] if how == KILLED else [],
        outages=[],
    )


AT_ONCE, LONG_AGO = timedelta(seconds=0.1), timedelta(minutes=1)
IN_ORDER = "ended with exit code 0"


def test_what_a_killed_process_had_just_told_may_be_missing() -> None:
    books = books_of_one(how=KILLED, told_before=AT_ONCE)

    assert [] == books.wrong()
    assert 1 == books.unshown.total()


@pytest.mark.parametrize(
    ("how", "told_before"),
    [(KILLED, LONG_AGO), (IN_ORDER, AT_ONCE), ("ended with exit code 1", AT_ONCE)],
)
def test_nothing_else_may_be_missing(how: str, told_before: timedelta) -> None:
    (wrong,) = books_of_one(how=how, told_before=told_before).wrong()

    assert "worker-1" in wrong


def test_who_ended_in_order_has_shown_everything() -> None:
    assert [] == books_of_one(how=IN_ORDER, told_before=LONG_AGO, shown=2).wrong()


@pytest.mark.parametrize(("ended_by", "excused"), [("w", True), ("another", False)])
def test_only_the_death_of_who_wrote_it_excuses_an_end_that_nobody_told(
    ended_by: str, *, excused: bool
) -> None:
    books = books_of_one(how=KILLED, told_before=AT_ONCE)
    ended_at = MOMENT.timestamp()
    books = replace(
        books,
        rows=[
            {**row, "outcome": "exhausted", "ended_by": ended_by, "ended_at": ended_at}
            for row in books.rows
        ],
        lives=[Life(name="worker-1", worker_id="w", how=KILLED)],
    )

    untold = [line for line in books.wrong() if line.startswith("nobody told of")]

    assert (0 if excused else 2) == len(untold)


ALL = {"completed", "retried", "failed", "released", "rescued", "taken_over", "exhausted"}
