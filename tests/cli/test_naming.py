"""What is typed for an id: all of it, or its beginning, where that is only one's."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.model import JobId, TenantId
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, document, failed
from tests.support.api import Running, uploaded
from tests.support.factories import a_job, a_submission

CLOCK = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def an_id(n: int, at: datetime = CLOCK) -> JobId:
    """One of those that were made at this time."""
    milliseconds = int(at.timestamp() * 1000)
    return JobId(UUID(int=milliseconds << 80 | 0x7 << 76 | 0x2 << 62 | n << 32))


async def jobs_of(
    worker: Connection, superuser: Connection, *ids: JobId, tenant: str = "acme"
) -> list[str]:
    for job_id in ids:
        submission = a_submission(job_id=job_id, tenant_id=TenantId(tenant))
        submission = replace(submission, correlation_id=tenant)
        await a_job(worker, superuser, submission=submission)
    return [str(job_id) for job_id in ids]


@pytest.mark.parametrize("digits", [8, 9, 13, 14, 30, 36])
async def test_a_job_is_named_by_how_its_id_begins(
    produce: Cli, worker: Connection, superuser: Connection, digits: int
) -> None:
    (job,) = await jobs_of(worker, superuser, an_id(1))
    beginning = job[:digits]

    for typed in (beginning, beginning.upper(), beginning.replace("-", "")):
        ended = await produce("jobs", "show", typed, "--json")

        assert ended.code == ExitCode.DONE, ended.err
        assert job == ended.json()["jobId"]


@pytest.mark.parametrize(
    ("who", "words"),
    [("acme", ("jobs", "show")), ("operator", ("jobs", "cancel", "--reason", "x"))],
)
async def test_what_several_begin_with_names_none_and_tells_them(
    cli: Cli,
    running: Running,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets[who])
    jobs = await jobs_of(worker, superuser, *map(an_id, range(7)))

    ended = await cli(*words, jobs[0][:13])

    assert ended.code == ExitCode.USAGE
    assert [job in ended.err for job in jobs] == [False] * 2 + [True] * 5
    assert "and more" in ended.err
    assert 7 == await superuser.fetchval("SELECT count(*) FROM jobs")


async def test_nobody_is_told_of_others_ids(
    produce: Cli, worker: Connection, superuser: Connection
) -> None:
    (theirs,) = await jobs_of(worker, superuser, an_id(1), tenant="rival")
    (ours,) = await jobs_of(worker, superuser, an_id(2))

    of_both = await produce("jobs", "show", ours[:8], "--json")
    of_them = await produce("jobs", "show", theirs[:30])

    assert ours == of_both.json()["jobId"]
    assert (ExitCode.REFUSED, "imagefleet: No such job.\n") == (of_them.code, of_them.err)


@pytest.mark.parametrize("typed", ["0199a5c", "0", "0199-a5c"])
async def test_too_little_names_nothing(produce: Cli, typed: str) -> None:
    ended = await produce("jobs", "show", typed)

    assert ended.code == ExitCode.USAGE
    assert "type 8 of its digits at least" in ended.err


async def test_operators_name_jobs_of_every_tenant(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    (theirs,) = await jobs_of(worker, superuser, an_id(1), tenant="rival")
    typed = theirs[:8]

    shown = document(await operate("jobs", "show", "--full", typed, "--json"))
    ended = [
        await operate("jobs", verb, typed, *words)
        for verb, *words in (
            ("explain",), ("attempts",), ("retry-now", "--reason", "x"),
            ("fail", "--reason", "x"), ("cancel", "--reason", "x"),
        )
    ]  # fmt: skip

    assert theirs == shown["jobId"]
    assert [0] * 5 == [each.code for each in ended], [each.err for each in ended]


async def test_jobs_are_submitted_and_listed_below_a_parent_by_its_beginning(
    produce: Cli, worker: Connection, superuser: Connection
) -> None:
    (parent,) = await jobs_of(worker, superuser, an_id(1))

    child = document(await produce("jobs", "submit", "noop", "--parent", parent[:8], "--json"))
    listed = document(await produce("jobs", "list", "--parent", parent[:8], "--json"))

    assert [child["jobId"]] == [job["jobId"] for job in listed["jobs"]]


async def test_images_are_named_by_how_their_ids_begin(
    produce: Cli, running: Running, superuser: Connection
) -> None:
    async with running.client("rival") as rival:
        theirs = (await uploaded(rival))["imageId"]
    async with running.client() as client:
        one, other = [(await uploaded(client))["imageId"] for _ in range(2)]

    shown = document(await produce("images", "show", one[:30], "--json"))
    jobs = document(await produce("jobs", "list", "--image", one[:30], "--json"))["jobs"]
    both = await produce("images", "delete", "--yes", one[:30], one[:8])
    foreign = await produce("images", "show", theirs[:30])
    deleted = await produce("images", "delete", "--yes", one[:30], other[:30], "--json")

    assert one == shown["imageId"]
    assert [one] == [job["imageId"] for job in jobs]
    assert ExitCode.USAGE == both.code
    assert one in both.err
    assert other in both.err
    assert (ExitCode.REFUSED, "imagefleet: No such image.\n") == (foreign.code, foreign.err)
    assert [one, other] == [each["imageId"] for each in document(deleted)]
    assert 2 == await superuser.fetchval("SELECT count(*) FROM image_tombstones")


async def test_the_target_of_an_image_is_named_by_how_its_id_begins(
    produce: Cli, running: Running
) -> None:
    async with running.client() as client:
        image_id = (await uploaded(client))["imageId"]

    paused = await produce("targets", "pause", "--reason", "checked", f"image:{image_id[:18]}")
    short = await produce("targets", "show", "image:0199")

    assert paused.code == ExitCode.DONE, paused.err
    assert f"image:{image_id} is paused" in paused.out
    assert short.code == ExitCode.USAGE
    assert "too short for an id" in short.err


async def test_letters_are_named_by_how_their_ids_begin_or_those_of_their_jobs(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    made, kept = await failed(worker, superuser, 2)
    find = "SELECT id::text FROM dead_letters WHERE job_id = $1"
    letter = await superuser.fetchval(find, made.job_id)
    beginning = letter[:12]

    by_letter = document(await operate("dlq", "show", beginning, "--json"))
    by_job = document(await operate("dlq", "show", str(made.job_id)[:30], "--json"))
    acknowledged = await operate("dlq", "ack", "--note", "known", beginning)
    none = await operate("dlq", "replay", "--reason", "x", "0" * 20)

    assert [letter, letter] == [by_letter["id"], by_job["id"]]
    assert "1 acknowledged" in acknowledged.out
    assert (ExitCode.REFUSED, "imagefleet: No such dead letter.\n") == (none.code, none.err)
    left = document(await operate("dlq", "list", "--json"))["letters"]
    assert [str(kept.job_id)] == [each["jobId"] for each in left]


async def fault(worker: Connection, superuser: Connection, fingerprint: str) -> None:
    (made,) = await failed(worker, superuser, 1)
    change = "UPDATE dead_letters SET fingerprint = $2 WHERE job_id = $1"
    await superuser.execute(change, made.job_id, fingerprint)


async def test_a_fault_is_named_by_how_its_fingerprint_begins(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    one, like_it, other = (f"{begins:0<64}" for begins in ("ab12cd34e", "ab12cd34f", "ff00ff00"))
    for fingerprint in (one, one, like_it, other):
        await fault(worker, superuser, fingerprint)

    for verb in (("list",), ("ack", "--note", "x", "--yes"), ("replay", "--reason", "x", "--yes")):
        several = await operate("dlq", *verb, "--fingerprint", "ab12cd34")

        assert ExitCode.REFUSED == several.code
        assert one in several.err
        assert like_it in several.err
    seen = document(await operate("dlq", "list", "--fingerprint", "ab12cd34e", "--json"))
    history = await operate("dlq", "list", "--history", "--fingerprint", "ff00ff00", "--json")
    acknowledged = await operate("dlq", "ack", "--note", "x", "--yes", "--fingerprint", "ab12cd34e")

    assert [one, one] == [letter["fingerprint"] for letter in seen["letters"]]
    assert [other] == [letter["fingerprint"] for letter in document(history)["letters"]]
    assert "2 acknowledged" in acknowledged.out
    left = document(await operate("dlq", "list", "--json"))["letters"]
    assert [like_it, other] == [letter["fingerprint"] for letter in left]


async def test_jobs_are_listed_since_a_time(
    cli: Cli,
    running: Running,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the time that their ids begin with, of whatever is listed."""
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    now = datetime.now(UTC)
    ids = [an_id(1, now - timedelta(hours=ago)) for ago in (49, 3, 1)]
    old, older, young = await jobs_of(worker, superuser, *ids)
    expected = {"2h": [young], "2d": [young, older], "1w": [young, older, old]}
    expected[f"{now - timedelta(hours=4):%Y-%m-%d %H:%M:%S}"] = [young, older]

    for who, *words in (
        ("acme",), ("acme", "--type", "noop"), ("acme", "--status", "queued"),
        ("acme", "--correlation-id", "acme"), ("operator", "--every-tenant"),
        ("operator", "--tenant", "acme", "--type", "noop", "--status", "queued"),
    ):  # fmt: skip
        monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets[who])
        for since, jobs in expected.items():
            listed = document(await cli("jobs", "list", "--since", since, "--json", *words))

            assert jobs == [job["jobId"] for job in listed["jobs"]], (since, words)


async def test_images_are_listed_since_a_time(
    produce: Cli, running: Running, superuser: Connection
) -> None:
    async with running.client() as client:
        old, young = [(await uploaded(client))["imageId"] for _ in range(2)]
    change = "UPDATE images SET created_at = now() - interval '3 hours' WHERE id = $1"
    await superuser.execute(change, UUID(old))

    seen = document(await produce("images", "list", "--since", "2h", "--json"))["images"]
    both = document(await produce("images", "list", "--since", "4h", "--json"))["images"]

    assert [young] == [image["imageId"] for image in seen]
    assert [young, old] == [image["imageId"] for image in both]


async def test_letters_are_listed_grouped_and_dealt_with_since_a_time(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    old, young = await failed(worker, superuser, 2)
    change = "UPDATE dead_letters SET died_at = now() - interval '3 hours' WHERE job_id = $1"
    await superuser.execute(change, old.job_id)
    since = ("--since", "2h")

    seen = document(await operate("dlq", "list", *since, "--json"))["letters"]
    history = document(await operate("dlq", "list", "--history", *since, "--json"))["letters"]
    (group,) = document(await operate("dlq", "groups", *since, "--json"))["groups"]
    replayed = await operate("dlq", "replay", "--reason", "x", "--dry-run", *since, "--json")
    acknowledged = await operate("dlq", "ack", "--note", "x", "--yes", *since)

    assert [str(young.job_id)] == [letter["jobId"] for letter in seen]
    assert [str(young.job_id)] == [letter["jobId"] for letter in history]
    assert 1 == group["letters"]
    assert {"replayed": 1} == document(replayed)["letters"]
    assert "1 acknowledged" in acknowledged.out
    left = document(await operate("dlq", "list", "--json"))["letters"]
    assert [str(old.job_id)] == [letter["jobId"] for letter in left]
