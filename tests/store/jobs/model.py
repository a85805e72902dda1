"""The lifecycle once more, as small as it can be said: no SQL, no locks, one job at a time.

`test_stateful` does the same things to this and to the store and wants no difference. Nothing here
is imported from the code that it judges, but for the nouns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, Released, Retry
from imagefleet.jobs.model import (
    CancelCode,
    JobId,
    JobState,
    JsonObject,
    Lane,
    PauseScope,
    Verdict,
    WorkerId,
)
from imagefleet.store.fleet.pauses import (
    Pause,
)
from imagefleet.store.settling import Settled

LOCK_TIMEOUT = timedelta(minutes=10)
MINUTE = timedelta(minutes=1)
HELD_BACK_FOR = timedelta(seconds=1)
HEARD_WITHIN = timedelta(seconds=5)
MOST_SENDS = 8
RESCUE_SPREAD = timedelta(seconds=5)
WAITING = frozenset({JobState.QUEUED, JobState.FAILED_RETRYABLE})
ENDED = frozenset({JobState.COMPLETED, JobState.FAILED})


@dataclass(frozen=True, slots=True)
class Span:
    """A time that is known to lie between two others: jitter, and clocks read a moment apart."""

    low: datetime
    high: datetime

    def holds(self, moment: datetime, slack: timedelta) -> bool:
        return self.low - slack <= moment <= self.high + slack


def exactly(moment: datetime) -> Span:
    return Span(moment, moment)


@dataclass(slots=True)
class Bell:
    """`next_at` is None while it is parked, `sent_at` while no message of it exists."""

    next_at: Span | None
    sent_at: Span | None = None
    sends: int = 0

    @property
    def lost_at(self) -> Span | None:
        """When a silence from then on says that nobody will hear it any more."""
        if self.sent_at is None:
            return None
        patience = HEARD_WITHIN * 2 ** (self.sends - 1)
        return Span(self.sent_at.low + patience, self.sent_at.high + patience)


@dataclass(frozen=True, slots=True)
class End:
    """What the attempts row of one claim says."""

    claim_no: int
    worker_id: WorkerId
    outcome: str
    charged: bool


@dataclass(slots=True, kw_only=True)
class Job:
    job_id: JobId
    type: str
    target: str | None
    target_seq: int | None
    preempts: bool
    max_attempts: int
    run_at: Span
    state: JobState = JobState.QUEUED
    lane: Lane = Lane.FAST
    claim_no: int = 0
    attempts: int = 0
    claim_charged: bool = True
    crashes: int = 0
    holder: WorkerId | None = None
    locked_at: datetime | None = None
    flag: CancelCode | None = None
    failure: str | None = None
    done: int = 0
    cursor: JsonObject | None = None
    bell: Bell | None = None
    ends: list[End] = field(default_factory=list)

    def is_due(self, now: datetime) -> bool:
        return self.run_at.high <= now

    def is_expired(self, now: datetime) -> bool:
        return self.locked_at is not None and now - self.locked_at > LOCK_TIMEOUT

    @property
    def is_running(self) -> bool:
        return self.state is JobState.PROCESSING


class Fleet:
    """Every job, in the order of submission, and what holds jobs back."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.running: dict[str, JobId | None] = {}
        self.pauses: set[Pause] = set()
        self.dead: set[WorkerId] = set()

    # submit and control

    def submit(self, job: Job, now: datetime) -> None:
        self.jobs[job.job_id] = job
        if job.target is not None:
            self.running.setdefault(job.target, None)
        job.bell = Bell(None if self._is_parked(job, now) else job.run_at)

    def _is_parked(self, job: Job, now: datetime) -> bool:
        if job.target is None or job.preempts or not job.is_due(now):
            return False
        held = self._is_paused(job.target) or self.running[job.target] is not None
        return held or bool(self._elders(job, now))

    def _is_paused(self, target: str | None) -> bool:
        return any(
            pause.scope is PauseScope.TARGET and pause.name == target for pause in self.pauses
        )

    def next_seq(self, target: str) -> int:
        return 1 + sum(job.target == target for job in self.jobs.values())

    def cancel(self, job_id: JobId, code: CancelCode, now: datetime) -> bool:
        job = self.jobs[job_id]
        if job.state in ENDED:
            return False
        job.flag = job.flag or code
        self._ring(job, now)
        return True

    def resume(self, pause: Pause, now: datetime) -> bool:
        if pause not in self.pauses:
            return False
        self.pauses.remove(pause)
        if pause.scope is PauseScope.TARGET:
            self.running.setdefault(
                pause.name, None
            )  # its row is what is locked, and made for that
            self._free([pause.name], now)
        return True

    def retry_now(self, job_id: JobId, now: datetime) -> bool:
        job = self.jobs[job_id]
        if job.state not in WAITING:
            return False
        if not job.is_due(now):
            job.run_at = exactly(now)
        self._ring(job, now)
        return True

    def _ring(self, job: Job, now: datetime) -> None:
        if job.bell is not None:
            job.bell = Bell(exactly(now))

    def dispatch(self, now: datetime) -> set[JobId]:
        """Take what is due and has no message, send it and say so."""
        taken = set()
        for job in self.jobs.values():
            bell = job.bell
            if bell is None or job.lane is not Lane.FAST or bell.sent_at is not None:
                continue
            if bell.next_at is not None and bell.next_at.high <= now:
                bell.sent_at, bell.sends = exactly(now), min(bell.sends + 1, MOST_SENDS)
                taken.add(job.job_id)
        return taken

    def silence(self, now: datetime) -> int:
        """Somebody polled for long and heard nothing: how many messages are known to be lost."""
        lost = [
            job.bell
            for job in self.jobs.values()
            if job.bell is not None and job.lane is Lane.FAST and _is_past(job.bell.lost_at, now)
        ]
        for bell in lost:
            bell.next_at, bell.sent_at = exactly(now), None
        return len(lost)

    def look_for_heads(self, now: datetime) -> int:
        """Ring who stands first and is parked: only where one before it was flagged, and ends."""
        rung = 0
        for target in self.running:
            head = self._next(target, now)
            if head is not None and head.bell is not None and head.bell.next_at is None:
                others = [other for other in self._of(target) if other.state not in ENDED]
                assert any(other.flag is not None for other in others if other is not head)
                self._ring(head, now)
                rung += 1
        return rung

    # claim

    def claim(self, wanted: Sequence[JobId], me: WorkerId, now: datetime) -> list[Verdict]:
        verdicts = {job_id: self._verdict(self.jobs[job_id], now) for job_id in wanted}
        self._one_of_a_target(verdicts)
        freed = []
        for job_id, verdict in verdicts.items():
            job = self.jobs[job_id]
            if verdict in {Verdict.CLAIMED, Verdict.CANCELLED}:
                self._take(job, me, now, charged=verdict is Verdict.CLAIMED)
            elif verdict is Verdict.EXHAUSTED:
                freed.append(job.target)
                self._end(job, JobState.FAILED, "exhausted")
                job.failure = "attempts_exhausted"
            elif job.bell is not None:
                job.bell = Bell(self._deferred(job, verdict, now))
        self._free(freed, now)
        return self._answers(wanted, verdicts)

    def _deferred(self, job: Job, verdict: Verdict, now: datetime) -> Span | None:
        if verdict is Verdict.NOT_DUE:
            return job.run_at
        scopes = sorted(pause.scope for pause in self.pauses if _concerns(pause, job))
        behind_pause = verdict is Verdict.PAUSED and scopes[0] == PauseScope.TARGET
        if verdict is Verdict.TARGET_BUSY or behind_pause:
            return None
        return exactly(now + HELD_BACK_FOR)

    def _answers(self, wanted: Sequence[JobId], verdicts: dict[JobId, Verdict]) -> list[Verdict]:
        mine = {Verdict.CLAIMED, Verdict.CANCELLED}
        return [
            Verdict.BUSY if verdicts[one] in mine and one in wanted[:at] else verdicts[one]
            for at, one in enumerate(wanted)
        ]

    def _verdict(self, job: Job, now: datetime) -> Verdict:
        if job.state in ENDED:
            return Verdict.FINISHED
        if job.is_running and not job.is_expired(now):
            return Verdict.BUSY
        if job.flag is not None:
            return Verdict.CANCELLED
        if job.is_running and job.attempts >= job.max_attempts:
            return Verdict.EXHAUSTED
        paused = not job.preempts and any(_concerns(pause, job) for pause in self.pauses)
        if job.is_running:
            return Verdict.BUSY if paused else Verdict.CLAIMED
        if not job.is_due(now):
            return Verdict.NOT_DUE
        if paused:
            return Verdict.PAUSED
        if job.target is not None and (self.running[job.target] or self._elders(job, now)):
            return Verdict.TARGET_BUSY
        return Verdict.CLAIMED

    def _elders(self, job: Job, now: datetime) -> list[Job]:
        if job.preempts:
            return []
        return [
            elder
            for elder in self._of(job.target)
            if (elder.target_seq or 0) < (job.target_seq or 0)
            and (
                elder.is_running
                or (
                    elder.state in WAITING
                    and elder.flag is None
                    and (elder.state is JobState.FAILED_RETRYABLE or elder.is_due(now))
                )
            )
        ]

    def _one_of_a_target(self, verdicts: dict[JobId, Verdict]) -> None:
        for target in self.running:
            able = [job for job in self._of(target) if verdicts.get(job.job_id) is Verdict.CLAIMED]
            for job in sorted(able, key=lambda bell: (not bell.preempts, bell.target_seq))[1:]:
                verdicts[job.job_id] = Verdict.TARGET_BUSY

    def _take(self, job: Job, me: WorkerId, now: datetime, *, charged: bool) -> None:
        if job.is_running:
            assert job.holder is not None
            job.ends.append(End(job.claim_no, job.holder, "taken_over", charged=job.claim_charged))
            job.crashes += 1
        job.claim_no += 1
        job.attempts += charged
        job.claim_charged = charged
        job.state, job.holder, job.locked_at, job.bell = JobState.PROCESSING, me, now, None
        if charged and job.target is not None:
            self.running[job.target] = job.job_id

    # what becomes of a claim

    def settle(
        self, me: WorkerId, settled: Sequence[tuple[JobId, int, Outcome]], now: datetime
    ) -> list[Settled]:
        answers = [self._settle(me, job_id, no, outcome, now) for job_id, no, outcome in settled]
        self._free([self.jobs[job_id].target for job_id, _, _ in settled], now)
        return answers

    def _settle(
        self, me: WorkerId, job_id: JobId, claim_no: int, outcome: Outcome, now: datetime
    ) -> Settled:
        job = self.jobs[job_id]
        if job.is_running and (job.claim_no, job.holder) == (claim_no, me):
            self._write(job, outcome, now)
            return Settled.WRITTEN
        by_me = {"completed", "retried", "failed", "released"}
        mine = any(
            (end.claim_no, end.worker_id) == (claim_no, me) and end.outcome in by_me
            for end in job.ends
        )
        return Settled.ALREADY if mine else Settled.LOST

    def _write(
        self, job: Job, outcome: Outcome, now: datetime, ended_as: str | None = None
    ) -> None:
        match outcome:
            case Completed():
                job.failure = None
                self._end(job, JobState.COMPLETED, "completed")
            case Failed():
                job.failure = outcome.code
                self._end(job, JobState.FAILED, "failed")
            case Retry() | Released() if job.flag is not None:
                job.failure = job.flag.value
                self._end(job, JobState.FAILED, ended_as or "failed")
            case Released():
                job.failure = None
                job.attempts -= 1
                self._wait(job, exactly(now), "released", charged=False)
            case Retry() if outcome.crashed:
                self._crash(job, outcome, now, ended_as)
            case Retry() if job.attempts >= job.max_attempts:
                job.failure = outcome.code
                self._end(job, JobState.FAILED, "failed")
            case Retry():
                job.failure = outcome.code
                self._wait(job, _backoff(job, now), "retried", charged=True)

    def _crash(self, job: Job, outcome: Retry, now: datetime, ended_as: str | None) -> None:
        if job.lane is Lane.QUARANTINE and outcome.alone:
            job.failure = "poison"
            self._end(job, JobState.FAILED, ended_as or "failed")
            return
        due = _backoff(job, now) if ended_as is None else Span(now, now + RESCUE_SPREAD)
        charged = job.attempts < job.max_attempts
        job.attempts -= not charged
        job.crashes += 1
        job.failure = outcome.code
        if job.crashes > 1:
            job.lane = Lane.QUARANTINE
        self._wait(job, due, ended_as or "retried", charged=charged)

    def _wait(self, job: Job, due: Span, outcome: str, *, charged: bool) -> None:
        self._end(job, JobState.FAILED_RETRYABLE, outcome, charged=charged)
        job.run_at = due
        job.bell = Bell(due)

    def _end(self, job: Job, state: JobState, outcome: str, *, charged: bool = True) -> None:
        assert job.holder is not None
        charged = charged and job.claim_charged
        job.ends.append(End(job.claim_no, job.holder, outcome, charged=charged))
        job.state, job.holder, job.locked_at = state, None, None
        if job.target is not None and self.running[job.target] == job.job_id:
            self.running[job.target] = None

    def rescue(self, worker_id: WorkerId, now: datetime) -> None:
        self.dead.add(worker_id)
        lost = [job for job in self.jobs.values() if job.holder == worker_id]
        for job in lost:
            retry = Retry(code="worker_lost", message="-", crashed=True, alone=len(lost) == 1)
            self._write(job, retry, now, ended_as="rescued")
        self._free([job.target for job in lost], now)

    def _free(self, targets: Iterable[str | None], now: datetime) -> None:
        for target in targets:
            successor = self._next(target, now)
            if successor is not None:
                self._ring(successor, now)

    def _next(self, target: str | None, now: datetime) -> Job | None:
        if target is None or self.running[target] is not None:
            return None
        waiting = [
            job
            for job in self._of(target)
            if job.state in WAITING
            and job.flag is None
            and (job.state is JobState.FAILED_RETRYABLE or job.is_due(now))
        ]
        preempting = [job for job in waiting if job.preempts and job.is_due(now)]
        first = next(iter([*preempting, *waiting]), None)
        if first is None or not first.is_due(now):
            return None
        return first if first.preempts or not self._is_paused(target) else None

    def _of(self, target: str | None) -> list[Job]:
        return [job for job in self.jobs.values() if job.target == target]

    # keeping a claim

    def progress(
        self, job_id: JobId, claim_no: int, done: int, cursor: JsonObject | None, now: datetime
    ) -> bool:
        """Whether the claim stands."""
        job = self.jobs[job_id]
        if not job.is_running or job.claim_no != claim_no:
            return False
        job.done, job.cursor, job.locked_at = done, cursor or job.cursor, now
        return True

    def age(self, span: timedelta) -> None:
        """Everything is longer ago."""
        for job in self.jobs.values():
            if job.state in ENDED:
                continue
            job.run_at = _earlier(job.run_at, span)
            if job.locked_at is not None:
                job.locked_at -= span
            if job.bell is not None and job.bell.next_at is not None:
                job.bell.next_at = _earlier(job.bell.next_at, span)
            if job.bell is not None and job.bell.sent_at is not None:
                job.bell.sent_at = _earlier(job.bell.sent_at, span)

    def has_edge_near(self, now: datetime, margin: timedelta) -> bool:
        """Whether something becomes due, or expires, about now: then nobody can foretell it."""
        edges = [job.run_at for job in self.jobs.values() if job.state in WAITING]
        bells = [job.bell for job in self.jobs.values() if job.bell is not None]
        edges += [edge for bell in bells for edge in (bell.next_at, bell.lost_at) if edge]
        edges += [
            exactly(job.locked_at + LOCK_TIMEOUT)
            for job in self.jobs.values()
            if job.locked_at is not None
        ]
        return any(edge.high > now and edge.low < now + margin for edge in edges)


def _backoff(job: Job, now: datetime) -> Span:
    wait = timedelta(seconds=30) * 2 ** (max(job.attempts, 1) - 1)
    return Span(now + wait, now + wait * 1.2)


def _is_past(span: Span | None, now: datetime) -> bool:
    return span is not None and span.high <= now


def _earlier(span: Span, by: timedelta) -> Span:
    return Span(span.low - by, span.high - by)


def _concerns(pause: Pause, job: Job) -> bool:
    match pause.scope:
        case PauseScope.ALL:
            return True
        case PauseScope.TYPE:
            return job.type == pause.name
        case PauseScope.LANE:
            return job.lane == pause.name
        case PauseScope.TARGET:
            return job.target == pause.name
        case PauseScope.TENANT:  # there is one
            return pause.name in {"", job.type}
