"""Operators and queues: what waits, what ran lately, what is stuck, and whether all is there.

These read a lot, and dashboards ask often: an answer is good for a moment, and however many ask at
once, one of them looks. Who waits longest takes the longest to see, where many tenants have much:
so that is told as it was seen, for a while, and seen anew once it was told.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, Generic, TypeVar

import structlog
from fastapi import Request
from starlette.background import BackgroundTask
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import Routes, described
from imagefleet.api.http.requests import Tools, ToolsHere, answer
from imagefleet.aws.queue import Queue
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobState, Lane
from imagefleet.jobs.shapes.fleet import (
    DepthView,
    DriftView,
    LaneView,
    LedgerView,
    MessagesView,
    PruneView,
    QueueStats,
)
from imagefleet.store.fleet.elections import list_prune_runs
from imagefleet.store.fleet.ledger import read_balance, read_queue_health
from imagefleet.store.fleet.rates import read_throughput
from imagefleet.store.fleet.statistics import (
    ExpectedMessages,
    expect_messages,
    list_failures,
    list_stuck,
    load_of_lanes,
)
from imagefleet.store.fleet.tenants import Ranking, rank_tenants
from imagefleet.store.jobs.inspection import count_prunable, list_taken
from imagefleet.store.letters.letters import count_unacknowledged

STATS_ARE_GOOD_FOR: Final = 2.0  # seconds
RANKING_IS_KEPT_FOR: Final = 30.0  # what is older, nobody is told
RESTS: Final = 30  # times as long as it took, before it is seen anew: it takes 3 percent at most
LEDGER_IS_GOOD_FOR: Final = 10.0  # for an hour after a first rollout it counts all jobs there are
MOST_SHOWN: Final = 100
TENANTS_SHOWN: Final = 20
MOST_PRUNABLE: Final = 10_000
RUNS_SHOWN: Final = 10

Seen = TypeVar("Seen")

log = structlog.get_logger()
router = Routes(tags=["queues"])


@dataclass
class Look(Generic[Seen]):
    """What was seen last; whoever comes while somebody looks waits for that."""

    good_for: float
    _seen: tuple[Seen, float] | None = None
    _took: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def at(self, look: Callable[[], Awaitable[Seen]]) -> Seen:
        """What `look` saw, a moment ago or now."""
        seen = self._seen
        if seen is None or seen[1] + self.good_for < monotonic():
            seen = await self._anew(look, self.good_for)
        return seen[0]

    async def renew(self, look: Callable[[], Awaitable[Seen]], *, older: float) -> None:
        """See what was seen so many seconds ago anew, for whoever comes next; unless it fails.

        Not as often where that takes long.
        """
        with suppress(FleetError):
            await self._anew(look, max(older, RESTS * self._took))

    async def _anew(self, look: Callable[[], Awaitable[Seen]], older: float) -> tuple[Seen, float]:
        async with self._lock:
            if self._seen is None or self._seen[1] + older < monotonic():
                begun = monotonic()
                seen, ended = await look(), monotonic()
                self._seen, self._took = (seen, ended), ended - begun
            return self._seen


@dataclass
class Looks:
    """Those of one process."""

    stats: Look[QueueStats] = field(default_factory=lambda: Look(STATS_ARE_GOOD_FOR))
    ranking: Look[Ranking] = field(default_factory=lambda: Look(RANKING_IS_KEPT_FOR))
    ledger: Look[LedgerView] = field(default_factory=lambda: Look(LEDGER_IS_GOOD_FOR))


@router.get("/v1/operator/queues", **described("Look at the queues", QueueStats))
async def show_queues(request: Request, _key: Operator, tools: ToolsHere) -> Response:
    """Depths in Postgres and in SQS, the last hour's attempts and failures, and what is stuck."""
    looks: Looks = request.app.state.looks

    def rank() -> Awaitable[Ranking]:
        return _ranking(tools)

    shown = answer(await looks.stats.at(lambda: _stats(tools, lambda: looks.ranking.at(rank))))
    shown.background = BackgroundTask(looks.ranking.renew, rank, older=STATS_ARE_GOOD_FOR)
    return shown


@router.get("/v1/operator/ledger", **described("Look at the ledger", LedgerView))
async def show_ledger(request: Request, _key: Operator, tools: ToolsHere) -> Response:
    """Where every accepted job is, in one statement; and how far SQS and Postgres differ."""
    looks: Looks = request.app.state.looks
    return answer(await looks.ledger.at(lambda: _ledger(tools)))


@router.get("/v1/operator/prune", **described("Look at what is pruned", PruneView))
async def show_prune(_key: Operator, tools: ToolsHere) -> Response:
    """Maintenance prunes every minute by itself; this tells what is left to do and what was."""
    async with tools.operating("count_prunable", "jobs") as connection:
        retention, prunable = await count_prunable(connection, most=MOST_PRUNABLE)
        runs = await list_prune_runs(connection, limit=RUNS_SHOWN)
    return answer(
        PruneView(
            retention_days=retention.total_seconds() / 86_400,
            prunable=prunable,
            prunable_is_at_least=prunable >= MOST_PRUNABLE,
            runs=runs,
        )
    )


async def _stats(tools: Tools, rank: Callable[[], Awaitable[Ranking]]) -> QueueStats:
    """Whoever waits for it waits for the longest of three that look at once."""
    (messages, dead_letters), ranking, told = await asyncio.gather(
        _messages(tools), rank(), _told(tools)
    )
    lanes = [each.model_copy(update={"messages": messages[each.lane]}) for each in told["lanes"]]
    ranked = {"tenants": ranking.tenants, "tenants_are_all_ranked": ranking.complete}
    return QueueStats(**told | ranked | {"lanes": lanes, "dead_letters": dead_letters})


async def _ranking(tools: Tools) -> Ranking:
    async with tools.operating("rank_tenants", "rings") as connection:
        return await rank_tenants(connection, limit=TENANTS_SHOWN)


async def _told(tools: Tools) -> dict[str, Any]:
    """What Postgres knows, but for the tenants."""
    async with tools.operating("read_queue_health", "jobs") as connection:
        taken = await list_taken(connection)
        depths = await read_queue_health(connection)
        expected = await expect_messages(connection)
        waiting = _waiting(depths)
        return {
            "taken_at": datetime.now(UTC),
            "lanes": [
                _lane(each, waiting=waiting[each.lane], known=expected[each.lane])
                for each in await load_of_lanes(connection)
            ],
            "unacknowledged": await count_unacknowledged(connection),
            "depths": [_depth(each, taken) for each in depths],
            "throughput": await read_throughput(connection),
            "failures": await list_failures(connection, limit=MOST_SHOWN),
            "stuck": await list_stuck(connection, limit=MOST_SHOWN),
        }


async def _ledger(tools: Tools) -> LedgerView:
    messages, _ = await _messages(tools)
    async with tools.operating("read_balance", "jobs") as connection:
        balance = await read_balance(connection)
        expected = await expect_messages(connection)
        waiting = _waiting(await read_queue_health(connection))
    drift = [_drift(expected[lane], messages[lane], waiting=waiting[lane]) for lane in Lane]
    told = {"taken_at": datetime.now(UTC), "missing": balance.missing, "drift": drift}
    return LedgerView.of(asdict(balance) | told)


Messages = Mapping[Lane, MessagesView | None]


async def _messages(tools: Tools) -> tuple[Messages, MessagesView | None]:
    asked = [*(tools.queues[lane] for lane in Lane), tools.dead_letters]
    *of_lanes, dead_letters = await asyncio.gather(*(_held(queue) for queue in asked))
    return dict(zip(Lane, of_lanes, strict=True)), dead_letters


async def _held(queue: Queue) -> MessagesView | None:
    try:
        return MessagesView.model_validate(await queue.depth(), from_attributes=True)
    except FleetError as error:
        log.warning("queue.depth_unknown", queue=queue.name, code=error.code)
        return None


def _waiting(depths: Iterable[DepthView]) -> Counter[str]:
    waiting: Counter[str] = Counter()
    for depth in depths:
        if depth.status != JobState.PROCESSING:
            waiting[depth.lane] += depth.jobs
    return waiting


def _lane(load: LaneView, *, waiting: int, known: ExpectedMessages) -> LaneView:
    return load.model_copy(update={"waiting": waiting, "announced": known.announced})


def _drift(known: ExpectedMessages, messages: MessagesView | None, *, waiting: int) -> DriftView:
    """The same sign as the gauge `queue_drift`: messages that lack are positive."""
    drift = None
    if messages is not None:
        drift = known.expected - messages.visible - messages.in_flight - messages.delayed
    return DriftView(
        lane=known.lane,
        waiting=waiting,
        expected=known.expected,
        messages=messages,
        drift=drift,
    )


def _depth(depth: DepthView, taken: Collection[tuple[str, str]]) -> DepthView:
    waits = depth.status != JobState.PROCESSING
    unroutable = waits and (depth.lane, depth.job_type) not in taken
    return depth.model_copy(update={"unroutable": unroutable})
