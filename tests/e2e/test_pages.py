"""A page that has an image as the API gives it, in a real browser: what it takes, what moves.

The page is of another origin than the pictures and obeys a policy that lets it have no inline style
or script; its style sheet has the one rule of docs/api.md. Each page is a visitor's first.
"""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from aiohttp import web
from PIL import Image, ImageChops, ImageStat
from playwright.async_api import Browser, Page, Route

from tests.imaging.scenes import landscape
from tests.support.aws import Answer, serving
from tests.support.browsers import Watched, chromium, watched
from tests.support.golden import OPTION
from tests.support.images import saved
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)  # the first one may have to fetch the browser

PICTURE: Final = Path(__file__).parents[2] / "docs" / "pages" / "a-snippet-in-a-page.png"
STYLE: Final = """
body { margin: 0; font: 16px/1.5 sans-serif; background: #fff; color: #222 }
picture img {
  display: block; max-width: 100%; height: auto;
  background-color: attr(data-color type(<color>), transparent);
}
p { margin: 12px }
"""
POLICY: Final = "default-src 'none'; style-src 'self'; img-src {edge}; connect-src {edge}"
SHIFTS: Final = """
window.shifted = 0;
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) window.shifted += entry.value;
}).observe({type: 'layout-shift', buffered: true});
"""
BOXES: Final = """() => [...document.querySelectorAll('img, p')].map(each => {
  const {x, y, width, height} = each.getBoundingClientRect();
  return [x, y, width, height];
})"""
SHOWN: Final = "() => { const img = document.images[0]; return img.complete && img.naturalWidth }"
SETTLED: Final = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))"


@dataclass
class Visit:
    """One page, and what came of it."""

    page: Page
    seen: Watched
    may_load: asyncio.Event = field(default_factory=asyncio.Event)
    answers: dict[str, str] = field(default_factory=dict)
    """The type of each picture that came, by its address."""

    async def load(self) -> None:
        """Let the picture come, and wait until it is there and nothing is under way."""
        self.may_load.set()
        await self.page.wait_for_function(SHOWN)
        await self.page.evaluate(SETTLED)


@dataclass(frozen=True)
class Site:
    """Where the pages are, and whose pictures they have."""

    browser: Browser
    url: str
    edge: str
    bodies: dict[str, str]

    @asynccontextmanager
    async def visit(
        self, body: str, *, width: int = 600, density: float = 1
    ) -> AsyncIterator[Visit]:
        """A first visitor, who waits for pictures until they may come."""
        self.bodies["/"] = body
        context = await self.browser.new_context(
            viewport={"width": width, "height": 500}, device_scale_factor=density
        )
        page = await context.new_page()
        visit = Visit(page, watched(page))

        async def held(route: Route) -> None:
            await visit.may_load.wait()
            await route.continue_()

        async def came(response: Any) -> None:  # noqa: ANN401 - playwright's own
            if response.url.startswith(self.edge):
                visit.answers[response.url] = response.headers.get("content-type", "")

        page.on("response", came)
        await page.add_init_script(SHIFTS)
        await page.route(f"{self.edge}/**", held)
        try:
            await page.goto(self.url, wait_until="domcontentloaded")
            yield visit
        finally:
            visit.may_load.set()
            await context.close()


@pytest.fixture
async def site(stack: Stack, tmp_path: Path) -> AsyncIterator[Site]:
    edge = stack.facts["public_base_url"]
    bodies: dict[str, str] = {}

    async def respond(request: web.Request) -> Answer:
        if request.path == "/style.css":
            return web.Response(text=STYLE, content_type="text/css")
        head = "<!doctype html><title>one</title><link rel=stylesheet href=/style.css>"
        return web.Response(
            text=f"{head}{bodies[request.path]}<p>What comes after it.</p>",
            content_type="text/html",
            headers={"Content-Security-Policy": POLICY.format(edge=edge)},
        )

    async with serving(respond) as server, chromium(tmp_path) as browser:
        yield Site(browser, f"{server.url}/", edge, bodies)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def image(stack: Stack) -> dict[str, Any]:
    """Wider than every variant, and of a shape that none of them has exactly."""
    picture = saved(landscape(600, 401).resize((2401, 1603)), quality=90)
    async with stack.producer() as producer:
        answer = await producer.upload(picture)
        assert answer.status_code == 202, answer.text
        await producer.ended(answer.json()["jobId"], within=60)
        return await producer.image(answer.json()["imageId"])


@pytest.mark.parametrize(
    ("width", "density", "name", "pixels"),
    [(600, 1, "small", 640), (600, 2, "medium", 1280), (1250, 1, "medium", 1280),
     (1250, 2, "large", 1920)],
)  # fmt: skip
async def test_a_browser_takes_the_best_format_in_the_size_that_it_shows_and_nothing_moves(
    site: Site, image: dict[str, Any], width: int, density: int, name: str, pixels: int
) -> None:
    async with site.visit(image["html"], width=width, density=density) as visit:
        await visit.page.wait_for_selector("img", state="attached")
        before = await visit.page.evaluate(BOXES)
        await visit.load()
        after = await visit.page.evaluate(BOXES)
        taken = await visit.page.evaluate("document.images[0].currentSrc")
        shifted = await visit.page.evaluate("shifted")

    assert taken == f"{site.edge}/i/{image['imageId']}/current/{name}.webp"
    (shown,) = [
        each for each in image["variants"] if (each["name"], each["format"]) == (name, "webp")
    ]
    assert shown["width"] == pixels
    assert visit.answers[shown["url"]] == "image/webp"  # where the redirect led
    assert len(visit.answers) == 2
    assert before[0][2] == width
    assert max(abs(x - y) for old, new in zip(before, after, strict=True)
               for x, y in zip(old, new, strict=True)) < 1  # fmt: skip
    assert shifted == 0
    assert visit.seen.complaints == []


async def test_without_its_width_and_height_the_same_snippet_moves_the_page(
    site: Site, image: dict[str, Any]
) -> None:
    """What the other tests of this file would see."""
    widest = f'width="{1920}" height="{max(v["height"] for v in image["variants"])}"'
    html = image["html"].replace(widest, "")
    assert html != image["html"]

    async with site.visit(html) as visit:
        await visit.page.wait_for_selector("img", state="attached")
        await visit.page.evaluate(SETTLED)
        before = await visit.page.evaluate(BOXES)
        await visit.load()
        after = await visit.page.evaluate(BOXES)
        shifted = await visit.page.evaluate("shifted")

    assert after[-1][1] - before[-1][1] > 100
    assert shifted > 0


async def test_until_the_picture_is_there_its_colour_is_though_no_style_is_inline(
    site: Site, image: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    asked = "() => getComputedStyle(document.images[0]).backgroundColor"
    async with site.visit(image["html"], width=320) as visit:
        await visit.page.wait_for_selector("img", state="attached")
        colour = await visit.page.evaluate(asked)
        before = await seen_by(visit.page)
        await visit.load()
        after = await seen_by(visit.page)

    red, green, blue = bytes.fromhex(image["placeholder"]["color"].removeprefix("#"))
    assert colour == f"rgb({red}, {green}, {blue})"
    assert visit.seen.complaints == []
    both = beside(before, after)
    if request.config.getoption(OPTION):
        both.quantize(128).save(PICTURE, optimize=True)
    with Image.open(PICTURE) as kept:
        assert kept.size == both.size
        apart = ImageStat.Stat(ImageChops.difference(kept.convert("RGB"), both)).mean
        assert max(apart) < 5  # fonts differ


async def seen_by(page: Page) -> bytes:
    return await page.screenshot(clip={"x": 0, "y": 0, "width": 320, "height": 270})


def beside(before: bytes, after: bytes) -> Image.Image:
    """Both halves of a page's life, with a line between them."""
    halves = [Image.open(io.BytesIO(each)).convert("RGB") for each in (before, after)]
    both = Image.new("RGB", (2 * halves[0].width + 8, halves[0].height), "#888888")
    both.paste(halves[0], (0, 0))
    both.paste(halves[1], (halves[0].width + 8, 0))
    return both


async def test_a_page_of_another_origin_reads_pixels_of_stable_and_of_immutable_addresses(
    site: Site, image: dict[str, Any]
) -> None:
    variant = image["variants"][0]
    read = """async url => {
      const fetched = await createImageBitmap(await (await fetch(url)).blob());
      const img = new Image();
      img.crossOrigin = 'anonymous';
      img.src = url;
      await img.decode();
      const canvas = document.createElement('canvas');
      canvas.getContext('2d').drawImage(img, 0, 0);
      canvas.getContext('2d').getImageData(0, 0, 1, 1);
      return [fetched.width, fetched.height];
    }"""
    async with site.visit("") as visit:
        visit.may_load.set()
        for url in (variant["stableUrl"], variant["url"]):
            assert await visit.page.evaluate(read, url) == [variant["width"], variant["height"]]

    assert visit.seen.complaints == []
