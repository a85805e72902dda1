"""Every panel shows something of a fleet that works: a real Prometheus scrapes the embedded stack.

Its rules are loaded as they are shipped; what they find is not waited for here.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.infra.observability.asking import PAGES, RATE, RULES, panels, rules
from tests.support.eventually import eventually
from tests.support.images import GREEN, RED
from tests.support.prometheus import Prometheus, needed, scraping
from tests.support.published import a_picture, delete, publish, replace
from tests.support.stack import Producer, Stack, running_stack

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

SETTINGS = {"maintenance": {"SAMPLE_INTERVAL_SECONDS": "1"}}
SHOWN_WITHIN = 60.0  # seconds: an invalidation settles for three and is asked about; two busy cores
OVER = "2m"
UPLOADS = 3
FEW = 10  # requests a second of an operator, so that a limit is met


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    """It has scraped a fleet that was asked for everything, some of it in vain, and twice."""
    needed("prometheus")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    async with (
        running_stack(settings=SETTINGS) as stack,
        scraping(folder, stack.facts["metrics_urls"], rules=RULES) as prometheus,
        stack.producer() as producer,
    ):
        for rounds in (1, 2):  # a rate is known by its second value
            await ask_for_everything(stack, producer)
            await scraped(prometheus, rounds * UPLOADS)
        yield prometheus


async def ask_for_everything(stack: Stack, producer: Producer) -> None:
    shown = [await publish(producer, RED) for _ in range(UPLOADS)]
    await producer.ended(await replace(producer, shown[0].image_id, a_picture(GREEN)))
    await producer.ended(await delete(producer, shown[1].image_id))
    broken = await producer.upload(a_picture(RED)[:100])
    if broken.is_success:
        await producer.ended(broken.json()["jobId"])
    await producer.submit()
    await stack.all_ended(within=30)
    async with stack.producer(key="operator_key") as operator:
        turned = {"value": FEW, "reason": "a limit is to be met"}
        answer = await operator.http.put(
            "/v1/operator/settings/limits.operator_requests", json=turned
        )
        assert answer.is_success, answer.text

        async def refused() -> bool:
            return (await operator.http.get("/v1/operator/pauses")).status_code == 429

        await eventually(refused, within=20)
    url = stack.facts["api_url"]
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer if_x"}) as nobody:
        assert (await nobody.get("/v1/jobs")).status_code == 401


async def scraped(prometheus: Prometheus, uploads: int) -> None:
    """Wait until it has seen so many of them published."""

    async def has_seen() -> bool:
        samples = await prometheus.ask("sum(image_published_seconds_count)")
        return sum(value for _, value in samples) >= uploads

    await eventually(has_seen, within=20)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
async def test_every_panel_shows_something(prometheus: Prometheus, path: Path) -> None:
    async def nothing_is_empty() -> bool:
        empty = [
            f"{title}: {query}"
            for title, query in panels(path)
            if not await prometheus.ask(query.replace(RATE, OVER))
        ]
        assert not empty, "\n".join(empty)
        return True

    await eventually(nothing_is_empty, within=SHOWN_WITHIN)


async def test_every_rule_is_loaded_and_can_be_evaluated(prometheus: Prometheus) -> None:
    async def all_are_well() -> bool:
        loaded = await prometheus.rules()
        assert sorted(rule["name"] for rule in loaded) == sorted(rule.name for rule in rules())
        states = {rule["name"]: (rule["health"], rule.get("lastError")) for rule in loaded}
        assert {name: state for name, state in states.items() if state[0] != "ok"} == {}
        return True

    await eventually(all_are_well, within=SHOWN_WITHIN)


async def test_a_fleet_that_is_well_wakes_nobody(prometheus: Prometheus) -> None:
    firing = await prometheus.ask('ALERTS{alertstate="firing",severity="page"}')

    assert [labels["alertname"] for labels, _ in firing] == []
