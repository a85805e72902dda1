"""Brings the edge into agreement: gathers what is owed, asks CloudFront, follows it to the end.

Jobs never wait for this. One process of the fleet is elected, and two of them do no harm: a batch
is frozen before it is sent, and is one invalidation however often it is sent.

A debt goes into a batch three seconds after it was seen, hence after its commit: by then every
answer of the API that read the pointer before is out (two seconds at most,
`api/public/stable.py`), so that no edge can store an old one after its invalidation.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.aws.edge import MOST_ITEMS, Edge
from imagefleet.errors import FleetError, NotFound, Unavailable
from imagefleet.jobs.images import cache_tag
from imagefleet.maintenance.duties import Office
from imagefleet.runtime import pause_after
from imagefleet.store.database import Connection, Pool
from imagefleet.store.edge.invalidations import (
    Accepted,
    Batch,
    BatchLimits,
    Debt,
    Owed,
    Taken,
    accept_batch,
    begin_send,
    commit_batch,
    complete_batch,
    list_accepted,
    list_unsent,
    look_at_owed,
    send_again,
)
from imagefleet.telemetry.maintenance import MaintenanceMetrics

OFFICE: Final = "flusher"
FLUSH_EVERY: Final = timedelta(seconds=2)  # the office is free ten seconds after its last renewal
SETTLED_AFTER: Final = timedelta(seconds=3)
# An image that is replaced every other second never settles: meanwhile one batch every so often.
RESTLESS_AFTER: Final = timedelta(minutes=1)
LIMITS: Final = BatchLimits(paths=MOST_ITEMS, wildcards=15)  # CloudFront's own, of one distribution
# CloudFront throttles after six or seven quick calls: at most five a look.
SENDS_A_LOOK: Final = 3
QUESTIONS_A_LOOK: Final = 2
FOLLOWED: Final = 100  # batches; the oldest ones, in turn
MONTHLY_PATHS: Final = 1000  # which an AWS account has for nothing

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """What one look did."""

    elected: bool
    sent: int = 0
    """Batches that CloudFront has taken."""
    completed: int = 0


def tag_of(image_id: UUID) -> str:
    """All of an image, by the tag that each of its answers bears."""
    return f"#{cache_tag(image_id)}"


def wildcard_of(image_id: UUID) -> str:
    """All of an image, by where it lies."""
    return f"/i/{image_id}/*"


class Flusher:
    """Holds the office if it can, and flushes while it does."""

    def __init__(
        self,
        pool: Pool,
        edge: Edge | None,
        holder: UUID,
        metrics: MaintenanceMetrics,
        *,
        by_tag: bool,
        monthly_paths: int = MONTHLY_PATHS,
        settled_after: timedelta = SETTLED_AFTER,
        patience: timedelta = FLUSH_EVERY,
    ) -> None:
        """Without an edge there is nothing to do; `patience` is doubled with every refusal."""
        self._pool = pool
        self._edge = edge
        self._holder = holder
        self._office = Office(OFFICE, pool, holder)
        self._metrics = metrics
        self._item = tag_of if by_tag else wildcard_of
        self._monthly_paths = monthly_paths
        self._settled_after = settled_after
        self._patience = patience
        self._seen: dict[Debt, datetime] = {}
        self._asked: dict[UUID, float] = {}
        self._refusals = 0
        self._quiet_until = 0.0
        self._said = False
        if edge is not None:
            metrics.budgeted(monthly_paths)

    async def run_once(self) -> Flushed:
        """Renew the office; do a part of the work if it is ours. Call it every two seconds."""
        if self._edge is None:
            if not self._said:
                log.info("flusher.idle", why="there is no CLOUDFRONT_DISTRIBUTION_ID")
            self._said = True
            return Flushed(elected=False)
        async with self._pool.use("look_at_owed") as connection:
            if not await self._holds_office(connection):
                return Flushed(elected=False)
            owed = await look_at_owed(connection, limit=MOST_ITEMS)
        settled, restless = self._ripe(owed)
        completed = await self._follow(self._edge)
        await self._commit(settled, restless)
        sent = await self._send(self._edge)
        return Flushed(elected=True, sent=sent, completed=completed)

    async def resign(self) -> None:
        """Leave the office, if it is ours, and forget what was seen in it."""
        if self._office.term is not None:
            await self._office.resign()
        self._seen.clear()

    async def _holds_office(self, connection: Connection) -> bool:
        before = self._office.term
        if not await self._office.held(connection):
            self._seen.clear()
            return False
        if self._office.term != before:
            log.info("flusher.elected", holder=str(self._holder), term=self._office.term)
        return True

    def _ripe(self, owed: Sequence[Owed]) -> tuple[list[Debt], list[Debt]]:
        """Which were seen long enough ago just as they are now, and which never stay as they are.

        All times are the database's.
        """
        self._seen = {sight.debt: self._seen.get(sight.debt, sight.seen_at) for sight in owed}
        settled, restless = [], []
        for sight in owed:
            if sight.seen_at - self._seen[sight.debt] >= self._settled_after:
                settled.append(sight.debt)
            elif (
                sight.seen_at - sight.owed_at >= RESTLESS_AFTER
                and sight.seen_at - sight.debt.last_owed_at < self._settled_after
            ):
                restless.append(sight.debt)
        return settled, restless

    async def _commit(self, settled: Sequence[Debt], restless: Sequence[Debt]) -> None:
        """Freeze the next batch; not while another one waits, so that more debts share it."""
        debts = [*settled, *restless]
        if not debts or self._is_quiet():
            return
        async with self._pool.use("commit_batch") as connection:
            unsent = await list_unsent(connection, limit=SENDS_A_LOOK)
            if not any(_may_succeed(batch) for batch in unsent):
                await commit_batch(connection, debts, self._item, within=LIMITS, again=restless)

    async def _send(self, edge: Edge) -> int:
        async with self._pool.use("list_unsent") as connection:
            unsent = await list_unsent(connection, limit=SENDS_A_LOOK)
        sent = 0
        for batch in unsent:
            if self._is_quiet():
                break
            sent += await self._send_one(edge, batch)
        return sent

    async def _send_one(self, edge: Edge, batch: Batch) -> bool:
        async with self._pool.connection() as connection:
            if not await begin_send(connection, batch.id):
                return False
        try:
            taken = await edge.create_invalidation(batch.items, caller_reference=str(batch.id))
        except FleetError as error:
            self._refused(error, batch.id)
            async with self._pool.connection() as connection:
                await send_again(connection, batch.id, _told(error))
            return False
        self._refusals = 0
        async with self._pool.connection() as connection:
            news = await accept_batch(connection, batch.id, taken.id)
        if news is not None:
            self._count(batch, news)
        return news is not None

    def _count(self, batch: Batch, news: Taken) -> None:
        self._metrics.invalidated(news.paths, news.debts)
        log.info("invalidation.sent", batch_id=str(batch.id), paths=news.paths, debts=news.debts)
        # Once for every budget that is used up, so that the log tells how far beyond it goes.
        before = self._budgets_in(news.month_paths - news.paths)
        if self._budgets_in(news.month_paths) > before:
            log.warning(
                "invalidation.over_budget",
                month_paths=news.month_paths,
                budget=self._monthly_paths,
            )

    def _budgets_in(self, paths: int) -> int:
        """How many were used up before the last of these paths."""
        return max(paths - 1, 0) // self._monthly_paths

    async def _follow(self, edge: Edge) -> int:
        """Ask about those that were not asked about for longest."""
        async with self._pool.use("list_accepted") as connection:
            accepted = await list_accepted(connection, limit=FOLLOWED)
        self._asked = {batch.batch_id: self._asked.get(batch.batch_id, 0.0) for batch in accepted}
        longest = sorted(accepted, key=lambda batch: self._asked[batch.batch_id])
        completed = 0
        for batch in longest[:QUESTIONS_A_LOOK]:
            if self._is_quiet():
                break
            completed += await self._ask(edge, batch)
        return completed

    async def _ask(self, edge: Edge, accepted: Accepted) -> bool:
        self._asked[accepted.batch_id] = asyncio.get_running_loop().time()
        try:
            is_complete = (await edge.get_invalidation(accepted.cloudfront_id)).completed
        except NotFound as error:
            # Forgotten, or of another distribution. A repeat of what was done does no harm.
            async with self._pool.connection() as connection:
                await send_again(
                    connection,
                    accepted.batch_id,
                    _told(error),
                    unknown=accepted.cloudfront_id,
                )
            return False
        except FleetError as error:
            self._refused(error, accepted.batch_id)
            return False
        self._refusals = 0
        if not is_complete:
            return False
        async with self._pool.connection() as connection:
            dark = await complete_batch(connection, accepted)
        if dark is None:
            return False
        self._metrics.darkened(dark)
        return True

    def _is_quiet(self) -> bool:
        return asyncio.get_running_loop().time() < self._quiet_until

    def _refused(self, error: FleetError, batch_id: UUID) -> None:
        """Leave CloudFront alone for a while; a longer one each time."""
        self._refusals += 1
        draw = random.random()  # noqa: S311 - spreads retries, guards nothing
        pause = pause_after(self._patience, timedelta(0), self._refusals, draw)
        self._quiet_until = asyncio.get_running_loop().time() + pause.total_seconds()
        # A request that is never taken is a bug; everything else passes.
        say = log.warning if isinstance(error, Unavailable) else log.error
        told = {"code": error.code, "detail": error.detail, "batch_id": str(batch_id)}
        say("invalidation.deferred", pause_seconds=round(pause.total_seconds(), 1), **told)


def _told(error: FleetError) -> str:
    return f"{error.code}: {error.detail or error.public_message}"


def _may_succeed(batch: Batch) -> bool:
    return not (batch.last_error or "").startswith("cloudfront_rejected:")
