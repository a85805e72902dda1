import pytest, os
from pathlib import Path
from imagefleet.store.database import Connection
from tests.console.conftest import *
from tests.console.conftest import Opened
from tests.console.world import a_world
from tests.support.browsers import chromium, watched
from tests.conftest import *

async def test_shots(console: Opened, worker: Connection, superuser: Connection, operator: Connection, tmp_path: Path) -> None:
    await a_world(worker, superuser, operator)
    async with chromium(tmp_path) as browser:
        for theme, width in (("light",1440),("dark",390)):
            page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
            seen = watched(page)
            await page.goto(console.url + "/login")
            await page.fill("[name=key]", console.api.secrets["operator"])
            await page.click("button.main")
            for name in os.environ["PAGES"].split():
                await page.goto(console.url + name)
                await page.wait_for_timeout(700)
                await page.screenshot(path=f"/tmp/shots/{theme}-{name.strip('/').replace('/','_').replace('?','_') or 'now'}.png", full_page=True)
            print(seen.complaints)
