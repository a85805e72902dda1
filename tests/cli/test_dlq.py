"""Operators' verbs against a real API and a real Postgres: what they do, say and exit with."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from imagefleet.cli import output, queue, replaying
from imagefleet.cli.output import ExitCode
from imagefleet.jobs.lifecycle import Completed, Failed, Outcome
from imagefleet.jobs.model import JobId, JobState, TenantId, Verdict
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, Ended
from tests.support.api import Running
from tests.support.emulators import CREDENTIALS
from tests.support.eventually import eventually
from tests.support.factories import MadeJob, a_job, a_submission, claim_job, settle_job
from tests.support.http import claimed
from tests.support.rows import job_row

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
MADE_AT = "SELECT created_at FROM jobs WHERE replay_of IS NOT NULL ORDER BY created_at"
BUG = Failed(code="internal_error", message="Something went wrong.", detail="KeyError")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The API's log goes elsewhere: the standard output is the verb's."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret)
    monkeypatch.setattr(replaying, "POLL", 0.05)
    monkeypatch.setattr(queue, "POLL", 0.05)
    with capture_logs():
        yield


def document(ended: Ended) -> Any:  # noqa: ANN401 - JSON
    assert ended.code in {ExitCode.DONE, ExitCode.FAILED}, ended.err
    return ended.json()


async def failed(worker: Connection, superuser: Connection, count: int) -> list[MadeJob]:
    made = []
    for _ in range(count):
        job = await a_job(worker, superuser, state=PROCESSING)
        await settle_job(worker, job, BUG)
        made.append(job)
    return made


@asynccontextmanager
async def a_fleet(worker: Connection, outcome: Outcome) -> AsyncIterator[None]:
    """Something that ends every replay in this way, soon."""

    async def work() -> None:
        while True:
            waiting = await worker.fetch(
                "SELECT id FROM jobs WHERE state = 'queued' AND replay_of IS NOT NULL"
            )
            for row in waiting:
                await settle_job(worker, await claimed(worker, JobId(row["id"])), outcome)
            await asyncio.sleep(0.02)

    working = asyncio.get_running_loop().create_task(work())
    try:
        yield
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def test_a_job_is_explained_and_its_attempts_are_listed(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    (job,) = await failed(worker, superuser, 1)

    explained = await operate("jobs", "explain", str(job.job_id))
    attempts = await operate("jobs", "attempts", str(job.job_id))
    whole = await operate("jobs", "show", "--all", "--json", str(job.job_id))

    assert "It is over: failed." in explained.out
    assert "internal_error" in attempts.out
    assert "KeyError" in attempts.out
    assert "KeyError" == document(whole)["failureDetail"]
    assert [ExitCode.DONE, ExitCode.DONE, ExitCode.FAILED] == [
        ended.code for ended in (explained, attempts, whole)
    ]


async def test_jobs_of_other_tenants_are_listed_for_operators(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, submission=a_submission(tenant_id=TenantId("rival")))

    listed = await operate("jobs", "list", "--every-tenant", "--json")
    table = await operate("jobs", "list", "--tenant", "rival")

    assert [str(job.job_id)] == [one["jobId"] for one in document(listed)["jobs"]]
    assert str(job.job_id) in table.out


async def test_all_that_a_job_can_be_told_is_typed_kept_and_listed(
    operate: Cli, running: Running, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_operator, as_producer = running.secrets["operator"], running.secrets["acme"]
    monkeypatch.setenv("IMAGEFLEET_KEY", as_producer)
    parent = document(await operate("jobs", "submit", "noop", "--json"))["jobId"]
    told = (
        *("--payload", '{"note": "typed"}', "--priority", "30", "--run-at", "2090-01-01T06:00"),
        *("--dedup-key", "nightly", "--correlation-id", "order-7", "--parent", parent),
        *("--max-attempts", "2", "--idempotency-key", "mine", "--json"),
    )

    child = document(await operate("jobs", "submit", "noop", *told))["jobId"]
    again = document(await operate("jobs", "submit", "noop", *told))["jobId"]
    children = document(await operate("jobs", "list", "--json", "--parent", parent))["jobs"]
    related = document(await operate("jobs", "list", "--json", "--correlation-id", "order-7"))
    monkeypatch.setenv("IMAGEFLEET_KEY", as_operator)
    overseen = ("jobs", "list", "--tenant", "acme", "--parent", parent)
    (seen,) = document(await operate(*overseen, "--json"))["jobs"]
    table = (await operate(*overseen)).out

    row = await job_row(superuser, JobId(child))
    told_apart = ("priority", "dedup_key", "correlation_id", "max_attempts", "idempotency_key")
    assert [30, "nightly", "order-7", 2, "mine"] == [row[name] for name in told_apart]
    assert ({"note": "typed"}, parent) == (row["payload"], str(row["parent_job_id"]))
    assert f"{row['run_at']:%Y-%m-%d %H:%M %Z}" == "2090-01-01 06:00 UTC"
    assert [again] * 3 == [child, children[0]["jobId"], related["jobs"][0]["jobId"]]
    assert (30, "nightly", "order-7", parent) == (
        seen["priority"],
        seen["dedupKey"],
        seen["correlationId"],
        seen["parentJobId"],
    )
    assert "2090-01-01 06:00:00" in table


async def test_a_submitted_job_can_be_waited_for(
    operate: Cli,
    running: Running,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["acme"])

    async def fail_it() -> None:
        async def submitted() -> JobId | None:
            found: JobId | None = await superuser.fetchval("SELECT id FROM jobs")
            return found

        await settle_job(worker, await claimed(worker, await eventually(submitted, within=20)), BUG)

    ended, _ = await asyncio.gather(
        operate("jobs", "submit", "noop", "--wait", "--within", "20"), fail_it()
    )

    assert ExitCode.FAILED == ended.code
    assert "is failed" in ended.out
    assert "Something went wrong." in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("noop", "--payload", "[1]"),
        ("noop", "--payload", "{"),
        ("noop", "--payload", "@/nowhere/at/all"),
        ("noop", "--run-at", "tomorrow"),
    ],
)
async def test_what_is_no_job_is_not_even_sent(operate: Cli, arguments: tuple[str, ...]) -> None:
    assert ExitCode.USAGE == (await operate("jobs", "submit", *arguments)).code


@pytest.mark.parametrize(
    ("verb", "code"), [("cancel", "cancelled"), ("fail", "failed_by_operator")]
)
async def test_orders_to_end_a_job_are_jobs(
    operate: Cli, worker: Connection, superuser: Connection, verb: str, code: str
) -> None:
    job = await a_job(worker, superuser)

    ordered = await operate("jobs", verb, "--json", "--reason", "it blocks", str(job.job_id))

    order = await job_row(superuser, JobId(document(ordered)["jobId"]))
    assert {"job_id": str(job.job_id), "code": code, "reason": "it blocks"} == order["payload"]


async def test_retry_now_says_whether_it_did(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    waiting = await a_job(worker, superuser, state=FAILED_RETRYABLE, due=False)
    over = await a_job(worker, superuser, state=COMPLETED)

    verb = ("jobs", "retry-now", "--reason", "x")

    assert "rung" in (await operate(*verb, str(waiting.job_id))).out
    assert "nothing to do" in (await operate(*verb, str(over.job_id))).out


async def test_what_the_api_refuses_ends_with_its_code(
    operate: Cli, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = await operate("jobs", "explain", "0199a5c2-0000-7000-8000-000000000001")
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["acme"])
    forbidden = await operate("queue", "stats")

    assert [ExitCode.REFUSED, ExitCode.REFUSED] == [unknown.code, forbidden.code]
    assert "operate" in forbidden.err


async def test_dead_letters_are_listed_grouped_shown_and_acknowledged(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    jobs = await failed(worker, superuser, 2)

    listed = document(await operate("dlq", "list", "--json", "--code", "internal_error"))
    (group,) = document(await operate("dlq", "groups", "--json"))["groups"]
    by_tenant = await operate("dlq", "groups", "--by-tenant")
    shown = await operate("dlq", "show", str(jobs[0].job_id))
    by_id = await operate("dlq", "ack", "--note", "known", str(jobs[0].job_id))
    by_filter = await operate("dlq", "ack", "--note", "known", "--all", "--yes", "--json")

    assert [str(job.job_id) for job in jobs] == [one["jobId"] for one in listed["letters"]]
    assert (2, 2, 1) == (group["letters"], group["replayable"], group["tenants"])
    assert "acme" in by_tenant.out
    assert "KeyError" in shown.out
    assert "1 acknowledged" in by_id.out
    assert {"acknowledged": 1} == document(by_filter)
    assert [] == document(await operate("dlq", "list", "--json"))["letters"]
    assert "of tests" in (await operate("dlq", "list", "--history")).out


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "ack", "--note", "x"),
        ("dlq", "ack", "--note", "x", "--all", "--code", "corrupt"),
        ("dlq", "replay", "--reason", "x", "some-id", "--all"),
        ("queue", "pause", "--reason", "x"),
        ("queue", "pause", "--reason", "x", "--type", "noop", "--all"),
        ("queue", "pause", "--reason", "x", "--target", "image:1"),
        ("queue", "resume", "--reason", "x", "--lane", "fast", "--tenant", "acme"),
        ("queue", "resume", "--reason", "x", "--all", "--tenant", "acme"),
        ("tenants", "limit", "acme", "--reason", "x"),
        ("tenants", "limit", "acme", "--reason", "x", "--set", "weight"),
        ("tenants", "limit", "acme", "--reason", "x", "--set", "weight=-1"),
    ],
)
async def test_what_is_meant_has_to_be_said_once(operate: Cli, arguments: tuple[str, ...]) -> None:
    assert ExitCode.USAGE == (await operate(*arguments)).code


@pytest.mark.parametrize(
    "arguments",
    [
        ("breaker", "open", "s3"),
        ("breaker", "reset", "s3"),
        ("jobs", "retry-now", "some-id"),
        ("queue", "resume", "--all"),
        ("tenants", "resume", "acme"),
    ],
)
async def test_what_undoes_something_asks_why(operate: Cli, arguments: tuple[str, ...]) -> None:
    """Else a day of incidents is a page of the audit without a reason."""
    ended = await operate(*arguments)

    assert ExitCode.USAGE == ended.code
    assert "--reason" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "ack", "--note", "x", "--all"),
        ("dlq", "replay", "--reason", "x", "--code", "internal_error"),
        ("queue", "pause", "--reason", "x", "--all"),
        ("tenants", "cancel", "acme", "--reason", "x"),
    ],
)
async def test_much_at_once_needs_a_yes(
    operate: Cli, worker: Connection, superuser: Connection, arguments: tuple[str, ...]
) -> None:
    await failed(worker, superuser, 1)

    ended = await operate(*arguments)

    assert ExitCode.USAGE == ended.code
    assert "--yes" in ended.err
    assert 1 == len(document(await operate("dlq", "list", "--json"))["letters"])
    assert [] == document(await operate("queue", "pauses", "--json"))["pauses"]


class Terminal(io.StringIO):
    """Somebody sits there, and has typed this."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code", "left"), [("n", 1, 1), ("y", 0, 0)])
async def test_a_person_is_asked_before_much_is_changed(
    typed: str,
    code: int,
    left: int,
    operate: Cli,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await failed(worker, superuser, 1)
    monkeypatch.setattr("sys.stdin", Terminal(f"{typed}\n"))

    ended = await operate("dlq", "ack", "--note", "x", "--all")

    assert code == ended.code
    assert "Acknowledge 1 dead letters of 1 faults?" in ended.out + ended.err
    assert left == await superuser.fetchval(
        "SELECT count(*) FROM dead_letters WHERE acknowledged_at IS NULL"
    )


async def test_a_dry_run_tells_and_does_nothing(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await failed(worker, superuser, 3)

    ended = await operate("dlq", "replay", "--reason", "x", "--all", "--dry-run", "--json")

    assert {"replayed": 3} == document(ended)["letters"]
    assert 3 == await superuser.fetchval("SELECT count(*) FROM jobs")


async def test_a_replay_that_goes_well_goes_to_the_end(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await failed(worker, superuser, 5)

    async with a_fleet(worker, Completed()):
        ended = await operate(
            *("dlq", "replay", "--reason", "fixed", "--all", "--yes", "--json"),
            *("--canary", "1", "--rate", "2", "--within", "20"),
        )

    assert ExitCode.DONE == ended.code, ended.err
    done = document(ended)
    assert {"replayed": 5} == done["letters"]
    assert {"open": 0, "completed": 5, "failed": 0} == done["jobs"]
    made_at = [row[0] for row in await superuser.fetch(MADE_AT)]
    assert made_at[3] - made_at[1] >= timedelta(seconds=1), "two a second, after the canary"


async def test_what_fails_again_is_not_replayed_in_the_same_round(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    jobs = await failed(worker, superuser, 3)

    async with a_fleet(worker, BUG):
        ended = await operate(
            *("dlq", "replay", "--reason", "fixed", "--all", "--yes", "--json", "--within", "20"),
            *("--rate", "1", "--stop-on-failure-ratio", "1"),
        )

    assert ExitCode.FAILED == ended.code
    assert {"replayed": 3} == document(ended)["letters"]
    replayed = await superuser.fetch("SELECT replay_of FROM jobs WHERE replay_of IS NOT NULL")
    assert {job.job_id for job in jobs} == {row["replay_of"] for row in replayed}


async def test_a_replay_stops_amid_the_rest_when_too_many_fail_again(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await failed(worker, superuser, 40)

    async with a_fleet(worker, BUG):
        ended = await operate(
            *("dlq", "replay", "--reason", "fixed", "--all", "--yes", "--json"),
            *("--rate", "10", "--within", "20"),
        )

    assert ExitCode.FAILED == ended.code
    assert "that ended failed again" in document(ended)["stopped"]
    assert 10 <= document(ended)["letters"]["replayed"] < 40


async def test_a_replay_stops_when_the_canary_fails_again(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    jobs = await failed(worker, superuser, 4)

    async with a_fleet(worker, BUG):
        ended = await operate(
            *("dlq", "replay", "--reason", "fixed", "--all", "--yes"),
            *("--canary", "2", "--stop-on-failure-ratio", "0.6", "--within", "20"),
        )

    assert ExitCode.FAILED == ended.code
    assert "stopped: 2 of 2 that ended failed again" in ended.err
    replayed = await superuser.fetch("SELECT replay_of FROM jobs WHERE replay_of IS NOT NULL")
    assert {job.job_id for job in jobs[:2]} == {row["replay_of"] for row in replayed}


async def test_a_canary_that_does_not_end_in_time_stops_the_replay(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await failed(worker, superuser, 2)

    ended = await operate(
        *("dlq", "replay", "--reason", "x", "--all", "--yes", "--canary", "1", "--within", "0.2")
    )

    assert ExitCode.FAILED == ended.code
    assert "the canary has not ended in time" in ended.err
    assert 3 == await superuser.fetchval("SELECT count(*) FROM jobs")


async def test_named_letters_are_replayed_without_asking(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    (job, _) = await failed(worker, superuser, 2)

    async with a_fleet(worker, Completed()):
        first = await operate("dlq", "replay", "--reason", "x", "--json", str(job.job_id))
        again = await operate("dlq", "replay", "--reason", "x", "--json", str(job.job_id))

    assert {"replayed": 1} == document(first)["letters"]
    assert {"already_replayed": 1} == document(again)["letters"]


async def test_a_pause_waits_until_nothing_of_it_runs(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)

    async def is_paused() -> bool:
        return bool(await superuser.fetchval("SELECT count(*) FROM pauses"))

    async def end_it_later() -> None:
        await eventually(is_paused, within=20)
        await settle_job(worker, job, Completed())

    paused, _ = await asyncio.gather(
        operate("queue", "pause", "--type", "noop", "--reason", "x", "--wait", "--within", "20"),
        end_it_later(),
    )

    assert ExitCode.DONE == paused.code, paused.err
    assert "type noop is paused, 0 still running" in paused.out
    assert "type noop" in (await operate("queue", "pauses")).out
    resume = ("queue", "resume", "--type", "noop", "--reason", "x")
    assert "type noop is resumed" in (await operate(*resume)).out
    assert ExitCode.REFUSED == (await operate(*resume)).code


async def test_a_pause_of_a_type_that_nobody_knows_stands_with_a_warning(operate: Cli) -> None:
    unknown = await operate("queue", "pause", "--type", "nop", "--reason", "x")
    known = await operate("queue", "pause", "--type", "noop", "--reason", "x")

    assert ExitCode.DONE == unknown.code, unknown.err
    assert "knows no type nop:" in unknown.err
    assert known.err == ""
    listed = document(await operate("queue", "pauses", "--json"))["pauses"]
    assert {"nop": False, "noop": True} == {one["name"]: one["known"] for one in listed}


@pytest.mark.parametrize(
    ("scope", "named"),
    [
        (("--lane", "fast"), "lane fast"),
        (("--type", "noop"), "type noop"),
        (("--target", "image:1", "--tenant", "acme"), "target image:1 of acme"),
        (("--tenant", "acme"), "tenant acme"),
        (("--tenant", "acme", "--type", "noop"), "tenant acme, type noop"),
        (("--all",), "all"),
    ],
)
async def test_each_scope_is_paused_listed_and_resumed_by_its_name(
    operate: Cli,
    worker: Connection,
    superuser: Connection,
    scope: tuple[str, ...],
    named: str,
) -> None:
    job = await a_job(worker, superuser, submission=a_submission(target="image:1"))

    yes = ("--yes",) if scope == ("--all",) else ()
    paused = await operate("queue", "pause", *scope, *yes, "--reason", "x")
    held = await claim_job(worker, job.job_id, job.worker_id)
    listed = await operate("queue", "pauses")
    resumed = await operate("queue", "resume", *scope, "--reason", "x")

    assert f"{named} is paused, 0 still running" in paused.out, paused.err
    assert Verdict.PAUSED is held.verdict
    assert named in listed.out
    assert f"{named} is resumed" in resumed.out
    assert Verdict.CLAIMED is (await claim_job(worker, job.job_id, job.worker_id)).verdict


async def test_a_pause_that_waits_in_vain_stands(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await a_job(worker, superuser, state=PROCESSING)

    ended = await operate(
        *("queue", "pause", "--all", "--yes", "--refuse-new", "--reason", "x"),
        *("--wait", "--within", "0.2"),
    )

    assert ExitCode.UNAVAILABLE == ended.code
    assert "1 jobs still run; the pause stands." in ended.err
    (pause,) = document(await operate("queue", "pauses", "--json"))["pauses"]
    assert ("all", True, 1) == (pause["scope"], pause["refuseNew"], pause["running"])


async def test_a_tenant_is_paused_and_resumed_by_its_own_verbs(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser)

    paused = await operate("tenants", "pause", "acme", "--type", "noop", "--reason", "x")
    held = await claim_job(worker, job.job_id, job.worker_id)
    listed = await operate("tenants", "list")
    resumed = await operate("tenants", "resume", "acme", "--type", "noop", "--reason", "x")

    assert "tenant acme, type noop is paused, 0 still running" in paused.out, paused.err
    assert Verdict.PAUSED is held.verdict
    assert "noop" in listed.out
    assert "tenant acme, type noop is resumed" in resumed.out
    again = await operate("tenants", "resume", "acme", "--reason", "x")
    assert ExitCode.REFUSED == again.code
    unknown = await operate("tenants", "pause", "nobody", "--reason", "x")
    assert ExitCode.REFUSED == unknown.code


async def test_a_tenant_is_limited_and_shown_with_its_defaults(operate: Cli) -> None:
    limited = document(
        await operate(
            *("tenants", "limit", "acme", "--set", "open_jobs=5000", "--set", "uploads=2"),
            *("--reason", "a pilot", "--json"),
        )
    )
    shown = await operate("tenants", "show", "acme")
    undone = document(
        await operate(
            *("tenants", "limit", "acme", "--reset", "open_jobs", "--reason", "x", "--json")
        )
    )

    values = {one["name"]: one.get("value") for one in limited["limits"]}
    assert (5000, 2, 1) == (values["open_jobs"], values["uploads"], values["weight"])
    for word in ("5000", "1000000", "a pilot", "open_jobs", "failedRetryable"):
        assert word in shown.out
    assert 1_000_000 == undone["maxOpenJobs"]
    wrong = await operate("tenants", "limit", "acme", "--set", "speed=1", "--reason", "x")
    assert ExitCode.REFUSED == wrong.code


async def test_what_a_tenant_has_is_counted_and_then_cancelled_by_one_job(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    for _ in range(2):
        await a_job(worker, superuser)
    chosen = ("tenants", "cancel", "acme", "--type", "noop", "--reason", "x")

    dry = await operate(*chosen, "--dry-run")
    none = document(
        await operate(*chosen, "--before", "2020-01-01T00:00:00Z", "--dry-run", "--json")
    )
    before = await superuser.fetchval("SELECT count(*) FROM jobs WHERE type = 'cancel_jobs'")
    ordered = await operate(*chosen, "--yes")

    assert "2 open jobs would be cancelled" in dry.out
    assert {"jobs": 0, "jobsIsAtLeast": False} == none
    assert 0 == before
    job_id = await superuser.fetchval("SELECT id FROM jobs WHERE type = 'cancel_jobs'")
    assert f"2 open jobs are cancelled by job {job_id}" in ordered.out


async def test_breakers_are_opened_and_reset(operate: Cli) -> None:
    why = ("--reason", "x")

    assert "s3 is open" in (await operate("breaker", "open", "s3", *why)).out
    assert "of tests" in (await operate("breaker", "list")).out
    assert "s3 is closed" in (await operate("breaker", "reset", "s3", *why)).out
    assert ExitCode.REFUSED == (await operate("breaker", "reset", "s4", *why)).code


async def test_tables_show_the_fleet(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)
    await failed(worker, superuser, 1)

    stats = await operate("queue", "stats")
    workers = await operate("workers", "list", "--jobs")
    prune = await operate("prune")

    assert "internal_error" in stats.out
    assert "acme" in stats.out
    assert "1 dead letters wait for somebody" in stats.out
    assert str(job.worker_id) in workers.out
    assert str(job.job_id) in workers.out
    assert "0 jobs are past 30 days" in prune.out


async def test_the_ledger_balances(operate: Cli, worker: Connection, superuser: Connection) -> None:
    await a_job(worker, superuser)

    balanced = await operate("ledger")

    assert ExitCode.DONE == balanced.code
    assert "missing" in balanced.out


@pytest.mark.breaks_invariants
async def test_a_ledger_that_does_not_balance_is_a_failure(
    operate: Cli, superuser: Connection
) -> None:
    await superuser.execute("INSERT INTO ledger (accepted) VALUES (1)")

    ended = await operate("ledger", "--json")

    assert ExitCode.FAILED == ended.code
    assert 1 == document(ended)["missing"]


# Live settings.


async def test_what_is_turned_fits_a_terminal_of_eighty_columns(
    operate: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "UNFOLDED", 80)
    why = "Postgres is slow while its disk is being replaced, which takes until noon"
    await operate("settings", "live", "set", "retention.superseded_seconds", "0", "--reason", why)

    ended = await operate("settings", "live", "list")

    assert ended.code == ExitCode.DONE, ended.err
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["name", "value", "default", "by", "when"] == lines[0].split()[:5]
    (turned,) = [line for line in lines if line.startswith("retention.superseded_seconds")]
    assert "0" == turned.split()[1]
    assert any(line.startswith("breaker.<service>.window_seconds") for line in lines)


async def test_a_setting_is_turned_and_undone_by_one_verb_each(operate: Cli) -> None:
    name = "retry.*.max_attempts"
    turn = ("settings", "live", "set", name, "8", "--reason", "a bad day")
    back = ("settings", "live", "reset", name, "--reason", "over")

    assert (ExitCode.DONE, f"{name} is 8 (by default 5)\n") == _said(await operate(*turn))
    (listed,) = document(await operate("settings", "live", "list", "--turned", "--json"))[
        "settings"
    ]
    assert (8, 5, "a bad day") == (listed["value"], listed["default"], listed["reason"])
    assert (ExitCode.DONE, f"{name} is as by default, 5\n") == _said(await operate(*back))
    assert {"settings": []} == document(
        await operate("settings", "live", "list", "--turned", "--json")
    )
    assert ExitCode.REFUSED == (await operate(*back)).code


def _said(ended: Ended) -> tuple[int, str]:
    return ended.code, ended.out


@pytest.mark.parametrize("value", ["many", "0", "1.5", "true", "[]"])
async def test_a_value_that_may_not_be_is_refused_by_what_is_allowed(
    operate: Cli, value: str
) -> None:
    name = "retry.*.max_attempts"

    ended = await operate("settings", "live", "set", name, value, "--reason", "why")

    assert ended.code == ExitCode.REFUSED
    if value != "[]":
        assert f"{name} is a whole number from 1 to 100." in ended.err


async def test_a_slip_in_a_name_is_told(operate: Cli) -> None:
    slip = await operate("settings", "live", "set", "timeout.type.nop", "5", "--reason", "why")
    switch = await operate(
        "settings", "live", "set", "retention.sweep_deletes", "false", "--reason", "why"
    )

    assert "the API knows nothing that timeout.type.nop is about" in slip.err
    assert "retention.sweep_deletes is false\n" == switch.out


async def test_the_page_of_settings_is_printed_as_before(cli: Cli) -> None:
    ended = await cli("settings")

    assert ended.code == ExitCode.DONE
    assert ended.out.startswith("# Settings")
    assert "| `slots.lane.<lane>` |" in ended.out
