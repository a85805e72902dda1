"""The pages of the API in a browser: they show every operation, obey their policy, ask nobody."""

from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from imagefleet.api.http.documents import DOCUMENTS, OPERATORS, PRODUCERS
from imagefleet.api.public.documentation import POLICY
from tests.support.api import Running, Serve, app_of, documents_of
from tests.support.browsers import chromium, watched
from tests.support.http import is_problem

pytestmark = pytest.mark.timeout(300)  # the first one may have to fetch the browser

SHOWN_WITHIN: Final = 60_000  # milliseconds; a busy machine takes its time over two megabytes


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.page)
async def test_a_page_shows_every_operation_and_nothing_is_wrong_with_it(
    running: Running,
    tmp_path: Path,
    document: Any,  # noqa: ANN401 - one of DOCUMENTS
) -> None:
    described = documents_of(app_of(running))[document.address]
    async with chromium(tmp_path) as browser:
        page = await browser.new_page()
        page.set_default_timeout(SHOWN_WITHIN)
        seen = watched(page)
        await page.goto(running.url + PRODUCERS.page)
        await page.wait_for_selector(".opblock")
        await page.get_by_role("link", name=document.title, exact=True).click()
        await page.wait_for_selector(".opblock")
        shown = await page.locator(".opblock").evaluate_all("all => all.map(each => each.id)")

    assert sorted(shown) == sorted(
        f"operations-{operation['tags'][0].replace(' ', '_')}-{operation['operationId']}"
        for methods in described["paths"].values()
        for operation in methods.values()
    )
    assert seen.complaints == []
    assert seen.hosts == {running.url.removeprefix("http://")}


async def test_a_key_that_is_typed_is_used_from_the_page_and_forgotten_with_it(
    running: Running, tmp_path: Path
) -> None:
    async with chromium(tmp_path) as browser:
        page = await browser.new_page()
        page.set_default_timeout(SHOWN_WITHIN)
        seen = watched(page)
        await page.goto(running.url + PRODUCERS.page)
        await page.click(".auth-wrapper .authorize")
        await page.fill(".auth-container input", running.secrets["acme"])
        await page.click(".auth-container .authorize")
        await page.click(".auth-container .btn-done")
        operation = page.locator("#operations-images-listRecipes")
        await operation.locator(".opblock-summary-control").click()
        await operation.locator(".try-out__btn").click()
        await operation.locator(".execute").click()
        answer = operation.locator(".live-responses-table .response-col_status")
        await answer.last.wait_for()
        assert "200" in await answer.last.inner_text()
        assert '"name": "default"' in await operation.locator(".live-responses-table").inner_text()

        assert seen.complaints == []
        kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        assert running.secrets["acme"] not in await page.evaluate(kept)


async def test_the_pages_may_load_from_here_alone_and_run_nothing_that_stands_in_them(
    running: Running,
) -> None:
    async with running.client(None) as nobody:
        page = await nobody.get(PRODUCERS.page)

    assert page.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert set(POLICY.split("; ")) >= {
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "frame-ancestors 'none'",
    }
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "public, max-age=300"
    assert "://" not in page.text


async def test_a_file_is_packed_where_that_is_wanted_and_not_sent_again_to_who_has_it(
    running: Running,
) -> None:
    name = "/docs/swagger-ui-bundle.js"
    async with running.client(None) as nobody:
        packed = await nobody.get(name, headers={"Accept-Encoding": "gzip"})
        plain = await nobody.get(name, headers={"Accept-Encoding": "identity"})
        known = await nobody.get(name, headers={"If-None-Match": packed.headers["etag"]})

    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert {each.headers["cache-control"] for each in (packed, plain)} == {"public, max-age=300"}
    assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing", "vendored.json", "page.html", "..%2Fstable.py"])
async def test_what_the_pages_do_not_load_is_not_there(running: Running, name: str) -> None:
    async with running.client(None) as nobody:
        is_problem(await nobody.get(f"/docs/{name}"), 404, "not_found")


async def test_whoever_does_not_operate_has_no_page_about_it(serve: Serve) -> None:
    async with serve(operating=False) as running, running.client(None) as nobody:
        producers = await nobody.get(PRODUCERS.page)
        is_problem(await nobody.get(OPERATORS.page), 404, "not_found")

    assert producers.status_code == httpx.codes.OK
    assert OPERATORS.page not in producers.text
