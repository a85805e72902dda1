"""Pages of other origins: none may speak to the API, but those that a setting names."""

from collections.abc import AsyncIterator

import httpx
import pytest

from imagefleet.store.database import Connection
from tests.support.api import JPEG, Running, Serve, published, uploaded
from tests.support.http import a_jpeg, is_problem

OURS, OTHERS = "https://app.example", "https://else.example"
ASKS = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
}


@pytest.fixture
async def open_to_ours(serve: Serve) -> AsyncIterator[Running]:
    async with serve(allowed_origins=[OURS]) as running:
        yield running


def told(answer: httpx.Response) -> dict[str, str]:
    return {name: said for name, said in answer.headers.items() if name.startswith("access-con")}


async def test_unless_a_setting_says_so_no_page_speaks_to_the_api(running: Running) -> None:
    async with running.client(Origin=OURS) as page:
        beforehand = await page.options("/v1/images", headers=ASKS)
        answer = await page.get("/v1/images")

    is_problem(beforehand, 405, "method_not_allowed")
    assert (answer.status_code, told(answer)) == (200, {})
    assert "vary" not in answer.headers


async def test_a_page_that_may_asks_beforehand_without_a_key(open_to_ours: Running) -> None:
    async with open_to_ours.client(None, Origin=OURS) as page:
        answer = await page.options("/v1/images", headers=ASKS)

    assert answer.status_code == 200
    said = told(answer)
    assert said["access-control-allow-origin"] == OURS
    assert "POST" in said["access-control-allow-methods"].split(", ")
    allowed = said["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "content-type", "idempotency-key"} <= set(allowed)
    assert "access-control-allow-credentials" not in said
    assert "Origin" in answer.headers["vary"]


async def test_a_page_that_may_reads_answers_and_refusals(open_to_ours: Running) -> None:
    async with open_to_ours.client(Origin=OURS) as page, open_to_ours.client(None) as stranger:
        answer = await page.post("/v1/images", content=a_jpeg(), headers=JPEG)
        refused = await page.post("/v1/images", content=b"nothing", headers=JPEG)
        unknown = await stranger.get("/v1/images", headers={"Origin": OURS})

    assert (answer.status_code, refused.status_code, unknown.status_code) == (202, 415, 401)
    for each in (answer, refused, unknown):
        assert told(each)["access-control-allow-origin"] == OURS
        assert "Location" in told(each)["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in told(each)
        assert each.headers["vary"] == "Origin"


async def test_any_other_page_is_told_nothing_that_lets_it_read(open_to_ours: Running) -> None:
    async with open_to_ours.client(Origin=OTHERS) as page:
        beforehand = await page.options("/v1/images", headers=ASKS)
        answer = await page.get("/v1/images")

    assert beforehand.status_code == 400
    assert "access-control-allow-origin" not in told(beforehand) | told(answer)
    assert answer.headers["vary"] == "Origin"  # a cache must not give ours what others were told


async def test_where_any_page_may_none_brings_cookies(serve: Serve) -> None:
    async with serve(allowed_origins=["*"]) as running, running.client(Origin=OTHERS) as page:
        page.cookies["session"] = "of somebody"
        beforehand = await page.options("/v1/images", headers=ASKS)
        answer = await page.get("/v1/images")

    for each in (beforehand, answer):
        assert told(each)["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in told(each)


async def test_stable_addresses_are_for_every_page_whatever_the_setting(
    open_to_ours: Running, worker: Connection
) -> None:
    async with open_to_ours.client() as acme, open_to_ours.client(None) as anybody:
        accepted = await uploaded(acme)
        await published(worker, accepted)
        path = f"/i/{accepted['imageId']}/current/thumb.webp"

        answers = [await anybody.get(path, headers={"Origin": origin}) for origin in (OURS, OTHERS)]

    for answer in answers:
        assert answer.status_code == 302
        assert told(answer) == {"access-control-allow-origin": "*"}
        assert "vary" not in answer.headers  # one answer for all, which the edge may keep
