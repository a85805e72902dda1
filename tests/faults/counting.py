"""Keeps the books of a run: what every process showed of ended attempts, and what its lines told.

Metrics die with their process. So they are scraped all the time, as a Prometheus would; who ends in
order waits for that, and has to have shown everything. What a killed process had counted and not
yet shown is known by the lines that it had written. The rows of `attempts`, which no process can
take back, are what both are compared with.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.stack import Stack

SCRAPE_EVERY: Final = 0.5  # seconds; who ends stays for twice as long
SERIES: Final = ("job_processed_total{", "job_processing_duration_seconds_count{")
LABELS: Final = re.compile(r'job_type="([^"]*)",status="([^"]*)"')
TOLD_WITHIN: Final = 3.0  # seconds, a line's way through the terminal
STARTED: Final = frozenset({"worker.started", "maintenance.started"})
KINDS: Final = ("worker", "maintenance")
DIED_WITHIN: Final = 3.0  # seconds before its death, what it wrote may not have been told
SHOWN_WITHIN: Final = 5.0  # seconds before its death, what it told may not have been scraped
ANSWERS_WITHIN: Final = 30.0  # seconds of an outage: killed meanwhile, nobody asks what he ended
HOW_ENDED: Final = re.compile(r"(\S+) ((?:ended with|was ended by) [\w ]+?) after ")
KILLED: Final = "was ended by SIGKILL"

# What the end of an attempt left its job as. A rescue that could not give it back has failed it.
READ_ENDS: Final = """
SELECT attempts.job_id::text AS job_id, attempts.claim_no, attempts.type, attempts.outcome,
       attempts.why, attempts.worker_id::text AS worker_id,
       attempts.ended_by::text AS ended_by,
       extract(epoch FROM attempts.ended_at)::float8 AS ended_at,
       extract(epoch FROM attempts.duration)::float8 AS duration,
       jobs.correlation_id, split_part(jobs.traceparent, '-', 2) AS trace_id,
       CASE WHEN attempts.outcome = 'completed' THEN 'completed'
            WHEN attempts.outcome IN ('failed', 'exhausted') THEN 'failed'
            WHEN attempts.outcome = 'taken_over' THEN 'processing'
            WHEN attempts.outcome = 'rescued' AND attempts.why <> 'worker_lost' THEN 'failed'
            ELSE 'failed_retryable' END AS status
  FROM attempts
  JOIN jobs ON jobs.id = attempts.job_id
"""

Told = Mapping[str, Any]
"""A line."""
Key = tuple[str, str]
"""Type of the job and its status."""
Sums = Mapping[str, Counter[Key]]
"""By series."""


@dataclass(slots=True, kw_only=True)
class Life:
    """One process from its start to its end, by its lines."""

    name: str
    worker_id: str | None
    ends: list[Told] = field(default_factory=list)
    how: str | None = None
    """In the words of whoever keeps the processes, once it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One kill: of which process, and as which worker."""

    process: str
    worker_id: str | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Everything, read once nothing changes any more."""

    rows: Sequence[Mapping[str, Any]]
    lives: Sequence[Life]
    shown: Mapping[int, Sums]
    """The last scrape of each of the lives, by its place."""
    living: frozenset[int]
    deaths: Sequence[Death]
    outages: Sequence[float]
    """When Postgres was stopped."""

    @property
    def lines(self) -> list[Told]:
        return [line for life in self.lives for line in life.ends]

    @property
    def untold(self) -> list[Mapping[str, Any]]:
        """Rows without a line."""
        told = {(line["job_id"], line["claim_no"]) for line in self.lines}
        return [row for row in self.rows if (row["job_id"], row["claim_no"]) not in told]

    @property
    def unshown(self) -> Counter[Key]:
        """What ended processes had counted after they were looked at last."""
        return Counter(key_of(line) for lines in self.unshown_lines.values() for line in lines)

    @property
    def unshown_lines(self) -> Mapping[int, Sequence[Told]]:
        """By the place of the life: the newest ones, as counters only rise."""
        lost: dict[int, list[Told]] = {}
        for place in set(range(len(self.lives))) - self.living:
            seen = Counter(self.shown[place][SERIES[0]]) if place in self.shown else Counter[Key]()
            for line in self.lives[place].ends:
                seen[key_of(line)] -= 1
                if seen[key_of(line)] < 0:
                    lost.setdefault(place, []).append(line)
        return lost

    def wrong(self) -> list[str]:
        """Everything that does not add up, in words."""
        return [
            *self._wrong_lines(),
            *self._wrong_counters(),
            *self._wrong_losses(),
            *self._wrong_sums(),
        ]

    def _wrong_lines(self) -> list[str]:
        rows = {(row["job_id"], row["claim_no"]): row for row in self.rows}
        told = Counter((line["job_id"], line["claim_no"]) for line in self.lines)
        wrong = [f"{fence} was told {n} times" for fence, n in told.items() if n > 1]
        wrong += [f"{fence} was told and has no row" for fence in told.keys() - rows.keys()]
        for line in self.lines:
            row = rows.get((line["job_id"], line["claim_no"]))
            if row is not None and as_told(line) != as_written(row):
                wrong.append(f"{as_told(line)} was told of {as_written(row)}")
        wrong += [f"nobody told of {dict(row)}" for row in self.untold if not self._excused(row)]
        return wrong

    def _excused(self, row: Mapping[str, Any]) -> bool:
        """Whether who wrote it may have been killed in between.

        Whose answer is lost asks for it later: only who was killed until then tells nothing.
        """

        def shortly_before(moments: Iterable[float]) -> bool:
            # A settle writes the time that its transaction began.
            return any(-1 < moment - row["ended_at"] < DIED_WITHIN for moment in moments)

        if row["outcome"] in {"completed", "retried", "failed", "released"}:
            return shortly_before(d.at for d in self.deaths if d.worker_id == row["worker_id"])
        mourned = [
            death.at
            for death in self.deaths
            if death.worker_id == row["ended_by"]
            or (row["outcome"] == "rescued" and death.process == "maintenance")
        ]
        never_asked = [
            outage
            for outage in self.outages
            if any(0 <= death - outage < ANSWERS_WITHIN for death in mourned)
        ]
        return shortly_before([*mourned, *never_asked])

    def _wrong_counters(self) -> list[str]:
        """Each process has counted what its lines told; one that lives, to the last."""
        wrong = []
        for place, shown in self.shown.items():
            life = self.lives[place]
            told = Counter(key_of(line) for line in life.ends)
            for series, sums in shown.items():
                more, less = sums - told, told - sums
                if more or (less and place in self.living):
                    wrong.append(f"{life.name} showed {more or -less!r} beyond its lines: {series}")
        unseen = self.living - self.shown.keys()
        return wrong + [f"{self.lives[place].name} was never seen" for place in unseen]

    def _wrong_losses(self) -> list[str]:
        """Only who was killed may have counted what nobody saw, and only of its last seconds."""
        wrong = []
        for place, lines in self.unshown_lines.items():
            life = self.lives[place]
            if life.how != KILLED:
                wrong.append(f"{life.name} {life.how} and had not shown {len(lines)} ends")
                continue
            kind = life.name.partition("-")[0]
            deaths = [
                death.at
                for death in self.deaths
                if death.process == kind and death.worker_id in {None, life.worker_id}
            ]
            for line in lines:
                told_at = datetime.fromisoformat(line["timestamp"]).timestamp()
                if not any(-1 < at - told_at < SHOWN_WITHIN for at in deaths):
                    wrong.append(f"{life.name} was not looked at since it told {dict(line)}")
        return wrong

    def _wrong_sums(self) -> list[str]:
        """What was shown, and what was counted but not shown any more, is what was written."""
        written = Counter((row["type"], row["status"]) for row in self.rows)
        untold = Counter((row["type"], row["status"]) for row in self.untold)
        wrong = []
        for series in SERIES:
            shown: Counter[Key] = Counter()
            for sums in self.shown.values():
                shown += sums[series]
            if shown + self.unshown + untold != written:
                wrong.append(f"{series} {shown} + {self.unshown} + {untold} are not {written}")
        return wrong

    def figures(self) -> list[tuple[str, str]]:
        outcomes = Counter(row["outcome"] for row in self.rows)
        return [
            ("ends", str(len(self.rows))),
            *((f"  {outcome}", str(n)) for outcome, n in sorted(outcomes.items())),
            ("processes", str(len(self.lives))),
            ("  that ended", str(len(self.lives) - len(self.living))),
            ("counted and not shown any more", str(self.unshown.total())),
            ("written and not told any more", str(len(self.untold))),
        ]


def key_of(line: Told) -> Key:
    return line["job_type"], line["state"]


def as_told(line: Told) -> tuple[object, ...]:
    return (
        line["event"],
        line["outcome"],
        line["why"],
        line["state"],
        line["job_type"],
        line["worker_id"],
        line["correlation_id"],
        line.get("trace_id", ""),
        line["duration_seconds"],
    )


def as_written(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        f"job.{row['outcome']}",
        row["outcome"],
        row["why"],
        row["status"],
        row["type"],
        row["worker_id"],
        row["correlation_id"],
        row["trace_id"] or "",
        round(row["duration"], 3),
    )


class Lives:
    """Reads what the terminal shows, as it grows."""

    def __init__(self, said: Path) -> None:
        self.all: list[Life] = []
        self._said = said
        self._offset = 0
        self._newest: dict[str, int] = {}

    def newest(self) -> Mapping[str, int]:
        """The place of each process that runs, or ran last, under its name."""
        with self._said.open("rb") as said:
            said.seek(self._offset)
            whole, newline, _ = said.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            name, _, text = line.partition("│")
            ended = HOW_ENDED.search(line)
            if text.startswith(" {"):
                self._take(name.strip(), json.loads(text))
            elif ended is not None and ended[1] in self._newest:
                # What dies before it has said that it started is no life.
                life = self.all[self._newest[ended[1]]]
                life.how = life.how or ended[2]
        return self._newest

    def _take(self, name: str, line: Told) -> None:
        if line.get("event") in STARTED:
            self._newest[name] = len(self.all)
            self.all.append(Life(name=name, worker_id=line.get("worker_id")))
        elif "outcome" in line:
            self.all[self._newest[name]].ends.append(line)


class Bookkeeper:
    """Looks at every process of a stack again and again."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._lives = Lives(stack.folder / "said")
        self._shown: dict[int, Sums] = {}

    @asynccontextmanager
    async def watching(self) -> AsyncIterator["Bookkeeper"]:
        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(self._watch(name, url)) for name, url in self._urls()]
            try:
                yield self
            finally:
                for watch in watches:
                    watch.cancel()

    async def _watch(self, name: str, url: str) -> None:
        """Each by itself: one that stands still delays no other."""
        async with httpx.AsyncClient(timeout=2) as http:
            while True:
                await self._scrape(http, name, url)
                await asyncio.sleep(SCRAPE_EVERY)  # between two looks; nothing waits for it

    async def look(self) -> None:
        """Scrape whoever answers."""
        async with httpx.AsyncClient(timeout=2) as http:
            for name, url in self._urls():
                await self._scrape(http, name, url)

    def _urls(self) -> list[tuple[str, str]]:
        urls = self._stack.facts["metrics_urls"]
        return [(name, url) for name, url in urls.items() if name.partition("-")[0] in KINDS]

    async def _scrape(self, http: httpx.AsyncClient, name: str, url: str) -> None:
        place = self._lives.newest().get(name)
        try:
            text = (await http.get(url)).raise_for_status().text
        except httpx.HTTPError:
            return  # it is dead, frozen, or not there yet
        if place is None or self._lives.newest()[name] != place:
            return  # nobody knows which of the two that was
        sums = {series: summed(text, series) for series in SERIES}
        before = self._shown.get(place, {}).get(SERIES[0], Counter())
        if sums[SERIES[0]].total() >= before.total():  # else it is the next, not yet started
            self._shown[place] = sums

    async def close(self, *, outages: Sequence[float] = ()) -> Books:
        """The books, once all jobs have ended."""
        async with self._stack.database() as owner:
            rows = [dict(row) for row in await owner.fetch(READ_ENDS)]
            workers = await owner.fetch("SELECT pid, id::text AS id FROM workers")
        ids = {row["pid"]: row["id"] for row in workers}
        newest = self._lives.newest()
        deadline = asyncio.get_running_loop().time() + TOLD_WITHIN
        while sum(len(life.ends) for life in self._lives.all) < len(rows):
            newest = self._lives.newest()
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.1)  # until the last lines have come through, if there are any
        await self.look()
        return Books(
            rows=rows,
            lives=self._lives.all,
            shown=self._shown,
            living=frozenset(newest.values()),
            deaths=[
                Death(process=kill.process, worker_id=ids.get(kill.pid), at=kill.at)
                for kill in self._stack.journal.kills
            ],
            outages=outages,
        )


def summed(text: str, series: str) -> Counter[Key]:
    """One series of an exposition."""
    samples = (line.rpartition(" ") for line in text.splitlines() if line.startswith(series))
    matches = ((LABELS.search(labels), float(value)) for labels, _, value in samples)
    return Counter({(one[1], one[2]): round(value) for one, value in matches if one is not None})
