"""What somebody may have to do something about, the worst first, a sentence each.

It is looked for in the order in which it hurts: work that is missing, work that is held back, work
that nobody takes, work that failed, and what is merely late.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from imagefleet.console.showing import Trouble
from imagefleet.console.wording import amount, span
from imagefleet.jobs.model import Lane, PauseScope
from imagefleet.jobs.shapes.edge import EdgeStatus
from imagefleet.jobs.shapes.explaining import LaneExplanationView
from imagefleet.jobs.shapes.fleet import (
    SILENT_AFTER,
    Breakers,
    BreakerView,
    LaneView,
    LedgerView,
    Pauses,
    PauseView,
    QueueStats,
    Workers,
    WorkerView,
)
from imagefleet.jobs.shapes.letters import LetterGroups

LATE_AFTER: Final = timedelta(minutes=2)  # of the first that waits in a lane
KINDS: Final = ("bad", "warn", "run", "ok")  # in the order in which they are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Something that somebody may have to do something about."""

    kind: Literal["bad", "warn", "run", "ok"]
    what: str
    since: datetime | None = None
    why: str = ""
    so: str = ""
    there: str = ""
    """Where more of it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How the fleet is; of what was not answered, why."""

    queues: QueueStats
    lanes: Mapping[Lane, LaneExplanationView | Trouble]
    """Why what waits in them does not run."""
    breakers: Breakers | Trouble
    pauses: Pauses | Trouble
    faults: LetterGroups | Trouble
    ledger: LedgerView | Trouble
    edge: EdgeStatus | Trouble
    workers: Workers | Trouble

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self.queues.lanes)


def concerns(seen: Seen) -> list[Concern]:
    """All of them; that nothing is wrong, if there is none."""
    found = [
        *_missing(seen),
        *_broken(seen),
        *_paused(seen),
        *_nobody_takes(seen),
        *_failed(seen),
        *_late(seen),
        *_silent(seen),
        *_owed(seen),
        *_unknown(seen),
    ]
    found.sort(key=lambda each: KINDS.index(each.kind))
    return found or [_well(seen)]


def jobs(count: int, verb: str = "") -> str:
    """So many of them, and what they do."""
    if count == 1:
        return f"1 job {verb}s".rstrip() if verb else "1 job"
    return f"{amount(count)} jobs {verb}".rstrip()


def _missing(seen: Seen) -> Iterator[Concern]:
    if isinstance(seen.ledger, LedgerView) and seen.ledger.missing:
        what = f"{jobs(seen.ledger.missing)} of the ledger are nowhere"
        yield Concern(kind="bad", what=what, so="no accepted job is ever lost by itself")


def _broken(seen: Seen) -> Iterator[Concern]:
    for breaker in seen.breakers.breakers if isinstance(seen.breakers, Breakers) else ():
        if breaker.state != "closed":
            yield Concern(
                kind="bad" if breaker.state == "open" else "warn",
                what=f"{breaker.service} breaker {breaker.state.replace('_', ' ')}",
                since=breaker.opened_at,
                why=_of_breaker(breaker),
                so=jobs(seen.waiting, "wait"),
                there="#breakers",
            )


def _of_breaker(breaker: BreakerView) -> str:
    if breaker.forced:
        return f"forced by {breaker.updated_by}"
    return breaker.last_error_code or ""


def _paused(seen: Seen) -> Iterator[Concern]:
    for pause in seen.pauses.pauses if isinstance(seen.pauses, Pauses) else ():
        far = pause.scope in {PauseScope.ALL, PauseScope.LANE, PauseScope.TYPE}
        yield Concern(
            kind="bad" if pause.scope is PauseScope.ALL else "warn",
            what=f"{named(pause)} is paused",
            since=pause.paused_at,
            why=f"{pause.reason} ({pause.paused_by})",
            so=jobs(seen.waiting, "wait") if far else "",
            there="#pauses",
        )


def named(pause: PauseView) -> str:
    """What is paused, in words."""
    match pause.scope:
        case PauseScope.ALL:
            return "Everything"
        case PauseScope.TENANT if pause.name:
            return f"Tenant {pause.tenant}, type {pause.name},"
        case PauseScope.TENANT:
            return f"Tenant {pause.tenant}"
        case PauseScope.TARGET:
            return f"Target {pause.name} of {pause.tenant}"
        case _:
            return f"{pause.scope.capitalize()} {pause.name}"


def _nobody_takes(seen: Seen) -> Iterator[Concern]:
    for lane in seen.queues.lanes:
        if lane.workers == 0 and lane.waiting:
            yield Concern(
                kind="bad",
                what=f"No worker serves the lane {lane.lane}",
                since=lane.oldest_due_ring,
                so=jobs(lane.waiting, "wait"),
                there="#lanes",
            )
    served = {lane.lane for lane in seen.queues.lanes if lane.workers}
    for depth in seen.queues.depths:
        if depth.unroutable and depth.lane in served:
            yield Concern(
                kind="bad",
                what=f"No worker takes {depth.job_type} in the lane {depth.lane}",
                since=depth.oldest_due,
                so=jobs(depth.jobs, "wait"),
                there="#lanes",
            )


def _failed(seen: Seen) -> Iterator[Concern]:
    faults = seen.faults
    if not seen.queues.unacknowledged or isinstance(faults, Trouble) or not faults.groups:
        return
    first = faults.groups[0]
    if len(faults.groups) == 1:
        so, there = "", f"/faults/{first.fingerprint}"
    else:
        more = len(faults.groups) - 1
        so = "and 1 more kind of fault" if more == 1 else f"and {more} more kinds of fault"
        there = "/faults"
    yield Concern(
        kind="bad",
        what=f"{jobs(seen.queues.unacknowledged)} failed for good",
        since=min(group.first_died_at for group in faults.groups),
        why=f"{amount(first.letters)} by {first.reason}: {first.message}".rstrip(". "),
        so=so,
        there=there,
    )


def _late(seen: Seen) -> Iterator[Concern]:
    for lane in seen.queues.lanes:
        since = lane.oldest_due_ring
        if lane.workers and lane.waiting and since and datetime.now(UTC) - since > LATE_AFTER:
            yield Concern(
                kind="warn",
                what=f"The lane {lane.lane} is behind",
                since=since,
                why=_why_late(lane),
                so=jobs(lane.waiting, "wait"),
                there="#lanes",
            )
    for stuck in seen.queues.stuck:
        yield Concern(
            kind="warn",
            what=f"A job of {stuck.tenant} has been running for long",
            since=stuck.claimed_at,
            why=f"{stuck.job_type}, on {stuck.host or 'a worker that is gone'}",
            there=f"/jobs/{stuck.job_id}",
        )


def _why_late(lane: LaneView) -> str:
    if lane.busy >= lane.slots:
        return f"every slot is taken, {lane.busy} of {lane.slots}"
    return f"{lane.busy} of {lane.slots} slots work"


def is_silent(worker: WorkerView) -> bool:
    """Whether it missed beats, and nobody has condemned it yet."""
    return worker.dead_at is None and worker.silent_for > SILENT_AFTER


def _silent(seen: Seen) -> Iterator[Concern]:
    workers = seen.workers.workers if isinstance(seen.workers, Workers) else []
    silent = [worker for worker in workers if is_silent(worker)]
    if silent:
        held = sum(len(worker.held) for worker in silent)
        one = f"A worker on {silent[0].host} is silent"
        yield Concern(
            kind="warn",
            what=one if len(silent) == 1 else f"{len(silent)} of {len(workers)} workers are silent",
            since=min(worker.beat_at for worker in silent),
            so=f"{jobs(held)} in their hands" if held else "they hold no job",
            there="/workers",
        )


def _owed(seen: Seen) -> Iterator[Concern]:
    edge = seen.edge
    if isinstance(edge, Trouble):
        return
    if edge.last_error:
        so = f"{amount(edge.owed)} invalidations are owed"
        yield Concern(
            kind="bad", what="CloudFront refuses", why=edge.last_error, so=so, there="/edge"
        )
    elif edge.month.over_budget:
        why = f"{amount(edge.month.paths)} paths of {amount(edge.month.budget)} expected"
        yield Concern(kind="warn", what="More is invalidated than planned", why=why, there="/edge")
    if edge.flusher is None or not edge.flusher.holds:
        yield Concern(
            kind="warn", what="No maintenance process looks after the fleet", there="/edge"
        )


def _unknown(seen: Seen) -> Iterator[Concern]:
    parts = (seen.breakers, seen.pauses, seen.faults, seen.ledger, seen.edge, seen.workers)
    troubles = {part.sentence for part in parts if isinstance(part, Trouble)}
    for sentence in sorted(troubles):
        yield Concern(kind="warn", what="Not all of this is known", why=sentence)


def _well(seen: Seen) -> Concern:
    running = sum(lane.processing for lane in seen.queues.lanes)
    waiting = seen.waiting
    moving = f"{jobs(running, 'run')}, {jobs(waiting, 'wait')}" if running or waiting else ""
    if not moving:
        return Concern(kind="ok", what="Nothing is wrong", so="there is nothing to do")
    oldest = [lane.oldest_due_ring for lane in seen.queues.lanes if lane.oldest_due_ring]
    late = f", the first for {span(datetime.now(UTC) - min(oldest))}" if oldest and waiting else ""
    return Concern(kind="ok", what="Nothing is wrong", so=moving + late)
