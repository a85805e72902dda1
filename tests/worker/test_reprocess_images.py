"""The job that renders a set again: it goes on where it was, and stops between pages if told to."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.lifecycle import Completed, Outcome, Released, Retry
from imagefleet.jobs.model import CancelCode, Claim, JobId
from imagefleet.settings.in_force import Overlay
from imagefleet.store.database import Connection
from imagefleet.store.images import reprocessing
from imagefleet.store.images.reprocessing import PAGE, SubmittedPage
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.worker.handlers import reprocess_images
from imagefleet.worker.handlers.reprocess_images import HANDLER, share_of
from tests.support.bench import Bench
from tests.support.factories import MadeJob, claim_job, expire_lock, settle_job
from tests.support.image_rows import a_set, an_image, asked_for, bury, some_images
from tests.support.rows import job_row

Steps: TypeAlias = list[Callable[[], Awaitable[None]]]


async def work(bench: Bench, claim: Claim) -> Outcome | None:
    return await bench.attempt(claim, HANDLER.run, HANDLER.kind).work()


@pytest.fixture(autouse=True)
async def quota(superuser: Connection) -> None:
    """The tenant may have as many jobs as any."""
    await superuser.execute("INSERT INTO tenants (id, name) VALUES ('acme', 'acme')")


async def set_quota(superuser: Connection, jobs: int) -> None:
    await superuser.execute("UPDATE tenants SET max_open_jobs = $1 WHERE id = 'acme'", jobs)


async def test_it_is_done_when_every_image_has_its_job(bench: Bench, api: Connection) -> None:
    images = await some_images(api, PAGE + 2)
    await bury(api, images[0])
    claim = await bench.claim(a_set())

    outcome = await work(bench, claim)

    assert Completed(result={"submitted": PAGE + 1, "skipped": 1}) == outcome
    assert images[1:] == list(await asked_for(bench.worker, claim.job_id))


async def test_an_empty_set_is_done_at_once(bench: Bench) -> None:
    claim = await bench.claim(a_set(reference="nobody's"))

    assert Completed(result={"submitted": 0, "skipped": 0}) == await work(bench, claim)


@pytest.fixture
def after_page(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What to await after the pages to come, one a page; then nothing."""
    todo: Steps = []

    async def submit_page(*arguments: object) -> SubmittedPage:
        page = await reprocessing.submit_page(*arguments)  # type: ignore[arg-type]
        if todo:
            await todo.pop(0)()
        return page

    monkeypatch.setattr(reprocess_images, "submit_page", submit_page)
    return todo


async def test_a_later_attempt_begins_behind_the_cursor(
    bench: Bench, api: Connection, after_page: Steps
) -> None:
    images = await some_images(api, PAGE + 2)
    claim = await bench.claim(a_set())

    async def lose_postgres() -> None:
        raise Unavailable("database_unavailable", "Later.")

    after_page.append(lose_postgres)
    assert Released(why="database") == await work(bench, claim)
    made = MadeJob(job_id=claim.job_id, claim_no=claim.claim_no, worker_id=bench.worker_id)
    await settle_job(bench.worker, made, Released(why="drain"))
    images_since = await some_images(api, 1)
    again = await claim_job(bench.worker, claim.job_id, bench.worker_id)
    assert again.claim is not None

    outcome = await work(bench, again.claim)

    assert Completed(result={"submitted": PAGE + 2, "skipped": 0}) == outcome
    asked = list(await asked_for(bench.worker, claim.job_id))
    assert images == asked
    assert images_since[0] not in asked


async def test_cancelling_it_ends_the_walk_and_leaves_what_was_submitted(
    bench: Bench, api: Connection, after_page: Steps
) -> None:
    images = await some_images(api, 2 * PAGE)
    claim = await bench.claim(a_set())

    async def cancel() -> None:
        await cancel_job(bench.worker, claim.job_id, code=CancelCode.CANCELLED, detail=None)

    after_page.append(cancel)
    outcome = await work(bench, claim)

    assert Released(why="cancelled") == outcome  # which is settled as failed
    assert images[:PAGE] == list(await asked_for(bench.worker, claim.job_id))


async def test_a_claim_that_was_lost_submits_no_further_page(
    bench: Bench, api: Connection, superuser: Connection, after_page: Steps
) -> None:
    images = await some_images(api, 2 * PAGE)
    claim = await bench.claim(a_set())

    async def lose() -> None:
        await take_over(bench, superuser, claim.job_id)

    after_page.append(lose)

    assert await work(bench, claim) is None
    assert images[:PAGE] == list(await asked_for(bench.worker, claim.job_id))


async def test_sets_at_the_quota_do_not_wait_for_each_other(
    bench: Bench, api: Connection, superuser: Connection
) -> None:
    images = await some_images(api, 1)
    others = await api.fetchval("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
    for _ in range(3):
        await submit_job(api, a_set())
    claim = await bench.claim(a_set())
    await set_quota(superuser, others + 2)

    assert Completed(result={"submitted": 1, "skipped": 0}) == await work(bench, claim)

    assert images == list(await asked_for(bench.worker, claim.job_id))


async def test_at_the_quota_it_waits_uncharged_and_goes_on_where_it_was(
    bench: Bench, api: Connection, superuser: Connection
) -> None:
    images = await some_images(api, 5)
    open_before = await api.fetchval("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
    claim = await bench.claim(a_set())
    await set_quota(superuser, open_before + 3)

    full = await work(bench, claim)

    assert Released(why="tenant_full", after=reprocess_images.LOOK_AGAIN_IN) == full
    assert images[:3] == list(await asked_for(bench.worker, claim.job_id))
    made = MadeJob(job_id=claim.job_id, claim_no=claim.claim_no, worker_id=bench.worker_id)
    await settle_job(bench.worker, made, full)
    row = await job_row(bench.worker, claim.job_id)
    assert ("failed_retryable", 0) == (row["state"], row["attempts"])
    assert row["run_at"] > row["updated_at"]

    await set_quota(superuser, 1_000_000)
    await superuser.execute("UPDATE jobs SET run_at = now() WHERE id = $1", claim.job_id)
    again = await claim_job(bench.worker, claim.job_id, bench.worker_id)
    assert again.claim is not None

    assert Completed(result={"submitted": 5, "skipped": 0}) == await work(bench, again.claim)
    assert images == list(await asked_for(bench.worker, claim.job_id))


async def test_at_its_keys_limit_it_waits_too(
    bench: Bench, api: Connection, superuser: Connection
) -> None:
    await some_images(api, 5)
    claim = await bench.claim(a_set())
    counted = (
        "SELECT count(*) FROM jobs WHERE finished_at IS NULL AND type <> 'reprocess_images'"
        " AND created_by = (SELECT created_by FROM jobs WHERE id = $1)"
    )
    most = 3 + await superuser.fetchval(counted, claim.job_id)
    limits = {("acme", "key_open_jobs"): most}
    bench.equipment.live.now = Overlay(tenant_limits=limits)

    full = await work(bench, claim)

    assert Released(why="tenant_full", after=reprocess_images.LOOK_AGAIN_IN) == full
    assert most == await superuser.fetchval(counted, claim.job_id)


async def test_at_a_rate_it_waits_uncharged_between_shares_and_goes_on_where_it_was(
    bench: Bench, api: Connection, superuser: Connection
) -> None:
    images = await some_images(api, PAGE + 13)
    claim = await bench.claim(a_set(all_images=True, rate=2.4))  # 36 in 15 seconds: a page and more

    paced = await work(bench, claim)

    assert Released(why="paced", after=timedelta(seconds=36 / 2.4)) == paced
    assert images[:36] == list(await asked_for(bench.worker, claim.job_id))
    made = MadeJob(job_id=claim.job_id, claim_no=claim.claim_no, worker_id=bench.worker_id)
    await settle_job(bench.worker, made, paced)
    assert 0 == (await job_row(bench.worker, claim.job_id))["attempts"]
    await superuser.execute("UPDATE jobs SET run_at = now() WHERE id = $1", claim.job_id)
    again = await claim_job(bench.worker, claim.job_id, bench.worker_id)
    assert again.claim is not None

    outcome = await work(bench, again.claim)

    assert Completed(result={"submitted": PAGE + 13, "skipped": 0}) == outcome
    assert images == list(await asked_for(bench.worker, claim.job_id))


async def test_what_is_not_submitted_takes_nothing_of_the_rate(
    bench: Bench, api: Connection
) -> None:
    images = await some_images(api, PAGE)
    for image in images[:-2]:
        await bury(api, image)
    claim = await bench.claim(a_set(all_images=True, rate=0.2))  # three in 15 seconds

    outcome = await work(bench, claim)

    assert Completed(result={"submitted": 2, "skipped": PAGE - 2}) == outcome


@pytest.mark.parametrize(
    ("rate", "share", "seconds"), [(0.01, 1, 100), (0.3, 4, 40 / 3), (20, 300, 15)]
)
def test_a_share_lasts_as_long_as_its_rate_says(rate: float, share: int, seconds: float) -> None:
    assert (share, timedelta(seconds=seconds)) == share_of(rate)


async def take_over(bench: Bench, superuser: Connection, job_id: JobId) -> None:
    await expire_lock(superuser, job_id)
    answer = await claim_job(bench.worker, job_id, bench.worker_id)
    assert answer.claim is not None, answer


async def test_a_recipe_that_only_newer_workers_know_submits_nothing(
    bench: Bench, api: Connection
) -> None:
    await an_image(api)
    claim = await bench.claim(a_set(all_images=True, recipe="tomorrow"))

    outcome = await work(bench, claim)

    assert isinstance(outcome, Retry)
    assert "unavailable" == outcome.code
    assert [] == list(await asked_for(bench.worker, claim.job_id))
    assert 0 == (await job_row(bench.worker, claim.job_id))["progress_done"]
