"""Floods of requests: what they cost Postgres is bounded, and others hardly notice."""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from imagefleet.api.http.lookups import APART
from imagefleet.jobs.limits import LIMITS
from tests.faults.crowding import another_tenant
from tests.hostile.flooding import compared, counted, flooding, times
from tests.support.eventually import eventually
from tests.support.stack import Stack

LATER = timedelta(hours=1)
STATEMENTS = "db_query_duration_seconds_count"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("unknown routes", {"404"}),
        ("descriptions", {"200"}),
        ("many parameters", {"414"}),
        ("long queries", {"414", "lost"}),  # the connection ends with it
    ],
)
async def test_what_needs_no_key_is_cheap(
    stack: Stack, alone: None, what: str, told: set[str]
) -> None:
    async with another_tenant(stack, "bystander") as bystander:
        comparison = await compared(bystander, what, lambda url: flooding(url, what), told=told)

    assert comparison.is_fair, str(comparison)


@pytest.mark.parametrize(
    ("what", "operation", "told"),
    [("unknown keys", "find_keys", "401"), ("unknown addresses", "find_current", "404")],
)
async def test_what_nobody_has_costs_few_statements(
    stack: Stack, alone: None, what: str, operation: str, told: str
) -> None:
    async with another_tenant(stack, "bystander") as bystander:
        comparison = await compared(bystander, what, lambda url: flooding(url, what), told={told})
        async with flooding(stack.facts["api_url"], what) as met:
            before, begun = await counted(stack, STATEMENTS, operation=operation), time.monotonic()
            await times(bystander)
            after, took = await counted(stack, STATEMENTS, operation=operation), time.monotonic()
            # Somebody whom this process never saw gets in amid the flood, from the same address.
            async with another_tenant(stack, "newcomer") as newcomer:
                assert (await newcomer.http.get("/v1/jobs")).status_code == 200

    assert set(met) == {told}
    assert after - before <= (took - begun) / APART.total_seconds() + 3
    assert after - before < met[told] / 2
    assert comparison.is_fair, str(comparison)


async def test_a_tenant_that_asks_too_much_is_told_so_and_others_go_on(
    stack: Stack, alone: None
) -> None:
    async with (
        another_tenant(stack, "bystander") as bystander,
        another_tenant(stack, "greedy") as greedy,
    ):
        refused = await counted(stack, "limit_refusals_total", limit="key_requests")
        key = greedy.http.headers["authorization"].removeprefix("Bearer ")
        async with flooding(stack.facts["api_url"], "requests", key=key) as met:

            async def is_refused() -> httpx.Response:
                answer = await greedy.http.get("/v1/jobs", params={"limit": 1})
                assert answer.status_code == 429
                return answer

            answer = await eventually(is_refused, within=20)
            # The operators' key is of a tenant, too, and their routes have limits of their own.
            async with stack.producer(key="operator_key") as operating:
                assert (await operating.http.get("/v1/operator/pauses")).status_code == 200
        after = await counted(stack, "limit_refusals_total", limit="key_requests")
        comparison = await compared(
            bystander,
            "requests",
            lambda url: flooding(url, "requests", key=key),
            told={"422", "429"},
        )

    assert ("limit_reached", "key_requests") == (answer.json()["code"], answer.json()["limit"])
    assert int(answer.headers["retry-after"]) > 0
    assert set(met) == {"422", "429"}
    assert after - refused >= met["429"]
    assert comparison.is_fair, str(comparison)


async def test_a_key_listens_to_so_many_jobs_and_no_more(stack: Stack) -> None:
    most = LIMITS["key_streams"].default
    async with AsyncExitStack() as open_ones:
        listening = await open_ones.enter_async_context(another_tenant(stack, "listening"))
        other = await open_ones.enter_async_context(another_tenant(stack, "bystander"))
        paths = []
        for one in (listening, other):
            later = {"jobType": "noop", "runAt": (datetime.now(UTC) + LATER).isoformat()}
            job = await one.post("/v1/jobs", None, "later", json=later)
            assert job.status_code == 202, job.text
            paths.append(f"/v1/jobs/{job.json()['jobId']}")
        mine, theirs = paths
        async with httpx.AsyncClient(
            base_url=listening.http.base_url,
            headers=listening.http.headers,
            timeout=30,
            limits=httpx.Limits(max_connections=None),
        ) as many:

            async def listen() -> httpx.Response:
                request = many.build_request("GET", f"{mine}/events")
                answer = await many.send(request, stream=True)
                open_ones.push_async_callback(answer.aclose)
                return answer

            answers: list[httpx.Response] = []
            for _ in range((most + 20) // 20):  # a few at a time: as fast as that is another limit
                answers += await asyncio.gather(*(listen() for _ in range(20)))
            told = [answer.status_code for answer in answers]
            assert told.count(200) == most
            assert set(told) == {200, 429}
            waiting = await listening.http.get(mine, params={"wait": 5})
            assert (429, "key_streams") == (waiting.status_code, waiting.json()["limit"])
            assert (await listening.http.get(mine)).status_code == 200
            assert (await other.http.get(theirs, params={"wait": 1})).status_code == 200

            for answer in answers:
                await answer.aclose()

        async def has_room() -> bool:
            again = await listening.http.get(mine, params={"wait": 1})
            assert again.status_code == 200
            return True

        await eventually(has_room, within=20)
        for one, path in ((listening, mine), (other, theirs)):
            order = await one.post(f"{path}/cancel", None, f"cancel {path}")
            assert order.status_code == 202, order.text
