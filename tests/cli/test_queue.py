"""`imagefleet queue` against a real API and a real Postgres."""

import asyncio

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobState, Verdict
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, document
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission, claim_job, settle_job


async def test_a_pause_waits_until_nothing_of_it_runs(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)

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
    assert {"nop": False, "noop": True} == {pause["name"]: pause["known"] for pause in listed}


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
    await a_job(worker, superuser, state=JobState.PROCESSING)

    ended = await operate(
        *("queue", "pause", "--all", "--yes", "--refuse-new", "--reason", "x"),
        *("--wait", "--within", "0.2"),
    )

    assert ExitCode.UNAVAILABLE == ended.code
    assert "1 jobs still run; the pause stands." in ended.err
    (pause,) = document(await operate("queue", "pauses", "--json"))["pauses"]
    assert ("all", True, 1) == (pause["scope"], pause["refuseNew"], pause["running"])
