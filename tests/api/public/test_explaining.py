"""The page that a problem's type leads to: there for everybody, true, and trusted with nothing."""

import re

import httpx
import pytest

from imagefleet.api.http.errors import STATUSES
from imagefleet.api.public.explaining import pages
from tests.support.api import Running
from tests.support.http import is_problem


async def test_the_type_of_a_problem_leads_to_its_section_without_a_key(
    running: Running, acme: httpx.AsyncClient
) -> None:
    refused = await acme.get("/v1/images?limit=101")

    async with running.client(None) as nobody:
        page = await nobody.get(refused.json()["type"])

    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1>invalid_request</h1>" in page.text
    assert "<code>errors</code> says of each what it must be" in page.text


async def test_the_page_of_all_codes_links_to_each(acme: httpx.AsyncClient) -> None:
    index = await acme.get("/v1/errors")

    linked = re.findall(r'href="/v1/errors/(\w+)"', index.text)
    assert linked == [*STATUSES]
    for code in linked:
        assert (await acme.get(f"/v1/errors/{code}")).status_code == 200


async def test_what_is_no_code_has_no_page(acme: httpx.AsyncClient) -> None:
    is_problem(await acme.get("/v1/errors/<script>"), 404, "not_found")


async def test_the_page_may_do_nothing(acme: httpx.AsyncClient) -> None:
    page = await acme.get("/v1/errors/busy")

    policy = page.headers["content-security-policy"]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[A-Za-z0-9+/]{43}='; "
        r"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        policy,
    )
    assert "<script" not in page.text
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("code", ["", *STATUSES])
def test_nothing_of_the_markup_is_left_in_a_page(code: str) -> None:
    text = pages()[code].decode()

    assert not re.search(r"`|\]\(|^#|^\|", text, re.MULTILINE)
    assert text.count("<p>") == text.count("</p>") > 0
