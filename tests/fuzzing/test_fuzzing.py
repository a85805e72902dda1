"""Both documents hold for requests that nobody thought of; and a run can fail."""

from typing import Any

import pytest
from starlette.responses import Response

from imagefleet.api.http.documents import OPERATORS, PRODUCERS
from imagefleet.api.producers import events, jobs
from imagefleet.jobs.model import JobId, JobState, TenantId
from imagefleet.jobs.shapes.jobs import JobView
from imagefleet.store.database import Connection
from imagefleet.store.jobs.reports import get_job
from tests.fuzzing.campaign import fuzz
from tests.support.api import ACME, RIVAL, Running, published, uploaded
from tests.support.factories import a_job, a_submission

pytestmark = pytest.mark.timeout(600)  # thousands of requests, on a machine that may be busy

SEED = 1  # what is found by another is found by `make fuzz-api`, whose seeds are new


@pytest.fixture
async def lived_in(running: Running, worker: Connection, superuser: Connection) -> Running:
    """An API with something to be shown: images that are made, and jobs in every state."""
    for who in ("acme", "rival"):
        async with running.client(who) as client:
            await uploaded(client, reference="first")
    async with running.client("acme") as acme:
        await published(worker, await uploaded(acme))
    for tenant in (ACME, RIVAL):
        for state in JobState:
            submission = a_submission(tenant_id=tenant)
            await a_job(worker, superuser, state=state, submission=submission)
    return running


async def test_what_producers_may_send_and_what_not(lived_in: Running) -> None:
    keys = [lived_in.secrets[who] for who in ("acme", "rival")]

    verdict = await fuzz(lived_in.url + PRODUCERS.address, keys, seed=SEED, examples=8)

    assert verdict.faults == []
    assert verdict.requests > 1000
    assert {"200", "201", "202", "401", "404", "405", "415", "422"} <= set(verdict.answers)


async def test_what_operators_may_send_and_what_not(lived_in: Running) -> None:
    keys = [lived_in.secrets["operator"]]

    verdict = await fuzz(lived_in.url + OPERATORS.address, keys, seed=SEED, examples=3)

    assert verdict.faults == []
    assert verdict.requests > 1000
    assert {"200", "202", "401", "404", "405", "415", "422"} <= set(verdict.answers)


async def test_an_answer_that_is_not_declared_and_one_of_another_tenant_are_told(
    lived_in: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def of_anybody(
        connection: Connection,
        job_id: JobId,
        _: TenantId,
        *more: Any,  # noqa: ANN401 - handed on
    ) -> JobView:
        tenant = await connection.fetchval("SELECT tenant_id FROM jobs WHERE id = $1", job_id)
        return await get_job(connection, job_id, tenant, *more)

    def without_links(*_: object, **__: object) -> Response:
        return Response(b"{}", 203, None, "application/json")

    monkeypatch.setattr(events, "get_job", of_anybody)
    monkeypatch.setattr(jobs, "accepted", without_links)
    keys = [lived_in.secrets[who] for who in ("acme", "rival")]

    verdict = await fuzz(
        lived_in.url + PRODUCERS.address, keys, seed=SEED, examples=25, phases=["fuzzing"]
    )

    (told,) = verdict.faults
    assert "is another tenant's" in told
    assert "Undocumented status code" in told
