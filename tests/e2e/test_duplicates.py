"""A message that is delivered twice changes nothing, and every such delivery is counted."""

import json
from collections import Counter

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.eventually import eventually
from tests.support.stack import Producer, Stack

JOBS = 60
TWICE = 18  # 30 %
FOR_NOTHING = ("finished", "busy", "contended")


async def verdicts(stack: Stack) -> Counter[str]:
    """Of every worker together, as scraped."""
    counted: Counter[str] = Counter()
    async with httpx.AsyncClient() as http:
        for name, url in stack.facts["metrics_urls"].items():
            if name.startswith("worker"):
                for family in text_string_to_metric_families((await http.get(url)).text):
                    for sample in family.samples:
                        if sample.name == "claim_verdict_total":
                            counted[sample.labels["verdict"]] += int(sample.value)
    return counted


def send_again(stack: Stack, job_ids: list[str]) -> None:
    """What SQS may do with any message, done by hand: its copies are no other than the first."""
    sqs = stack.place.client("sqs")
    for job_id in job_ids:
        sqs.send_message(
            QueueUrl=stack.facts["queue_urls"]["fast"],
            MessageBody=json.dumps({"v": 1, "job_id": job_id}),
            MessageGroupId="demo",
        )


async def test_a_third_delivered_twice_is_as_once_and_counted_to_the_last(
    stack: Stack, producer: Producer
) -> None:
    before = await verdicts(stack)
    ids = await producer.submit_many(JOBS, {"milliseconds": 100})
    # Two copies: a job that one of them is claimed by before its turn is announced no more.
    send_again(stack, ids[:TWICE] * 2)
    for job_id in ids:
        await producer.ended(job_id)

    def all_came() -> bool:
        came = sum(stack.director.received[job_id] for job_id in ids)
        assert came >= JOBS + TWICE, came
        return True

    await eventually(all_came, within=20)

    async def each_is_counted() -> Counter[str]:
        new = await verdicts(stack)
        new.subtract(before)
        came = sum(stack.director.received[job_id] for job_id in ids)
        assert JOBS == new["claimed"], new
        assert came - JOBS == sum(new[verdict] for verdict in FOR_NOTHING), new
        return new

    await eventually(each_is_counted, within=10)
    async with stack.database() as owner:
        rows = await owner.fetch(
            "SELECT state, claim_no, attempts FROM jobs WHERE id = ANY ($1::uuid[])", ids
        )
    assert {("completed", 1, 1)} == {tuple(row) for row in rows}
