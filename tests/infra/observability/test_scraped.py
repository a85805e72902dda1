"""Every panel shows something of a fleet that works: a real Prometheus scrapes the embedded stack.

Its rules are loaded as they are shipped; what they find is not waited for here.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.infra.observability.asking import PAGES, RATE, RULES, panels, rules
from tests.support.eventually import eventually
from tests.support.images import GREEN, RED, quadrants, saved
from tests.support.prometheus import Prometheus, needed, scraping
from tests.support.published import a_picture, delete, publish, replace
from tests.support.stack import Producer, Stack, running_stack

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

SETTINGS = {"maintenance": {"SAMPLE_INTERVAL_SECONDS": "1"}}
MOST_ROUNDS = 8  # an invalidation settles for three seconds and is asked about
OVER = "2m"
UPLOADS = 3
WHOLE = saved(quadrants(), "PNG")
FEW = 10  # requests a second of an operator, so that a limit is met


@dataclass(frozen=True, slots=True)
class Watched:
    """A Prometheus that has scraped a fleet while it worked, and what no panel showed meanwhile."""

    prometheus: Prometheus
    empty: dict[str, list[str]]
    """Title and query, by the page."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    needed("prometheus")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    async with (
        running_stack(settings=SETTINGS) as stack,
        scraping(folder, stack.facts["metrics_urls"], rules=RULES) as prometheus,
        stack.producer() as producer,
    ):
        await bound_operators(stack)
        empty = {path.stem: panels(path) for path in PAGES}
        for rounds in range(1, MOST_ROUNDS + 1):  # a rate is known by its second value
            await ask_for_everything(stack, producer)
            await scraped(prometheus, rounds * UPLOADS)
            empty = {
                page: [each for each in left if not await shows(prometheus, each[1])]
                for page, left in empty.items()
            }
            if rounds > 1 and not any(empty.values()):
                break
        yield Watched(
            prometheus, {page: [": ".join(each) for each in left] for page, left in empty.items()}
        )


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


@pytest.mark.parametrize("page", [path.stem for path in PAGES])
async def test_every_panel_shows_something(watched: Watched, page: str) -> None:
    assert watched.empty[page] == []


async def test_every_rule_is_loaded_and_can_be_evaluated(watched: Watched) -> None:
    loaded = await watched.prometheus.rules()

    assert sorted(rule["name"] for rule in loaded) == sorted(rule.name for rule in rules())
    states = {rule["name"]: (rule["health"], rule.get("lastError")) for rule in loaded}
    assert {name: state for name, state in states.items() if state[0] != "ok"} == {}


async def test_a_fleet_that_is_well_wakes_nobody(watched: Watched) -> None:
    firing = await watched.prometheus.ask('ALERTS{alertstate="firing",severity="page"}')

    assert [labels["alertname"] for labels, _ in firing] == []
