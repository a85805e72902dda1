"""How much the life of a job may read: from its submission to its end."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from imagefleet.jobs.bulk import CancelWalk as Cancelling
from imagefleet.jobs.images import image_target
from imagefleet.jobs.kinds import CancelJobs
from imagefleet.jobs.lifecycle import Completed, Outcome, Released
from imagefleet.jobs.limits import MOST_OPEN_JOBS
from imagefleet.jobs.model import Claim, JobId, Lane, Ring, Submitted
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.store.fleet.statistics import expect_messages
from imagefleet.store.jobs.admissions import list_parents, list_standing, room_for_jobs
from imagefleet.store.jobs.cancelling import PAGE as CANCELLED
from imagefleet.store.jobs.cancelling import begin_walk, count_chosen, count_walk, flag_page
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.dispatching import (
    FIRST_PLACE,
    count_announced,
    find_levels,
    hold_lanes,
    look_at_fleet,
    look_at_holds,
    look_at_types,
    publish_room,
    take_rings,
)
from imagefleet.store.jobs.endings import complete_jobs
from imagefleet.store.jobs.inspection import count_prunable
from imagefleet.store.jobs.leases import renew_claims, report_progress
from imagefleet.store.jobs.pruning import (
    LOCK_IDLE_TARGETS,
    PRUNE_TARGETS,
    prune_jobs,
)
from imagefleet.store.jobs.rescue import (
    look_at_workers,
    rescue_worker,
)
from imagefleet.store.jobs.rings import (
    adopt_rings,
    confirm_rings,
    find_expired,
    forget_lost,
    read_rooms,
    ring_heads,
    ring_now,
)
from imagefleet.store.jobs.submissions import submit_jobs, submit_together
from imagefleet.store.jobs.targets import begin_walk_of_target, find_last, list_waiting
from imagefleet.store.settling import Settled, Settlement, settle_jobs
from tests.store.plans.history import (
    A_WORKER,
    CROWD,
    DEEP,
    HELD_BY_A_WORKER,
    HISTORY,
    HOLDS,
    HOT,
    HOT_OPEN,
    IMAGES,
    LATE_OF_THE_DEEP_TARGET,
    LONG_AGO,
    OF_THE_DEEP_TARGET,
    PAGE,
    PROCESSING,
    QUEUED,
    WITH_TARGETS,
    WITHOUT_TARGET,
    WORKERS,
    id_of,
)
from tests.store.plans.work import Case
from tests.support.database import login
from tests.support.factories import (
    ALL_LANES,
    CORRUPT,
    TENANT,
    TYPES,
    UNAVAILABLE,
    a_submission,
)


async def claim(connection: Connection, job_ids: Sequence[JobId]) -> None:
    rooms = {"process_image": 3, "noop": 100}
    await claim_jobs(
        connection, job_ids, worker_id=A_WORKER, lanes=ALL_LANES, types=TYPES, rooms=rooms
    )


async def settle(connection: Connection, job_ids: Sequence[JobId], outcome: Outcome) -> None:
    settlements = [
        Settlement(job_id=job_id, claim_no=1, outcome=outcome, policy=RetryPolicy())
        for job_id in job_ids
    ]
    report = await settle_jobs(connection, A_WORKER, settlements)
    assert {Settled.WRITTEN} == {receipt.settled for receipt in report.receipts}


async def complete_alone(connection: Connection) -> None:
    """By the one statement that needs no lock before."""
    outcomes = {(job_id, 1): Completed() for job_id in HELD_BY_A_WORKER}
    assert len(outcomes) == len(await complete_jobs(connection, A_WORKER, outcomes))


async def run_the_first_of_the_deep_target(connection: Connection) -> None:
    first = OF_THE_DEEP_TARGET[:1]
    await claim(connection, first)
    await settle(connection, first, Completed())


async def confirm(connection: Connection) -> None:
    taken = "SELECT job_id, lane, tenant_id, next_at FROM rings WHERE job_id = ANY ($1)"
    rows = await connection.fetch(taken, WITHOUT_TARGET)
    await confirm_rings(connection, [Ring(announced_at=LONG_AGO, **dict(row)) for row in rows])


async def rescue(connection: Connection) -> None:
    seen = await look_at_workers(connection)
    rescued = await rescue_worker(connection, seen[0])
    assert rescued is not None
    assert PROCESSING // WORKERS == len(rescued.retried)


async def prune(connection: Connection) -> None:
    page = await prune_jobs(connection, limit=100)
    assert (page.seen, page.pruned) == (100, 97), "of five failures two are acknowledged"


async def prune_behind_what_is_kept(connection: Connection) -> None:
    """As if the five hundred that are past retention had all been seen, and kept."""
    kept = await connection.fetchrow("SELECT finished_at, id FROM jobs WHERE id = $1", id_of(500))
    assert kept is not None
    page = await prune_jobs(connection, limit=100, after=(kept["finished_at"], kept["id"]))
    assert (page.seen, page.pruned) == (0, 0)


async def prune_idle_targets(connection: Connection) -> None:
    tenants, names = ["shown"] * PAGE, [f"image:{id_of(IMAGES + n)}" for n in range(1, PAGE + 1)]
    assert PAGE == len(await connection.fetch(LOCK_IDLE_TARGETS, tenants, names))
    assert f"DELETE {PAGE}" == await connection.execute(PRUNE_TARGETS, tenants, names)


async def admit(connection: Connection) -> None:
    asked = [
        a_submission(idempotency_key=f"key-{n}", dedup_key=f"key-{n}", type=NOOP)
        for n in range(100)
    ]
    assert set() == await list_standing(connection, asked)
    known = [id_of(n * 20 + 1) for n in range(100)]
    await list_parents(connection, known)


async def count_to_a_quota(connection: Connection) -> None:
    """Of tens of thousands that are open as many as may be: then it is full."""
    await connection.execute("RESET ROLE")
    await connection.execute("UPDATE tenants SET max_open_jobs = 50 WHERE id = $1", TENANT)
    await connection.execute(f"SET ROLE {login('api')}")
    assert (0, 10) == await room_for_jobs(connection, TENANT, "nobody", 10)


async def submit_a_hundred_together(connection: Connection) -> None:
    jobs = [a_submission(idempotency_key=f"key-{n}") for n in range(100)]
    answers = await submit_together(connection, jobs)
    assert {True} == {isinstance(answer, Submitted) for answer in answers}


async def submit(connection: Connection) -> None:
    await submit_jobs(
        connection,
        [
            a_submission(
                target=image_target(id_of(DEEP)),
                idempotency_key=f"key-{n}",
                dedup_key=f"key-{n}",
                replay_of=id_of(n * 20 + 1),
            )
            for n in range(10)
        ],
    )


async def a_page_of_levels(connection: Connection) -> None:
    """The first levels are of the tenant with a flood, of which most is not due at all."""
    levels = await find_levels(connection, Lane.GENERAL, FIRST_PLACE, limit=PAGE)
    assert len(levels) == PAGE
    assert {("flood", "held", True), ("flood", "parked", False), ("flood", "noop", True)} <= {
        (level.tenant_id, level.type, level.due) for level in levels
    }


async def all_levels(connection: Connection) -> None:
    place, found = FIRST_PLACE, 0
    while page := await find_levels(connection, Lane.GENERAL, place, limit=256):
        place, found = page[-1].place, found + len(page)
    assert found > CROWD


async def take_of_each(connection: Connection) -> None:
    levels = await find_levels(connection, Lane.GENERAL, FIRST_PLACE, limit=PAGE)
    turns = [(level, 4) for level in levels if level.due and level.tenant_id == TENANT]
    taken = await take_rings(connection, Lane.GENERAL, turns)
    assert len(taken) == 4 * len(turns) > 0


async def count_what_is_announced(connection: Connection) -> None:
    span = timedelta(days=1)
    assert 100 == await count_announced(connection, Lane.GENERAL, within=span, limit=100)


async def forget_what_was_lost(connection: Connection) -> None:
    now = datetime.now(UTC)
    lost = await forget_lost(connection, Lane.GENERAL, silent=now, heard=now, limit=PAGE)
    assert 3 * PAGE <= lost <= 8 * PAGE


async def forget_none_lost(connection: Connection) -> None:
    old = datetime.now(UTC) - timedelta(hours=2)
    assert 0 == await forget_lost(connection, Lane.GENERAL, silent=old, heard=old, limit=PAGE)


async def walk_the_parked(connection: Connection) -> None:
    page = await ring_heads(connection, id_of(1), limit=PAGE)
    assert (page.rung, page.looked_at) == (0, PAGE)


def page_of_cancelling(
    wanted: CancelJobs, *, before: int, flagged: int
) -> Callable[[Connection], Awaitable[object]]:
    async def flag_it(connection: Connection) -> None:
        until = datetime.now(UTC) + timedelta(days=1)
        walk = Cancelling(until=until, parents=False, before=id_of(before))
        page = await flag_page(connection, a_claim("cancel_jobs"), HOLDS[0], wanted, walk)
        assert (page.walk.seen, page.walk.flagged) == (CANCELLED, flagged)

    return flag_it


async def the_last_of_the_deep_target(connection: Connection) -> None:
    last, place = await find_last(connection, TENANT, DEEP_TARGET, HISTORY + 40_000, PAGE)
    assert (len(last), HISTORY < place) == (PAGE, True)


async def a_page_that_waits_deep(connection: Connection) -> None:
    page, more = await list_waiting(
        connection, TENANT, DEEP_TARGET, after=HISTORY + 30_000, limit=PAGE
    )
    assert (len(page), more is None) == (PAGE, False)


async def the_last_of_a_target_with_a_long_history(connection: Connection) -> None:
    last, _ = await find_last(connection, TENANT, HOT_TARGET, HISTORY + QUEUED + 1, PAGE)
    assert len(last) == HOT_OPEN


async def what_waits_behind_a_long_history(connection: Connection) -> None:
    page, more = await list_waiting(connection, TENANT, HOT_TARGET, after=0, limit=PAGE)
    assert (len(page), more) == (HOT_OPEN, None)


async def walk_a_target(connection: Connection) -> None:
    walk = await begin_walk_of_target(connection, TENANT, CancelJobs(target=DEEP_TARGET))
    assert HISTORY + QUEUED - 1000 < (walk.place or 0)


def a_claim(job_type: str) -> Claim:
    now = datetime.now(UTC)
    return Claim(
        job_id=HOLDS[0].job_id, claim_no=1, tenant_id=TENANT, type=job_type,
        lane=Lane.GENERAL, payload={}, target=None, target_seq=None, priority=100, attempts=1,
        max_attempts=5, crashes=0, cursor=None, progress_done=0, correlation_id="load",
        parent_job_id=None, replay_of=None, traceparent=None, tracestate=None, created_at=now,
        claimed_at=now, queue_time=timedelta(0), cancel_code=None,
    )  # fmt: skip


NOOP: Final = "noop"
DEEP_TARGET: Final = image_target(id_of(DEEP))
HOT_TARGET: Final = image_target(id_of(HOT))


CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        "claim of ten": Case(lambda c: claim(c, WITHOUT_TARGET), "worker", 150, 800),
        "claim of ten targets": Case(lambda c: claim(c, WITH_TARGETS), "worker", 150, 900),
        "claim of ten of one deep target": Case(
            lambda c: claim(c, OF_THE_DEEP_TARGET), "worker", 150, 600
        ),
        "claim late in a deep target": Case(
            lambda c: claim(c, [LATE_OF_THE_DEEP_TARGET]), "worker", 20, 100
        ),
        "complete ten": Case(
            lambda c: settle(c, HELD_BY_A_WORKER, Completed()), "worker", 150, 1100
        ),
        "complete ten alone": Case(complete_alone, "worker", 60, 900),
        "retry ten": Case(lambda c: settle(c, HELD_BY_A_WORKER, UNAVAILABLE), "worker", 150, 1100),
        "fail ten": Case(lambda c: settle(c, HELD_BY_A_WORKER, CORRUPT), "worker", 150, 1100),
        "release ten": Case(
            lambda c: settle(c, HELD_BY_A_WORKER, Released(why="drain")), "worker", 150, 1100
        ),
        "ring who is next of a deep target": Case(
            run_the_first_of_the_deep_target, "worker", 60, 300
        ),
        "beat": Case(lambda c: renew_claims(c, A_WORKER, HOLDS), "worker", 120, 100),
        "progress": Case(
            lambda c: report_progress(c, HOLDS[0], done=1, total=2, cursor=None), "worker", 2, 60
        ),
        "rescue of a worker with ten": Case(rescue, "maintenance", 270, 1200),
        "admit a hundred": Case(admit, "api", 150, 1600),
        "submit ten": Case(submit, "api", 60, 800),
        "submit a hundred together": Case(submit_a_hundred_together, "api", 700, 7_000),
        "confirm ten rings": Case(confirm, "api", 60, 300),
        "what waits, a page": Case(a_page_of_levels, "maintenance", 3 * PAGE, 400),
        "what waits, all of it": Case(all_levels, "maintenance", 3 * CROWD, 12_000),
        "take four of each level": Case(take_of_each, "maintenance", 400, 1200),
        "count what is announced": Case(count_what_is_announced, "maintenance", 200, 60),
        "forget what was lost": Case(forget_what_was_lost, "maintenance", 40 * PAGE, 160 * PAGE),
        "nothing was lost": Case(forget_none_lost, "maintenance", 20, 60),
        "walk what is parked": Case(walk_the_parked, "maintenance", 5 * PAGE, 700),
        "adopt what 0.2.0 wrote": Case(lambda c: adopt_rings(c, limit=PAGE), "maintenance", 4, 10),
        "hold the lanes": Case(lambda c: hold_lanes(c, A_WORKER), "maintenance", 12, 40),
        "look at the fleet": Case(look_at_fleet, "maintenance", 2 * PROCESSING + 4 * WORKERS, 800),
        "room of a type": Case(
            lambda c: look_at_types(c, {NOOP: 2}), "maintenance", 2 * PROCESSING + 2 * WORKERS, 800
        ),
        "look at what is held": Case(look_at_holds, "maintenance", 10, 10),
        "publish a room": Case(
            lambda c: publish_room(
                c, Lane.FAST, A_WORKER, 1, window=5, waited=timedelta(seconds=1)
            ),
            "maintenance",
            4,
            20,
        ),
        # As many as the tenant has open; for a key they are read, and no history.
        "room for jobs": Case(
            lambda c: room_for_jobs(c, TENANT, "load", MOST_OPEN_JOBS), "api", 45_400, 600
        ),
        "room at a quota": Case(count_to_a_quota, "api", 250, 300),
        "room of a key": Case(lambda c: room_for_jobs(c, TENANT, "load", 10), "api", 45_400, 600),
        "room of a key that has few": Case(
            lambda c: room_for_jobs(c, TENANT, "few", 10), "api", 91_000, 3_200
        ),
        "read the rooms": Case(read_rooms, "api", 4, 4),
        # A quarter of the jobs are of the tenant, and most of those are over.
        "page of cancelling": Case(
            page_of_cancelling(CancelJobs(), before=HISTORY + 30_000, flagged=CANCELLED),
            "worker",
            12 * CANCELLED,
            60 * CANCELLED,
        ),
        "page of cancelling a type": Case(
            page_of_cancelling(
                CancelJobs(job_type=NOOP), before=HISTORY + 30_000, flagged=CANCELLED
            ),
            "worker",
            12 * CANCELLED,
            60 * CANCELLED,
        ),
        "page of cancelling a lane that has none": Case(
            page_of_cancelling(
                CancelJobs(job_type=NOOP, lane=Lane.GENERAL), before=HISTORY + 30_000, flagged=0
            ),
            "worker",
            3 * CANCELLED + 20,
            12 * CANCELLED,
        ),
        # Every open job of the tenant, as there are fewer than are counted.
        "what cancelling would flag": Case(
            lambda c: count_chosen(c, TENANT, CancelJobs()),
            "operator",
            10_000 + PROCESSING + 10,
            20_000,
        ),
        "what cancelling a rare type would flag": Case(
            lambda c: count_chosen(c, TENANT, CancelJobs(job_type="rare")), "operator", 10, 30
        ),
        "what cancelling a rare type of each tenant would flag": Case(
            lambda c: count_chosen(c, None, CancelJobs(job_type="rare")), "operator", 300, 3_000
        ),
        "whose jobs a walk of every tenant comes to": Case(
            lambda c: begin_walk(c, TENANT, CancelJobs(job_type=NOOP, every_tenant=True), None),
            "worker",
            100,
            1_000,
        ),
        "how long a walk is": Case(
            lambda c: count_walk(c, TENANT, None), "worker", QUEUED + PROCESSING, 1000
        ),
        "how long a walk of a type is": Case(
            lambda c: count_walk(c, TENANT, NOOP), "worker", QUEUED, 1000
        ),
        "the last of a deep target": Case(the_last_of_the_deep_target, "worker", PAGE, 100),
        "the last of a target with a long history": Case(
            the_last_of_a_target_with_a_long_history, "worker", HOT_OPEN, 40
        ),
        "a page of what waits deep at a target": Case(a_page_that_waits_deep, "api", PAGE + 1, 100),
        "what waits at a target with a long history": Case(
            what_waits_behind_a_long_history, "api", HOT_OPEN, 40
        ),
        "begin the walk of a deep target": Case(walk_a_target, "worker", 2, 10),
        "ring now": Case(lambda c: ring_now(c, WITH_TARGETS[0]), "operator", 6, 60),
        "prune a hundred": Case(prune, "maintenance", 600, 1000),
        "prune behind what is kept": Case(prune_behind_what_is_kept, "maintenance", 10, 60),
        "prune idle targets": Case(prune_idle_targets, "maintenance", 4 * PAGE, 1200),
        "what is prunable": Case(lambda c: count_prunable(c, most=100), "operator", 300, 700),
        "expected messages": Case(expect_messages, "operator", 20_000 + 3 * PROCESSING + 200, 2500),
        "expired locks": Case(
            lambda c: find_expired(c, limit=PAGE), "maintenance", 2 * PROCESSING, 800
        ),
    }
)
