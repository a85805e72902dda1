import asyncio
from pathlib import Path
import pytest
from tests.console.world import a_world
from tests.support.browsers import chromium, watched

pytestmark = pytest.mark.timeout(300)
OUT = Path("/tmp/shots")
OUT.mkdir(exist_ok=True)


async def test_try(console, acme, worker, operator, superuser, tmp_path):
    w = await a_world(worker, superuser, operator)
    async with chromium(tmp_path) as browser:
        ctx = await browser.new_context(viewport={"width": 1440, "height": 900})
        page = await ctx.new_page()
        seen = watched(page)
        await page.goto(console.url)
        await page.screenshot(path=OUT / "login.png")
        await page.fill("[name=key]", console.api.secrets["operator"])
        await page.click("button.main")
        await page.wait_for_selector(".says")
        await page.wait_for_selector("#follow[data-state=live]")
        await page.screenshot(path=OUT / "now.png", full_page=True)
        for name, path in (
            ("faults", "/faults"),
            ("job", f"/jobs/{w.corrupt[0]}"),
            ("job2", f"/jobs/{w.waiting}"),
            ("job3", f"/jobs/{w.retried}"),
            ("trouble", "/jobs/0199a5c2-0000-7000-8000-000000000000"),
        ):
            await page.goto(console.url + path)
            await page.wait_for_selector(".says, table")
            await page.screenshot(path=OUT / f"{name}.png", full_page=True)
        await page.goto(console.url + "/faults")
        await page.click("table a")
        await page.wait_for_selector(".says")
        await page.screenshot(path=OUT / "fault.png", full_page=True)
        await page.click("[data-opens=replay]")
        await page.fill("#replay [name=reason]", "mended")
        await page.click("text=Dry run")
        await page.wait_for_selector("#rehearsed p")
        await page.screenshot(path=OUT / "replay.png")
        await page.click("text=The oldest 5 first")
        await page.wait_for_selector(".notice")
        await page.wait_for_timeout(2500)
        await page.screenshot(path=OUT / "replayed.png", full_page=True)
        await page.emulate_media(color_scheme="dark")
        await page.goto(console.url)
        await page.wait_for_selector(".says")
        await page.screenshot(path=OUT / "now-dark.png", full_page=True)
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.screenshot(path=OUT / "now-phone.png", full_page=True)
        await page.goto(console.url + f"/jobs/{w.corrupt[0]}")
        await page.screenshot(path=OUT / "job-phone.png", full_page=True)
        print("COMPLAINTS", seen.complaints)
