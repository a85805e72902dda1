"""Jobs that are asked for at the same time are written together, and each has its own answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import fastapi.dependencies.utils
import fastapi.routing
import httpx
import pytest

from imagefleet.api.http import limiting
from imagefleet.api.producers import accepting
from imagefleet.api.producers.accepting import Accepting
from imagefleet.errors import LimitReached, StoreRejected, Unavailable
from imagefleet.jobs.model import PauseScope, Submitted, new_job_id
from imagefleet.store.database import Connection, Transaction
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.images.images import ACCEPT_SOURCE, INSERT_IMAGE
from imagefleet.store.jobs.admissions import (
    FIND_KEY_OR_REFUSAL,
    FIND_REFUSALS,
    LIST_STANDING,
    ROOM_FOR_JOBS,
)
from imagefleet.store.jobs.submissions import (
    FIND_STANDING,
    INSERT_JOBS,
    TAKE_PLACES,
    insert_submissions,
    submit_together,
)
from tests.conftest import OpenConnection
from tests.support.api import JPEG, Running, a_key, app_of
from tests.support.database import driver_of
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.http import a_jpeg, is_problem

JOB: Final = {"jobType": "noop"}
ALONE: Final = [FIND_REFUSALS, INSERT_JOBS]
REPEATED: Final = [*ALONE, FIND_REFUSALS, "BEGIN", INSERT_JOBS, FIND_STANDING, "COMMIT"]
UPLOAD: Final = [FIND_KEY_OR_REFUSAL, INSERT_IMAGE]
REPEATED_UPLOAD: Final = [FIND_KEY_OR_REFUSAL, FIND_STANDING]
OURS: Final = {
    *(*REPEATED, *UPLOAD, *REPEATED_UPLOAD),
    *(LIST_STANDING, ROOM_FOR_JOBS, TAKE_PLACES, ACCEPT_SOURCE),
}
MANY: Final = 40
MOST_POOLED: Final = 10  # connections, by default

WAITING: Final = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
CUT: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
"""
TRACE: Final = "00-{0:032x}-b7ad6b7169203331-01"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the requests of this process cost: each is a round trip to Postgres."""
    statements: list[str] = []

    def told(kind: type, name: str, said: str | None) -> None:
        run = getattr(kind, name)

        async def telling(self: object, *given: object, **named: object) -> object:
            statement = said or given[0]
            if statement in OURS:
                statements.append(str(statement))
            return await run(self, *given, **named)

        monkeypatch.setattr(kind, name, telling)

    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        told(Connection, name, None)
    told(Transaction, "__aenter__", "BEGIN")
    told(Transaction, "__aexit__", "COMMIT")
    return statements


@pytest.fixture(autouse=True)
async def _known(acme: httpx.AsyncClient, rival: httpx.AsyncClient) -> None:
    """What is looked up once in seconds: whose the keys are, and how much room there is."""
    for client in (acme, rival):
        assert 202 == (await client.post("/v1/jobs", json=JOB)).status_code


def taking(running: Running) -> Accepting:
    found: Accepting = app_of(running).state.accepting
    return found


@asynccontextmanager
async def held_up(
    running: Running, superuser: OpenConnection, client: httpx.AsyncClient
) -> AsyncIterator[None]:
    """While one write is on its way; what comes meanwhile is the next one."""
    together = taking(running)._together
    async with asyncio.TaskGroup() as group, driver_of(superuser).transaction():
        await superuser.execute("LOCK TABLE pauses IN ACCESS EXCLUSIVE MODE")
        first = group.create_task(client.post("/v1/jobs", json=JOB))
        await eventually(lambda: together._writing is not None and not together._writing.done())
        await eventually(lambda: together.waiting == 0)
        yield
    assert 202 == first.result().status_code


async def together(
    running: Running,
    superuser: OpenConnection,
    wanted: Sequence[tuple[httpx.AsyncClient, Mapping[str, object], Mapping[str, str]]],
) -> list[httpx.Response]:
    """The answers to these requests, which come while another is being written."""
    async with asyncio.TaskGroup() as group, held_up(running, superuser, wanted[0][0]):
        tasks = []
        for number, (client, body, headers) in enumerate(wanted):
            posted = client.post("/v1/jobs", json=JOB | dict(body), headers=dict(headers))
            tasks.append(group.create_task(posted))
            await eventually(partial(_as_many_wait, running, number + 1))
    return [task.result() for task in tasks]


def _as_many_wait(running: Running, number: int) -> bool:
    return taking(running)._together.waiting == number


@pytest.mark.parametrize(
    ("headers", "statements"),
    [({}, ALONE), ({"Idempotency-Key": "k"}, ALONE), ({"Idempotency-Key": "old"}, REPEATED)],
    ids=["no key", "a key", "a repeat"],
)
async def test_what_a_lone_request_costs(
    headers: dict[str, str], statements: list[str], acme: httpx.AsyncClient, asked: list[str]
) -> None:
    old = (await acme.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "old"})).json()
    asked.clear()

    answer = await acme.post("/v1/jobs", json=JOB, headers=headers)

    assert 202 == answer.status_code
    assert (answer.json()["jobId"] == old["jobId"]) == (headers == {"Idempotency-Key": "old"})
    assert asked == statements


@pytest.mark.parametrize(
    ("headers", "statements"),
    [
        ({}, UPLOAD),
        ({"Idempotency-Key": "k"}, UPLOAD),
        ({"Idempotency-Key": "old"}, REPEATED_UPLOAD),
    ],
    ids=["no key", "a key", "a repeat"],
)
async def test_what_an_upload_costs(
    headers: dict[str, str], statements: list[str], acme: httpx.AsyncClient, asked: list[str]
) -> None:
    old = {"Idempotency-Key": "old"}
    await acme.post("/v1/images", content=a_jpeg(), headers=JPEG | old)
    asked.clear()

    answer = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG | headers)

    assert 202 == answer.status_code
    assert asked == statements


async def test_no_request_waits_for_a_thread_and_a_plain_one_for_no_framework(
    running: Running, acme: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counted(where: object, name: str) -> None:
        called = getattr(where, name)

        async def counting(*given: object, **named: object) -> object:
            calls[name] += 1
            return await called(*given, **named)

        monkeypatch.setattr(where, name, counting)

    counted(fastapi.dependencies.utils, "run_in_threadpool")
    counted(fastapi.routing, "solve_dependencies")
    batch = await acme.post("/v1/jobs:batch", json={"jobs": [JOB]})
    posted = await acme.post("/v1/jobs", json=JOB)
    assert calls == {}

    listed = await acme.get("/v1/jobs")

    assert [200, 202, 200] == [each.status_code for each in (batch, posted, listed)]
    assert calls["run_in_threadpool"] == 0
    assert calls["solve_dependencies"] > 0, "this counts nothing"


@pytest.mark.parametrize(
    "keys",
    [[{}] * MANY, [{"Idempotency-Key": f"k{n}"} for n in range(MANY)]],
    ids=["no keys", "a key each"],
)
async def test_requests_of_one_moment_cost_what_one_does(
    keys: list[dict[str, str]],
    running: Running,
    acme: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    superuser: OpenConnection,
    asked: list[str],
) -> None:
    clients = (acme, rival)

    answers = await together(
        running, superuser, [(clients[n % 2], {}, key) for n, key in enumerate(keys)]
    )

    assert {202} == {answer.status_code for answer in answers}
    assert MANY == len({answer.json()["jobId"] for answer in answers})
    assert asked == [*ALONE, *ALONE]  # of the one that held them up, and of all of them
    tenants = await superuser.fetch("SELECT tenant_id FROM jobs")
    found = Counter(row["tenant_id"] for row in tenants)
    assert found == {"acme": 2 + MANY // 2, "rival": 1 + MANY // 2}
    await eventually(partial(_all_are_rung, superuser), within=10)  # nobody else does it here


async def _all_are_rung(superuser: Connection) -> bool:
    return 0 == len(await superuser.fetch("SELECT FROM rings WHERE sent_at IS NULL"))


async def test_each_of_them_has_its_own_answer_and_its_own_trace(
    running: Running,
    acme: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    superuser: OpenConnection,
    operator: Connection,
) -> None:
    old = await acme.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "old"})
    stopped = Pause(scope=PauseScope.TENANT, tenant_id="rival")
    await pause(operator, stopped, by="tests", reason="CANARY", refuse_new=True)
    key, other = {"Idempotency-Key": "same"}, JOB | {"payload": {"milliseconds": 1}}
    traced = [{"traceparent": TRACE.format(number)} for number in range(1, 9)]

    first, second, differs, again, refused, unkeyed, folded, orphan = await together(
        running,
        superuser,
        [
            (acme, {}, key | traced[0]),
            (acme, {}, key | traced[1]),
            (acme, other, key | traced[2]),
            (acme, {}, {"Idempotency-Key": "old"} | traced[3]),
            (rival, {}, traced[4]),
            (acme, {}, traced[5]),
            (acme, {}, {"Idempotency-Key": "unlike"} | traced[6]),
            (acme, {"parentJobId": str(new_job_id())}, traced[7]),
        ],
    )

    assert [202] * 5 == [one.status_code for one in (first, second, again, unkeyed, folded)]
    assert first.json()["jobId"] == second.json()["jobId"]
    assert again.content == old.content
    is_problem(differs, 422, "idempotency_conflict")
    is_problem(refused, 503, "submits_paused")
    is_problem(orphan, 404, "not_found")
    rows = await superuser.fetch("SELECT id::text, traceparent FROM jobs")
    traces = {row["id"]: row["traceparent"] for row in rows}
    for answer, trace in ((first, traced[0]), (unkeyed, traced[5]), (folded, traced[6])):
        assert traces[answer.json()["jobId"]] == trace["traceparent"]


async def test_of_two_that_want_the_last_place_one_gets_it(
    running: Running, acme: httpx.AsyncClient, rival: httpx.AsyncClient, superuser: OpenConnection
) -> None:
    """Two are open already: the one before the test, and the one that holds them up."""
    await superuser.execute("UPDATE tenants SET max_open_jobs = 3 WHERE id = 'acme'")
    app_of(running).state.limiting.tenants.of("acme").room = limiting.Places()

    answers = await together(running, superuser, [(acme, {}, {}), (acme, {}, {}), (rival, {}, {})])

    assert [202, 429, 202] == [answer.status_code for answer in answers]
    is_problem(answers[1], 429, "too_many_open_jobs")


async def test_who_goes_away_is_not_written_and_takes_nobody_along(
    running: Running, acme: httpx.AsyncClient, superuser: OpenConnection
) -> None:
    key, gone, stays = a_key(), a_submission(), a_submission()
    async with asyncio.TaskGroup() as group, held_up(running, superuser, acme):
        leaving = group.create_task(taking(running).take(key, gone))
        staying = group.create_task(taking(running).take(key, stays))
        await eventually(lambda: taking(running)._together.waiting == 2)
        leaving.cancel()
        await asyncio.wait([leaving])

    assert staying.result().job_id == stays.job_id
    wanted = [gone.job_id, stays.job_id]
    written = await superuser.fetch("SELECT id FROM jobs WHERE id = ANY ($1)", wanted)
    assert [stays.job_id] == [row["id"] for row in written]


async def test_nobody_waits_longer_than_for_a_connection(
    running: Running,
    acme: httpx.AsyncClient,
    superuser: OpenConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = a_submission()
    async with held_up(running, superuser, acme):
        monkeypatch.setattr(accepting, "CONNECT_WITHIN", 0.1)
        with pytest.raises(Unavailable):
            await taking(running).take(a_key(), late)

    assert 202 == (await acme.post("/v1/jobs", json=JOB)).status_code  # the next batch is written
    assert 0 == await superuser.fetchval("SELECT count(*) FROM jobs WHERE id = $1", late.job_id)


async def test_who_is_being_written_is_not_told_that_it_was_too_late(
    acme: httpx.AsyncClient, superuser: OpenConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there a moment later: a caller that heard otherwise would send it again."""
    monkeypatch.setattr(accepting, "CONNECT_WITHIN", 0.05)
    clock = asyncio.get_running_loop().time
    async with asyncio.TaskGroup() as group, driver_of(superuser).transaction():
        await superuser.execute("LOCK TABLE pauses IN ACCESS EXCLUSIVE MODE")
        begun = clock()
        posting = group.create_task(acme.post("/v1/jobs", json=JOB))
        await eventually(partial(_waits, superuser))
        await eventually(lambda: clock() > begun + 0.2)

    assert 202 == posting.result().status_code


async def test_of_a_write_whose_connection_is_lost_each_is_told_to_come_again(
    running: Running, acme: httpx.AsyncClient, rival: httpx.AsyncClient, superuser: OpenConnection
) -> None:
    """With the same key, where it has one: then it is there once, whatever became of the first."""
    keys = [{"Idempotency-Key": str(number)} for number in range(3)]
    async with asyncio.TaskGroup() as group, driver_of(superuser).transaction():
        await superuser.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        asking = [
            group.create_task(client.post("/v1/jobs", json=JOB, headers=headers))
            for client, headers in [*zip((acme, acme, rival), keys, strict=True), (acme, {})]
        ]
        await eventually(partial(_all_are_cut_off, superuser, asking))

    for answer in [await each for each in asking]:
        is_problem(answer, 503, "unavailable")
        assert "retry-after" in answer.headers
    before = await superuser.fetchval("SELECT count(*) FROM jobs")
    again = [await acme.post("/v1/jobs", json=JOB, headers=headers) for headers in keys]

    assert {202} == {answer.status_code for answer in again}
    assert (2, 2 + len(keys)) == (before, await superuser.fetchval("SELECT count(*) FROM jobs"))


async def test_what_was_in_the_way_of_all_is_tried_again(
    acme: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock, or a plan that a migration has outdated."""
    fetch, failed = Connection.fetch, list[str]()

    async def fails_once(
        self: Connection, statement: str, *given: object, **named: float
    ) -> object:
        if statement == INSERT_JOBS and not failed:
            failed.append(statement)
            raise Unavailable("database_conflict", "Not now.")
        return await fetch(self, statement, *given, **named)

    monkeypatch.setattr(Connection, "fetch", fails_once)

    assert 202 == (await acme.post("/v1/jobs", json=JOB)).status_code
    assert failed


async def test_nobody_waits_for_a_key_that_another_request_has(
    running: Running,
    acme: httpx.AsyncClient,
    api: OpenConnection,
    superuser: OpenConnection,
    asked: list[str],
) -> None:
    """Of another process, which comes to no end."""
    busy = a_submission(idempotency_key="busy")
    async with asyncio.TaskGroup() as group, driver_of(api).transaction():
        await insert_submissions(api, [busy])
        asks = acme.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "busy"})
        waiting = group.create_task(asks)
        await eventually(partial(_waits, superuser))
        assert asked[-2:] == ["BEGIN", INSERT_JOBS], "it waits amid a write that others share"
        assert 202 == (await acme.post("/v1/jobs", json=JOB)).status_code
        assert not waiting.done()

    is_problem(waiting.result(), 422, "idempotency_conflict")


async def _waits(superuser: Connection) -> bool:
    return bool(await superuser.fetchval(WAITING))


async def _all_are_cut_off(
    superuser: Connection, asking: Sequence[asyncio.Task[httpx.Response]]
) -> bool:
    # A transaction, which holds the lock, goes on seeing the sessions that it saw first.
    await superuser.execute("SELECT pg_stat_clear_snapshot()")
    await superuser.fetch(CUT)
    return all(each.done() for each in asking)


async def test_what_the_database_refuses_of_one_is_not_the_others(api: OpenConnection) -> None:
    good = [a_submission(), a_submission(idempotency_key="k")]
    bad = replace(a_submission(), max_attempts=0)

    first, refused, last = await submit_together(api, [good[0], bad, good[1]])

    assert isinstance(first, Submitted)
    assert isinstance(last, Submitted)
    assert isinstance(refused, StoreRejected)
    written = await api.fetch("SELECT id FROM jobs")
    assert {row["id"] for row in written} >= {job.job_id for job in good}


async def test_what_was_written_before_postgres_went_away_is_told(
    api: OpenConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of those behind it each is not asked for by itself: that may take seconds each time."""
    jobs = [a_submission(), replace(a_submission(), max_attempts=0), *(a_submission(),) * 3]
    fetch, tried = Connection.fetch, Counter[str]()

    async def fails(self: Connection, statement: str, *given: object, **named: float) -> object:
        tried[statement] += 1
        if tried[INSERT_JOBS] > 3:  # that of all, and of the first two
            raise Unavailable("database_unavailable", "Gone.")
        return await fetch(self, statement, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "fetch", fails)
        first, refused, *others = await submit_together(api, jobs)

    assert isinstance(first, Submitted)
    assert isinstance(refused, StoreRejected)
    assert [Unavailable] * 3 == [type(one) for one in others]
    assert tried[INSERT_JOBS] == 4


async def test_a_batch_of_which_one_cannot_be_answered_is_not_written(
    running: Running,
    acme: httpx.AsyncClient,
    superuser: OpenConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told "not now" as a whole, and comes again as a whole."""
    old = JOB | {"idempotencyKey": "old"}
    assert 202 == (await acme.post("/v1/jobs", json=old)).status_code
    await superuser.execute("UPDATE tenants SET max_open_jobs = 3 WHERE id = 'acme'")
    app_of(running).state.limiting.tenants.of("acme").room = limiting.Places()

    async def forgotten(*_: object) -> list[Unavailable]:
        return [Unavailable("database_conflict", "Forgotten.")]

    monkeypatch.setattr(accepting, "find_standing_jobs", forgotten)
    answer = await acme.post("/v1/jobs:batch", json={"jobs": [JOB, old]})

    is_problem(answer, 503, "unavailable")
    assert 2 == await superuser.fetchval("SELECT count(*) FROM jobs WHERE tenant_id = 'acme'")


async def test_keys_of_one_tenant_take_of_one_room(
    running: Running, acme: httpx.AsyncClient, superuser: OpenConnection
) -> None:
    """Two are open already: the one before the test, and the one that holds them up."""
    await superuser.execute("UPDATE tenants SET max_open_jobs = 4 WHERE id = 'acme'")
    app_of(running).state.limiting.tenants.of("acme").room = limiting.Places()
    mine, theirs = a_key(), a_key()

    async with asyncio.TaskGroup() as group, held_up(running, superuser, acme):
        takes = [
            group.create_task(_refused(taking(running).take(key, a_submission())))
            for key in (mine, theirs, theirs)
        ]
        await eventually(partial(_as_many_wait, running, 3))

    assert [None, None, "too_many_open_jobs"] == [take.result() for take in takes]


async def _refused(taken: Awaitable[Submitted]) -> str | None:
    try:
        await taken
    except LimitReached as error:
        return error.code
    return None


async def test_who_waits_for_a_count_takes_no_connection_from_others(
    running: Running, acme: httpx.AsyncClient, rival: httpx.AsyncClient, superuser: OpenConnection
) -> None:
    """Neither before a write, nor in one."""
    counts = app_of(running).state.limiting.tenants.of("acme")
    async with asyncio.TaskGroup() as group, driver_of(superuser).transaction():
        await superuser.execute("LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE")
        counts.room = limiting.Places()
        many = [group.create_task(acme.post("/v1/jobs", json=JOB)) for _ in range(MOST_POOLED + 1)]
        await eventually(lambda: len(counts.counting._waiters or ()) == len(many) - 1)
        assert 202 == (await rival.post("/v1/jobs", json=JOB)).status_code
        assert {task.done() for task in many} == {False}

    assert {202} == {task.result().status_code for task in many}


async def test_nobody_in_a_write_waits_for_a_count(
    running: Running,
    acme: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    superuser: OpenConnection,
    asked: list[str],
) -> None:
    counts = app_of(running).state.limiting.tenants.of("acme")
    async with asyncio.TaskGroup() as group, held_up(running, superuser, rival):
        posted = [group.create_task(client.post("/v1/jobs", json=JOB)) for client in (acme, rival)]
        await eventually(partial(_as_many_wait, running, 2))
        counts.room = limiting.Places(left=1)  # too old to be believed

    assert [202, 202] == [task.result().status_code for task in posted]
    assert asked == [*ALONE, *ALONE]


async def test_nobody_waits_for_a_count_longer_than_for_a_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each after the other would wait as long as Postgres may be silent."""
    app = app_of(running)
    counts = app.state.limiting.tenants.of("acme")
    counts.room = limiting.Places()
    monkeypatch.setattr(limiting, "CONNECT_WITHIN", 0.05)
    async with counts.counting:
        with pytest.raises(Unavailable):
            await taking(running).take(a_key(), a_submission())


async def test_the_room_is_counted_once_for_all_who_ask_at_the_same_time(
    running: Running,
    acme: httpx.AsyncClient,
    superuser: OpenConnection,
    asked: list[str],
) -> None:
    counts = app_of(running).state.limiting.tenants.of("acme")
    async with asyncio.TaskGroup() as group, driver_of(superuser).transaction():
        await superuser.execute("LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE")
        counts.room = limiting.Places()  # nothing is known: all have to wait for the count
        unknown = [group.create_task(acme.post("/v1/jobs", json=JOB)) for _ in range(5)]
        await eventually(lambda: len(counts.counting._waiters or ()) == len(unknown) - 1)
        counts.room = limiting.Places(left=100)  # known, and too long ago
        known = await acme.post("/v1/jobs", json=JOB)
        assert {task.done() for task in unknown} == {False}

    assert {202} == {answer.status_code for answer in [known, *(task.result() for task in unknown)]}
    assert asked.count(ROOM_FOR_JOBS) == 1
