"""Why nothing moves in a lane, in one sentence, by the route and by the command line."""

import re
from collections.abc import Awaitable, Callable

import httpx
import pytest

from imagefleet.jobs.model import JobState, Lane, PauseScope, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause
from tests.cli.conftest import Cli
from tests.support.factories import a_job, a_submission, a_worker, announce, open_breaker
from tests.support.http import is_problem

MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|\b9\d s\b")
QUEUED, PROCESSING, *_ = JobState
RIVAL = TenantId("rival")

Make = Callable[[Connection, Connection], Awaitable[None]]


async def nothing(worker: Connection, _: Connection) -> None:
    await a_worker(worker)


async def nobody(worker: Connection, superuser: Connection) -> None:
    await a_job(worker, superuser)
    await superuser.execute("UPDATE workers SET dead_at = now(), dead_why = 'stopped'")


def held_by(what: Pause) -> Make:
    async def make(worker: Connection, superuser: Connection) -> None:
        await a_job(worker, superuser)
        await a_job(worker, superuser, submission=a_submission(tenant_id=RIVAL))
        await pause(superuser, what, by="somebody", reason="a bad day")

    return make


async def behind_a_breaker(worker: Connection, superuser: Connection) -> None:
    for _ in range(2):
        await a_job(worker, superuser, submission=a_submission(services=("s3",)))
    await open_breaker(superuser)


async def of_no_type(worker: Connection, superuser: Connection) -> None:
    await a_job(worker, superuser)
    await superuser.execute("UPDATE workers SET types = '{process_image}'")


async def for_later(worker: Connection, superuser: Connection) -> None:
    await a_job(worker, superuser, due=False)


async def full(worker: Connection, superuser: Connection) -> None:
    for _ in range(2):
        await a_job(worker, superuser, state=PROCESSING)
    await a_job(worker, superuser)
    await superuser.execute("UPDATE workers SET lanes = '{fast}', slots = '{1}'")
    await superuser.execute(
        "DELETE FROM workers WHERE NOT EXISTS (SELECT FROM jobs WHERE locked_by = workers.id)"
    )


async def announced(worker: Connection, superuser: Connection) -> None:
    job = await a_job(worker, superuser)
    await announce(worker, job.job_id)


async def window_full(worker: Connection, superuser: Connection) -> None:
    await announced(worker, superuser)
    await a_job(worker, superuser)
    await superuser.execute("UPDATE lanes SET window_size = 1, looked_at = now()")


async def unattended(worker: Connection, superuser: Connection) -> None:
    await a_job(worker, superuser)
    await superuser.execute("UPDATE lanes SET looked_at = now() - interval '90 s'")


REASONS: dict[str, tuple[Make, str, str]] = {
    "nothing": (nothing, "nothing_waits", "Nothing waits; 0 jobs run."),
    "nobody": (
        nobody,
        "no_worker_for_lane",
        "No living worker takes anything from the lane fast; there is none at all.",
    ),
    "all": (
        held_by(Pause(scope=PauseScope.ALL)),
        "all_paused",
        (
            "Everything is paused since T by somebody, until somebody lifts it: a bad day. "
            "2 jobs wait for that."
        ),
    ),
    "lane": (
        held_by(Pause(scope=PauseScope.LANE, name="fast")),
        "lane_paused",
        (
            "The lane fast is paused since T by somebody, until somebody lifts it: a bad day. "
            "2 jobs wait for that."
        ),
    ),
    "type": (
        held_by(Pause(scope=PauseScope.TYPE, name="noop")),
        "type_paused",
        (
            "The type noop is paused since T by somebody, until somebody lifts it: a bad day. "
            "2 jobs wait for that."
        ),
    ),
    "tenant": (
        held_by(Pause(scope=PauseScope.TENANT, tenant_id=RIVAL)),
        "tenant_paused",
        (
            "The tenant rival is paused since T by somebody, until somebody lifts it: a bad day. "
            "1 job waits for that."
        ),
    ),
    "breaker": (
        behind_a_breaker,
        "breaker_open",
        (
            "The circuit breaker of s3 is open until T. Its last failure was s3_unavailable. "
            "2 jobs wait for it."
        ),
    ),
    "no type": (
        of_no_type,
        "no_worker_for_type",
        "No living worker takes jobs of the type noop from this lane; 1 job waits.",
    ),
    "later": (for_later, "not_due", "1 job waits for a time; the first is due at T."),
    "full": (
        full,
        "lane_saturated",
        "Every slot is taken: 2 of 2 slots are busy; 1 wait for their turn and 0 are announced.",
    ),
    "window": (
        window_full,
        "window_full",
        (
            "Its window is full: 1 of 1 are announced, and no worker has received them yet; "
            "0 of 16 slots are busy."
        ),
    ),
    "unattended": (
        unattended,
        "no_dispatcher",
        "No dispatcher has looked for T; 1 wait for their turn and 0 are announced.",
    ),
    "announced": (
        announced,
        "moving",
        ("It moves: 0 of 8 slots are busy, 0 jobs run; 0 wait for their turn and 1 are announced."),
    ),
}


@pytest.mark.parametrize("name", REASONS)
async def test_the_route_and_the_command_line_say_why_nothing_moves(
    name: str,
    operating: httpx.AsyncClient,
    operate: Cli,
    worker: Connection,
    superuser: Connection,
) -> None:
    make, reason, sentence = REASONS[name]
    await make(worker, superuser)

    answer = await operating.get(f"/v1/operator/lanes/{Lane.FAST}/explain")
    typed = await operate("queue", "explain", "fast")

    assert answer.status_code == 200, answer.text
    explained = answer.json()
    assert (reason, sentence) == (explained["reason"], MOMENT.sub("T", explained["sentence"]))
    said, _, facts = typed.out.partition("\n")
    assert sentence == MOMENT.sub("T", said)
    assert reason in facts


async def test_what_else_is_held_is_said_as_well(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    await behind_a_breaker(worker, superuser)
    theirs = a_submission(tenant_id=RIVAL, services=("s3",))
    await a_job(worker, superuser, submission=theirs)
    await pause(
        superuser, Pause(scope=PauseScope.TENANT, tenant_id=RIVAL), by="somebody", reason="so"
    )
    await a_job(worker, superuser, submission=a_submission(type="process_image"))
    await superuser.execute("UPDATE lanes SET looked_at = now(), window_size = 10")

    explained = (await operating.get("/v1/operator/lanes/fast/explain")).json()

    assert "breaker_open" == explained["reason"]
    assert 2 == len(explained["more"])
    assert "The tenant rival is paused" in explained["more"][0]
    assert "It moves" in explained["more"][1]
    assert 4 == explained["waiting"]


async def test_what_is_not_counted_to_its_end_is_at_least_that(
    operating: httpx.AsyncClient,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("imagefleet.store.fleet.lanes.MOST_WAITING", 2)
    await held_by(Pause(scope=PauseScope.ALL))(worker, superuser)
    await held_by(Pause(scope=PauseScope.ALL))(worker, superuser)

    explained = (await operating.get("/v1/operator/lanes/fast/explain")).json()

    assert (4, True) == (explained["waiting"], explained["waitingIsAtLeast"])
    assert "4 or more jobs wait" in explained["sentence"]


async def test_a_lane_that_there_is_not_is_refused(operating: httpx.AsyncClient) -> None:
    is_problem(await operating.get("/v1/operator/lanes/slow/explain"), 422, "invalid_request")
