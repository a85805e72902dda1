"""Six bad moments, in a browser: how many clicks until the cause is seen, and until it is mended.

Each begins where an operator does, at what is now. A click is a click; what is typed is no click.
The table of docs/operations.md has the same figures, and is compared with what was counted.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pytest
from playwright.async_api import Browser, Page, expect

from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from tests.console.browsing import SHOWN_WITHIN, visiting
from tests.console.conftest import Opened
from tests.support.api import ACME, RIVAL
from tests.support.factories import a_job, a_submission, settle_job
from tests.support.wheels import ROOT

pytestmark = pytest.mark.timeout(300)

MOST_CLICKS: Final = 2  # until the cause is on the screen, and as many until it is mended
WHY: Final = "a drill"
CORRUPT: Final = "The image cannot be decoded: premature end of a JPEG file."
BUCKET: Final = "The bucket does not exist: NoSuchBucket."
POISON: Final = "The job crashed its worker twice."
ROW: Final = re.compile(r"^\| (?P<name>[^|]+) \| [^|]+ \| (?P<seen>\d) \| [^|]+ \| (?P<mended>\d)")


@dataclass
class Drill:
    """Somebody at the console, whose clicks are counted."""

    page: Page
    name: str
    clicks: int = 0
    until_seen: int | None = None

    async def click(self, selector: str) -> None:
        await self.page.click(selector)
        self.clicks += 1

    async def sees(self, sentence: str) -> None:
        """The cause is on the screen; from here on clicks are those that mend it."""
        await expect(self.page.locator("main")).to_contain_text(sentence, timeout=SHOWN_WITHIN)
        if self.until_seen is None:
            self.until_seen, self.clicks = self.clicks, 0

    async def orders(self, button: str = "button.main") -> None:
        """Say why, in the dialog that is open, and confirm it."""
        await self.page.fill("dialog[open] input[maxlength='500']", WHY)
        await self.click(f"dialog[open] {button}")


def told() -> dict[str, tuple[int, int]]:
    """Clicks until the cause is seen and until it is mended, as the page of operations has them."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = [ROW.match(line) for line in page.splitlines()]
    return {row["name"]: (int(row["seen"]), int(row["mended"])) for row in rows if row}


@asynccontextmanager
async def drilled(browser: Browser, console: Opened, name: str) -> AsyncIterator[Drill]:
    async with visiting(browser, console) as (page, _):
        await page.goto(console.url)
        drill = Drill(page, name)
        yield drill
    counted = (drill.until_seen, drill.clicks)
    print(f"{name}: {counted[0]} clicks until it was seen, {counted[1]} until it was mended")
    assert max(each or 0 for each in counted) <= MOST_CLICKS
    assert told()[name] == counted


async def many_failed(worker: Connection, superuser: Connection) -> None:
    """Files that cannot be decoded, and a bucket that was away: both fill the list."""
    for count, code, message in ((3, "corrupt", CORRUPT), (4, "storage", BUCKET)):
        for _ in range(count):
            job = await a_job(
                worker,
                superuser,
                state=JobState.PROCESSING,
                submission=a_submission(tenant_id=ACME),
            )
            await settle_job(worker, job, Failed(code=code, message=message, detail="it said no"))


async def test_what_broke_by_itself_is_told_from_what_is_broken_and_replayed(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    await many_failed(worker, superuser)
    async with drilled(browser, console, "Failures of S3 among broken files") as drill:
        await drill.click("#faults a:has-text('storage')")
        await drill.sees(BUCKET)
        await drill.click("[data-opens=replay]")
        await drill.orders("[value=rest]")
        await drill.sees("4 replayed")

    replayed = "SELECT count(*) FROM jobs WHERE replay_of IS NOT NULL"
    assert await superuser.fetchval(replayed) == 4


async def test_a_tenant_that_floods_is_seen_and_held_back(
    console: Opened, browser: Browser, api: Connection, worker: Connection, superuser: Connection
) -> None:
    for _ in range(40):
        await a_job(worker, superuser, submission=a_submission(tenant_id=RIVAL))
    await a_job(worker, superuser, submission=a_submission(tenant_id=ACME))
    async with drilled(browser, console, "A tenant floods") as drill:
        await drill.click("nav a:has-text('Tenants')")
        await drill.sees("who waits longest")
        await expect(drill.page.locator("#live_ranked tr", has_text="rival")).to_contain_text("40")
        await drill.click("#live_ranked a:has-text('rival')")
        drill.until_seen, drill.clicks = 2, 0
        await drill.sees("40 open jobs")
        await drill.click("[data-opens=pause]")
        await drill.orders()
        await drill.sees("All that rival has waits")

    assert await superuser.fetchval("SELECT tenant_id FROM pauses") == "rival"


async def test_a_worker_that_was_killed_is_told_with_what_it_held(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(tenant_id=ACME)
    )
    await superuser.execute("UPDATE workers SET beat_at = now() - interval '20 seconds'")
    async with drilled(browser, console, "A worker is killed") as drill:
        await drill.click("#live_says a:has-text('silent')")
        await drill.sees("its jobs are rescued after thirty seconds of silence")
        await expect(drill.page.locator(f"[href='/jobs/{job.job_id}']")).to_be_visible()


async def test_a_picture_that_crashes_workers_is_found_and_put_aside(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(tenant_id=RIVAL)
    )
    await settle_job(worker, job, Failed(code="poison", message=POISON, detail="SIGSEGV twice"))
    async with drilled(browser, console, "A poison picture") as drill:
        await drill.click("#live_says a")
        await drill.sees(POISON)
        await drill.sees("SIGSEGV twice")
        await drill.click("[data-opens=acknowledge]")
        await drill.orders()
        await drill.sees("1 letter")

    seen = "SELECT acknowledged_note FROM dead_letters WHERE job_id = $1"
    assert await superuser.fetchval(seen, job.job_id) == WHY


async def test_a_job_that_is_stuck_is_found_and_stopped(
    console: Opened, browser: Browser, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(
        worker, superuser, state=JobState.PROCESSING, submission=a_submission(tenant_id=ACME)
    )
    await superuser.execute(
        "UPDATE jobs SET claimed_at = now() - interval '2 hours' WHERE id = $1", job.job_id
    )
    async with drilled(browser, console, "A stuck job") as drill:
        await drill.click("#live_says a:has-text('running for long')")
        await drill.sees("Claim 1 works on it")
        await drill.click("[data-opens=cancel]")
        await drill.orders()
        await drill.sees("It is being cancelled")

    ordered = "SELECT payload->>'job_id' FROM jobs WHERE type = 'cancel_job'"
    assert await superuser.fetchval(ordered) == str(job.job_id)


async def test_what_changed_in_the_last_hour_is_one_click_away_and_undone(
    console: Opened, browser: Browser, superuser: Connection
) -> None:
    async with console.logged_in() as visitor:
        await console.post(
            visitor, "/pauses/pause", scope="lane", name="general", reason="spare the database"
        )
        await console.post(
            visitor, "/settings/turn", name="window.looks", value="3", reason="too eager"
        )
    async with drilled(browser, console, "What changed in the last hour") as drill:
        await drill.click("nav a:has-text('Timeline')")
        await drill.sees("spare the database")
        await expect(drill.page.locator("main")).to_contain_text("too eager")
        await drill.page.goto(console.url)
        await drill.click("#pauses button:has-text('Resume')")
        await drill.click("dialog[open] button.main")
        await drill.sees("The pause is lifted")

    assert await superuser.fetchval("SELECT count(*) FROM pauses") == 0
