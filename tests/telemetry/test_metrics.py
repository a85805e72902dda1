"""The names, types, labels and buckets that dashboards and alarms are built on, typed out."""

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from imagefleet.aws.calls import AwsCalls, Call, CallWatcher
from imagefleet.errors import ClaimLost, NotFound, Unavailable
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.model import Ended, JobState, Lane, TenantId, Verdict, WorkerId, new_job_id
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.telemetry.metrics import ApiMetrics, WorkerMetrics, tell_ends
from imagefleet.telemetry.series import Series, Timed
from imagefleet.telemetry.tracing import Tracing

Buckets = list[float]
HTTP: Buckets = [0.1, 0.3, 0.5, 1, 2, 5, 10]
DARK: Buckets = [1, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600]
AWS: Buckets = [0.1, 0.3, 0.5, 1, 3, 5, 7, 10]
WORK: Buckets = [0.1, 0.3, 0.5, 0.7, 1, 3, 5, 7, 10]
ATTEMPTS: Buckets = [1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600]
WAITS: Buckets = [1, 3, 10, 30, 60, 300, 900, 3600, 14400]
PUBLISHED: Buckets = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600]
UPLOADS: Buckets = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576]
UPLOADS += [2097152, 5242880, 10485760, 20971520, 52428800]
LATENCY: Buckets = [
    10,
    30,
    50,
    70,
    100,
    300,
    500,
    700,
    1000,
    1500,
    2000,
    2500,
    3000,
    3500,
    4000,
    4500,
]
LATENCY += [5000, 5500, 6000, 6500, 7000, 7500, 8000, 8500, 9000, 9500, 10000]

COUNTER, GAUGE = "counter", "gauge"
Shape = tuple[str, set[str]] | tuple[str, set[str], Buckets]

API: dict[str, Shape] = {
    "http_request_duration_seconds": ("histogram", {"method", "route", "status_code"}, HTTP),
    "http_requests_total": (COUNTER, {"method", "route", "status_code"}),
    "upload_size_bytes": ("histogram", {"mime_type"}, UPLOADS),
    "limit_refusals_total": (COUNTER, {"limit"}),
    "db_query_duration_seconds": ("histogram", {"operation", "table"}, HTTP),
    "db_query_error_total": (COUNTER, {"operation", "table", "error_code"}),
    "auth_failures_total": (COUNTER, {"reason"}),
    "external_duration_seconds": ("histogram", {"service", "operation"}, HTTP),
    "external_error_total": (COUNTER, {"service", "operation", "error_code"}),
    "sqs_requests_total": (COUNTER, {"operation"}),
    "event_loop_lag_seconds": (GAUGE, set()),
    "live_settings_age_seconds": (GAUGE, set()),
    "db_pool_connections": (GAUGE, {"state"}),
    "temporary_bytes": (GAUGE, {"state"}),
}
FLEET: dict[str, Shape] = {
    "s3_operation_duration_seconds": ("histogram", {"operation", "bucket"}, AWS),
    "s3_operation_errors_total": (COUNTER, {"operation", "bucket", "error_code"}),
    "db_query_duration_seconds": ("histogram", {"query_type"}, WORK),
    "db_query_errors_total": (COUNTER, {"query_type", "error_type"}),
    "sqs_requests_total": (COUNTER, {"operation"}),
    "sqs_errors_total": (COUNTER, {"operation", "error_code"}),
    "event_loop_lag_seconds": (GAUGE, set()),
    "live_settings_age_seconds": (GAUGE, set()),
    "db_pool_connections": (GAUGE, {"state"}),
    "temporary_bytes": (GAUGE, {"state"}),
    "job_processing_duration_seconds": ("histogram", {"job_type", "status"}, WORK),
    "job_processed_total": (COUNTER, {"job_type", "status"}),
    "job_attempts_total": (COUNTER, {"outcome"}),
    "job_attempt_seconds": ("histogram", {"job_type"}, ATTEMPTS),
    "jobs_failed_total": (COUNTER, {"job_type", "why"}),
}
WORKER: dict[str, Shape] = FLEET | {
    "job_queue_latency_milliseconds": ("histogram", {"job_type"}, LATENCY),
    "job_wait_seconds": ("histogram", {"job_type"}, WAITS),
    "image_published_seconds": ("histogram", set(), PUBLISHED),
    "image_processing_errors_total": (COUNTER, {"error_type"}),
    "job_active_count": (GAUGE, {"job_type"}),
    "claim_verdict_total": (COUNTER, {"verdict"}),
    "claim_lost_total": (COUNTER, set()),
    "child_cpu_seconds": ("histogram", {"job_type"}, [0.1, 0.3, 1, 3, 10, 30]),
    "child_memory_bytes": (
        "histogram",
        {"job_type"},
        [mebibytes * 2**20 for mebibytes in (64, 128, 256, 512, 1024, 2048)],
    ),
    "child_bytes_total": (COUNTER, {"job_type", "direction"}),
    "worker_slots": (GAUGE, {"lane", "state"}),
    "last_beat_age_seconds": (GAUGE, set()),
}
MAINTENANCE: dict[str, Shape] = FLEET | {
    "cloudfront_operation_duration_seconds": ("histogram", {"operation"}, AWS),
    "cloudfront_operation_errors_total": (COUNTER, {"operation", "error_code"}),
    "job_queue_depth": (GAUGE, {"job_type"}),
    "jobs_open": (GAUGE, {"job_type", "state"}),
    "oldest_job_age_seconds": (GAUGE, {"job_type", "state"}),
    "jobs_stuck": (GAUGE, set()),
    "rescued_jobs_total": (COUNTER, set()),
    "rings_announced": (GAUGE, {"lane"}),
    "ring_window": (GAUGE, {"lane"}),
    "oldest_ring_age_seconds": (GAUGE, {"lane"}),
    "dispatcher_silence_seconds": (GAUGE, {"lane"}),
    "sqs_messages": (GAUGE, {"lane", "state"}),
    "queue_drift": (GAUGE, {"lane"}),
    "dead_letters_unacknowledged": (GAUGE, set()),
    "image_dark_seconds": ("histogram", set(), DARK),
    "invalidation_paths_total": (COUNTER, set()),
    "invalidation_debts_total": (COUNTER, set()),
    "invalidation_paths_budget": (GAUGE, set()),
    "invalidation_paths_this_month": (GAUGE, set()),
    "invalidations_owed": (GAUGE, set()),
    "invalidation_oldest_age_seconds": (GAUGE, set()),
    "invalidation_paths_in_flight": (GAUGE, set()),
    "missing_objects": (GAUGE, set()),
    "upkeep_behind_seconds": (GAUGE, {"step"}),
    "upkeep_done_total": (COUNTER, {"step"}),
    "swept_objects_total": (COUNTER, {"kind"}),
    "swept_bytes_total": (COUNTER, {"kind"}),
    "breaker_open": (GAUGE, {"service"}),
    "breaker_trips_total": (COUNTER, {"service"}),
    "ledger_accepted": (GAUGE, set()),
    "ledger_open": (GAUGE, set()),
    "ledger_completed": (GAUGE, set()),
    "ledger_failed": (GAUGE, set()),
    "ledger_pruned": (GAUGE, set()),
    "ledger_missing": (GAUGE, set()),
}

SECOND = timedelta(seconds=1)


def an_end(outcome: str, why: str, state: JobState) -> Ended:
    return Ended(
        job_id=new_job_id(),
        claim_no=3,
        tenant_id=TenantId("acme"),
        type="process_image",
        lane=Lane.GENERAL,
        worker_id=WorkerId(uuid4()),
        duration=SECOND,
        queue_time=SECOND / 4,
        outcome=outcome,
        why=why,
        state=state,
        attempts=2,
        max_attempts=5,
        correlation_id="c-1",
        traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
    )


COMPLETED = an_end("completed", "done", JobState.COMPLETED)


def test_what_children_took_is_counted_by_type_and_of_no_child_nothing() -> None:
    metrics = worker_metrics()
    metrics.attempt_ended(COMPLETED)
    metrics.attempt_ended(
        replace(COMPLETED, cpu_seconds=0.2, peak_bytes=100 * 2**20, read_bytes=3, made_bytes=4)
    )

    told = "job_type=process_image"
    assert 1 == value(metrics, f"child_cpu_seconds_count{{{told}}}")
    assert 0.2 == value(metrics, f"child_cpu_seconds_sum{{{told}}}")
    assert 100 * 2**20 == value(metrics, f"child_memory_bytes_sum{{{told}}}")
    assert 3 == value(metrics, f"child_bytes_total{{direction=read,{told}}}")
    assert 4 == value(metrics, f"child_bytes_total{{direction=made,{told}}}")


ENDINGS = [
    COMPLETED,
    an_end("retried", "deadline", JobState.FAILED_RETRYABLE),
    an_end("released", "drain", JobState.FAILED_RETRYABLE),
    an_end("failed", "corrupt", JobState.FAILED),
    an_end("rescued", "worker_lost", JobState.FAILED_RETRYABLE),
    an_end("rescued", "poison", JobState.FAILED),
    an_end("taken_over", "lock_expired", JobState.PROCESSING),
    an_end("exhausted", "lock_expired", JobState.FAILED),
]


@dataclass(frozen=True)
class Scrape:
    """What one scrape gave: each family's type, labels and buckets, and each sample's value."""

    shapes: Mapping[str, Shape]
    values: Mapping[str, float]

    @classmethod
    def of(cls, metrics: Series) -> "Scrape":
        shapes: dict[str, Shape] = {}
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(metrics.exposition().decode()):
            if family.name.startswith("process_"):
                continue
            labels = {key for sample in family.samples for key in sample.labels} - {"le"}
            name = family.name + ("_total" if family.type == COUNTER else "")
            shapes[name] = (family.type, labels)
            bounds = {float(s.labels["le"]) for s in family.samples if "le" in s.labels}
            if family.type == "histogram":
                shapes[name] = (family.type, labels, sorted(bounds - {math.inf}))
            for sample in family.samples:
                told = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                values[f"{sample.name}{{{told}}}"] = sample.value
        return cls(shapes, values)


def worker_metrics() -> WorkerMetrics:
    return WorkerMetrics(BUILT_IN)


def maintenance_metrics() -> MaintenanceMetrics:
    return MaintenanceMetrics(BUILT_IN)


def value(metrics: Series, sample: str) -> float | None:
    return Scrape.of(metrics).values.get(sample)


def fail(timed: Timed, error: BaseException) -> None:
    with pytest.raises(type(error)), timed:
        raise error


def test_the_api_has_exactly_these_series() -> None:
    metrics = ApiMetrics()
    metrics.answered("GET", "/v1/jobs/{job_id}", 200, SECOND)
    metrics.uploaded("image/png", 1)
    metrics.authentication_failed("unknown")
    metrics.limited("requests")
    fail(metrics.query("insert", "jobs"), Unavailable("database_timeout", "Later."))
    metrics.call_ended("s3", "PutObject", "originals", 1, "s3_throttled")
    metrics.request_sent("sqs", "SendMessageBatch")
    metrics.watch_pool(lambda: {"busy": 1})

    assert API == Scrape.of(metrics).shapes


def test_a_worker_has_exactly_these_series() -> None:
    metrics = worker_metrics()
    move_fleet(metrics)
    with metrics.attempt("noop", SECOND):
        metrics.attempt_ended(replace(COMPLETED, cpu_seconds=1, made_bytes=2))
    metrics.claimed(Verdict.CLAIMED)
    metrics.slots_changed(Lane.FAST, free=1, reserved=1, busy=1)

    assert WORKER == Scrape.of(metrics).shapes


def test_maintenance_has_exactly_these_series() -> None:
    metrics = maintenance_metrics()
    move_fleet(metrics)
    metrics.call_ended("cloudfront", "CreateInvalidation", "E1", 1, "cloudfront_throttled")
    metrics.attempt_ended(COMPLETED)
    metrics.swept("litter", 3, 4)
    metrics.upkept("prune_jobs", 5)
    sample_everything(metrics)

    assert MAINTENANCE == Scrape.of(metrics).shapes


def move_fleet(metrics: WorkerMetrics | MaintenanceMetrics) -> None:
    fail(metrics.query("claim"), Unavailable("database_timeout", "Later."))
    metrics.call_ended("s3", "PutObject", "outputs", 1, "s3_throttled")
    metrics.call_ended("sqs", "ReceiveMessage", "general", 20, "sqs_unavailable")
    metrics.request_sent("sqs", "ReceiveMessage")
    metrics.attempt_ended(an_end("failed", "corrupt", JobState.FAILED))
    metrics.watch_pool(lambda: {"busy": 1})


def sample_everything(metrics: MaintenanceMetrics) -> None:
    metrics.depths_sampled((name, "queued", 2) for name in ("unheard_of", "noop", "another"))
    metrics.ages_sampled(
        (job_type, "queued", timedelta(seconds=age))
        for job_type, age in (("unheard_of", 1), ("noop", -5), ("another", 2))
    )
    metrics.stuck_sampled(1)
    metrics.rings_sampled(
        Lane.FAST,
        announced=4,
        window=6,
        waited=timedelta(seconds=5),
        silence=timedelta(seconds=1),
    )
    metrics.lane_sampled(Lane.FAST, due=10, visible=6, in_flight=1)
    metrics.dead_letters_sampled(2)
    metrics.invalidations_sampled(7, timedelta(seconds=8), 9, 11)
    metrics.missing_sampled(2)
    metrics.behind_sampled({"prune": timedelta(days=1), "fold": timedelta(0)})
    metrics.breaker_sampled("s3", is_open=True, trips=3)
    metrics.ledger_sampled(
        {"accepted": 10, "open": 1, "completed": 5, "failed": 2, "pruned": 1, "missing": 1}
    )


def test_no_label_of_any_series_is_bound_to_a_tenant_or_a_job() -> None:
    labels = set().union(*(shape[1] for shape in (API | WORKER | MAINTENANCE).values()))

    assert set() == labels & {"tenant", "tenant_id", "job_id", "key", "path", "image_id"}


def test_two_processes_in_one_interpreter_share_nothing() -> None:
    one, other = ApiMetrics(), ApiMetrics()

    one.answered("GET", "/v1/jobs", 200, SECOND)

    assert value(other, "http_requests_total{method=GET,route=/v1/jobs,status_code=200}") is None


def test_a_request_is_counted_and_timed_under_its_route() -> None:
    metrics = ApiMetrics()

    metrics.answered("GET", "/v1/jobs/{job_id}", 404, timedelta(milliseconds=200))

    told = "method=GET,route=/v1/jobs/{job_id},status_code=404"
    values = Scrape.of(metrics).values
    assert 1 == values[f"http_requests_total{{{told}}}"]
    assert 0.2 == pytest.approx(values[f"http_request_duration_seconds_sum{{{told}}}"])


@pytest.mark.parametrize("make", [worker_metrics, maintenance_metrics])
@pytest.mark.parametrize("ended", ENDINGS, ids=lambda ended: f"{ended.outcome} {ended.state}")
def test_an_end_is_counted_and_told_once_by_whichever_process_wrote_it(
    make: Callable[[], WorkerMetrics | MaintenanceMetrics], ended: Ended
) -> None:
    metrics = make()

    with capture_logs() as lines:
        tell_ends(metrics, [ended])

    values = Scrape.of(metrics).values
    told = f"job_type=process_image,status={ended.state}"
    assert 1 == values[f"job_processed_total{{{told}}}"]
    assert 1 == values[f"job_processing_duration_seconds_sum{{{told}}}"]
    assert 1 == values[f"job_attempts_total{{outcome={ended.outcome}}}"]
    (line,) = lines
    assert f"job.{ended.outcome}" == line["event"]
    assert (1.0, 0.25, ended.outcome, ended.why, 1, ended.state) == (
        line["duration_seconds"],
        line["queue_seconds"],
        line["outcome"],
        line["why"],
        line["retries"],
        line["state"],
    )
    assert (str(ended.job_id), 3, "c-1", "a" * 32) == (
        line["job_id"],
        line["claim_no"],
        line["correlation_id"],
        line["trace_id"],
    )


@pytest.mark.parametrize(
    ("outcome", "why", "errors"),
    [
        ("failed", "corrupt", 1),
        ("retried", "deadline", 1),
        ("failed", "image_deleted", None),
        ("completed", "done", None),
        ("taken_over", "lock_expired", None),
    ],
)
def test_an_image_that_could_not_be_made_is_counted_by_its_error(
    outcome: str, why: str, errors: int | None
) -> None:
    metrics = worker_metrics()

    metrics.attempt_ended(an_end(outcome, why, JobState.FAILED))
    metrics.attempt_ended(replace(an_end(outcome, why, JobState.FAILED), type="noop"))

    assert errors == value(metrics, f"image_processing_errors_total{{error_type={why}}}")


def test_an_attempt_of_minutes_is_told_from_one_of_an_hour() -> None:
    metrics = maintenance_metrics()

    metrics.attempt_ended(replace(COMPLETED, duration=timedelta(minutes=7)))

    told = "job_attempt_seconds_bucket{job_type=process_image,le"
    assert (0, 1) == (value(metrics, f"{told}=300.0}}"), value(metrics, f"{told}=600.0}}"))


@pytest.mark.parametrize(
    ("ended", "failed"),
    [
        (an_end("failed", "corrupt", JobState.FAILED), 1),
        (an_end("rescued", "poison", JobState.FAILED), 1),
        (an_end("retried", "unavailable", JobState.FAILED_RETRYABLE), None),
        (COMPLETED, None),
    ],
    ids=lambda told: f"{told.outcome} {told.why}" if isinstance(told, Ended) else "",
)
def test_a_job_that_is_given_up_is_counted_by_its_reason(ended: Ended, failed: int | None) -> None:
    metrics = maintenance_metrics()

    metrics.attempt_ended(ended)

    told = f"job_type=process_image,why={ended.why}"
    assert failed == value(metrics, f"jobs_failed_total{{{told}}}")


@pytest.mark.parametrize(
    ("changed", "published"),
    [
        ({}, 1),
        ({"why": "superseded"}, 0),
        ({"age": None}, 0),
        ({"type": "noop"}, 0),
        ({"outcome": "failed", "why": "corrupt", "state": JobState.FAILED}, 0),
    ],
)
def test_an_image_that_is_shown_is_timed_from_when_it_was_accepted(
    changed: dict[str, Any], published: int
) -> None:
    metrics = worker_metrics()

    metrics.attempt_ended(replace(COMPLETED, **{"age": timedelta(seconds=12)} | changed))

    assert published == value(metrics, "image_published_seconds_count{}")
    assert 12 * published == value(metrics, "image_published_seconds_sum{}")


def test_connections_and_room_for_files_are_asked_for_at_every_scrape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = ApiMetrics()
    busy = itertools.count(1)
    metrics.watch_pool(lambda: {"busy": next(busy), "idle": 0})
    before = value(metrics, "db_pool_connections{state=busy}")

    after = value(metrics, "db_pool_connections{state=busy}")
    assert before is not None
    assert after is not None
    assert before < after
    assert 0 < (value(metrics, "temporary_bytes{state=free}") or 0)
    monkeypatch.setattr("tempfile.tempdir", "/is/not/there")
    assert math.isnan(value(metrics, "temporary_bytes{state=free}") or 0)


def test_a_job_is_active_until_its_attempt_is_over_however_it_ends() -> None:
    metrics = worker_metrics()

    def lose() -> None:
        assert 1 == value(metrics, "job_active_count{job_type=noop}")
        raise ClaimLost("x")

    with pytest.raises(ClaimLost), metrics.attempt("noop", timedelta(milliseconds=40)):
        lose()

    assert 0 == value(metrics, "job_active_count{job_type=noop}")
    assert 40 == value(metrics, "job_queue_latency_milliseconds_sum{job_type=noop}")
    assert 0.04 == value(metrics, "job_wait_seconds_sum{job_type=noop}")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("database_timeout", "Later."), "database_timeout"),
        (asyncio.CancelledError(), "cancelled"),
        (ZeroDivisionError(), "bug"),
    ],
)
def test_a_query_that_fails_is_timed_and_counted_by_its_code(
    error: BaseException, code: str
) -> None:
    metrics = worker_metrics()

    fail(metrics.query("claim"), error)

    assert 1 == value(metrics, f"db_query_errors_total{{error_type={code},query_type=claim}}")
    assert 1 == value(metrics, "db_query_duration_seconds_count{query_type=claim}")


@pytest.mark.parametrize("answer", [NotFound("job"), ClaimLost("job 1 claim 2")])
def test_a_refusal_is_an_answer_of_the_database_and_no_error(answer: Exception) -> None:
    metrics = ApiMetrics()

    fail(metrics.query("select", "jobs"), answer)

    assert 1 == value(metrics, "db_query_duration_seconds_count{operation=select,table=jobs}")
    assert "error_code" not in metrics.exposition().decode()


def test_aws_calls_move_the_series_of_their_process() -> None:
    api, worker, maintenance = ApiMetrics(), worker_metrics(), maintenance_metrics()
    for metrics in (api, worker, maintenance):
        calls: CallWatcher = AwsCalls(metrics, Tracing())
        for call in (
            Call("s3", "PutObject", "outputs"),
            Call("sqs", "DeleteMessageBatch", "fast"),
            Call("cloudfront", "CreateInvalidation", "E1"),
        ):
            with calls.during(call):
                calls.sent(call.service, call.operation)
                calls.sent(call.service, call.operation)
            calls.ended(call, 0.5, f"{call.service}_throttled")

    told = "error_code=s3_throttled,operation=PutObject"
    assert 1 == value(api, f"external_error_total{{{told},service=s3}}")
    assert 1 == value(worker, f"s3_operation_errors_total{{bucket=outputs,{told}}}")
    for metrics in (api, worker, maintenance):
        assert 2 == value(metrics, "sqs_requests_total{operation=DeleteMessageBatch}")
    cloudfront = "error_code=cloudfront_throttled,operation=CreateInvalidation"
    assert 1 == value(maintenance, f"cloudfront_operation_errors_total{{{cloudfront}}}")
    assert "cloudfront" not in worker.exposition().decode()


def test_samples_are_shown_by_the_one_who_took_them_and_vanish_with_the_election() -> None:
    metrics = maintenance_metrics()
    before = Scrape.of(metrics).shapes
    sample_everything(metrics)

    values = Scrape.of(metrics).values
    assert 3 == values["queue_drift{lane=fast}"]
    assert 1 == values["ledger_missing{}"]
    assert 1 == values["breaker_open{service=s3}"]
    assert 2 == values["jobs_open{job_type=noop,state=queued}"]
    assert 4 == values["jobs_open{job_type=other,state=queued}"], "of all that nobody knows"
    assert 0 == values["oldest_job_age_seconds{job_type=noop,state=queued}"]
    assert 2 == values["oldest_job_age_seconds{job_type=other,state=queued}"]
    assert 8 == values["invalidation_oldest_age_seconds{}"]

    metrics.unelected()
    assert before == Scrape.of(metrics).shapes


def test_a_job_type_that_has_no_jobs_any_more_is_shown_as_zero() -> None:
    metrics = maintenance_metrics()
    strangers = [("stranger", "queued", 1), ("another", "failed_retryable", 2)]
    metrics.depths_sampled([("noop", "queued", 3), *strangers])
    metrics.depths_sampled([("noop", "processing", 3), *strangers])

    assert 0 == value(metrics, "job_queue_depth{job_type=noop}"), "what runs does not wait"
    assert 3 == value(metrics, "job_queue_depth{job_type=other}")


def test_sampler_that_are_ages_are_asked_for_at_every_scrape() -> None:
    metrics = worker_metrics()
    ages = itertools.count(1)
    metrics.watch_beat(lambda: timedelta(seconds=next(ages)))
    metrics.watch_loop(lambda: timedelta(milliseconds=5))

    assert 1 == value(metrics, "last_beat_age_seconds{}")
    assert 2 == value(metrics, "last_beat_age_seconds{}")
    assert 0.005 == value(metrics, "event_loop_lag_seconds{}")


HOSTILE = st.one_of(st.text(max_size=200), st.integers(0, 10**9).map("word{}".format))
API_USES: dict[str, Callable[[ApiMetrics, str], None]] = {
    "method": lambda m, word: m.answered(word, "/v1/jobs", 200, SECOND),
    "route": lambda m, word: m.answered("GET", word, 200, SECOND),
    "mime": lambda m, word: m.uploaded(word, 1),
    "table": lambda m, word: fail(m.query(word, word), Unavailable(word, "Later.")),
    "call": lambda m, word: m.call_ended(word, word, word, 1, word),
    "sent": lambda m, word: m.request_sent("sqs", word),
    "refused": lambda m, word: m.authentication_failed(word),
}


@pytest.mark.parametrize("use", API_USES)
def test_no_label_can_be_made_to_grow_without_end(use: str) -> None:
    metrics = ApiMetrics()
    for number in range(2000):
        API_USES[use](metrics, f"/word/{number}")

    samples = Scrape.of(metrics).values
    assert len(samples) < 200 * (len(UPLOADS) + 3)


@given(HOSTILE)
def test_no_word_breaks_an_exposition(word: str) -> None:
    metrics = ApiMetrics()
    for use in API_USES.values():
        use(metrics, word)

    assert set(API) >= set(Scrape.of(metrics).shapes)


def test_unknown_values_have_one_word() -> None:
    api, worker = ApiMetrics(), worker_metrics()

    api.answered("PROPFIND", None, 999, SECOND)
    api.uploaded("image/jpeg; q=1", 1)
    api.uploaded("text/html", 1)
    api.uploaded(None, 1)
    worker.attempt_ended(replace(COMPLETED, type="stranger"))
    worker.attempt_ended(an_end("failed", '"} 1\nforged 1', JobState.FAILED))

    told = "method=other,route=unmatched,status_code=other"
    assert 1 == value(api, f"http_requests_total{{{told}}}")
    assert 1 == value(api, "upload_size_bytes_count{mime_type=image/jpeg}")
    assert 2 == value(api, "upload_size_bytes_count{mime_type=other}")
    assert 1 == value(worker, "job_processed_total{job_type=other,status=completed}")
    assert 1 == value(worker, "image_processing_errors_total{error_type=other}")
