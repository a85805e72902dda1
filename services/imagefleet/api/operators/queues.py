"""Operators and queues: what waits, what ran lately, what is stuck, and whether all is there.

These read a lot, and dashboards ask often: an answer is good for a moment, and however many ask at
once, one of them looks.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Final, Generic, TypeVar

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.openapi import problems
from imagefleet.api.http.tools import Tools, ToolsHere, answer
from imagefleet.api.operators.fleet_schemas import (
    DepthView,
    DriftView,
    FailuresView,
    FlowView,
    LaneView,
    LedgerView,
    MessagesView,
    PruneRunView,
    PruneView,
    QueueingView,
    QueueStats,
    StuckView,
)
from imagefleet.aws.queue import Queue
from imagefleet.errors import FleetError
from imagefleet.jobs.model import JobState, Lane
from imagefleet.store.fleet.ledger import read_balance
from imagefleet.store.fleet.queues import (
    Depth,
    Failures,
    Flow,
    LaneLoad,
    StuckJob,
    list_failures,
    list_stuck,
    list_taken,
    load_of_lanes,
    read_queue_health,
    read_throughput,
)
from imagefleet.store.fleet.tenants import Queueing, rank_tenants
from imagefleet.store.jobs.pruning import PruneRun, count_prunable, list_prune_runs
from imagefleet.store.jobs.rings import ExpectedMessages, expect_messages
from imagefleet.store.letters.deadletters import count_unacknowledged

STATS_ARE_GOOD_FOR: Final = 2.0  # seconds
LEDGER_IS_GOOD_FOR: Final = 10.0  # for an hour after a first rollout it counts all jobs there are
MOST_SHOWN: Final = 100
TENANTS_SHOWN: Final = 20
MOST_PRUNABLE: Final = 10_000
RUNS_SHOWN: Final = 10

Seen = TypeVar("Seen")

log = structlog.get_logger()
router = APIRouter()


@dataclass
class Look(Generic[Seen]):
    """What was seen last; whoever comes while somebody looks waits for that."""

    good_for: float
    _seen: tuple[Seen, float] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def at(self, look: Callable[[], Awaitable[Seen]]) -> Seen:
        """What `look` saw, a moment ago or now."""
        async with self._lock:
            if self._seen is None or self._seen[1] < monotonic():
                self._seen = (await look(), monotonic() + self.good_for)
            return self._seen[0]


@dataclass
class Looks:
    """Those of one process."""

    stats: Look[QueueStats] = field(default_factory=lambda: Look(STATS_ARE_GOOD_FOR))
    ledger: Look[LedgerView] = field(default_factory=lambda: Look(LEDGER_IS_GOOD_FOR))


@router.get(
    "/v1/operator/queues",
    summary="Look at the queues",
    response_model=QueueStats,
    responses=problems(),
)
async def show_queues(request: Request, _key: Operator, tools: ToolsHere) -> Response:
    """Depths in Postgres and in SQS, the last hour's attempts and failures, and what is stuck."""
    looks: Looks = request.app.state.looks
    return answer(await looks.stats.at(lambda: _stats(tools)))


@router.get(
    "/v1/operator/ledger",
    summary="Look at the ledger",
    response_model=LedgerView,
    responses=problems(),
)
async def show_ledger(request: Request, _key: Operator, tools: ToolsHere) -> Response:
    """Where every accepted job is, in one statement; and how far SQS and Postgres differ."""
    looks: Looks = request.app.state.looks
    return answer(await looks.ledger.at(lambda: _ledger(tools)))


@router.get(
    "/v1/operator/prune",
    summary="Look at what is pruned",
    response_model=PruneView,
    responses=problems(),
)
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
            runs=[_run(each) for each in runs],
        )
    )


async def _stats(tools: Tools) -> QueueStats:
    messages, dead_letters = await _messages(tools)
    async with tools.operating("read_queue_health", "jobs") as connection:
        taken = await list_taken(connection)
        depths = await read_queue_health(connection)
        expected = await expect_messages(connection)
        waiting = _waiting(depths)
        ranking = await rank_tenants(connection, limit=TENANTS_SHOWN)
        return QueueStats(
            taken_at=datetime.now(UTC),
            lanes=[
                _lane(each, messages, waiting=waiting[each.lane], known=expected[each.lane])
                for each in await load_of_lanes(connection)
            ],
            dead_letters=dead_letters,
            unacknowledged=await count_unacknowledged(connection),
            depths=[_depth(each, taken) for each in depths],
            tenants=[_queueing(each) for each in ranking.tenants],
            tenants_are_all_ranked=ranking.complete,
            throughput=[_flow(each) for each in await read_throughput(connection)],
            failures=[_failed(each) for each in await list_failures(connection, limit=MOST_SHOWN)],
            stuck=[_stuck(each) for each in await list_stuck(connection, limit=MOST_SHOWN)],
        )


async def _ledger(tools: Tools) -> LedgerView:
    messages, _ = await _messages(tools)
    async with tools.operating("read_balance", "jobs") as connection:
        balance = await read_balance(connection)
        expected = await expect_messages(connection)
        waiting = _waiting(await read_queue_health(connection))
    return LedgerView(
        taken_at=datetime.now(UTC),
        accepted=balance.accepted,
        open=balance.open,
        completed=balance.completed,
        failed=balance.failed,
        pruned=balance.pruned,
        missing=balance.missing,
        drift=[_drift(expected[lane], messages[lane], waiting=waiting[lane]) for lane in Lane],
    )


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


def _waiting(depths: Iterable[Depth]) -> Counter[str]:
    waiting: Counter[str] = Counter()
    for depth in depths:
        if depth.state != JobState.PROCESSING:
            waiting[depth.lane] += depth.jobs
    return waiting


def _lane(load: LaneLoad, messages: Messages, *, waiting: int, known: ExpectedMessages) -> LaneView:
    fields = {name: getattr(load, name) for name in LaneLoad.__dataclass_fields__}
    more = {"messages": messages[load.lane], "waiting": waiting, "announced": known.announced}
    return LaneView.model_validate(fields | more)


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


def _depth(depth: Depth, taken: Collection[tuple[str, str]]) -> DepthView:
    return DepthView(
        job_type=depth.type,
        status=depth.state,
        lane=depth.lane,
        jobs=depth.jobs,
        oldest_due=depth.oldest_due,
        unroutable=depth.state != JobState.PROCESSING and (depth.lane, depth.type) not in taken,
    )


def _queueing(one: Queueing) -> QueueingView:
    fields = {name: getattr(one, name) for name in Queueing.__dataclass_fields__}
    return QueueingView.model_validate(fields | {"tenant": one.tenant_id})


def _flow(flow: Flow) -> FlowView:
    fields = {name: getattr(flow, name) for name in Flow.__dataclass_fields__}
    return FlowView.model_validate(fields | {"job_type": flow.type})


def _failed(failed: Failures) -> FailuresView:
    return FailuresView(
        job_type=failed.type,
        code=failed.failure_code,
        failures=failed.failures,
        latest=failed.latest_failure,
    )


def _stuck(job: StuckJob) -> StuckView:
    fields = {name: getattr(job, name) for name in StuckJob.__dataclass_fields__}
    renamed = {"job_id": job.id, "tenant": job.tenant_id, "job_type": job.type}
    return StuckView.model_validate(fields | renamed | {"worker_id": job.locked_by})


def _run(run: PruneRun) -> PruneRunView:
    jobs = (run.report or {}).get("jobs")
    return PruneRunView(
        period_start=run.period_start,
        started_at=run.started_at,
        finished_at=run.finished_at,
        jobs=jobs if isinstance(jobs, int) else None,
    )
