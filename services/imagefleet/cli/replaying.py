"""`imagefleet dlq replay`: page by page, at a pace, with an eye on how the replayed jobs fare."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from imagefleet.cli.output import Columns, Fields, Part, Table, filled, section
from imagefleet.cli.progress import Tell, waiting
from imagefleet.cli.verbs import below, ends_in, looks
from imagefleet.client.api import ApiClient, Document

LETTERS: Final = "/v1/operator/dead-letters"
JOBS: Final = "/v1/operator/jobs"
OUTCOMES: Final = "/v1/operator/jobs:outcomes"
MOST_ON_A_PAGE: Final = 100
MOST_WATCHED: Final = 1000  # of one request
FEW: Final = 10  # jobs; the share among fewer says nothing yet, unless there are no more
WOULD: Final[Mapping[str, str]] = {
    "replayed": "would be replayed",
    "already_replayed": "would be left alone: it was replayed",
    "acknowledged": "would be left alone: it is acknowledged, and --force was not said",
    "duplicate": "would be left alone: an open job has its dedup key",
    "image_deleted": "would be left alone: its image is deleted",
    "original_gone": "would be left alone: its original is kept no more",
    "not_replayable": "would be left alone: it is of no job",
}
"""What a dry run says of a letter."""


@dataclass(slots=True, kw_only=True)
class Replaying:
    """Many letters, page by page, with an eye on how the replayed jobs fare."""

    what: Mapping[str, object]
    """The request; `ids` or a `filter` say which letters."""
    canary: int
    rate: float
    stop_ratio: float
    within: float

    outcomes: Counter[str] = field(default_factory=Counter)
    """Of letters."""
    would: list[Document] = field(default_factory=list)
    """What a dry run has found out of each letter."""
    jobs: list[str] = field(default_factory=list)
    fates: dict[str, int] = field(default_factory=dict)
    """Of the jobs, as they were last seen."""
    stopped: str | None = None
    cursor: str | None = None
    as_of: str | None = None
    """What failed again meanwhile is not replayed another time."""
    of_canary: list[Document] = field(default_factory=list)
    """Its jobs, where it stopped the replay."""

    def document(self) -> Mapping[str, object]:
        """For scripts."""
        told = {"letters": dict(self.outcomes), "jobs": self.fates, "jobIds": self.jobs}
        more = filled(replays=self.would or None, canary=self.of_canary or None)
        return {**told, "stopped": self.stopped, **more}

    def counts(self) -> Iterator[Part]:
        """For people."""
        counts = {"letters " + name.replace("_", " "): of for name, of in self.outcomes.items()}
        if self.jobs:
            counts |= {"jobs " + name: of for name, of in self.fates.items()}
        yield Fields(counts or {"letters": 0})
        columns: Columns = {"canary": "jobId", "status": "status", "failure": "failureMessage"}
        yield from section(self.of_canary, columns, wraps=("failure",))

    def foretold(self) -> Iterator[Part]:
        """For people, after a dry run."""
        columns: Columns = {
            "letter": "letterId",
            "outcome": lambda letter: WOULD.get(letter["outcome"], letter["outcome"]),
        }
        yield Table(
            self.would, columns, {"wraps": ("outcome",), "none": "no letter would be replayed"}
        )
        if len(self.would) > 1:
            yield f"{self.outcomes['replayed']} of {len(self.would)} letters would be replayed"

    async def dry_run(self, client: ApiClient) -> None:
        """What would happen to each letter; nothing does."""
        self.what = {**self.what, "dryRun": True}
        while await self._page(client, MOST_ON_A_PAGE):
            pass

    async def run(self, client: ApiClient) -> None:
        """Replay the canary, then the rest, unless too many fail again."""
        with waiting("replaying") as tell:
            more = True
            if self.canary:
                more = await self._page(client, self.canary)
                await self._watch(client, tell)
                if self.stopped is None and self.fates["open"]:
                    self.stopped = "stopped: the canary has not ended in time"
                if self.stopped is not None:
                    self.of_canary = [await self._fate(client, job_id) for job_id in self.jobs]
            while more and self.stopped is None:
                before = len(self.jobs)
                # About a second's worth.
                more = await self._page(client, max(1, min(MOST_ON_A_PAGE, round(self.rate))))
                await asyncio.sleep((len(self.jobs) - before) / self.rate)
                await self._look(client, tell)
            if self.stopped is None:
                await self._watch(client, tell)

    async def _page(self, client: ApiClient, limit: int) -> bool:
        """Replay one page; whether there may be another."""
        asked, replayed = dict(self.what), {"replayed"}
        if "filter" in asked:
            # What it names is open: if it was replayed already, an answer got lost on the way.
            replayed.add("already_replayed")
            asked |= {"limit": limit} | filled(after=self.cursor, diedUntil=self.as_of)
        page = await client.ask("POST", f"{LETTERS}:replay", document=asked)
        for replay in page["replays"]:
            self.outcomes[replay["outcome"]] += 1
            if self.what.get("dryRun"):
                self.would.append(replay)
            if replay["outcome"] in replayed and replay.get("replayedAs"):
                self.jobs.append(replay["replayedAs"])
        self.cursor = page.get("nextCursor")
        self.as_of = self.as_of or page.get("asOf")
        return self.cursor is not None and len(page["replays"]) == limit

    async def _fate(self, client: ApiClient, job_id: str) -> Document:
        job = await client.ask("GET", below(JOBS, job_id))
        names = ("jobId", "status", "failureCode", "failureMessage")
        return {name: job[name] for name in names if name in job}

    async def _watch(self, client: ApiClient, tell: Tell) -> None:
        """Look until all have ended, too many have failed, or the time is over."""
        async for _ in looks(ends_in(self.within)):
            await self._look(client, tell)
            if not self.fates["open"] or self.stopped is not None:
                return

    async def _look(self, client: ApiClient, tell: Tell) -> None:
        fates = dict.fromkeys(("open", "completed", "failed"), 0)
        for start in range(0, len(self.jobs), MOST_WATCHED):
            ids = self.jobs[start : start + MOST_WATCHED]
            counts = await client.ask("POST", OUTCOMES, document={"jobIds": ids})
            fates = {name: count + counts[name] for name, count in fates.items()}
        self.fates, jobs, failed = fates, len(self.jobs), fates["failed"]
        ended = fates["completed"] + failed
        tell(f"{jobs} replayed: {fates['completed']} completed, {failed} failed")
        if failed > self.stop_ratio * max(ended, min(jobs, FEW)):
            self.stopped = f"stopped: {failed} of {ended} that ended failed again"
