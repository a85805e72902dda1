"""Every panel shows something of a fleet that works: a real Prometheus scrapes the embedded stack.

Its rules are loaded as they are shipped; what they find is not waited for here.
"""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.infra.observability.asking import PAGES, RATE, RULES, panels, rules
from tests.support.eventually import eventually
from tests.support.images import GREEN, RED, quadrants, saved
from tests.support.prometheus import Prometheus, needed, scraping
from tests.support.published import a_picture, delete, publish, replace
from tests.support.stack import Producer, Stack, running_stack

pytestmark = pytest.mark.timeout(240)

SETTINGS = {"maintenance": {"SAMPLE_INTERVAL_SECONDS": "1"}}
MOST_ROUNDS = 8  # an invalidation settles for three seconds and is asked about
OVER = "2m"
UPLOADS = 3
WHOLE = saved(quadrants(), "PNG")
FEW = 10  # requests a second of an operator, so that a limit is met


async def test_every_panel_shows_something_every_rule_is_evaluated_and_nobody_is_woken(
    tmp_path: Path,
) -> None:
    """One test, as a stack of its own for each of its three sentences would take a minute."""
    needed("prometheus")
    async with (
        running_stack(settings=SETTINGS) as stack,
        scraping(tmp_path, stack.facts["metrics_urls"], rules=RULES) as prometheus,
        stack.producer() as producer,
    ):
        await bound_operators(stack)
        empty = [(path.stem, *panel) for path in PAGES for panel in panels(path)]
        for rounds in range(1, MOST_ROUNDS + 1):  # a rate is known by its second value
            await ask_for_everything(stack, producer)
            await scraped(prometheus, rounds * UPLOADS)
            empty = [panel for panel in empty if not await shows(prometheus, panel[-1])]
            if rounds > 1 and not empty:
                break
        loaded = await prometheus.rules()
        woken = await prometheus.ask('ALERTS{alertstate="firing",severity="page"}')

    assert [] == empty
    assert sorted(rule.name for rule in rules()) == sorted(rule["name"] for rule in loaded)
    assert {} == {rule["name"]: rule.get("lastError") for rule in loaded if rule["health"] != "ok"}
    assert [] == [labels["alertname"] for labels, _ in woken]


async def shows(prometheus: Prometheus, query: str) -> bool:
    return bool(await prometheus.ask(query.replace(RATE, OVER)))


async def ask_for_everything(stack: Stack, producer: Producer) -> None:
    shown = [await publish(producer, RED) for _ in range(UPLOADS)]
    await producer.ended(await replace(producer, shown[0].image_id, a_picture(GREEN)))
    await producer.ended(await delete(producer, shown[1].image_id))
    broken = await producer.upload(WHOLE[: len(WHOLE) // 2], "image/png")
    assert "failed" == (await producer.ended(broken.json()["jobId"]))["status"]
    await producer.submit()
    await stack.all_ended(within=30)
    async with stack.producer(key="operator_key") as operator:

        async def refused() -> bool:
            asked = (operator.http.get("/v1/operator/pauses") for _ in range(5 * FEW))
            return 429 in {answer.status_code for answer in await asyncio.gather(*asked)}

        await eventually(refused, within=20)
    url = stack.facts["api_url"]
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer if_x"}) as nobody:
        assert (await nobody.get("/v1/jobs")).status_code == 401


async def bound_operators(stack: Stack) -> None:
    async with stack.producer(key="operator_key") as operator:
        turned = {"value": FEW, "reason": "a limit is to be met"}
        answer = await operator.http.put(
            "/v1/operator/settings/limits.operator_requests", json=turned
        )
    assert answer.is_success, answer.text


async def scraped(prometheus: Prometheus, uploads: int) -> None:
    """Wait until it has seen so many of them published."""

    async def has_seen() -> bool:
        samples = await prometheus.ask("sum(image_published_seconds_count)")
        return sum(value for _, value in samples) >= uploads

    await eventually(has_seen, within=20)
