"""`imagefleet dlq` against a real API and a real Postgres."""

import asyncio
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.cli.replaying import WOULD
from imagefleet.jobs.lifecycle import Completed, Outcome
from imagefleet.jobs.model import JobId
from imagefleet.jobs.replays import ReplayOutcome
from imagefleet.store.database import Connection
from tests.cli.conftest import BUG, Cli, document, failed
from tests.support.factories import settle_job
from tests.support.http import claimed

MADE_AT = "SELECT created_at FROM jobs WHERE replay_of IS NOT NULL ORDER BY created_at"


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


async def test_dead_letters_are_listed_grouped_shown_and_acknowledged(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    jobs = await failed(worker, superuser, 2)

    listed = document(await operate("dlq", "list", "--json", "--code", "internal_error"))
    (group,) = document(await operate("dlq", "groups", "--json"))["groups"]
    by_tenant = await operate("dlq", "groups", "--by-tenant")
    of_all = await operate("dlq", "groups")
    shown = await operate("dlq", "show", str(jobs[0].job_id))
    by_id = await operate("dlq", "ack", "--note", "known", str(jobs[0].job_id))
    by_filter = await operate("dlq", "ack", "--note", "known", "--all", "--yes", "--json")

    assert [str(job.job_id) for job in jobs] == [letter["jobId"] for letter in listed["letters"]]
    assert (2, 2, 1) == (group["letters"], group["replayable"], group["tenants"])
    for seen in (by_tenant, of_all):
        assert {"acme", "message", BUG.message, group["fingerprint"], group["example"]} <= {
            part.strip() for line in seen.out.splitlines() for part in line.split("  ")
        }
    assert "KeyError" in shown.out
    assert "1 acknowledged" in by_id.out
    assert {"acknowledged": 1} == document(by_filter)
    assert [] == document(await operate("dlq", "list", "--json"))["letters"]
    assert "of tests" in (await operate("dlq", "list", "--history")).out


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


async def test_a_dry_run_foretells_of_each_letter_and_does_nothing(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    jobs = await failed(worker, superuser, 3)
    known = document(await operate("dlq", "show", str(jobs[0].job_id), "--json"))["id"]
    await operate("dlq", "ack", "--note", "known", known)
    dry = ("dlq", "replay", "--reason", "x", "--dry-run")
    ids = [str(job.job_id) for job in jobs]

    ended = await operate(*dry, *ids, "--json")
    told = await operate(*dry, *ids)
    nothing = await operate(*dry, "--code", "corrupt")

    assert {"replayed": 2, "acknowledged": 1} == document(ended)["letters"]
    letters = {letter["letterId"]: letter["jobId"] for letter in document(ended)["replays"]}
    assert set(ids) == set(letters.values())
    lines = told.out.splitlines()
    assert letters.keys() == {line.partition(" ")[0] for line in lines[1:-1]}
    assert {
        "would be replayed",
        "would be left alone: it is acknowledged, and --force was not said",
    } == {line.partition("  ")[2] for line in lines[1:-1]}
    assert "2 of 3 letters would be replayed" == lines[-1]
    assert "no letter would be replayed\n" == nothing.out
    assert 3 == await superuser.fetchval("SELECT count(*) FROM jobs")


def test_a_dry_run_has_words_for_every_outcome() -> None:
    assert set(ReplayOutcome) == WOULD.keys()
    assert all("would" in words for words in WOULD.values())


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
    replayed = await superuser.fetch("SELECT * FROM jobs WHERE replay_of IS NOT NULL")
    told = re.findall(r"^(\S{36}) +failed +Something went wrong.", ended.out, re.MULTILINE)
    assert {str(job["id"]) for job in replayed} == set(told)
    assert {job.job_id for job in jobs[:2]} == {row["replay_of"] for row in replayed}


async def test_a_canary_that_does_not_end_in_time_stops_the_replay(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    await failed(worker, superuser, 2)

    canary = ("--all", "--yes", "--canary", "1", "--within", "0.2")
    ended = await operate("dlq", "replay", "--reason", "x", *canary)
    as_json = await operate("dlq", "replay", "--reason", "x", *canary, "--json")

    assert ExitCode.FAILED == ended.code
    assert "the canary has not ended in time" in ended.err
    find = "SELECT id::text FROM jobs WHERE replay_of IS NOT NULL ORDER BY id"
    first, second = [row["id"] for row in await superuser.fetch(find)]
    assert re.search(rf"^{first} +queued", ended.out, re.MULTILINE)
    assert [{"jobId": second, "status": "queued"}] == document(as_json)["canary"]


async def test_named_letters_are_replayed_without_asking(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    (job, _) = await failed(worker, superuser, 2)

    async with a_fleet(worker, Completed()):
        first = await operate("dlq", "replay", "--reason", "x", "--json", str(job.job_id))
        again = await operate("dlq", "replay", "--reason", "x", "--json", str(job.job_id))

    assert {"replayed": 1} == document(first)["letters"]
    assert {"already_replayed": 1} == document(again)["letters"]
