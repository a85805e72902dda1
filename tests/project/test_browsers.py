"""Pages are watched by what a browser says of them: it must see what is wrong with one."""

from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Route

from tests.support.browsers import chromium, watched

pytestmark = pytest.mark.timeout(300)  # the first one may have to fetch it

POLICY: Final = "default-src 'none'; script-src 'self'; connect-src 'self'; base-uri 'none'"
ADDRESS: Final = "http://page.test/"
FOREIGN: Final = "http://elsewhere.test"


def page_of(body: str) -> str:
    return f"<!doctype html><title>one</title>{body}"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<p>fine</p>", None),
        ("<script>window.x = 1</script>", "violates"),
        ("<p style='color: red'>red</p>", "violates"),
        (f"<img src='{FOREIGN}/pixel.png'>", "violates"),
        ("<script src='/throws.js'></script>", "it broke"),
        ("<script src='/not-there.js'></script>", "404"),
    ],
)
async def test_what_is_wrong_with_a_page_is_told(
    body: str, complaint: str | None, tmp_path: Path
) -> None:
    async def answer(route: Route) -> None:
        scripts = {"/throws.js": "throw new Error('it broke')", "/not-there.js": None}
        path = "/" + route.request.url.removeprefix(ADDRESS)
        script = scripts.get(path, "")
        await route.fulfill(
            status=404 if script is None else 200,
            content_type="text/javascript" if path in scripts else "text/html",
            headers={"Content-Security-Policy": POLICY},
            body=script if path in scripts else page_of(body),
        )

    async with chromium(tmp_path) as browser:
        page = await browser.new_page()
        seen = watched(page)
        await page.route("**/*", answer)
        await page.goto(ADDRESS)

        assert await page.title() == "one"

    if complaint is None:
        assert seen.complaints == []
    else:
        assert any(complaint in each for each in seen.complaints), seen.complaints


async def test_whoever_is_asked_is_known(tmp_path: Path) -> None:
    async with chromium(tmp_path) as browser:
        page = await browser.new_page()
        seen = watched(page)
        await page.route("**/*", lambda route: route.fulfill(body=page_of("")))
        await page.goto(ADDRESS)
        await page.evaluate(f"fetch('{FOREIGN}/').catch(() => 0)")

    assert seen.hosts == {"page.test", "elsewhere.test"}
