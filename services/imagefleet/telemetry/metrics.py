"""Every series of every process, each made here, or in `maintenance.py`, and nowhere else.

One class a process, each with its own registry: made once by `main`, passed to whoever counts. The
same name may have other labels in another process (`db_query_duration_seconds`). Callers say what
happened; which series that moves, and which values a label may have, is decided here.
"""

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Final

import structlog

from imagefleet.errors import Unavailable
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.lifecycle import ResultReason
from imagefleet.jobs.limits import LIMITS
from imagefleet.jobs.model import CancelCode, Ended, JobState, Lane, Verdict
from imagefleet.telemetry.logs import ids_of
from imagefleet.telemetry.plain import Vocabulary, codes, methods, names, routes
from imagefleet.telemetry.series import Series, Timed

END_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "completed": "job.completed",
        "retried": "job.retried",
        "failed": "job.failed",
        "released": "job.released",
        "rescued": "job.rescued",
        "taken_over": "job.taken_over",
        "exhausted": "job.exhausted",
    }
)
"""By the outcome in the attempt's row."""

API_SECONDS: Final = (0.1, 0.3, 0.5, 1, 2, 5, 10)
AWS_SECONDS: Final = (0.1, 0.3, 0.5, 1, 3, 5, 7, 10)
WORK_SECONDS: Final = (0.1, 0.3, 0.5, 0.7, 1, 3, 5, 7, 10)
# Beside those that end after ten seconds, which others have specified so.
ATTEMPT_SECONDS: Final = (1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600)
WAIT_SECONDS: Final = (1, 3, 10, 30, 60, 300, 900, 3600, 14400)
PUBLISHED_SECONDS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
QUEUE_MILLISECONDS: Final = (10, 30, 50, 70, 100, 300, 500, 700, *range(1000, 10_001, 500))
CHILD_SECONDS: Final = (0.1, 0.3, 1, 3, 10, 30)
CHILD_BYTES: Final = tuple(mebibytes * 2**20 for mebibytes in (64, 128, 256, 512, 1024, 2048))
UPLOAD_BYTES: Final = (
    *(1024 * 2**doublings for doublings in range(11)),
    *(mebibytes * 2**20 for mebibytes in (2, 5, 10, 20, 50)),
)

log = structlog.get_logger()


class ProcessMetrics(Series):
    """What every process tells."""

    def __init__(self) -> None:
        super().__init__()
        self._lag = self._gauge("event_loop_lag_seconds", "worst delay in the last 15 s")

    def watch_loop(self, lag: Callable[[], timedelta]) -> None:
        """Ask this at every scrape for how late the event loop is."""
        self._lag.set_function(lambda: lag().total_seconds())


class LiveMetrics(ProcessMetrics):
    """What every process tells that reaches Postgres itself, and follows the live settings."""

    def __init__(self) -> None:
        super().__init__()
        self._settings_age = self._gauge(
            "live_settings_age_seconds", "since live settings were last read"
        )
        self._connections = self._gauge("db_pool_connections", "of this process", "state")
        self._temporary = self._gauge("temporary_bytes", "room for files on their way", "state")
        self._temporary.labels("free").set_function(lambda: _temporary("free"))
        self._temporary.labels("used").set_function(lambda: _temporary("used"))

    def watch_settings(self, age: Callable[[], timedelta]) -> None:
        """Ask this at every scrape for how long ago live settings were read."""
        self._settings_age.set_function(lambda: age().total_seconds())

    def watch_pool(self, used: Callable[[], Mapping[str, int]]) -> None:
        """Ask this at every scrape for how many connections there are, by state."""
        for state in used():
            self._connections.labels(state).set_function(partial(_one_of, used, state))


class AwsMetrics(LiveMetrics):
    """What every process tells that speaks to AWS, by way of `aws.calls.AwsCalls`."""

    def __init__(self) -> None:
        super().__init__()
        self._operation, self._code = codes(), codes()
        self._sqs_requests = self._counter("sqs_requests_total", "what SQS bills", "operation")

    def request_sent(self, service: str, operation: str) -> None:
        """Count one HTTP request; a call that is retried sends several."""
        if service == "sqs":
            self._sqs_requests.labels(self._operation(operation)).inc()


class ApiMetrics(AwsMetrics):
    """The series of the API."""

    def __init__(self) -> None:
        super().__init__()
        self._method, self._route = methods(), routes()
        self._service, self._table = names(), codes()
        http = ("method", "route", "status_code")
        query, call = ("operation", "table"), ("service", "operation")
        self._http_seconds = self._histogram(
            "http_request_duration_seconds", "duration of HTTP requests", API_SECONDS, *http
        )
        self._http = self._counter("http_requests_total", "HTTP requests", *http)
        self._status = Vocabulary(str(status) for status in range(100, 600))
        self._mime_type = Vocabulary(image_format.mime_type for image_format in ImageFormat)
        self._limit = Vocabulary({*LIMITS, "least_rate", "job_keys"})
        self._limited = self._counter(
            "limit_refusals_total", "requests beyond a limit of a tenant or key", "limit"
        )
        self._uploads = self._histogram("upload_size_bytes", "uploads", UPLOAD_BYTES, "mime_type")
        self._query_seconds = self._histogram(
            "db_query_duration_seconds", "duration of database queries", API_SECONDS, *query
        )
        self._query_errors = self._counter(
            "db_query_error_total", "database queries that failed", *query, "error_code"
        )
        self._refusal = names()
        self._refused_keys = self._counter(
            "auth_failures_total", "requests whose key was refused", "reason"
        )
        self._external_seconds = self._histogram(
            "external_duration_seconds", "duration of calls of other services", API_SECONDS, *call
        )
        self._external_errors = self._counter(
            "external_error_total", "calls of other services that failed", *call, "error_code"
        )

    def answered(self, method: str, route: str | None, status: int, duration: timedelta) -> None:
        """Count a request; `route` is the route's template, None where no route matched."""
        told = (self._method(method), self._route(route), self._status(str(status)))
        self._http.labels(*told).inc()
        self._http_seconds.labels(*told).observe(duration.total_seconds())

    def limited(self, limit: str) -> None:
        """Count a request that was refused, or a body that was ended, for this limit."""
        self._limited.labels(self._limit(limit)).inc()

    def uploaded(self, mime_type: str | None, size_bytes: int) -> None:
        """Count an upload that arrived whole."""
        media_type = (mime_type or "").partition(";")[0].strip().lower()
        self._uploads.labels(self._mime_type(media_type)).observe(size_bytes)

    def authentication_failed(self, reason: str) -> None:
        """Count a request whose key was refused, by the reason that auth.py has for it."""
        self._refused_keys.labels(self._refusal(reason)).inc()

    def query(self, operation: str, table: str) -> Timed:
        """Surround one use of the database: its time, and the error it ends with, if any."""
        told = (self._operation(operation), self._table(table))
        return Timed(
            self._query_seconds.labels(*told).observe,
            lambda code: self._query_errors.labels(*told, self._code(code)).inc(),
        )

    def call_ended(
        self, service: str, operation: str, resource: str, seconds: float, error_code: str | None
    ) -> None:
        """Take how a call went."""
        del resource  # is not a label here
        told = (self._service(service), self._operation(operation))
        self._external_seconds.labels(*told).observe(seconds)
        if error_code is not None:
            self._external_errors.labels(*told, self._code(error_code)).inc()


MAKES_IMAGES: Final = "process_image"


class ConsoleMetrics(ProcessMetrics):
    """The series of the console."""

    def __init__(self) -> None:
        super().__init__()
        self._method, self._route = methods(), routes()
        self._status = Vocabulary(str(status) for status in range(100, 600))
        http = ("method", "route", "status_code")
        self._http_seconds = self._histogram(
            "http_request_duration_seconds", "duration of HTTP requests", API_SECONDS, *http
        )
        self._sessions = self._gauge("console_sessions", "sessions that are not over")

    def watch_sessions(self, count: Callable[[], int]) -> None:
        """Ask this at every scrape for how many there are."""
        self._sessions.set_function(count)

    def answered(self, method: str, route: str | None, status: int, duration: timedelta) -> None:
        """Count a request; a stream is none."""
        told = (self._method(method), self._route(route), self._status(str(status)))
        self._http_seconds.labels(*told).observe(_seconds(duration))


class FleetMetrics(AwsMetrics):
    """What workers and maintenance both tell; a job type that is not among these is `other`."""

    def __init__(self, job_types: Collection[str]) -> None:
        super().__init__()
        self._type, self._bucket = Vocabulary(job_types), names()
        self._query_seconds = self._histogram(
            "db_query_duration_seconds", "duration of queries", WORK_SECONDS, "query_type"
        )
        self._query_errors = self._counter(
            "db_query_errors_total", "queries that failed", "query_type", "error_type"
        )
        self._s3_seconds = self._histogram(
            "s3_operation_duration_seconds", "S3 calls", AWS_SECONDS, "operation", "bucket"
        )
        self._s3_errors = self._counter(
            "s3_operation_errors_total", "S3 failures", "operation", "bucket", "error_code"
        )
        self._sqs_errors = self._counter("sqs_errors_total", "failures", "operation", "error_code")
        self._job_seconds = self._histogram(
            "job_processing_duration_seconds", "attempts", WORK_SECONDS, "job_type", "status"
        )
        self._jobs = self._counter("job_processed_total", "attempts", "job_type", "status")
        self._long_seconds = self._histogram(
            "job_attempt_seconds", "attempts, however long", ATTEMPT_SECONDS, "job_type"
        )
        self._failed = self._counter("jobs_failed_total", "jobs given up", "job_type", "why")
        self._attempts = self._counter("job_attempts_total", "attempts, as recorded", "outcome")

    def attempt_ended(self, ended: Ended) -> None:
        """Count the end of a claim that this process wrote; call it by `tell_ends`."""
        told = (self._type(ended.type), ended.state.value)
        self._attempts.labels(ended.outcome).inc()
        self._jobs.labels(*told).inc()
        self._job_seconds.labels(*told).observe(ended.duration.total_seconds())
        self._long_seconds.labels(told[0]).observe(ended.duration.total_seconds())
        if ended.state is JobState.FAILED:
            self._failed.labels(told[0], self._code(ended.why)).inc()

    def query(self, operation: str, table: str = "") -> Timed:
        """Surround one use of the database: its time, and the error it ends with, if any."""
        del table  # is not a label here
        name = self._operation(operation)
        return Timed(
            self._query_seconds.labels(name).observe,
            lambda code: self._query_errors.labels(name, self._code(code)).inc(),
        )

    def call_ended(
        self, service: str, operation: str, resource: str, seconds: float, error_code: str | None
    ) -> None:
        """Take how a call went; SQS has no durations, as those of long polls say nothing."""
        name, code = self._operation(operation), error_code and self._code(error_code)
        if service == "s3":
            bucket = self._bucket(resource)
            self._s3_seconds.labels(name, bucket).observe(seconds)
            if code:
                self._s3_errors.labels(name, bucket, code).inc()
        elif service == "sqs" and code:
            self._sqs_errors.labels(name, code).inc()


class WorkerMetrics(FleetMetrics):
    """The series of a worker."""

    def __init__(self, job_types: Collection[str]) -> None:
        super().__init__(job_types)
        self._queue_milliseconds = self._histogram(
            "job_queue_latency_milliseconds", "due until claimed", QUEUE_MILLISECONDS, "job_type"
        )
        self._wait_seconds = self._histogram(
            "job_wait_seconds", "due until claimed, however long", WAIT_SECONDS, "job_type"
        )
        self._active = self._gauge("job_active_count", "jobs that run here", "job_type")
        self._published = self._histogram(
            "image_published_seconds", "accepted until shown", PUBLISHED_SECONDS
        )
        self._images = self._counter("image_processing_errors_total", "images failed", "error_type")
        self._verdicts = self._counter("claim_verdict_total", "ids asked for", "verdict")
        self._lost = self._counter("claim_lost_total", "claims that another one replaced")
        self._slots = self._gauge("worker_slots", "room for jobs", "lane", "state")
        self._child_seconds = self._histogram(
            "child_cpu_seconds", "of the children of an attempt", CHILD_SECONDS, "job_type"
        )
        self._child_memory = self._histogram(
            "child_memory_bytes", "of the child that had most", CHILD_BYTES, "job_type"
        )
        self._child_bytes = self._counter(
            "child_bytes_total", "read and made by children", "job_type", "direction"
        )
        self._beat_age = self._gauge("last_beat_age_seconds", "since the last acknowledged beat")

    def watch_beat(self, age: Callable[[], timedelta]) -> None:
        """Ask this at every scrape for how long ago the last acknowledged beat was sent."""
        self._beat_age.set_function(lambda: age().total_seconds())

    def claimed(self, verdict: Verdict) -> None:
        """Count what the claim said about one received id."""
        self._verdicts.labels(verdict.value).inc()

    @contextmanager
    def attempt(self, job_type: str, queue_time: timedelta) -> Iterator[None]:
        """Surround a claimed job, however it ends; it waited for this long."""
        name = self._type(job_type)
        self._queue_milliseconds.labels(name).observe(queue_time / timedelta(milliseconds=1))
        self._wait_seconds.labels(name).observe(queue_time.total_seconds())
        with self._active.labels(name).track_inprogress():
            yield

    def attempt_ended(self, ended: Ended) -> None:
        """Count the end of a claim, and the error of an image that could not be made."""
        super().attempt_ended(ended)
        is_error = ended.outcome in {"retried", "failed"} and ended.why not in set(CancelCode)
        if ended.type == MAKES_IMAGES and is_error:
            self._images.labels(self._code(ended.why)).inc()
        if ended.type == MAKES_IMAGES and ended.why == ResultReason.DONE and ended.age is not None:
            self._published.observe(ended.age.total_seconds())
        name, used = self._type(ended.type), ended.used
        if used:
            self._child_seconds.labels(name).observe(used.get("cpu_seconds", 0))
            self._child_memory.labels(name).observe(used.get("peak_bytes", 0))
            self._child_bytes.labels(name, "read").inc(used.get("read_bytes", 0))
            self._child_bytes.labels(name, "made").inc(used.get("made_bytes", 0))

    def claim_lost(self) -> None:
        """Count an attempt that had to stop because its claim does not stand any more."""
        self._lost.inc()

    def slots_changed(self, lane: Lane, *, free: int, reserved: int, busy: int) -> None:
        """Take how a lane's slots are used; reserved ones belong to a receive on its way."""
        for state, slots in (("free", free), ("reserved", reserved), ("busy", busy)):
            self._slots.labels(lane.value, state).set(slots)


def tell_ends(metrics: FleetMetrics, ended: Iterable[Ended]) -> None:
    """Count each end of an attempt, and write its line: how long, what came of it and why.

    Once, by whoever wrote its row. Most attempts end with their worker's own settlement. A dead
    worker's are ended by the rescuer, and one whose lock ran out by the claim that finds it so.
    Whoever that is calls this once its transaction is committed; nobody else does. A process that
    is killed between the two has told nothing of what it had just written, and nobody makes up for
    it: at most the jobs that one settle, one claim or one rescue can end. Who never got the answer
    asks for it.
    """
    for end in ended:
        metrics.attempt_ended(end)
        log.info(
            END_EVENTS[end.outcome],
            **ids_of(end),
            worker_id=str(end.worker_id),
            duration_seconds=_seconds(end.duration),
            queue_seconds=_seconds(end.queue_time),
            outcome=end.outcome,
            why=end.why,
            retries=max(0, end.attempts - 1),
            max_attempts=end.max_attempts,
            state=end.state.value,
            **end.used,
        )


@contextmanager
def ends_untold(*, at_most: int) -> Iterator[None]:
    """What a process does last. It has failed if it perhaps wrote ends that nobody will tell."""
    if at_most:
        log.error("ends.untold", at_most=at_most)
    yield
    if at_most:
        sentence, detail = "Ends of attempts were not told.", f"{at_most} at most"
        raise Unavailable("ends_untold", sentence, detail)


def _temporary(state: str) -> float:
    """Bytes of the file system where temporary files are; nothing of one that cannot be asked."""
    with suppress(OSError):
        return float(getattr(shutil.disk_usage(tempfile.gettempdir()), state))
    return float("nan")


def _one_of(told: Callable[[], Mapping[str, int]], name: str) -> float:
    return told()[name]


def _seconds(span: timedelta) -> float:
    return round(span.total_seconds(), 3)
