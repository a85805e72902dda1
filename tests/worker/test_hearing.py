"""What a worker hears, by lane, and tells with its beat: by that lost messages are known."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobMessage, Lane, encode_message, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.jobs.dispatching import look_at_fleet
from imagefleet.store.jobs.leases import Heard, renew_claims
from imagefleet.worker.slots import Hearing
from tests.support.bench import Bench
from tests.support.eventually import eventually
from tests.support.factories import a_submission, a_worker
from tests.support.queues import LONGEST_POLL, FakeQueue, a_message
from tests.worker.listening import listening

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TOMORROW = datetime.now(UTC) + timedelta(days=1)
NOTHING = timedelta()


def message(announced_at: datetime | None) -> JobMessage:
    return JobMessage(job_id=new_job_id(), announced_at=announced_at)


async def test_who_has_heard_nothing_says_so_of_every_lane() -> None:
    told = Hearing([Lane.GENERAL, Lane.FAST]).told()

    assert ([None, None], [None, None]) == (told.silent_for, told.heard_at)


async def test_it_is_told_in_the_order_of_the_workers_lanes() -> None:
    hearing = Hearing([Lane.QUARANTINE, Lane.FAST])
    hearing.claimed(Lane.FAST, message(FIRST))
    hearing.silence(Lane.QUARANTINE, asyncio.get_running_loop().time() - 3)

    told = hearing.told()

    assert [None, FIRST] == told.heard_at
    silent, other = told.silent_for
    assert other is None
    assert silent is not None
    assert timedelta(seconds=3) <= silent < timedelta(seconds=5)


async def test_only_the_newest_counts_in_whatever_order_they_come() -> None:
    hearing = Hearing([Lane.FAST])
    now = asyncio.get_running_loop().time()
    for at in (FIRST + SECOND, None, FIRST):
        hearing.claimed(Lane.FAST, message(at))
    for began in (now - 2, now - 9):
        hearing.silence(Lane.FAST, began)

    told = hearing.told()

    assert [FIRST + SECOND] == told.heard_at
    (silent,) = told.silent_for
    assert silent is not None
    assert timedelta(seconds=2) <= silent < timedelta(seconds=4)


@pytest.mark.parametrize("lanes", [tuple(Lane), tuple(reversed(Lane))])
async def test_a_beat_writes_it_by_the_databases_clock_for_the_right_lane(
    worker: Connection, maintenance: Connection, lanes: tuple[Lane, ...]
) -> None:
    me = await a_worker(worker, lanes=lanes)
    hearing = Hearing(lanes)
    began = asyncio.get_running_loop().time() - 60
    hearing.silence(Lane.FAST, began)
    hearing.claimed(Lane.GENERAL, message(FIRST))

    assert (await renew_claims(worker, me, [], hearing.told())).alive

    fleets = await look_at_fleet(maintenance)
    now = await maintenance.fetchval("SELECT now()")
    assert {Lane.GENERAL: FIRST} == {
        lane: fleet.heard_at for lane, fleet in fleets.items() if fleet.heard_at is not None
    }
    silent = {lane: fleet.silent_at for lane, fleet in fleets.items() if fleet.silent_at}
    assert {Lane.FAST} == set(silent)
    assert timedelta(seconds=60) <= now - silent[Lane.FAST] < timedelta(seconds=70)


async def test_an_announcement_from_the_future_is_not_believed(
    worker: Connection, maintenance: Connection
) -> None:
    """A message says what its sender wants: nothing that was sent just now is lost by it."""
    me = await a_worker(worker, lanes=[Lane.FAST])
    later = datetime.now(UTC) + timedelta(days=1)

    await renew_claims(worker, me, [], Heard(silent_for=[None], heard_at=[later]))

    fleet = (await look_at_fleet(maintenance))[Lane.FAST]
    assert fleet.heard_at is not None
    assert fleet.heard_at < later - timedelta(hours=23)


async def test_a_beat_of_who_has_heard_nothing_takes_nothing_for_heard(
    worker: Connection, maintenance: Connection
) -> None:
    await renew_claims(worker, await a_worker(worker), [])

    for fleet in (await look_at_fleet(maintenance)).values():
        assert (None, None) == (fleet.silent_at, fleet.heard_at)


# What a consumer takes for heard, and what for silence.


async def test_a_message_by_which_a_job_was_claimed_is_heard_and_no_other(bench: Bench) -> None:
    runs, later = await bench.submit(), await bench.submit(a_submission(run_at=TOMORROW))
    async with listening(bench) as heard:
        messages = {runs.job_id: FIRST, later.job_id: FIRST + SECOND}
        heard.own.waiting += [
            a_message(encode_message(JobMessage(job_id=job_id, announced_at=at)))
            for job_id, at in messages.items()
        ]
        await heard.runs(1)
        await eventually(lambda: heard.own.deleted)

    assert {Lane.FAST: FIRST} == heards(heard.hearing)


async def test_a_long_poll_that_brings_nothing_is_a_silence_since_it_began(bench: Bench) -> None:
    async with listening(bench) as heard:
        before = asyncio.get_running_loop().time()
        await eventually(lambda: len(heard.own.asked) > 2)
        told = heard.hearing.told()
        after = asyncio.get_running_loop().time()

    silences = dict(zip(Lane, told.silent_for, strict=True))
    span = silences.pop(Lane.FAST)
    assert [None, None] == list(silences.values())
    assert span is not None
    assert NOTHING < span <= timedelta(seconds=after - before) + timedelta(seconds=LONGEST_POLL)


async def test_a_poll_that_does_not_wait_is_no_silence(bench: Bench) -> None:
    """General slots ask the fast lane in passing: an answer of one server of many."""
    helps = FakeQueue("helps")
    async with listening(bench, lane=Lane.GENERAL, helps=helps) as heard:
        await eventually(lambda: NOTHING in helps.polls and heard.hearing.told().silent_for[1])

    silent = dict(zip(Lane, heard.hearing.told().silent_for, strict=True))
    assert silent[Lane.FAST] is None
    assert silent[Lane.GENERAL] is not None


async def test_a_poll_that_fails_or_brings_something_is_no_silence(bench: Bench) -> None:
    submission = await bench.submit()
    async with listening(bench, slots=1) as heard:
        heard.ring(submission)
        await heard.runs(1)
        assert [None] * 3 == heard.hearing.told().silent_for
        heard.own.say = Unavailable("sqs_unavailable", "away")
        asked = len(heard.own.asked)
        heard.started[0].leave()
        await eventually(lambda: len(heard.own.asked) > asked)

        assert [None] * 3 == heard.hearing.told().silent_for


def heards(hearing: Hearing) -> dict[Lane, datetime]:
    told = zip(Lane, hearing.told().heard_at, strict=True)
    return {lane: at for lane, at in told if at is not None}
