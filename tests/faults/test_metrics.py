"""After a mixed run, with errors that were brought about, every promised series is scraped."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import Claim, JobId
from imagefleet.store.database import connect
from tests.faults.crowding import another_tenant
from tests.faults.metrics_table import PROMISED
from tests.support.eventually import eventually
from tests.support.factories import MadeJob, a_worker, claim_job, expire_lock, settle_job
from tests.support.images import quadrants, saved, without_pixels
from tests.support.rows import job_row
from tests.support.stack import Producer, Stack, running_stack

SETTINGS = {
    "all": {
        # What is held up is given up soon, so that the errors come about soon.
        "DATABASE_STATEMENT_TIMEOUT_SECONDS": "1",
        "AWS_CONNECT_TIMEOUT_SECONDS": "1",
        "AWS_READ_TIMEOUT_SECONDS": "1",
        "BACKOFF_BASE_SECONDS": "1",
        "MAX_ATTEMPTS": "2",
    },
    "maintenance": {"SAMPLE_INTERVAL_SECONDS": "1"},
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One series, as it was scraped."""

    kind: str
    labels: frozenset[str]
    buckets: tuple[float, ...]
    samples: float
    """How many observations, or what was counted; of a gauge how many values it has."""


def read(exposition: str) -> dict[str, Seen]:
    seen = {}
    for family in text_string_to_metric_families(exposition):
        name = family.name + ("_total" if family.type == "counter" else "")
        samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        labels = {label for sample in samples for label in sample.labels} - {"le"}
        bounds = {float(sample.labels["le"]) for sample in samples if "le" in sample.labels}
        if family.type == "histogram":
            total = sum(sample.value for sample in samples if sample.name.endswith("_count"))
        elif family.type == "counter":
            total = sum(sample.value for sample in samples)
        else:
            total = len(samples)
        buckets = tuple(sorted(bounds - {float("inf")}))
        seen[name] = Seen(family.type, frozenset(labels), buckets, total)
    return seen


async def scrape(stack: Stack) -> dict[str, dict[str, Seen]]:
    async with httpx.AsyncClient(timeout=10) as http:
        return {
            name.partition("-")[0]: read((await http.get(url)).raise_for_status().text)
            for name, url in stack.facts["metrics_urls"].items()
        }


async def some_jobs(producer: Producer) -> None:
    picture = saved(quadrants())
    for accepted in (
        await producer.upload(picture),
        await producer.upload(without_pixels(picture)),  # which only its decoder notices
        await producer.submit("noop", {"milliseconds": 1}),
    ):
        await producer.ended(accepted.json()["jobId"])
    await producer.http.get("/nowhere")


async def someone_in_a_hurry(stack: Stack) -> None:
    """A key that nobody has, and one that asks more than it may, however slow the machine is."""
    operator = {"Authorization": f"Bearer {stack.facts['operator_key']}"}
    slow = {"limits": {"requests": 1}, "reason": "ten requests at once are too many"}
    async with another_tenant(stack, "hasty") as hasty:
        path = "/v1/operator/tenants/hasty/limits"
        (await hasty.http.put(path, json=slow, headers=operator)).raise_for_status()
        unknown = {"Authorization": f"Bearer if_{'x' * 43}"}
        assert (await hasty.http.get("/v1/jobs", headers=unknown)).status_code == 401

        async def is_refused() -> bool:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(hasty.http.get("/v1/jobs")) for _ in range(10)]
            return 429 in {request.result().status_code for request in asked}

        await eventually(is_refused, within=20)


async def a_replaced_picture(producer: Producer) -> None:
    """The edge has to be told, which is maintenance's part."""
    accepted = (await producer.upload(saved(quadrants(64, 40)))).json()
    await producer.ended(accepted["jobId"])
    replaced = await producer.http.put(
        f"/v1/images/{accepted['imageId']}",
        content=saved(quadrants(40, 64)),
        headers={"Content-Type": "image/jpeg"},
    )
    assert replaced.status_code == 202, replaced.text
    await producer.ended(replaced.json()["jobId"])


async def a_lost_original(stack: Stack, producer: Producer) -> None:
    """S3 refuses the worker what it asks for."""
    with stack.director.closing("received"):
        accepted = (await producer.upload(saved(quadrants(48, 30)))).json()
        async with stack.database() as owner:
            key = await owner.fetchval(
                "SELECT key FROM image_sources WHERE image_id = $1", accepted["imageId"]
            )
        s3 = stack.place.client("s3")
        s3.delete_object(Bucket=stack.place.originals, Key=key)
    await producer.ended(accepted["jobId"])


async def a_lost_claim(stack: Stack, producer: Producer) -> None:
    """Another worker takes a job over whose lock ran out, while the first one is still at it."""
    accepted = await producer.submit("noop", {"milliseconds": 60_000})
    job_id = JobId(UUID(accepted.json()["jobId"]))
    async with (
        stack.database("superuser") as superuser,
        connect(stack.facts["database_urls"]["worker"], process="tests") as connection,
    ):
        thief = await a_worker(connection)

        async def stolen() -> Claim | None:
            assert "processing" == (await job_row(superuser, job_id))["state"]
            await expire_lock(superuser, job_id)
            return (await claim_job(connection, job_id, thief)).claim

        claim = await eventually(stolen, within=10)
        job = MadeJob(job_id=job_id, claim_no=claim.claim_no, worker_id=thief)
        await settle_job(connection, job, Completed())


async def an_abandoned_job(stack: Stack, producer: Producer) -> None:
    """A worker claims a job and is not heard of again: maintenance will end that attempt."""
    with stack.director.closing("received"):
        accepted = await producer.submit()
        async with connect(stack.facts["database_urls"]["worker"], process="tests") as connection:
            gone = await a_worker(connection)
            answer = await claim_job(connection, JobId(UUID(accepted.json()["jobId"])), gone)
    assert answer.claim is not None, answer


async def a_locked_table(stack: Stack, producer: Producer) -> None:
    """Somebody holds the table of jobs for as long as it takes everybody to run into it."""
    accepted = await producer.submit()
    await producer.ended(accepted.json()["jobId"])
    async with stack.database() as owner, owner.transaction():
        with stack.director.closing("received"):
            await producer.submit("noop", {"note": "claimed under the lock"})
            await owner.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
            # A due ring is the dispatcher's reason to look at jobs.
            async with stack.database() as other:
                await other.execute("UPDATE rings SET next_at = now(), sent_at = NULL")

        async def all_ran_into_it() -> bool:
            answer = await producer.http.get(f"/v1/jobs/{accepted.json()['jobId']}")
            assert answer.status_code == 503
            series = await scrape(stack)
            for process, name in (
                ("api", "db_query_error_total"),
                ("worker", "db_query_errors_total"),
                ("maintenance", "db_query_errors_total"),
            ):
                assert name in series[process], (process, name)
                assert series[process][name].samples, (process, name)
            return True

        await eventually(all_ran_into_it, within=40)


async def a_frozen_cloud(stack: Stack, producer: Producer) -> None:
    """All of AWS accepts connections and says nothing."""
    await a_replaced_picture(producer)  # of which CloudFront is told seconds later

    async def is_missed() -> bool:
        series = await scrape(stack)
        return bool(series["maintenance"]["cloudfront_operation_errors_total"].samples)

    os.kill(stack.facts["processes"]["aws"], signal.SIGSTOP)
    try:
        answer = await producer.upload(saved(quadrants(32, 20)))
        assert answer.status_code == 503, answer.text
        assert "retry-after" in answer.headers
        await eventually(is_missed, within=30)
    finally:
        os.kill(stack.facts["processes"]["aws"], signal.SIGCONT)


def differences(found: Mapping[str, Mapping[str, Seen]]) -> dict[tuple[str, str], str]:
    """What is not as the table says, by process and name."""
    wrong = {}
    for process, rows in PROMISED.items():
        for name, series in rows.items():
            seen = found[process].get(name)
            if seen is None or not seen.samples:
                wrong[process, name] = "no sample"
            elif (series.kind, frozenset(series.labels), series.buckets) != (
                seen.kind,
                seen.labels,
                seen.buckets,
            ):
                wrong[process, name] = f"{series} is scraped as {seen}"
    return wrong


@pytest.mark.timeout(120)
async def test_every_promised_series_is_scraped_as_promised() -> None:
    async with (
        running_stack(workers=1, settings=SETTINGS) as stack,
        stack.producer() as producer,
    ):
        await an_abandoned_job(stack, producer)
        await some_jobs(producer)
        await someone_in_a_hurry(stack)
        await a_replaced_picture(producer)
        await a_lost_original(stack, producer)
        await a_lost_claim(stack, producer)
        await a_locked_table(stack, producer)
        await a_frozen_cloud(stack, producer)

        async def as_promised() -> bool:
            assert {} == differences(await scrape(stack))
            return True

        await eventually(as_promised, within=45)  # a worker is dead after 30 s of silence
