"""Pages of what all tenants have are those that somebody would get who sorted all of it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from uuid import UUID

import pytest

from imagefleet.jobs.images import ImageStatus
from imagefleet.jobs.model import JobId, JobState, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.images.listing import ImageFilter, oversee_images
from imagefleet.store.jobs.overseeing import oversee_jobs
from imagefleet.store.jobs.reports import OverseenFilter

TENANTS: Final = 23
JOBS: Final = 600
PAGE: Final = 7

# Of the tenants a few have most, and some have none; the ids are in no order of theirs.
LOAD: Final = f"""
SET LOCAL session_replication_role = replica;
INSERT INTO tenants (id, name)
SELECT 'tenant-' || n, 'load' FROM generate_series(0, {TENANTS}) AS n;
INSERT INTO jobs (id, tenant_id, type, state, lane, target, target_seq, correlation_id, created_by,
                  finished_at, result_reason, failure_code, failure_message)
SELECT gen_random_uuid(), 'tenant-' || floor({TENANTS} * power(made.a, 3)),
       CASE WHEN made.b < 0.5 THEN 'noop' ELSE 'webhook' END, made.state, 'fast',
       CASE WHEN made.c < 0.5 THEN 'sku:7' ELSE 'sku:8' END, made.n, 'request-' || made.n % 3,
       'load', CASE WHEN made.state <> 'queued' THEN now() END,
       CASE WHEN made.state = 'completed' THEN 'done' END,
       CASE WHEN made.state = 'failed' THEN 'corrupt' END,
       CASE WHEN made.state = 'failed' THEN 'It is damaged.' END
  FROM (SELECT n, random() AS a, random() AS b, random() AS c,
               (ARRAY['queued', 'completed', 'failed'])[1 + n % 3] AS state
          FROM generate_series(1, {JOBS}) AS n) AS made;
INSERT INTO images (id, tenant_id, reference, recipe)
SELECT jobs.id, jobs.tenant_id, jobs.target, 'default' FROM jobs;
"""  # noqa: S608 - numbers of ours

pytestmark = pytest.mark.breaks_invariants  # jobs of no submit


@pytest.fixture
async def loaded(superuser: Connection) -> list[Any]:
    async with superuser.transaction():
        await superuser.execute(LOAD)
    return await superuser.fetch("SELECT * FROM jobs ORDER BY id DESC")


Fits: TypeAlias = Callable[[Any], bool]

PAGES: Final[Mapping[str, tuple[OverseenFilter, Fits]]] = MappingProxyType({
    "all": (OverseenFilter(), lambda job: True),
    "of a state": (OverseenFilter(state=JobState.FAILED), lambda job: job["state"] == "failed"),
    "of a type": (OverseenFilter(type="noop"), lambda job: job["type"] == "noop"),
    "of a type and state": (
        OverseenFilter(type="noop", state=JobState.QUEUED),
        lambda job: (job["type"], job["state"]) == ("noop", "queued"),
    ),
    "of a target": (OverseenFilter(target="sku:7"), lambda job: job["target"] == "sku:7"),
    "of a target and type": (
        OverseenFilter(target="sku:7", type="webhook"),
        lambda job: (job["target"], job["type"]) == ("sku:7", "webhook"),
    ),
    "of a request": (
        OverseenFilter(correlation_id="request-1"),
        lambda job: job["correlation_id"] == "request-1",
    ),
    "of a code": (
        OverseenFilter(code="corrupt"), lambda job: job["failure_code"] == "corrupt",
    ),
    "of a tenant and type": (
        OverseenFilter(tenant_id=TenantId("tenant-0"), type="noop"),
        lambda job: (job["tenant_id"], job["type"]) == ("tenant-0", "noop"),
    ),
})  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
async def test_pages_of_jobs(name: str, operator: Connection, loaded: list[Any]) -> None:
    asked, fits = PAGES[name]
    found: list[JobId] = []
    before: JobId | None = None
    while True:
        page = await oversee_jobs(operator, asked, before=before, limit=PAGE)
        found += [job.job_id for job in page.jobs]
        before = None if page.next_cursor is None else JobId(page.next_cursor)
        if before is None:
            break

    assert found == [job["id"] for job in loaded if fits(job)]
    assert len(found) > PAGE


@pytest.mark.parametrize("status", [None, ImageStatus.PENDING])
async def test_pages_of_images_by_a_reference(
    status: ImageStatus | None, operator: Connection, loaded: list[Any]
) -> None:
    found: list[UUID] = []
    after: UUID | None = None
    chosen = ImageFilter(reference="sku:7", status=status)
    while True:
        page = await oversee_images(operator, None, chosen, before=after, limit=PAGE)
        found += [image.image_id for image in page.images]
        after = page.next_cursor
        if after is None:
            break

    assert found == [job["id"] for job in loaded if job["target"] == "sku:7"]
