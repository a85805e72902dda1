"""The job that cancels what its tenant has open: what it flags, where it goes on, that it ends."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.bulk import CancelWalk
from imagefleet.jobs.kinds import BUILT_IN, CancelJobs
from imagefleet.jobs.lifecycle import Completed, Outcome, Released
from imagefleet.jobs.model import (
    CancelCode,
    Claim,
    JobId,
    JobState,
    Lane,
    PauseScope,
    Submission,
    TenantId,
    Verdict,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs import cancelling
from imagefleet.store.jobs.cancelling import PAGE, FlaggedPage, cancel_job, count_chosen
from imagefleet.store.jobs.dispatching import FIRST_PLACE, find_levels
from imagefleet.store.jobs.rings import URGENT
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from imagefleet.worker.handlers import cancelling as handlers
from imagefleet.worker.handlers.cancelling import CANCEL_JOBS
from tests.support.bench import Bench
from tests.support.database import Database, driver_of
from tests.support.eventually import eventually
from tests.support.factories import (
    TENANT,
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    settle_job,
)
from tests.support.image_rows import a_set, asked_for, some_images
from tests.support.rows import job_row, ring_row

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
RIVAL: Final = TenantId("rival")
Steps: TypeAlias = list[Callable[[], Awaitable[None]]]


def a_walk(**payload: object) -> Submission:
    kind = BUILT_IN["cancel_jobs"]
    return replace(
        a_submission(type=kind.name, preempts=kind.preempts),
        payload={"reason": "a test"} | payload,
    )


async def work(bench: Bench, claim: Claim) -> Outcome | None:
    return await bench.attempt(claim, CANCEL_JOBS.run, CANCEL_JOBS.kind).work()


async def walk(bench: Bench, **payload: object) -> Outcome | None:
    return await work(bench, await bench.claim(a_walk(**payload)))


async def some_jobs(api: Connection, count: int, **wishes: Any) -> list[JobId]:  # noqa: ANN401
    """Oldest first."""
    jobs = [a_submission(**wishes) for _ in range(count)]
    for start in range(0, count, 100):
        await submit_jobs(api, jobs[start : start + 100])
    return sorted(job.job_id for job in jobs)


async def flagged(connection: Connection) -> set[JobId]:
    rows = await connection.fetch("SELECT id FROM jobs WHERE cancel_requested_at IS NOT NULL")
    return {row["id"] for row in rows}


async def flagged_when(connection: Connection) -> dict[JobId, datetime]:
    rows = await connection.fetch("SELECT id, cancel_requested_at FROM jobs")
    return {row["id"]: row["cancel_requested_at"] for row in rows}


def flagging(count: int) -> Completed:
    return Completed(result={"flagged": count})


async def test_everything_that_is_open_is_flagged_and_nothing_else(
    bench: Bench, api: Connection, superuser: Connection
) -> None:
    open_jobs = [
        (await a_job(bench.worker, superuser, state=state)).job_id
        for state in (QUEUED, PROCESSING, FAILED_RETRYABLE)
    ]
    for state in (COMPLETED, FAILED):
        await a_job(bench.worker, superuser, state=state)
    await some_jobs(api, 1, tenant_id=RIVAL)

    assert flagging(3) == await walk(bench)

    assert set(open_jobs) == await flagged(api)
    for job_id in open_jobs:
        row = await job_row(api, job_id)
        assert ("cancelled", "a test") == (row["cancel_code"], row["cancel_detail"])


async def test_what_no_pause_holds_back_is_not_cancelled_either(
    bench: Bench, api: Connection
) -> None:
    """Deletions and cancellations, another walk among them, and the walk itself."""
    kept = await some_jobs(api, 2, type="delete_image", preempts=True)
    await submit_job(api, a_walk(lane="general"))

    assert flagging(0) == await walk(bench)

    assert set() == await flagged(api)
    assert 2 == len(kept)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"job_type": "noop"}, [True, True, False, False]),
        ({"lane": "general"}, [False, True, False, True]),
        ({"job_type": "process_image", "lane": "general"}, [False, False, False, True]),
        ({"submitted_before": "2020-01-01T00:00:00Z"}, [False, False, False, False]),
    ],
    ids=str,
)
async def test_only_what_is_chosen_is_cancelled(
    bench: Bench, api: Connection, payload: dict[str, object], expected: list[bool]
) -> None:
    jobs = [
        (await some_jobs(api, 1, type=one, lane=lane))[0]
        for one in ("noop", "process_image")
        for lane in (Lane.FAST, Lane.GENERAL)
    ]

    assert flagging(sum(expected)) == await walk(bench, **payload)

    done = await flagged(api)
    assert expected == [job_id in done for job_id in jobs]


PARENT: Final = "0199a5c2-7d41-7000-8000-000000000000"
CHOSEN: Final[list[tuple[dict[str, object], str]]] = [
    ({"status": "queued"}, "plain mine child aimed"),
    ({"status": "failed_retryable"}, "tried"),
    ({"code": "unavailable"}, "tried"),
    ({"code": "corrupt"}, ""),
    ({"correlation_id": "mine"}, "mine"),
    ({"parent_job_id": PARENT}, "child"),
    ({"target": "image:1"}, "aimed"),
    ({"target": "image:1", "status": "processing"}, ""),
    ({"submitted_after": "2020-01-01T00:00:00Z"}, "plain tried mine child aimed"),
    ({"submitted_after": "2100-01-01T00:00:00Z"}, ""),
]


@pytest.mark.parametrize(("payload", "expected"), CHOSEN, ids=str)
async def test_what_a_list_can_ask_a_walk_can_ask(
    bench: Bench,
    api: Connection,
    operator: Connection,
    superuser: Connection,
    payload: dict[str, object],
    expected: str,
) -> None:
    jobs = {
        "plain": a_submission(),
        "mine": replace(a_submission(), correlation_id="mine"),
        "child": replace(a_submission(), parent_job_id=JobId(UUID(PARENT))),
        "aimed": a_submission(target="image:1"),
    }
    for submission in jobs.values():
        await submit_job(api, submission)
    ids = {submission.job_id: name for name, submission in jobs.items()}
    tried = await a_job(bench.worker, superuser, state=FAILED_RETRYABLE)
    ids[tried.job_id] = "tried"
    wanted = CancelJobs.model_validate_json(json.dumps(payload))

    counted = await count_chosen(operator, TENANT, wanted)
    assert flagging(len(expected.split())) == await walk(bench, **payload)

    assert sorted(expected.split()) == sorted(ids[job_id] for job_id in await flagged(api))
    assert len(expected.split()) == counted.jobs


async def test_it_goes_page_by_page_and_tells_how_far_it_is(bench: Bench, api: Connection) -> None:
    jobs = await some_jobs(api, PAGE + 5)
    claim = await bench.claim(a_walk())

    assert flagging(PAGE + 5) == await work(bench, claim)

    assert set(jobs) == await flagged(api)
    row = await job_row(api, claim.job_id)
    assert (PAGE + 6, PAGE + 6) == (row["progress_done"], row["progress_total"])  # and itself


async def test_what_is_flagged_is_claimable_at_once_whatever_holds_it(
    bench: Bench, api: Connection, operator: Connection, superuser: Connection
) -> None:
    """A pause of its tenant, its time, its target, and that its message was sent already."""
    await pause(
        operator, Pause(scope=PauseScope.TENANT, tenant_id=TENANT), by="tests", reason="why"
    )
    later = await a_job(bench.worker, superuser, due=False)
    parked = [await some_jobs(api, 1, target="image:1") for _ in range(2)][1][0]
    await superuser.execute("UPDATE rings SET sent_at = now(), sends = 3 WHERE job_id = $1", parked)

    await walk(bench)

    for job_id in (later.job_id, parked):
        ring = await ring_row(api, job_id)
        assert ring is not None
        assert (None, 0, URGENT) == (ring["sent_at"], ring["sends"], ring["priority"])
        assert Verdict.CANCELLED is (await claim_job(bench.worker, job_id, bench.worker_id)).verdict


async def test_a_walk_rings_nothing_by_itself_and_leaves_the_order_to_the_dispatcher(
    bench: Bench, api: Connection, maintenance: Connection
) -> None:
    """Else a hundred thousand messages would stand before everybody else's."""
    await some_jobs(api, 3)

    await walk(bench)

    (level,) = [
        one
        for one in await find_levels(maintenance, Lane.FAST, FIRST_PLACE, limit=9)
        if one.type == "noop"
    ]
    assert (URGENT, True) == (level.priority, level.due)
    assert 0 == await api.fetchval("SELECT count(*) FROM rings WHERE sent_at IS NOT NULL")


async def test_a_job_that_submits_others_is_stopped_before_the_walk_begins(
    bench: Bench, api: Connection, after_page: Steps
) -> None:
    """Else it would go on submitting, behind the walk."""
    await some_images(api, 1)
    parent = a_set()
    await submit_job(api, parent)
    flags_after_the_first_page: list[set[JobId]] = []

    async def look() -> None:
        flags_after_the_first_page.append(await flagged(api))

    after_page.append(look)
    assert flagging(2) == await walk(bench)

    assert [{parent.job_id}] == flags_after_the_first_page
    assert [] == list(await asked_for(api, parent.job_id))


@pytest.fixture
def after_page(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What to await after the pages to come, one a page; then nothing."""
    todo: Steps = []

    async def flag_page(*arguments: object) -> FlaggedPage:
        page = await cancelling.flag_page(*arguments)  # type: ignore[arg-type]
        if todo:
            await todo.pop(0)()
        return page

    monkeypatch.setattr(handlers, "flag_page", flag_page)
    return todo


async def nothing() -> None:
    """After a page."""


async def test_what_is_submitted_meanwhile_is_not_in_the_walk_so_it_ends(
    bench: Bench, api: Connection, after_page: Steps
) -> None:
    await some_jobs(api, PAGE)
    since: list[JobId] = []

    async def submit() -> None:
        since.extend(await some_jobs(api, PAGE))

    after_page.extend([nothing, submit, submit])
    assert flagging(PAGE) == await walk(bench)

    assert 2 * PAGE == len(since)
    assert not set(since) & await flagged(api)


async def test_a_submit_that_is_committed_behind_the_walk_is_found_at_its_end(
    bench: Bench, api: Connection, after_page: Steps
) -> None:
    """It began before the walk, and its page was read before it was there."""
    await some_jobs(api, PAGE, type="process_image")
    late = a_submission(type="process_image")
    async with bench.database.connect("api") as slow:
        submit = driver_of(slow).transaction()
        await submit.start()
        await submit_job(slow, late)
        old = await some_jobs(api, 1, type="process_image")
        after_page.extend([nothing, submit.commit])

        assert flagging(PAGE + 2) == await walk(bench, job_type="process_image")

    assert {late.job_id, *old} <= await flagged(api)


async def test_the_second_look_ends_a_minute_before_the_walk_began(
    bench: Bench, api: Connection, after_page: Steps
) -> None:
    await some_jobs(api, 2 * PAGE, type="process_image")
    pages: list[CancelWalk] = []

    async def look() -> None:
        row = await api.fetchrow("SELECT progress_cursor FROM jobs WHERE type = 'cancel_jobs'")
        assert row is not None
        found = CancelWalk.of(row["progress_cursor"])
        assert found is not None
        pages.append(found)

    after_page.extend([look] * 9)
    await walk(bench, job_type="process_image", submitted_before="2020-01-01T00:00:00Z")

    assert [False, False, False, True] == [page.again for page in pages]


async def test_a_later_attempt_begins_behind_the_cursor(
    bench: Bench, api: Connection, after_page: Steps
) -> None:
    jobs = await some_jobs(api, PAGE + 2, type="process_image")
    claim = await bench.claim(a_walk(job_type="process_image"))

    async def lose_postgres() -> None:
        raise Unavailable("database_unavailable", "Later.")

    after_page.append(lose_postgres)
    assert Released(why="database") == await work(bench, claim)
    assert set(jobs[2:]) == await flagged(api)
    made = MadeJob(job_id=claim.job_id, claim_no=claim.claim_no, worker_id=bench.worker_id)
    await settle_job(bench.worker, made, Released(why="drain"))
    again = await claim_job(bench.worker, claim.job_id, bench.worker_id)
    assert again.claim is not None
    looked_at: list[int] = []

    async def look() -> None:
        looked_at.append((await job_row(api, claim.job_id))["progress_done"])

    after_page.append(look)
    assert flagging(PAGE + 2) == await work(bench, again.claim)

    assert set(jobs) == await flagged(api)
    assert [PAGE + 2] == looked_at


async def test_cancelling_the_walk_ends_it_between_pages(
    bench: Bench, api: Connection, after_page: Steps
) -> None:
    jobs = await some_jobs(api, 2 * PAGE, type="process_image")
    claim = await bench.claim(a_walk(job_type="process_image"))

    async def cancel() -> None:
        await cancel_job(bench.worker, claim.job_id, code=CancelCode.CANCELLED, detail=None)

    after_page.append(cancel)
    assert Released(why="cancelled") == await work(bench, claim)

    assert {*jobs[PAGE:], claim.job_id} == await flagged(api)


async def test_a_claim_that_was_lost_flags_no_further_page(
    bench: Bench, api: Connection, superuser: Connection, after_page: Steps
) -> None:
    jobs = await some_jobs(api, 2 * PAGE, type="process_image")
    claim = await bench.claim(a_walk(job_type="process_image"))

    async def lose() -> None:
        other = await a_worker(bench.worker)
        await superuser.execute(
            "UPDATE jobs SET locked_at = now() - interval '1 hour' WHERE id = $1", claim.job_id
        )
        taken = await claim_job(bench.worker, claim.job_id, other)
        assert taken.claim is not None

    after_page.append(lose)
    await work(bench, claim)

    assert set(jobs[PAGE:]) == await flagged(api)


@pytest.mark.parametrize(
    ("wishes", "jobs"),
    [({}, 3), ({"job_type": "noop"}, 2), ({"lane": Lane.GENERAL}, 1)],
    ids=str,
)
async def test_a_count_before_says_what_a_walk_would_flag(
    api: Connection, operator: Connection, wishes: dict[str, Any], jobs: int
) -> None:
    await some_jobs(api, 2)
    await some_jobs(api, 1, type="process_image", lane=Lane.GENERAL)
    await some_jobs(api, 1, type="delete_image", preempts=True)
    await some_jobs(api, 5, tenant_id=RIVAL)

    chosen = await count_chosen(operator, TENANT, CancelJobs(**wishes))

    assert (jobs, True) == (chosen.jobs, chosen.complete)


async def test_a_page_locks_the_walks_own_row_in_its_place_among_the_others(
    bench: Bench, database: Database, api: Connection, superuser: Connection
) -> None:
    """Whoever locks what a worker held goes by ids as well; own rows last, and they would meet."""
    claim = await bench.claim(a_walk(job_type="noop"))
    (younger,) = await some_jobs(api, 1)
    assert younger > claim.job_id
    free = "SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED"

    async with database.connect("superuser") as sitting, asyncio.TaskGroup() as group:
        sits = driver_of(sitting).transaction()
        await sits.start()
        await sitting.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", younger)
        walking = group.create_task(work(bench, claim))
        waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        await eventually(
            lambda: superuser.fetchval(waits, driver_of(sitting).get_server_pid()), within=20
        )
        taken = [row["id"] for row in await superuser.fetch(free)]
        await sits.rollback()
    assert flagging(1) == walking.result()
    assert [] == taken


async def test_a_page_is_a_fixed_number_of_statements_however_many_jobs_it_flags(
    bench: Bench, api: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    async def flag_page(connection: Connection, *arguments: Any) -> FlaggedPage:  # noqa: ANN401
        ran: list[str] = []
        with driver_of(connection).query_logger(lambda record: ran.append(record.query)):
            page = await cancelling.flag_page(connection, *arguments)
        counts.append(len(ran))
        return page

    monkeypatch.setattr(handlers, "flag_page", flag_page)
    await some_jobs(api, 2 * PAGE + 1)

    assert flagging(2 * PAGE + 1) == await walk(bench, job_type="noop")

    # Find, flag, ring, progress, commit; before the first the driver asks for types.
    # The second look finds all of them again, and rings nobody.
    assert [5, 5, 4, 4, 4] == counts[1:]


async def test_of_one_target_all_that_waits_is_flagged_from_its_end_and_nothing_else(
    bench: Bench, api: Connection
) -> None:
    jobs = await some_jobs(api, PAGE + 30, target="image:1")
    await some_jobs(api, 3, target="image:2")
    await some_jobs(api, 1, target="image:1", tenant_id=RIVAL)
    kept = await some_jobs(api, 1, target="image:1", type="delete_image", preempts=True)

    assert flagging(PAGE + 30) == await walk(bench, target="image:1")

    assert set(jobs) == await flagged(api) - set(kept)


async def test_of_a_target_a_later_attempt_goes_on_behind_the_last_page_and_flags_none_twice(
    bench: Bench, api: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_jobs(api, PAGE + 30, target="image:1")
    claim = await bench.claim(a_walk(target="image:1"))
    seen: list[FlaggedPage] = []

    async def once(*given: Any) -> FlaggedPage:  # noqa: ANN401 - of what it stands before
        if seen:
            raise Unavailable("database_away", "The database is away.")
        seen.append(await cancelling.flag_page(*given))
        return seen[0]

    monkeypatch.setattr(handlers, "flag_page", once)
    await work(bench, claim)
    after_one = await flagged(api)
    at = await flagged_when(api)
    monkeypatch.undo()
    later = await some_jobs(api, 2, target="image:1")  # which the walk has not seen
    cursor = (await job_row(api, claim.job_id))["progress_cursor"]

    done = await work(bench, replace(claim, cursor=cursor))

    assert PAGE == len(after_one)
    assert flagging(PAGE + 30) == done
    now = await flagged_when(api)
    assert all(at[job_id] == now[job_id] for job_id in after_one)
    assert (await flagged(api)).isdisjoint(later)


async def test_of_a_target_only_the_jobs_of_a_type_and_an_age_are_flagged(
    bench: Bench, api: Connection
) -> None:
    await some_jobs(api, 2, target="image:1", type="noop")
    renders = await some_jobs(api, 2, target="image:1", type="process_image")

    assert flagging(0) == await walk(bench, target="image:1", submitted_before="2020-01-01T00:00Z")
    assert flagging(2) == await walk(bench, target="image:1", job_type="process_image")

    assert set(renders) == await flagged(api)


async def open_of_three_tenants(api: Connection, superuser: Connection) -> dict[str, list[JobId]]:
    """One of them has nothing that is open."""
    names = [TENANT, "middle", RIVAL, "zebra"]
    known = "INSERT INTO tenants (id, name) SELECT n, n FROM unnest($1::text[]) AS n"
    await superuser.execute(f"{known} ON CONFLICT DO NOTHING", names)
    counts = {"zebra": PAGE + 5, TENANT: 3, RIVAL: 2}
    return {
        tenant: await some_jobs(api, count, tenant_id=TenantId(tenant))
        for tenant, count in counts.items()
    }


async def test_through_every_tenant_all_that_is_chosen_is_flagged_and_counted_before(
    bench: Bench, api: Connection, operator: Connection, superuser: Connection
) -> None:
    jobs = await open_of_three_tenants(api, superuser)
    others = await some_jobs(api, 2, tenant_id=RIVAL, type="process_image")
    every = {job_id for each in jobs.values() for job_id in each}
    counted = await count_chosen(operator, None, CancelJobs(job_type="noop"))

    assert flagging(len(every)) == await walk(bench, every_tenant=True, job_type="noop")

    assert every == await flagged(api)
    assert (len(every), True) == (counted.jobs, counted.complete)
    assert set(others).isdisjoint(every)


async def test_through_every_tenant_a_later_attempt_goes_on_at_the_tenant_where_it_was(
    bench: Bench, api: Connection, superuser: Connection, after_page: Steps
) -> None:
    jobs = await open_of_three_tenants(api, superuser)
    claim = await bench.claim(a_walk(every_tenant=True, job_type="noop"))

    async def lose_postgres() -> None:
        raise Unavailable("database_unavailable", "Later.")

    after_page.extend([nothing] * 4 + [lose_postgres])  # two tenants, each looked at twice
    await work(bench, claim)
    at = await flagged_when(api)
    cursor = (await job_row(api, claim.job_id))["progress_cursor"]
    since = await some_jobs(api, 1, tenant_id=TENANT)  # of a tenant that it is past

    every = sum(map(len, jobs.values()))
    assert flagging(every) == await work(bench, replace(claim, cursor=cursor))

    assert "zebra" == cursor["tenant"]
    now = await flagged_when(api)
    first = [*jobs[TENANT], *jobs[RIVAL]]
    assert [at[job_id] for job_id in first] == [now[job_id] for job_id in first]
    assert None not in {now[job_id] for job_id in jobs["zebra"]}
    assert set(since).isdisjoint(await flagged(api))


async def test_a_tenant_of_whose_jobs_the_walk_is_does_not_lend_it_to_others(
    bench: Bench, api: Connection, superuser: Connection
) -> None:
    """Only the order of an operator goes through every tenant."""
    jobs = await open_of_three_tenants(api, superuser)

    assert flagging(len(jobs[TENANT])) == await walk(bench)

    assert set(jobs[TENANT]) == await flagged(api)
