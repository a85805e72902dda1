"""How much may be read by those who ask how it stands, and by those who steer."""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from imagefleet.jobs.images import image_target
from imagefleet.jobs.model import JobState, Lane, PauseScope, TenantId
from imagefleet.jobs.shapes.rates import LENGTHS, Step
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import MOST_LOOKED_AT, AuditFilter, list_audit
from imagefleet.store.fleet.bookkeeping import (
    COUNT_PAGE,
    FIND_HOUR,
    READ_HOUR,
    fold_entries,
    fold_ledger,
)
from imagefleet.store.fleet.breakers import force_open, list_breakers, reset_breaker
from imagefleet.store.fleet.elections import list_prune_runs
from imagefleet.store.fleet.keys import digest_of, seek_keys
from imagefleet.store.fleet.lanes import look_at_lane
from imagefleet.store.fleet.ledger import (
    read_ledger,
    read_queue_health,
    sample_depths,
    sample_oldest,
)
from imagefleet.store.fleet.live_settings import list_turned, read_defaults, read_live
from imagefleet.store.fleet.pauses import Pause, list_pauses, pause, resume
from imagefleet.store.fleet.rates import (
    READ_COSTS,
    READ_RATES,
    When,
    find_steps,
    read_throughput,
)
from imagefleet.store.fleet.rollups import COUNT_ENDS, add_entries, prune_rollups, roll_up
from imagefleet.store.fleet.statistics import (
    list_failures,
    list_stuck,
    load_of_lanes,
    room_for_job,
    sample_behind,
)
from imagefleet.store.fleet.tenants import get_tenant, list_tenants, rank_tenants, set_limits
from imagefleet.store.fleet.workers import list_workers
from imagefleet.store.jobs.inspection import (
    count_prunable,
    explain_job,
    get_operator_job,
    list_attempts,
    list_neighbours,
    list_taken,
)
from imagefleet.store.jobs.overseeing import MOST_CANDIDATES, oversee_jobs
from imagefleet.store.jobs.reports import JobFilter, OverseenFilter, get_job, list_jobs
from imagefleet.store.letters.faults import count_hourly, group_dead_letters, with_whole_fault
from imagefleet.store.letters.letters import (
    LetterFilter,
    count_open_letters,
    count_unacknowledged,
    find_dead_letters,
    get_dead_letter,
    list_dead_letters,
    prune_strays,
)
from tests.store.plans.history import (
    CROWD,
    DEEP,
    GONE,
    HOT,
    HOURS,
    KINDS,
    LATE_OF_THE_DEEP_TARGET,
    LETTERS,
    LONG_AGO,
    PAGE,
    PROCESSING,
    QUEUED,
    TOLD,
    WITH_TARGETS,
    WORKERS,
    id_of,
)
from tests.store.plans.images import prunes
from tests.store.plans.jobs import NOOP
from tests.store.plans.work import Case
from tests.support.factories import (
    TENANT,
)


def working_in(lane: Lane) -> Callable[[Connection], Awaitable[object]]:
    return lambda c: c.fetchval(f"SELECT work_in_lane('{lane}')")


async def live_settings_unchanged(connection: Connection) -> None:
    version = await connection.fetchval("SELECT version FROM live_version")
    assert await read_live(connection, version) is None


async def prove_a_page(connection: Connection) -> None:
    """As the proof does, in a snapshot of its own; of an hour of a quarter of a million rows."""
    first, last = id_of(1), id_of(GONE)
    hour = await connection.fetchval("SELECT hour_of($1)", first)
    assert hour == await connection.fetchval(FIND_HOUR, hour - 1, first)
    await connection.fetch(READ_HOUR, hour)
    rows = await connection.fetch(COUNT_PAGE, first, last, PAGE)
    assert PAGE == sum(row["jobs"] for row in rows)


async def pause_and_resume_a_target(connection: Connection) -> None:
    what = Pause(scope=PauseScope.TARGET, name="image:7", tenant_id=TENANT)
    await pause(connection, what, by="tests", reason="why")
    await resume(connection, what)


async def pause_and_resume_a_type(connection: Connection) -> None:
    what = Pause(scope=PauseScope.TYPE, name="held")
    await pause(connection, what, by="tests", reason="why")
    assert await resume(connection, what)


async def pause_and_resume_a_tenant(connection: Connection) -> None:
    """Of the one that has nearly everything, a hundred thousand rings among it."""
    what = Pause(scope=PauseScope.TENANT, tenant_id="flood")
    await pause(connection, what, by="tests", reason="why")
    assert await resume(connection, what)


async def limit_a_tenant(connection: Connection) -> None:
    wanted = {"open_jobs": 7, "uploads": 1, "bytes": None}
    await set_limits(connection, TENANT, wanted, by="tests", reason="why")


async def rank(connection: Connection) -> None:
    ranking = await rank_tenants(connection, limit=20)
    assert ("flood", 1000, 20_000) in {
        (tenant.tenant, tenant.waiting, tenant.announced) for tenant in ranking.tenants
    }


async def trip_and_reset_a_breaker(connection: Connection) -> None:
    await force_open(connection, "s3", by="tests")
    assert await reset_breaker(connection, "s3", by="tests")


FEW: Final = 1_000
BUSY: Final = 2_000  # attempts of the minute in which the load was made


async def depths_without_a_book(connection: Connection) -> None:
    """After an upgrade, where an older release left a backlog: of each no more than is told."""
    await connection.execute("UPDATE ledger_proof SET opened_at = NULL")
    depths = await sample_depths(connection, limit=FEW)
    counted = Counter[tuple[str, str]]()
    for depth in depths:
        counted[depth.type, depth.state] += depth.jobs
    assert counted == {
        (NOOP, "queued"): FEW, ("process_image", "queued"): FEW,
        ("process_image", "processing"): PROCESSING,
    }  # fmt: skip


def listing(
    filters: JobFilter, *, before: int | None = None, tenant: TenantId = TENANT
) -> Callable[[Connection], Awaitable[object]]:
    last = None if before is None else id_of(before)
    return lambda connection: list_jobs(connection, tenant, filters, before=last, limit=PAGE)


def overseeing(
    filters: OverseenFilter, *, before: int | None = None
) -> Callable[[Connection], Awaitable[object]]:
    last = None if before is None else id_of(before)
    return lambda connection: oversee_jobs(connection, filters, before=last, limit=PAGE)


CROWDED: Final = f"""
SET LOCAL session_replication_role = replica;
INSERT INTO tenants (id, name) SELECT 'crowd-' || n, 'load' FROM generate_series(1, {CROWD}) AS n;
INSERT INTO jobs (id, tenant_id, type, state, lane, correlation_id, created_by, finished_at,
                  failure_code, failure_message)
SELECT id_of({GONE} + n), 'crowd-' || 1 + n % {CROWD}, 'noop', 'failed', 'general', 'r', 'load',
       now(), 'corrupt', 'It is damaged.'
  FROM generate_series(1, 10 * {CROWD}) AS n
"""  # noqa: S608 - numbers of this file


async def oversee_a_crowd(connection: Connection) -> None:
    """Ten failed jobs of each of very many tenants; of a page's tenants alone more than one."""
    await connection.execute(CROWDED)
    page = await oversee_jobs(connection, OverseenFilter(state=JobState.FAILED), limit=PAGE)
    assert PAGE == len({job.tenant for job in page.jobs})


def auditing(chosen: AuditFilter) -> Callable[[Connection], Awaitable[object]]:
    return lambda connection: list_audit(connection, chosen, limit=PAGE)


async def roll_up_again(connection: Connection) -> None:
    await connection.execute(
        "UPDATE rollup_progress SET counted_until = now(), marked_at = now() - interval '1 minute'"
    )
    found = await roll_up(connection)
    assert found is not None
    assert found.again


async def roll_up_busily(connection: Connection) -> None:
    """The minute in which the load was made, as if it were over."""
    minute = await connection.fetchval("SELECT date_trunc('minute', max(ended_at)) FROM attempts")
    rows = await connection.fetch(COUNT_ENDS, minute)
    assert BUSY <= sum(row["attempts"] for row in rows if row["of_waits"])


async def throughput(connection: Connection) -> None:
    await connection.execute("UPDATE rollup_progress SET counted_until = now() + interval '1 hour'")
    flows = await read_throughput(connection)
    assert {("type_1", "completed")} <= {(flow.job_type, flow.outcome) for flow in flows}


def newest(step: Step, steps: int) -> list[datetime]:
    """The last of them there are, though nobody has counted so far."""
    length = LENGTHS[step]
    last = LONG_AGO + (datetime.now(UTC) - LONG_AGO) // length * length
    return [last - length * place for place in range(steps)]


def rates(step: Step, steps: int, *, job_type: str | None = None) -> Case:
    async def read(connection: Connection) -> None:
        assert await connection.fetch(READ_RATES, step, newest(step, steps), job_type, None)

    return Case(read, "operator", 2 * steps * KINDS, 2 * steps * KINDS)


def costs(step: Step, steps: int) -> Callable[[Connection], Awaitable[object]]:
    async def read(connection: Connection) -> None:
        assert await connection.fetch(READ_COSTS, step, newest(step, steps))

    return read


async def look_for_keys(connection: Connection) -> None:
    assert await seek_keys(connection, [digest_of(f"if_{n}") for n in range(500)]) == {}


async def hours_of_faults(connection: Connection) -> None:
    types = ("process_image", "noop", *map(str, range(48)))
    prints = [hashlib.md5(each.encode(), usedforsecurity=False).hexdigest() for each in types]
    assert len(await count_hourly(connection, prints)) == len(prints)


def letters(
    filters: LetterFilter, *, after: int | None = None
) -> Callable[[Connection], Awaitable[object]]:
    async def list_them(connection: Connection) -> None:
        last = None if after is None else await get_dead_letter(connection, id_of(20 * after + 1))
        await list_dead_letters(connection, filters, after=last, limit=PAGE)

    return list_them


SMALL: Final = TenantId("tenant-10")


CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        "live settings, unchanged": Case(live_settings_unchanged, "worker", 2, 4),
        "pause and resume a type of many": Case(pause_and_resume_a_type, "operator", 10, 60),
        "pause and resume a tenant of many": Case(pause_and_resume_a_tenant, "operator", 10, 60),
        "tenants": Case(lambda c: list_tenants(c, limit=PAGE), "operator", 8_000, 3000),
        "a tenant": Case(
            lambda c: get_tenant(c, TENANT), "operator", QUEUED + PROCESSING + 20, 60_000
        ),
        "limit a tenant": Case(limit_a_tenant, "operator", 20, 150),
        # One probe a level, what was announced as far as it is counted, and what runs.
        "who waits longest": Case(
            rank, "operator", 2 * 20_000 + 3 * CROWD + 2 * PROCESSING + 25_000, 40_000
        ),
        "reset a breaker that held many": Case(trip_and_reset_a_breaker, "operator", 10, 60),
        "explain": Case(lambda c: explain_job(c, WITH_TARGETS[0]), "operator", 4 * WORKERS, 80),
        "explain late in a deep target": Case(
            lambda c: explain_job(c, LATE_OF_THE_DEEP_TARGET), "operator", 4 * WORKERS, 80
        ),
        "get": Case(lambda c: get_job(c, WITH_TARGETS[0], TENANT), "api", 2, 10),
        "get everything": Case(lambda c: get_operator_job(c, WITH_TARGETS[0]), "operator", 4, 20),
        "attempts": Case(lambda c: list_attempts(c, id_of(5)), "operator", 4, 20),
        "resume a target": Case(pause_and_resume_a_target, "operator", 60, 200),
        "prune letters of no job": Case(prunes(prune_strays, PAGE), "maintenance", 5 * PAGE, 1200),
        "how far upkeep is behind": Case(
            lambda c: sample_behind(c, walk_within=timedelta(hours=6)), "maintenance", 20, 60
        ),
        # Each is found by an index, and then looked at by its id.
        "list across tenants": Case(overseeing(OverseenFilter()), "operator", 3 * PAGE, 300),
        "list across tenants, deep": Case(
            overseeing(OverseenFilter(), before=100_000), "operator", 3 * PAGE, 300
        ),
        "list of one tenant, for operators": Case(
            overseeing(OverseenFilter(tenant_id=SMALL)), "operator", 3 * PAGE, 300
        ),
        # A page of each of the tenants, of which the newest are shown.
        "list across tenants by state": Case(
            overseeing(OverseenFilter(state=JobState.FAILED)), "operator", 8 * PAGE, 700
        ),
        "list across a crowd of tenants by state": Case(
            oversee_a_crowd, "superuser", 3 * CROWD + 20 * PAGE, 5_000_000
        ),
        "list across tenants by type, deep": Case(
            overseeing(OverseenFilter(type=NOOP), before=50_000), "operator", 20 * PAGE, 1500
        ),
        "list across tenants by a target with a long history": Case(
            overseeing(OverseenFilter(target=image_target(id_of(HOT))), before=50_000),
            "operator",
            8 * PAGE,
            700,
        ),
        "list across tenants by correlation": Case(
            overseeing(OverseenFilter(correlation_id="request-77")), "operator", PAGE, 60
        ),
        "list across tenants by code, deep": Case(
            overseeing(OverseenFilter(code="corrupt"), before=100_000), "operator", 4 * PAGE, 400
        ),
        "list across tenants by a code that nobody had": Case(
            overseeing(OverseenFilter(code="poison", state=JobState.FAILED)), "operator", 10, 20
        ),
        # What no index knows: a page looks at so many, and says where to go on.
        "list of a tenant by a code that nobody had": Case(
            overseeing(OverseenFilter(tenant_id=TENANT, code="poison", type=NOOP)),
            "operator",
            5 * MOST_CANDIDATES,
            5 * MOST_CANDIDATES,
        ),
        "list by a target with a long history, and a type it never had": Case(
            overseeing(OverseenFilter(target=image_target(id_of(HOT)), type="rare")),
            "operator",
            8 * MOST_CANDIDATES,
            8 * MOST_CANDIDATES,
        ),
        # One probe a level, what of each is counted, and what runs; no backlog, whatever it is.
        "explain a lane": Case(
            lambda c: look_at_lane(c, Lane.GENERAL, frozenset({("general", NOOP)})),
            "operator",
            60_000,
            30_000,
        ),
        "neighbours in a deep target": Case(
            lambda c: list_neighbours(c, TENANT, image_target(id_of(DEEP))), "operator", 30, 60
        ),
        "pauses": Case(list_pauses, "operator", 2 * PROCESSING + 20, 400),
        "workers": Case(list_workers, "operator", 2 * PROCESSING + 2 * WORKERS, 800),
        "room for a job": Case(
            lambda c: room_for_job(c, Lane.GENERAL, NOOP),
            "operator",
            2 * PROCESSING + 2 * WORKERS,
            800,
        ),
        "breakers": Case(list_breakers, "operator", 10, 20),
        "who takes what": Case(list_taken, "operator", WORKERS, 60),
        "settings that are turned": Case(list_turned, "operator", 20, 20),
        "defaults of settings": Case(read_defaults, "operator", 20, 20),
        "runs of the pruner": Case(lambda c: list_prune_runs(c, limit=10), "operator", 20, 40),
        # Of what is past retention as far as it is counted, and the letter of each.
        "what is past retention": Case(
            lambda c: count_prunable(c, most=PAGE), "operator", 4 * PAGE, 800
        ),
        "up to when it is counted": Case(
            lambda c: find_steps(c, When(span=timedelta(hours=1))), "operator", 1, 4
        ),
        "the ledger": Case(read_ledger, "operator", 6 * HOURS + 3 * TOLD + 100, 600),
        "letters that nobody has seen to": Case(
            count_unacknowledged, "operator", 2 * LETTERS, 60_000
        ),
        "audit": Case(auditing(AuditFilter()), "operator", 4 * PAGE, 300),
        "audit on one thing": Case(
            auditing(AuditFilter(kind="circuit_breaker", name="s7")), "operator", 4 * PAGE, 300
        ),
        "audit by somebody who was here once": Case(
            auditing(AuditFilter(actor="rare")), "operator", 20, 40
        ),
        "audit by a key": Case(auditing(AuditFilter(key_id=id_of(3))), "operator", 4 * PAGE, 300),
        "audit of a tenant, long ago": Case(
            auditing(AuditFilter(tenant_id=SMALL, until=LONG_AGO + timedelta(days=1))),
            "operator",
            4 * PAGE,
            300,
        ),
        # No index: a page reads so many lines and says where to go on.
        "audit of what nobody did": Case(
            auditing(AuditFilter(action="never")), "operator", 3 * MOST_LOOKED_AT, 6000
        ),
        "stuck": Case(lambda c: list_stuck(c, limit=PAGE), "operator", 3 * PROCESSING, 800),
        "failures of the last hour": Case(
            lambda c: list_failures(c, limit=PAGE), "operator", 1000, 1200
        ),
        # Nobody has counted for a fortnight: the attempts themselves. Else the minutes of the hour.
        "throughput of an hour that nobody counted": Case(read_throughput, "operator", 6000, 1200),
        "throughput of the last hour": Case(throughput, "maintenance", 2 * 61 * KINDS + 100, 1200),
        # The book, and of each type, state and lane the first; no open job is counted.
        "queue health": Case(read_queue_health, "operator", 6 * HOURS + 2 * TOLD + 1000, 4000),
        "load of lanes": Case(load_of_lanes, "operator", 3 * PROCESSING + 2 * WORKERS + 200, 2500),
        # No job at all: a month of sums, and the entries since the last fold.
        "sample depths": Case(sample_depths, "maintenance", 6 * HOURS + TOLD + 100, 400),
        "sample depths before the book is open": Case(
            depths_without_a_book, "maintenance", 2 * FEW + PROCESSING + 20, 2 * FEW + 500
        ),
        "sample the ledger": Case(read_ledger, "maintenance", 6 * HOURS + 3 * TOLD + 100, 600),
        # Of a lane that is full the first ten thousand; of the others every level, and what is due.
        **{
            f"work in lane {lane}": Case(working_in(lane), "scaler", 10, pages)
            for lane, pages in ((Lane.FAST, 2000), (Lane.GENERAL, 2000), (Lane.QUARANTINE, 2000))
        },
        "sample the oldest": Case(sample_oldest, "maintenance", 10, 100),
        "fold a hundred entries": Case(
            lambda c: fold_entries(c, limit=100), "maintenance", 400, 2000
        ),
        "fold a hundred submits": Case(
            lambda c: fold_ledger(c, limit=100), "maintenance", 400, 1000
        ),
        # What ended in a minute of four weeks, one row of the minute after, and its three rollups.
        "roll up a minute": Case(roll_up, "maintenance", 60, 200),
        "roll up a minute again": Case(roll_up_again, "maintenance", 60, 200),
        "roll up a busy minute": Case(roll_up_busily, "maintenance", 3 * BUSY, 3 * BUSY),
        "add a hundred entries": Case(
            lambda c: add_entries(c, limit=100), "maintenance", 700, 2000
        ),
        "prune rollups": Case(prune_rollups, "maintenance", 200, 600),
        # The rows of its steps, each by the index: never all rollups, which are no history either.
        "rates of an hour": rates(Step.MINUTE, 60),
        "rates of half a day by the minute": rates(Step.MINUTE, 720),
        "rates of a type": rates(Step.HOUR, 24, job_type="type_3"),
        "rates of a year": rates(Step.DAY, 365),
        "costs of a month": Case(costs(Step.DAY, 30), "operator", 4 * 30 * KINDS, 400),
        "prove a page": Case(prove_a_page, "maintenance", 2 * PAGE + 2 * TOLD + 6 * HOURS, 700),
        "list": Case(listing(JobFilter()), "api", PAGE, 100),
        "list, deep": Case(listing(JobFilter(), before=100_000), "api", PAGE, 100),
        "list of a small tenant": Case(listing(JobFilter(), tenant=SMALL), "api", PAGE, 100),
        "list by state": Case(listing(JobFilter(state=JobState.FAILED)), "api", PAGE, 100),
        "list by state, deep": Case(
            listing(JobFilter(state=JobState.FAILED), before=50_000), "api", PAGE, 100
        ),
        "list by a state that nobody is in": Case(
            listing(JobFilter(state=JobState.FAILED_RETRYABLE)), "api", 0, 20
        ),
        # A page of every state that the type has, of which the newest are shown.
        "list by type": Case(listing(JobFilter(type=NOOP)), "api", 5 * PAGE, 200),
        "list by type, deep": Case(
            listing(JobFilter(type=NOOP), before=50_000), "api", 5 * PAGE, 200
        ),
        "list by a rare type": Case(listing(JobFilter(type="rare")), "api", 5, 40),
        "list by type and state, deep": Case(
            listing(JobFilter(type=NOOP, state=JobState.FAILED), before=50_000), "api", PAGE, 100
        ),
        "list by correlation": Case(
            listing(JobFilter(correlation_id="request-77")), "api", PAGE, 20
        ),
        "list by a target with a long history": Case(
            listing(JobFilter(target=image_target(id_of(HOT)))), "api", PAGE, 100
        ),
        "list by a target with a long history, deep": Case(
            listing(JobFilter(target=image_target(id_of(HOT))), before=50_000), "api", PAGE, 100
        ),
        "list by an unknown target": Case(listing(JobFilter(target="image:?")), "api", 0, 10),
        # A stretch of the ids of whatever is listed: of those that begin alike, or since a time.
        "list of ids that begin alike": Case(
            listing(JobFilter(first=id_of(50_000)), before=50_050), "api", PAGE, 100
        ),
        "list of ids that nobody has": Case(
            listing(JobFilter(first=id_of(9_000_000))), "api", 0, 10
        ),
        "list by type and state since a time": Case(
            listing(JobFilter(type=NOOP, state=JobState.FAILED, first=id_of(195_000))),
            "api",
            PAGE,
            100,
        ),
        "list children since they were made": Case(
            listing(JobFilter(parent_job_id=id_of(5000), first=id_of(9_000_000))), "api", 0, 10
        ),
        "list across tenants of ids that begin alike": Case(
            overseeing(OverseenFilter(first=id_of(50_000)), before=50_050),
            "operator",
            3 * PAGE,
            300,
        ),
        "list across tenants by state since a time": Case(
            overseeing(OverseenFilter(state=JobState.FAILED, first=id_of(9_000_000))),
            "operator",
            20,
            60,
        ),
        "list children": Case(listing(JobFilter(parent_job_id=id_of(5000))), "api", PAGE, 40),
        "letters": Case(letters(LetterFilter(open_only=False)), "operator", 3 * PAGE, 300),
        # As far as it is counted.
        "count open letters": Case(
            lambda c: count_open_letters(c, LetterFilter(), most=PAGE), "worker", 3 * PAGE, 400
        ),
        "letters, deep": Case(
            letters(LetterFilter(open_only=False), after=8000), "operator", 3 * PAGE, 300
        ),
        "letters of a tenant, deep": Case(
            letters(LetterFilter(tenant_id=TENANT, open_only=False), after=8000),
            "operator",
            3 * PAGE,
            300,
        ),
        # People's work, so never many: all open letters and their replays may be read, but no jobs.
        "open letters": Case(letters(LetterFilter()), "operator", 2 * LETTERS, 60_000),
        "open letters, deep": Case(
            letters(LetterFilter(), after=8000), "operator", 2 * LETTERS, 60_000
        ),
        "letters by a reason that none has": Case(
            letters(LetterFilter(reason="poison")), "operator", 2 * LETTERS, 3000
        ),
        "letters of ids that begin alike": Case(
            lambda c: find_dead_letters(c, id_of(4000), id_of(9_000_000), limit=PAGE),
            "operator",
            6 * PAGE,
            600,
        ),
        "a fault by how its fingerprint begins": Case(
            lambda c: with_whole_fault(c, LetterFilter(fingerprint="00000000")), "operator", 10, 60
        ),
        # Each is read once to be counted, and once for its tenant.
        "groups of letters": Case(group_dead_letters, "operator", 3 * LETTERS, 60_000),
        # A look for each hour, and no more of one that has many than is counted.
        "how often faults struck lately": Case(hours_of_faults, "operator", 6_000, 6_000),
        "five hundred unknown keys": Case(look_for_keys, "api", 4, 1500),
    }
)
