"""What processes do by themselves is told by triggers, once, and beside what people say."""

from uuid import uuid4

from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobState, PauseScope, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act, Actor, acting
from imagefleet.store.fleet.breakers import (
    force_open,
    report_probe_failed,
    report_probe_worked,
    reset_breaker,
)
from imagefleet.store.fleet.elections import hold_election, resign
from imagefleet.store.fleet.keys import create_key
from imagefleet.store.fleet.live_settings import turn_retention
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.fleet.workers import retire_worker, start_drain
from imagefleet.store.jobs.dispatching import hold_lanes, leave_lanes
from imagefleet.store.jobs.leases import renew_claims
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from tests.conftest import OpenConnection
from tests.store.schema.test_older_processes import older
from tests.support.factories import a_job, a_submission, a_worker, open_breaker, settle_job
from tests.support.rows import audit_rows, newest_audit

ADA = Actor(name="ada", key_id=uuid4(), address="192.0.2.7")
EVERYTHING = Pause(scope=PauseScope.ALL)
NOTHING = Act(action="pause", kind="pause", name="all")
TENANT = TenantId("tenant")


async def words(connection: Connection, after: int = 0) -> list[str]:
    return [
        f"{row['action']} {row['kind']} {row['name']}"
        for row in await audit_rows(connection, after)
    ]


# What is told without anybody saying so, once, and what is not.


async def test_a_worker_that_starts_and_stops_is_told(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    await start_drain(worker, me)
    assert await retire_worker(worker, me)

    start, stop = await audit_rows(superuser)
    assert ("start", "stop") == (start["action"], stop["action"])
    assert {"worker"} == {start["kind"], stop["kind"]}
    assert {str(me)} == {start["name"], stop["name"]}
    assert "imagefleet_worker" == start["role"]
    assert start["before"] is None
    assert {"host", "pid", "version", "lanes", "types", "slots"} == set(start["after"])
    assert (None, "stopped") == (stop["before"]["dead_why"], stop["after"]["dead_why"])


async def test_a_worker_that_is_lost_is_told_by_who_found_it(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    me = await a_worker(worker)
    last = await newest_audit(superuser)
    (seen,) = await look_at_workers(maintenance)
    await rescue_worker(maintenance, seen)

    (line,) = await audit_rows(superuser, last)
    assert ("lose", "worker", str(me), "imagefleet_maintenance") == (
        line["action"],
        line["kind"],
        line["name"],
        line["role"],
    )
    assert "silent" == line["after"]["dead_why"]


async def test_a_new_holder_of_an_office_is_told_and_where_it_came_from(
    maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    first, second = uuid4(), uuid4()

    assert await hold_election(maintenance, "flusher", first) == 1
    await resign(maintenance, "flusher", first)
    assert await hold_election(maintenance, "flusher", second) == 2

    one, other = await audit_rows(superuser)
    assert {("elect", "election", "flusher")} == {
        (line["action"], line["kind"], line["name"]) for line in (one, other)
    }
    assert (None, {"holder": str(first), "term": 1}) == (one["before"], one["after"])
    assert (one["after"], {"holder": str(second), "term": 2}) == (other["before"], other["after"])


async def test_a_new_dispatcher_of_a_lane_is_told(
    maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    first, second = uuid4(), uuid4()
    await hold_lanes(maintenance, first)
    await leave_lanes(maintenance, first)
    last = await newest_audit(superuser)

    await hold_lanes(maintenance, second)

    assert [
        "elect election dispatcher fast",
        "elect election dispatcher general",
        "elect election dispatcher quarantine",
    ] == sorted(await words(superuser, last))


async def test_a_hundred_beats_and_renewals_write_nothing(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    me, holder = await a_worker(worker), uuid4()
    await hold_election(maintenance, "flusher", holder)
    await hold_lanes(maintenance, holder)
    last = await newest_audit(superuser)

    for _ in range(100):
        await renew_claims(worker, me, [])
        await hold_election(maintenance, "flusher", holder)
        await hold_lanes(maintenance, holder)
    await resign(maintenance, "flusher", holder)
    await leave_lanes(maintenance, holder)

    assert 100 <= await superuser.fetchval("SELECT beats FROM workers WHERE id = $1", me)
    assert [] == await words(superuser, last)


async def test_a_breaker_that_workers_open_and_close_is_told_and_keeps_its_last_error(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    await open_breaker(worker)
    await report_probe_failed(worker, "s3", "s3_timeout")
    assert await report_probe_worked(worker, "s3")
    assert not await report_probe_worked(worker, "s3")

    opened, closed = await audit_rows(superuser)
    assert ["open", "close"] == [opened["action"], closed["action"]]
    assert ("closed", "open") == (opened["before"]["state"], opened["after"]["state"])
    assert 1 == opened["after"]["window_failures"]
    assert ("open", "closed") == (closed["before"]["state"], closed["after"]["state"])
    assert ("s3_unavailable", "s3_timeout") == (
        opened["after"]["last_error_code"],
        closed["after"]["last_error_code"],
    )
    code = await superuser.fetchval("SELECT last_error_code FROM circuit_breakers")
    assert "s3_timeout" == code


async def test_who_acts_is_told_once(operator: OpenConnection, worker: OpenConnection) -> None:
    await open_breaker(worker)
    last = await newest_audit(operator)

    async with acting(operator, ADA) as act:
        await pause(act.connection, EVERYTHING, by="ada", reason="why")
        await pause(act.connection, EVERYTHING, by="ada", reason="another")
        await resume(act.connection, EVERYTHING)
        await force_open(act.connection, "s3", by="ada")
        await force_open(act.connection, "sqs", by="ada")
        await reset_breaker(act.connection, "s3", by="ada")
        await act.connection.execute("UPDATE tenants SET weight = 4")
        await turn_retention(act.connection, 90)
        await act.record(NOTHING)

    assert ["pause pause all"] == await words(operator, last)


async def test_who_acts_and_does_not_say_so_is_told_of_all_the_same(
    operator: OpenConnection, admin: OpenConnection
) -> None:
    """As processes of 0.2.0 do, and people in psql."""
    await admin.execute("INSERT INTO tenants (id, name) VALUES ('shop', 'shop')")
    await admin.execute(
        "INSERT INTO api_keys (id, tenant_id, name, secret_sha256, scopes)"
        " VALUES (gen_random_uuid(), 'shop', 'k', sha256('x'), '{read}')"
    )
    await admin.execute("UPDATE api_keys SET revoked_at = now()")
    key = await admin.fetchval("SELECT id FROM api_keys")
    await operator.execute("UPDATE tenants SET weight = 4 WHERE id = 'shop'")
    await operator.execute(
        "INSERT INTO live_settings (name, value, set_by, reason) VALUES ('a', '7', 'ben', 'why')"
    )
    await operator.execute("UPDATE live_settings SET value = '8'")
    await operator.execute("DELETE FROM live_settings")
    await operator.execute(
        "INSERT INTO tenant_limits (tenant_id, name, value, set_by, reason)"
        " VALUES ('shop', 'a', 7, 'ben', 'why')"
    )
    await operator.execute("UPDATE fleet SET retention = interval '90 days'")
    await operator.execute("UPDATE fleet SET retention = interval '90 days'")
    terms = (True, "ben", "why")
    await operator.execute(older("control.PAUSE"), "type", "", "noop", *terms)
    await operator.execute(older("control.RESUME"), "type", "", "noop")
    await operator.execute(older("breakers.FORCE_OPEN"), "s3", "ben")
    await operator.execute(older("breakers.RESET_BREAKER"), "s3", "ben")

    lines = [row for row in await audit_rows(operator) if row["tenant_id"] in {None, "shop"}]
    assert [
        "create tenant shop",
        f"create key {key}",
        f"revoke key {key}",
        "limit tenant shop",
        "set setting a",
        "set setting a",
        "reset setting a",
        "limit tenant shop",
        "set setting retention.jobs_days",
        "pause pause type noop",
        "resume pause type noop",
        "open circuit_breaker s3",
        "close circuit_breaker s3",
    ] == [f"{line['action']} {line['kind']} {line['name']}" for line in lines]
    assert {"imagefleet-test-admin", "imagefleet-test-operator"} == {
        line["actor"] for line in lines
    }
    assert ("30 days", "90 days") == tuple(
        lines[8][side]["retention"] for side in ("before", "after")
    )
    assert "why" == lines[10]["before"]["reason"]
    assert "sha256" not in str([line["after"] for line in lines])


async def test_a_tenants_pause_has_one_name_whoever_tells_of_it(operator: OpenConnection) -> None:
    """Else the history of one pause would be two."""
    for job_type in ("", "noop"):
        what = Pause(scope=PauseScope.TENANT, tenant_id="acme", name=job_type)
        await pause(operator, what, by="ada", reason="why")
        assert await resume(operator, what)

    assert [
        "pause pause tenant acme",
        "resume pause tenant acme",
        "pause pause tenant acme noop",
        "resume pause tenant acme noop",
    ] == await words(operator)
    assert {"acme"} == {line["tenant_id"] for line in await audit_rows(operator)}


async def test_who_is_at_postgres_is_told_with_where_the_session_comes_from(
    operator: OpenConnection, admin: OpenConnection
) -> None:
    """Of what a trigger tells, and of keys, which no request is behind."""
    here = await admin.fetchval("SELECT host(inet_client_addr())")

    await operator.execute("UPDATE tenants SET weight = 4")
    await create_key(admin, TENANT, name="k", scopes=["read"], by=Actor(name="ada"))
    await operator.execute(older("breakers.FORCE_OPEN"), "s3", "ben")

    lines = await audit_rows(operator)
    assert here is not None
    assert {"create tenant", "create key", "open circuit_breaker"} <= {
        f"{line['action']} {line['kind']}" for line in lines
    }
    assert {here} == {line["address"] for line in lines}


async def test_older_processes_are_told_of_too(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    me, holder = uuid4(), uuid4()
    await worker.execute(
        older("control.REGISTER_WORKER"), me, "h", 1, "0.2.0", ["fast"], ["noop"], [1]
    )
    await maintenance.execute(older("elections.HOLD_ELECTION"), "flusher", holder)
    await worker.execute(older("control.RETIRE_WORKER"), me)

    assert [
        f"start worker {me}",
        "elect election flusher",
        f"stop worker {me}",
    ] == await words(superuser)


async def test_a_target_that_a_failed_job_pauses_is_told(
    worker: OpenConnection, superuser: OpenConnection
) -> None:
    submission = a_submission(target="photo", pause_target_on_failure=True)
    job = await a_job(worker, superuser, state=JobState.PROCESSING, submission=submission)
    last = await newest_audit(superuser)

    await settle_job(worker, job, Failed(code="corrupt", message="It is damaged."))

    (line,) = await audit_rows(superuser, last)
    assert ("pause", "pause", "target photo", submission.tenant_id, "imagefleet_worker") == (
        line["action"],
        line["kind"],
        line["name"],
        line["tenant_id"],
        line["role"],
    )
