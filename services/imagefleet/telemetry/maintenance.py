"""The series of the maintenance process: what it did, and what the elected sampler saw."""

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from types import MappingProxyType
from typing import Final

from imagefleet.jobs.model import JobState, Lane
from imagefleet.telemetry.metrics import AWS_SECONDS, FleetMetrics
from imagefleet.telemetry.plain import names
from imagefleet.telemetry.series import Values

DARK_SECONDS: Final = (1, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
LEDGER: Final = ("accepted", "open", "completed", "failed", "pruned", "missing")
# What is looked at in one go, and shown or not shown together.
SAMPLES: Final[Mapping[str, Sequence[tuple[str, ...]]]] = MappingProxyType(
    {
        "depths": [
            ("job_queue_depth", "jobs that wait", "job_type"),
            ("jobs_open", "jobs that are not over", "job_type", "state"),
        ],
        "oldest": [
            ("oldest_job_age_seconds", "how long the oldest has been due", "job_type", "state")
        ],
        "stuck": [("jobs_stuck", "jobs that run for longer than any type may")],
        "rings": [
            ("rings_announced", "jobs that have a message and were not claimed yet", "lane"),
            ("ring_window", "how many jobs may be announced at a time", "lane"),
            ("oldest_ring_age_seconds", "how long the first has waited for its turn", "lane"),
            ("dispatcher_silence_seconds", "how long ago a dispatcher looked at a lane", "lane"),
        ],
        "queues": [
            ("sqs_messages", "messages, by SQS's estimate", "lane", "state"),
            ("queue_drift", "jobs that should have a message minus messages", "lane"),
        ],
        "letters": [("dead_letters_unacknowledged", "dead letters nobody has acknowledged")],
        "edge": [
            ("invalidations_owed", "images whose invalidation is not complete"),
            ("invalidation_oldest_age_seconds", "age of the oldest owed invalidation"),
            ("invalidation_paths_in_flight", "paths that CloudFront works on"),
            ("invalidation_paths_this_month", "paths sent in this month of UTC"),
        ],
        "walk": [("missing_objects", "objects that rows name and S3 does not have")],
        "breakers": [
            ("breaker_open", "1 while calls of the service are held back", "service"),
            ("breaker_trips_total", "how often the service's breaker opened", "service"),
        ],
        "ledger": [(f"ledger_{name}", f"the conservation ledger: {name}") for name in LEDGER],
        "behind": [("upkeep_behind_seconds", "how long a step's oldest work is overdue", "step")],
    }
)


class MaintenanceMetrics(FleetMetrics):
    """The series of the maintenance process; most are samples of the one that is elected."""

    def __init__(self, job_types: Collection[str]) -> None:
        super().__init__(job_types)
        self._job_types, self._service = tuple(job_types), names()
        self._rescued = self._counter("rescued_jobs_total", "jobs taken from dead workers")
        self._edge_seconds = self._histogram(
            "cloudfront_operation_duration_seconds", "CloudFront calls", AWS_SECONDS, "operation"
        )
        self._edge_errors = self._counter(
            "cloudfront_operation_errors_total", "CloudFront failures", "operation", "error_code"
        )
        self._paths = self._counter("invalidation_paths_total", "paths sent, which are billed")
        self._debts = self._counter("invalidation_debts_total", "debts that those paths paid")
        self._budget = self._gauge("invalidation_paths_budget", "paths expected of a month")
        self._dark = self._histogram(
            "image_dark_seconds", "from the request to delete to a dark edge", DARK_SECONDS
        )
        self._swept = self._counter("swept_objects_total", "objects deleted from S3", "kind")
        self._swept_bytes = self._counter("swept_bytes_total", "their bytes", "kind")
        self._upkept = self._counter(
            "upkeep_done_total", "pieces of work that a step of upkeep has done", "step"
        )
        self._samples = self._sampled(*chain.from_iterable(SAMPLES.values()))

    def rescued(self, jobs: int) -> None:
        """Count jobs that were taken from a dead worker."""
        self._rescued.inc(jobs)

    def invalidated(self, paths: int, debts: int) -> None:
        """Count paths and tags of a batch that CloudFront has taken, and the debts they paid."""
        self._paths.inc(paths)
        self._debts.inc(debts)

    def budgeted(self, paths: int) -> None:
        """Take how many paths a month are expected."""
        self._budget.set(paths)

    def darkened(self, spans: Iterable[timedelta]) -> None:
        """Take how long each deleted image took until nothing of it was shown any more."""
        for span in spans:
            self._dark.observe(span.total_seconds())

    def swept(self, kind: str, objects: int, size_bytes: int) -> None:
        """Count objects that were deleted: of `superseded` versions, `litter` or `original`."""
        self._swept.labels(kind).inc(objects)
        self._swept_bytes.labels(kind).inc(size_bytes)

    def upkept(self, step: str, pieces: int) -> None:
        """Count what a step of upkeep did: rows, entries, objects or messages."""
        if pieces:
            self._upkept.labels(step).inc(pieces)

    def depths_sampled(self, depths: Iterable[tuple[str, str, int]]) -> None:
        """Take type, state, and how many jobs there are; of a registered type also that none is."""
        waiting: Tally[tuple[str, ...]] = Tally({(name,): 0 for name in self._job_types})
        jobs: Tally[tuple[str, ...]] = Tally()
        for job_type, state, count in depths:
            name = self._type(job_type)
            jobs[name, state] += count
            if state != JobState.PROCESSING:
                waiting[(name,)] += count
        self._samples.show("job_queue_depth", waiting)
        self._samples.show("jobs_open", jobs)

    def ages_sampled(self, oldest: Iterable[tuple[str, str, timedelta]]) -> None:
        """Take type, state, and for how long the oldest has been due."""
        ages: dict[tuple[str, ...], float] = {}
        for job_type, state, oldest_age in oldest:
            where = (self._type(job_type), state)
            ages[where] = max(ages.get(where, 0.0), oldest_age.total_seconds())
        self._samples.show("oldest_job_age_seconds", ages)

    def stuck_sampled(self, jobs: int) -> None:
        """Take how many jobs run for longer than any type may."""
        self._samples.show("jobs_stuck", jobs)

    def rings_sampled(
        self, lane: Lane, *, announced: int, window: int, waited: timedelta, silence: timedelta
    ) -> None:
        """Take what a lane's dispatcher has announced, and for how long others wait for theirs."""
        for name, value in (
            ("rings_announced", announced),
            ("ring_window", window),
            ("oldest_ring_age_seconds", waited.total_seconds()),
            ("dispatcher_silence_seconds", silence.total_seconds()),
        ):
            self._samples.add(name, {(lane.value,): value})

    def lane_sampled(self, lane: Lane, *, due: int | None, visible: int, in_flight: int) -> None:
        """Take the jobs of a lane that should have a message, if known, and the messages."""
        name = lane.value
        messages: Values = {(name, "visible"): visible, (name, "in_flight"): in_flight}
        self._samples.add("sqs_messages", messages)
        if due is not None:
            self._samples.add("queue_drift", {(name,): due - visible - in_flight})

    def dead_letters_sampled(self, unacknowledged: int) -> None:
        """Take how many dead letters wait for somebody."""
        self._samples.show("dead_letters_unacknowledged", unacknowledged)

    def invalidations_sampled(
        self, owed: int, oldest_age: timedelta, in_flight: int, this_month: int
    ) -> None:
        """Take what is owed to the edge and for how long; paths it works on, and took so far."""
        self._samples.show("invalidations_owed", owed)
        self._samples.show("invalidation_oldest_age_seconds", oldest_age.total_seconds())
        self._samples.show("invalidation_paths_in_flight", in_flight)
        self._samples.show("invalidation_paths_this_month", this_month)

    def missing_sampled(self, objects: int) -> None:
        """Take how many objects the walks through S3 did not find."""
        self._samples.show("missing_objects", objects)

    def breaker_sampled(self, service: str, *, is_open: bool, trips: int) -> None:
        """Take the state of one service's breaker, and how often it has opened so far."""
        self._samples.add("breaker_open", {(self._service(service),): is_open})
        self._samples.add("breaker_trips_total", {(self._service(service),): trips})

    def ledger_sampled(self, accounts: Mapping[str, int]) -> None:
        """Take the six accounts of LEDGER, read in one statement."""
        for account in LEDGER:
            self._samples.show(f"ledger_{account}", accounts[account])

    def behind_sampled(self, overdue: Mapping[str, timedelta]) -> None:
        """Take for how long the oldest work of each step has been overdue; zero where none is."""
        behind: Values = {(step,): span.total_seconds() for step, span in overdue.items()}
        self._samples.show("upkeep_behind_seconds", behind)

    def unsampled(self, sample: str) -> None:
        """Show nothing of this one of SAMPLES: a look at it failed, or a new one begins."""
        self._samples.forget(*(name for name, *_ in SAMPLES[sample]))

    def unelected(self) -> None:
        """Show no samples: another process takes them now."""
        self._samples.forget()

    def call_ended(
        self, service: str, operation: str, resource: str, seconds: float, error_code: str | None
    ) -> None:
        """Take how a call went."""
        super().call_ended(service, operation, resource, seconds, error_code)
        if service == "cloudfront":
            name = self._operation(operation)
            self._edge_seconds.labels(name).observe(seconds)
            if error_code is not None:
                self._edge_errors.labels(name, self._code(error_code)).inc()
