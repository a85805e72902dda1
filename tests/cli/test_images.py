"""`images delete` and `images replace` against the real API, its worker's part done by hand."""

import asyncio
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.images import Emptied
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli
from tests.support.api import ACME, Running, published, uploaded
from tests.support.eventually import eventually
from tests.support.factories import CORRUPT, settle_job
from tests.support.http import a_jpeg, claimed
from tests.support.rows import job_row


@pytest.fixture
async def image_id(running: Running, worker: Connection) -> str:
    async with running.client() as client:
        accepted = await uploaded(client)
    await published(worker, accepted)
    image_id: str = accepted["imageId"]
    return image_id


async def emptied(worker: Connection, image_id: str) -> None:
    """As a worker and the flusher would."""
    find = "SELECT job_id FROM image_tombstones WHERE image_id = $1"
    job_id = await eventually(lambda: worker.fetchval(find, UUID(image_id)), within=10)
    receipt = Emptied(
        image_id=UUID(image_id), tenant_id=ACME, deleted=5, not_there=0, errors=0, keys=()
    )
    await settle_job(worker, await claimed(worker, job_id), Completed(emptied=receipt))


async def test_a_focal_point_is_moved_and_taken_away(
    produce: Cli, image_id: str, worker: Connection, superuser: Connection
) -> None:
    async def made() -> None:
        find = "SELECT id FROM jobs WHERE state = 'queued'"
        job_id = await eventually(lambda: worker.fetchval(find), within=10)
        await settle_job(worker, await claimed(worker, job_id), Completed())

    unchanged = await produce("images", "focal", image_id, "--clear", "--wait", "--json")
    ended, _ = await asyncio.gather(
        produce("images", "focal", image_id, "0.25", "1", "--wait", "--json"), made()
    )

    assert {"imageId": image_id, "jobId": None, "status": "ready"} == unchanged.json()
    assert (ended.code, ended.json()["status"]) == (ExitCode.DONE, "completed")
    point = "SELECT ARRAY[focal_x, focal_y] FROM images"
    assert [0.25, 1] == await superuser.fetchval(point)


async def test_an_original_is_told_by_its_address_alone_on_one_line(
    produce: Cli, image_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    ended = await produce("images", "original", image_id)
    (url,) = ended.out.splitlines()
    async with httpx.AsyncClient(timeout=20) as anybody:
        file = await anybody.get(url)

    assert (ended.code, file.content) == (ExitCode.DONE, a_jpeg())


@pytest.mark.parametrize(
    "words", [(), ("0.5",), ("0.5", "0.5", "--clear"), ("0.5", "--clear"), ("1.5", "0")]
)
async def test_a_focal_point_is_named_whole_or_taken_away(
    produce: Cli, image_id: str, words: tuple[str, ...], owner: Connection
) -> None:
    ended = await produce("images", "focal", image_id, *words)

    assert ended.code == ExitCode.USAGE
    assert 1 == await owner.fetchval("SELECT count(*) FROM jobs")


async def test_nobody_is_asked_and_nothing_is_deleted_without_yes(
    produce: Cli, image_id: str, owner: Connection
) -> None:
    ended = await produce("images", "delete", image_id)

    assert ended.code == ExitCode.USAGE
    assert "--yes" in ended.err
    assert 0 == await owner.fetchval("SELECT count(*) FROM image_tombstones")


async def test_images_are_deleted_and_each_failure_is_told(produce: Cli, image_id: str) -> None:
    nobody = "0199a5c2-0000-7000-8000-000000000000"

    ended = await produce("images", "delete", "--yes", "--json", image_id, nobody)

    assert ended.code == ExitCode.REFUSED
    first, second = ended.json()
    assert ("queued", image_id) == (first["status"], first["imageId"])
    assert nobody == second["imageId"]
    assert "No such image" in second["error"]
    assert nobody in ended.err


async def test_waiting_ends_when_it_is_dark_and_the_receipt_is_shown(
    produce: Cli, image_id: str, worker: Connection, superuser: Connection
) -> None:
    async def made_dark() -> None:
        await emptied(worker, image_id)
        await superuser.execute("UPDATE image_tombstones SET dark_at = now()")

    ended, _ = await asyncio.gather(
        produce("images", "delete", "--yes", "--wait", "--json", image_id), made_dark()
    )
    shown = await produce("images", "show", image_id)

    assert ended.code == ExitCode.DONE, ended.err
    (document,) = ended.json()
    assert 5 == document["deletion"]["objects"]["deleted"]
    assert document["deletion"]["darkAt"]
    assert ("deleted" in shown.out, "dark" in shown.out) == (True, True)


async def test_what_the_edge_has_not_forgotten_in_time_is_told(
    produce: Cli, image_id: str, worker: Connection
) -> None:
    ended, _ = await asyncio.gather(
        produce("images", "delete", "--yes", "--wait", "--within", "4", "--json", image_id),
        emptied(worker, image_id),
    )

    assert ended.code == ExitCode.UNAVAILABLE
    assert "the edge has not answered yet" in ended.err
    (document,) = ended.json()
    assert ("completed", None) == (document["status"], document.get("deletion"))


async def test_a_deletion_that_failed_is_told(
    produce: Cli, image_id: str, worker: Connection
) -> None:
    async def fails() -> None:
        find = "SELECT job_id FROM image_tombstones WHERE image_id = $1"
        job_id = await eventually(lambda: worker.fetchval(find, UUID(image_id)), within=10)
        await settle_job(worker, await claimed(worker, job_id), CORRUPT)

    ended, _ = await asyncio.gather(
        produce("images", "delete", "--yes", "--wait", "--json", image_id), fails()
    )

    assert ended.code == ExitCode.FAILED
    (document,) = ended.json()
    assert "failed" == document["status"]
    assert CORRUPT.message in ended.err


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "a.jpg"
    path.write_bytes(a_jpeg())
    return str(path)


@pytest.mark.parametrize("fails", [False, True])
async def test_waiting_for_a_replacement_ends_with_its_job(
    produce: Cli,
    image_id: str,
    picture: str,
    worker: Connection,
    fails: bool,  # noqa: FBT001 - a parameter
) -> None:
    async def made() -> None:
        newest = "SELECT id FROM jobs WHERE state = 'queued' AND type = 'process_image'"
        job_id = await eventually(lambda: worker.fetchval(newest), within=10)
        if fails:
            await settle_job(worker, await claimed(worker, job_id), CORRUPT)
        else:
            await published(worker, {"jobId": str(job_id), "imageId": image_id})

    ended, _ = await asyncio.gather(
        produce("images", "replace", "--wait", "--json", image_id, picture), made()
    )

    assert ended.code == (ExitCode.FAILED if fails else ExitCode.DONE)
    assert ("failed" if fails else "completed") == ended.json()["status"]
    assert fails is (CORRUPT.message in ended.err)


async def test_an_image_is_replaced(
    produce: Cli, image_id: str, picture: str, owner: Connection
) -> None:
    ended = await produce("images", "replace", "--recipe", "avif", "--json", image_id, picture)

    assert ended.code == ExitCode.DONE, ended.err
    document = ended.json()
    assert image_id == document["imageId"]
    assert 2 == await owner.fetchval("SELECT count(*) FROM image_sources")
    newest = "SELECT payload ->> 'recipe' FROM jobs ORDER BY target_seq DESC LIMIT 1"
    assert "avif" == await owner.fetchval(newest)


async def test_every_verb_that_makes_a_job_of_an_image_takes_the_terms_of_a_job(
    produce: Cli, image_id: str, picture: str, superuser: Connection
) -> None:
    parent = (await produce("jobs", "submit", "noop", "--json")).json()["jobId"]
    verbs = {
        "submitted": ("submit", picture),
        "replaced": ("images", "replace", image_id, picture),
        "rendered": ("images", "reprocess", image_id),
        "of a set": ("images", "reprocess", "--recipe-was", "default"),
    }

    for name, verb in verbs.items():
        ended = await produce(
            *verb, "--json", "--priority", "7", "--run-at", "2090-01-01T06:00",
            "--dedup-key", name, "--correlation-id", "order-7", "--parent", parent,
            "--max-attempts", "2",
        )  # fmt: skip

        assert ended.code == ExitCode.DONE, ended.err
        answer = ended.json()
        job_id = (answer[0] if isinstance(answer, list) else answer)["jobId"]
        row = await job_row(superuser, JobId(UUID(job_id)))
        kept = ("priority", "dedup_key", "correlation_id", "max_attempts")
        assert [7, name, "order-7", 2] == [row[column] for column in kept]
        assert parent == str(row["parent_job_id"])
        assert f"{row['run_at']:%Y-%m-%d %H:%M %Z}" == "2090-01-01 06:00 UTC"


async def test_one_dedup_key_is_not_for_many_images(
    produce: Cli, image_id: str, picture: str, owner: Connection
) -> None:
    """All but the first would be answered with its job, and not be made."""
    jobs = await owner.fetchval("SELECT count(*) FROM jobs")

    for verb in (("submit", picture, picture), ("images", "reprocess", image_id, image_id)):
        ended = await produce(*verb, "--dedup-key", "front page")

        assert ended.code == ExitCode.USAGE
        assert "--dedup-key is for one image" in ended.err
    assert jobs == await owner.fetchval("SELECT count(*) FROM jobs")


async def test_images_are_listed_by_status_and_by_time(
    produce: Cli, image_id: str, running: Running, superuser: Connection
) -> None:
    async with running.client() as client:
        pending = (await uploaded(client))["imageId"]
    await superuser.execute(
        "UPDATE images SET created_at = now() - interval '3 days' WHERE id = $1", UUID(pending)
    )

    async def listed(*words: str) -> list[str]:
        ended = await produce("images", "list", "--json", *words)
        assert ended.code == ExitCode.DONE, ended.err
        return [image["imageId"] for image in ended.json()["images"]]

    assert [image_id] == await listed("--status", "ready")
    assert [pending] == await listed("--status", "pending")
    assert [] == await listed("--status", "failed", "--all")
    assert [image_id] == await listed("--since", "2d")
    assert [pending] == await listed("--since", "4d", "--until", "2d")
    assert [] == await listed("--until", "4d")


@pytest.mark.parametrize(
    ("noun", "known"),
    [
        ("images", "pending, ready, failed, deleted"),
        ("jobs", "queued, processing, completed, failed_retryable, failed"),
    ],
)
async def test_a_status_that_there_is_not_is_told_which_there_are(
    produce: Cli, noun: str, known: str
) -> None:
    ended = await produce(noun, "list", "--status", "done")

    assert ended.code == ExitCode.USAGE
    assert f"--status is one of {known}, not 'done'" in " ".join(ended.err.split())


@pytest.mark.parametrize("waiting", [(), ("--wait",)])
async def test_an_image_that_could_not_be_made_is_the_exit_code(
    produce: Cli, running: Running, worker: Connection, waiting: tuple[str, ...]
) -> None:
    async with running.client() as client:
        accepted = await uploaded(client)
    pending = await produce("images", "show", accepted["imageId"])
    job = await claimed(worker, accepted["jobId"])

    async def fails() -> None:
        await settle_job(worker, job, CORRUPT)

    words = ("images", "show", "--json", accepted["imageId"])
    if waiting:
        ended, _ = await asyncio.gather(produce(*words, *waiting), fails())
    else:
        await fails()
        ended = await produce(*words)

    assert pending.code == ExitCode.DONE
    assert (ExitCode.FAILED, "failed") == (ended.code, ended.json()["status"])
