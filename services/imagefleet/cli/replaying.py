"""Replaying many: page by page, at a pace, with an eye on how the replayed jobs fare."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from imagefleet.cli.connection import open_api
from imagefleet.cli.operating import filled
from imagefleet.cli.output import waiting
from imagefleet.client.api import ApiClient

PATH: Final = "/v1/operator/dead-letters:replay"
OUTCOMES: Final = "/v1/operator/jobs:outcomes"
MOST_ON_A_PAGE: Final = 100
MOST_WATCHED: Final = 1000  # of one request
POLL: Final = 1.0  # seconds
FEW: Final = 10  # jobs; the share among fewer says nothing yet, unless there are no more

Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast, and when to stop."""

    canary: int
    rate: float
    stop_ratio: float
    within: float

    @property
    def page(self) -> int:
        """Letters of one request: about a second's worth."""
        return max(1, min(MOST_ON_A_PAGE, round(self.rate)))


@dataclass(slots=True)
class Replay:
    """How far it is."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Of letters."""
    jobs: list[str] = field(default_factory=list)
    fates: dict[str, int] = field(default_factory=dict)
    """Of the jobs, as they were last seen."""
    stopped: str | None = None
    cursor: str | None = None
    as_of: str | None = None
    """What failed again meanwhile is not replayed another time."""

    @property
    def failed(self) -> int:
        """Jobs that failed again."""
        return self.fates.get("failed", 0)

    def document(self) -> Mapping[str, object]:
        """For scripts."""
        return {
            "letters": dict(self.outcomes),
            "jobs": self.fates,
            "jobIds": self.jobs,
            "stopped": self.stopped,
        }


async def dry_run(what: Mapping[str, object]) -> Replay:
    """What would happen to each letter; nothing does."""
    done = Replay()
    async with open_api() as client:
        more = True
        while more:
            more = await _page(client, {**what, "dryRun": True}, MOST_ON_A_PAGE, done)
    return done


async def replay_all(what: Mapping[str, object], pace: Pace) -> Replay:
    """Replay the canary, then the rest, unless too many fail again."""
    done = Replay()
    async with open_api() as client:
        with waiting("replaying") as tell:
            await _replay(client, what, pace, done, tell)
    return done


async def _replay(
    client: ApiClient, what: Mapping[str, object], pace: Pace, done: Replay, tell: Tell
) -> None:
    more = True
    if pace.canary:
        more = await _page(client, what, pace.canary, done)
        await _watch(client, pace, done, tell)
        if done.stopped is None and done.fates["open"]:
            done.stopped = "stopped: the canary has not ended in time"
    while more and done.stopped is None:
        before = len(done.jobs)
        more = await _page(client, what, pace.page, done)
        await asyncio.sleep((len(done.jobs) - before) / pace.rate)
        await _look(client, pace, done, tell)
    if done.stopped is None:
        await _watch(client, pace, done, tell)


async def _page(client: ApiClient, what: Mapping[str, object], limit: int, done: Replay) -> bool:
    """Replay one page; whether there may be another."""
    asked = dict(what)
    # What a filter names is open: if it was replayed already, an answer got lost on the way.
    replayed = {"replayed", "already_replayed"} if "filter" in what else {"replayed"}
    if "filter" in what:
        asked |= {"limit": limit} | filled(after=done.cursor, diedUntil=done.as_of)
    found = await client.ask("POST", PATH, document=asked)
    for one in found["replays"]:
        done.outcomes[one["outcome"]] += 1
        if one["outcome"] in replayed and one.get("replayedAs"):
            done.jobs.append(one["replayedAs"])
    done.cursor = found.get("nextCursor")
    done.as_of = done.as_of or found.get("asOf")
    return done.cursor is not None and len(found["replays"]) == limit


async def _watch(client: ApiClient, pace: Pace, done: Replay, tell: Tell) -> None:
    """Look until all have ended, too many have failed, or the time is over."""
    clock = asyncio.get_running_loop().time
    ends_at = clock() + pace.within
    await _look(client, pace, done, tell)
    while done.fates["open"] and done.stopped is None and clock() < ends_at:
        await asyncio.sleep(POLL)
        await _look(client, pace, done, tell)


async def _look(client: ApiClient, pace: Pace, done: Replay, tell: Tell) -> None:
    fates: Counter[str] = Counter({"open": 0, "completed": 0, "failed": 0})
    for start in range(0, len(done.jobs), MOST_WATCHED):
        ids = done.jobs[start : start + MOST_WATCHED]
        found = await client.ask("POST", OUTCOMES, document={"jobIds": ids})
        fates.update({name: found[name] for name in ("open", "completed", "failed")})
    done.fates = dict(fates)
    tell(f"{len(done.jobs)} replayed: {fates['completed']} completed, {fates['failed']} failed")
    ended = fates["completed"] + fates["failed"]
    if fates["failed"] > pace.stop_ratio * max(ended, min(len(done.jobs), FEW)):
        done.stopped = f"stopped: {fates['failed']} of {ended} that ended failed again"
