"""The console in a browser: every page, each way of looking at it, and what is done on it."""

import re
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser, Page, expect

from imagefleet.console.pages import faults
from imagefleet.store.database import Connection
from tests.console.browsing import SHOWN_WITHIN, visiting
from tests.console.conftest import Opened
from tests.console.world import PAUSE, TAKEN, World, a_hostile_world, a_world
from tests.support.golden import OPTION
from tests.support.wheels import ROOT, NoPrograms, pinned_modules

pytestmark = pytest.mark.timeout(300)  # the first one may have to fetch the browser

PICTURES: Final = ROOT / "docs" / "pages"
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
# What a terminal or a reader's eye may be steered by; lines' ends are the page's.
STEERS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
IS_SERIOUS: Final = frozenset({"serious", "critical"})
LOOK: Final = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
    .map(each => [each.impact, each.id, each.nodes.map(node => node.html.slice(0, 200))])"""


@pytest.fixture(scope="session")
def axe() -> str:
    """What looks at pages for those who cannot see them."""
    try:
        modules = pinned_modules(Path(__file__).parent, ROOT / ".bench")
    except NoPrograms as why:
        pytest.skip(str(why))
    return (modules / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


async def fault_of(superuser: Connection, job_id: object) -> str:
    fault = "SELECT fingerprint FROM dead_letters WHERE job_id = $1"
    return f"/faults/{await superuser.fetchval(fault, job_id)}"


async def pages_of(world: World, superuser: Connection) -> dict[str, str]:
    """Every page that there is something to see on, by the name of its picture."""
    return {
        "now": "/",
        "faults": "/faults",
        "fault": await fault_of(superuser, world.corrupt[0]),
        "drawer": (await fault_of(superuser, world.corrupt[0])).replace("faults/", "faults?fault="),
        "job": f"/jobs/{world.corrupt[0]}",
        "waiting": f"/jobs/{world.waiting}",
        "jobs": "/jobs",
        "tenants": "/tenants",
        "tenant": "/tenants/acme",
        "images": "/images",
        "image": f"/images/{world.image}",
        "timeline": "/timeline?span=all",
        "workers": "/workers?gone=yes",
        "edge": "/edge",
        "controls": "/controls",
    }


async def is_there(page: Page) -> None:
    """Shown, and followed live."""
    await page.wait_for_selector("#follow[data-state=live]")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_every_page_is_well_made(
    console: Opened,
    browser: Browser,
    worker: Connection,
    superuser: Connection,
    axe: str,
    theme: str,
    size: dict[str, int],
    request: pytest.FixtureRequest,
) -> None:
    world = await a_world(worker, superuser)
    faults: dict[str, object] = {}
    async with visiting(browser, console, viewport=size, color_scheme=theme) as (page, _):
        for name, path in (await pages_of(world, superuser)).items():
            await page.goto(console.url + path)
            await is_there(page)
            await page.evaluate(axe)
            found = [each for each in await page.evaluate(LOOK) if each[0] in IS_SERIOUS]
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if found or wide > 0:
                faults[name] = (found, wide)
            look = {"light": "", "dark": "-dark"}[theme] + ("" if size is DESK else "-phone")
            if request.config.getoption(OPTION) and (name == "now" or not look):
                picture = PICTURES / f"console-{name}{look}.png"
                await page.screenshot(path=picture, full_page=True)

    assert faults == {}


async def test_whatever_strangers_wrote_is_text_and_steers_nothing(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    pages = await a_hostile_world(worker, superuser)
    told = set()
    async with visiting(browser, console) as (page, _):
        for name, path in pages.items():
            await page.goto(console.url + path)
            await is_there(page)
            for each in await page.locator("details").all():
                await each.evaluate("each => { each.open = true; }")
            text = await page.evaluate("document.body.textContent")
            assert await page.evaluate("window.owned") is None, name
            assert await page.locator("img[src=x], a[href^=javascript]").count() == 0, name
            assert STEERS.findall(text) == [], name
            assert "1337" not in text, name
            if "onerror=window.owned" in text:
                told.add(name)

    assert told == set(pages)


async def test_what_is_sent_back_is_what_it_was(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    """A target may have any name; its pause is lifted all the same."""
    await superuser.execute(PAUSE, "target", TAKEN, "acme", "why", "dana")
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url)
        await page.click("text=Resume")
        await page.click("dialog[open] button.main")
        await expect(page.locator(".notice.done")).to_contain_text("The pause is lifted")

    assert await superuser.fetchval("SELECT count(*) FROM pauses") == 0


async def test_somebody_without_a_mouse_gets_from_the_login_to_a_replay(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    await a_world(worker, superuser)
    page = await browser.new_page()
    page.set_default_timeout(SHOWN_WITHIN)
    keys = page.keyboard
    await page.goto(console.url + "/faults")
    await keys.type("if_" + "x" * 43)
    await keys.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("No key in force")
    await keys.type(console.api.secrets["operator"])
    await keys.press("Enter")
    await is_there(page)
    assert page.url == console.url + "/faults"

    await keys.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await keys.press("Enter")
    await expect(page.locator("#page")).to_be_focused()
    await reached(page, "table a")
    await keys.press("Enter")
    await page.wait_for_url("**/faults?fault=*")
    await expect(page.locator("#drawer")).to_be_focused()
    await reached(page, "[data-opens=replay]")
    await keys.press("Enter")
    await expect(page.locator("#replay [name=reason]")).to_be_focused()
    await keys.press("Escape")
    await expect(page.locator("[data-opens=replay]")).to_be_focused()
    assert await page.locator("dialog[open]").count() == 0
    await expect(page.locator("#drawer .says")).to_be_visible()

    await keys.press("Escape")
    await expect(page.locator("table a").first).to_be_focused()
    assert page.url == console.url + "/faults"
    assert await page.locator("#drawer .says").count() == 0


async def test_a_fault_opens_beside_the_list_and_is_shared_by_its_address(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    world = await a_world(worker, superuser)
    fault = (await fault_of(superuser, world.corrupt[0])).rpartition("/")[2]
    opened = page_of_the_list = f"{console.url}/faults?tenant=acme"
    opened += f"&fault={fault}"
    async with visiting(browser, console, viewport=DESK) as (page, _):
        await page.goto(page_of_the_list)
        await page.click(f'a[href="/faults/{fault}"]')
        drawer = page.locator("#drawer")
        await expect(drawer.locator(".first")).to_contain_text("premature end")
        await expect(drawer.locator("tbody")).to_have_count(2)  # attempts, letters
        assert page.url == opened
        left, right = await page.locator(".panel").first.bounding_box(), await drawer.bounding_box()
        assert left is not None
        assert right is not None
        assert left["x"] + left["width"] <= right["x"]
        await is_there(page)
        await superuser.execute(
            "UPDATE dead_letters SET acknowledged_at = now(), acknowledged_by = 'dana'"
            " WHERE fingerprint = $1",
            fault,
        )
        await expect(drawer).to_contain_text("No letter of this fault is open any more")

        await page.go_back()
        await expect(drawer).to_be_hidden()
        assert page.url == page_of_the_list
        await page.goto(opened)
        await expect(drawer).to_contain_text("No letter of this fault is open any more")
        await page.click("text=Close")
        await expect(drawer).to_be_hidden()
        assert page.url == page_of_the_list


async def test_without_scripts_a_fault_is_a_page_of_its_own(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    await a_world(worker, superuser)
    async with visiting(browser, console, java_script_enabled=False) as (page, _):
        await page.goto(console.url + "/faults")
        await page.click("table a >> nth=0")
        await page.wait_for_url("**/faults/*")
        await expect(page.locator("#live_says .first")).to_contain_text("premature end")


async def reached(page: Page, selector: str) -> None:
    """Press Tab until it has the focus, as somebody would."""
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"nobody gets to {selector}")


async def test_a_fault_is_tried_out_then_replayed_and_watched(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    world = await a_world(worker, superuser)
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url + await fault_of(superuser, world.corrupt[0]))
        await page.click("[data-opens=replay]")
        await page.fill("#replay [name=reason]", "they were sent again")
        await page.click("text=Dry run")
        await expect(page.locator("#rehearsed")).to_contain_text("6 would be replayed")
        assert (
            await superuser.fetchval("SELECT count(*) FROM jobs WHERE replay_of IS NOT NULL") == 0
        )
        await page.click("text=The oldest 5 first")
        await expect(page.locator(".notice")).to_contain_text("5 replayed")
        await expect(page.locator("#live_watched")).to_contain_text("How 5 replayed jobs fare")
        await expect(page.locator("#live_says")).to_contain_text("1 letter of")
        await page.click("text=Acknowledge")
        await page.fill("dialog[open] [name=note]", "their file is broken")
        await page.click("dialog[open] button.main")
        await expect(page.locator(".notice")).to_contain_text("1 letter is acknowledged")

    told = await superuser.fetch("SELECT action, reason FROM audit WHERE kind = 'dead_letter'")
    assert {tuple(each) for each in told} == {
        ("replay", "they were sent again"),
        ("acknowledge", "their file is broken"),
    }


async def test_more_letters_than_a_request_has_room_for_are_replayed_by_a_job_that_is_watched(
    console: Opened,
    browser: Browser,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "MOST_AT_ONCE", 2)
    world = await a_world(worker, superuser)
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url + await fault_of(superuser, world.corrupt[0]))
        await page.click("[data-opens=replay]")
        await page.fill("#replay [name=reason]", "they were sent again")
        await page.click("#replay [value=rest]")
        await expect(page.locator(".notice")).to_contain_text(
            "2 replayed. A job replays the others"
        )
        await expect(page.locator(".notice")).to_contain_text("4 of them")
        await expect(page.locator("#live_watched")).to_contain_text("How far the replay is")
        await page.click("text=the job that replays")
        await expect(page.locator("h1")).to_contain_text("replay_jobs")


async def test_a_job_is_hurried_stopped_and_told_why_it_waits(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    world = await a_world(worker, superuser)
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url + f"/jobs/{world.waiting}")
        says = page.locator("#live_says")
        await expect(says).to_contain_text("comes first on its target sku:4711")
        await says.get_by_role("link").click()
        await page.wait_for_url(f"**/jobs/{world.running}")
        await page.goto(console.url + f"/jobs/{world.retried}")
        await page.click("text=Retry now")
        await page.click("dialog[open] button.main")
        await expect(page.locator(".notice")).to_contain_text("due now")
        await page.click("[data-opens=cancel]")
        await page.fill("dialog[open] [name=reason]", "nobody wants it")
        await page.click("dialog[open] button.main")
        await expect(page.locator(".notice")).to_contain_text("being cancelled")

    ordered = await superuser.fetchval(
        "SELECT payload ->> 'reason' FROM jobs WHERE type = 'cancel_job'"
    )
    assert ordered == "nobody wants it"


async def test_a_page_goes_on_by_itself_until_it_is_held_still(
    console: Opened, browser: Browser, superuser: Connection
) -> None:
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url)
        await is_there(page)
        await expect(page.locator("#live_says")).not_to_contain_text("Everything is paused")
        await superuser.execute(PAUSE, "all", "", "", "a drill", "dana")
        await expect(page.locator("#live_says")).to_contain_text("Everything is paused")
        await page.click("#live_pauses [data-opens]")  # what is open stays open
        await superuser.execute(PAUSE, "type", "noop", "", "another", "dana")
        await expect(page.locator("#live_says")).to_contain_text("Type noop is paused")
        await expect(page.locator("#live_pauses")).not_to_contain_text("another")
        await page.keyboard.press("Escape")
        await expect(page.locator("#live_pauses")).to_contain_text("another")

        await page.click("#follow")
        await expect(page.locator("#follow")).to_contain_text("Paused")
        await page.reload()
        await expect(page.locator("#follow")).to_contain_text("Paused")


async def test_a_theme_that_was_chosen_stays_and_times_are_the_readers(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    world = await a_world(worker, superuser)
    look = {"color_scheme": "light", "timezone_id": "Asia/Kolkata"}
    async with visiting(browser, console, **look) as (page, _):
        await page.goto(console.url + f"/jobs/{world.completed}")
        shown = page.locator("#live_about time").first
        at = await shown.get_attribute("datetime")
        there = "at => new Date(at).toLocaleTimeString('en-GB', {timeZone: 'Asia/Kolkata'})"
        await expect(shown).to_contain_text(await page.evaluate(there, at))
        await page.click("#theme")
        await page.goto(console.url)
        assert await page.locator("html").get_attribute("data-theme") == "dark"


async def test_a_session_that_is_over_leads_to_the_login(console: Opened, browser: Browser) -> None:
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url + "/faults")
        await is_there(page)
        console.sessions.end(console.session, "asked")
        await page.wait_for_url("**/login?next=/faults")


async def test_an_order_about_many_opens_with_how_many_that_would_be(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    await a_world(worker, superuser)
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url + "/tenants/acme")
        await page.click("[data-opens=cancel]")
        await expect(page.locator("#cancel .counted")).to_contain_text("This cancels 3 jobs")
        await page.fill("#cancel [name=type]", "webhook")
        await page.press("#cancel [name=type]", "Tab")
        await expect(page.locator("#cancel .counted")).to_contain_text("This cancels 0 jobs")
        await page.goto(console.url + "/jobs?type=noop")
        await page.click("[data-opens=all]")
        await expect(page.locator("#all .counted")).to_contain_text("This cancels 3 jobs")
        await page.fill("#all [name=reason]", "nobody wants them")
        await page.click("#all button.main")
        await expect(page.locator("h1")).to_contain_text("cancel_jobs")


async def test_a_worker_is_told_to_drain(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    world = await a_world(worker, superuser)
    holder = await superuser.fetchval("SELECT locked_by FROM jobs WHERE id = $1", world.running)
    await superuser.execute(
        "UPDATE workers SET beat_at = now() + interval '1 hour'"
    )  # none is silent
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url + "/workers")
        await page.click(f"#worker-{holder} >> text=Drain")
        await page.fill("dialog[open] [name=reason]", "its host is mended")
        await page.click("dialog[open] button.main")
        await expect(page.locator(".notice.done")).to_contain_text("is asked to drain")
        await expect(page.locator(f"#worker-{holder} .badge").first).to_have_text("asked to drain")

    asked = "SELECT count(*) FROM workers WHERE drain_requested_at IS NOT NULL"
    assert await superuser.fetchval(asked) == 1
