"""What the dashboards show: every panel with its queries, in the order in which it is looked at.

`write.py` makes the files that Grafana reads of it. `RATE` is as long as Grafana finds good for the
time that is shown. Whatever stands `or vector(0)` has no series before it happens for the first
time, and is to be seen as none. Samples of the whole fleet come from one elected maintenance
process, so they are maxima, as in the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

RATE: Final = "$__rate_interval"
PRICES: Final = "services/imagefleet/cli/prices.toml"
A_MONTH: Final = "2592000"  # seconds of 30 days

Unit = Literal["short", "s", "bytes", "Bps", "percentunit", "reqps", "ops", "currencyUSD", "none"]


@dataclass(frozen=True, slots=True)
class Panel:
    """A drawing, or with `is_number` one figure a query."""

    title: str
    queries: Mapping[str, str]
    """By what each is called; `{{lane}}` is a label of it."""
    unit: Unit = "short"
    about: str = ""
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of them, of which the numbers come first."""

    name: str
    title: str
    about: str
    panels: tuple[Panel, ...] = field(default_factory=tuple)


def number(title: str, query: str, unit: Unit = "short", about: str = "") -> Panel:
    """One figure."""
    return Panel(title, {title: query}, unit, about, is_number=True)


def per_second(series: str, by: str, where: str = "") -> str:
    """How often."""
    return f"sum by ({by}) (rate({series}{where}[{RATE}]))"


def quantiles(histogram: str, where: str = "") -> dict[str, str]:
    """The middle, and what one in twenty and one in a hundred exceeds."""
    buckets = f"sum by (le) (rate({histogram}_bucket{where}[{RATE}]))"
    return {f"p{of}": f"histogram_quantile({of / 100}, {buckets})" for of in (50, 95, 99)}


def how_many(series: str, by: str) -> dict[str, str]:
    """How often, by this; none before the first."""
    return {f"{{{{{by}}}}}": f"{per_second(series, by)} or vector(0)"}


def slowest(histogram: str, by: str, where: str = "") -> dict[str, str]:
    """What one in twenty exceeds, of each."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    buckets = f"sum by (le, {by}) (rate({histogram}_bucket{where}[{RATE}]))"
    return {legend: f"histogram_quantile(0.95, {buckets})"}


PUBLISHED_BAD: Final = "sum_over_time(imagefleet:published_bad:rate5m[30d])"
PUBLISHED_ALL: Final = "sum_over_time(imagefleet:published_all:rate5m[30d])"
DARK_BAD: Final = "sum_over_time(imagefleet:dark_bad:rate5m[30d])"
DARK_ALL: Final = "sum_over_time(imagefleet:dark_all:rate5m[30d])"
COMPLETED: Final = '{status="completed"}'
FAILS: Final = '{status_code=~"5.."}'
OF_US: Final = '{job=~".*imagefleet.*"}'
WAITS: Final = '{state=~"queued|failed_retryable"}'
OF_IMAGES: Final = '{job_type="process_image",status="completed"}'
S3_OF_API: Final = '{service="s3"}'
A_SECOND: Final = f"sum(rate(job_processed_total{OF_IMAGES}[{RATE}]))"

FLEET = Dashboard(
    "fleet",
    "imagefleet: fleet",
    "Whether it keeps its promises, and where to look if it does not.",
    (
        number(
            "Alerts that fire",
            'count(ALERTS{alertstate="firing",product="imagefleet"}) or vector(0)',
            "none",
        ),
        number("Jobs that are nowhere", "max(ledger_missing)", "none", "Zero, always."),
        number(
            "Allowance left: published",
            f"1 - {PUBLISHED_BAD} / {PUBLISHED_ALL} / 0.01",
            "percentunit",
            "Of the hundredth that may take longer than 30 seconds, within 30 days.",
        ),
        number(
            "Allowance left: dark",
            f"1 - {DARK_BAD} / {DARK_ALL} / 0.01",
            "percentunit",
            "Of the hundredth that may take longer than 60 seconds, within 30 days.",
        ),
        Panel(
            "Jobs that completed a second",
            {"{{job_type}}": per_second("job_processed_total", "job_type", COMPLETED)},
            "ops",
        ),
        Panel("From accepted to published", quantiles("image_published_seconds"), "s"),
        Panel("From the request to delete to dark", quantiles("image_dark_seconds"), "s"),
        Panel(
            "Open jobs",
            {"{{state}}": "sum by (state) (max by (job_type, state) (jobs_open)) or vector(0)"},
        ),
        Panel(
            "Attempts that fail or are repeated",
            {"{{job_type}}": "imagefleet:jobs_failing:ratio10m"},
            "percentunit",
        ),
        Panel("Processes that answer", {"{{job}}": f"sum by (job) (up{OF_US})"}, "none"),
        Panel(
            "Open breakers", {"{{service}}": "max by (service) (breaker_open) or vector(0)"}, "none"
        ),
        Panel("Dead letters", {"nobody acknowledged": "max(dead_letters_unacknowledged)"}),
    ),
)

API = Dashboard(
    "api",
    "imagefleet: API",
    "Requests, how long they take, and whom the API waits for.",
    (
        number("Requests a second", f"sum(rate(http_requests_total[{RATE}]))", "reqps"),
        number(
            "Answers that are our failure",
            f"(sum(rate(http_requests_total{FAILS}[{RATE}])) or vector(0))"
            f" / sum(rate(http_requests_total[{RATE}]))",
            "percentunit",
        ),
        number("Uploads a second", f"sum(rate(upload_size_bytes_count[{RATE}]))", "reqps"),
        number("Bytes uploaded a second", f"sum(rate(upload_size_bytes_sum[{RATE}]))", "Bps"),
        Panel(
            "Requests by answer",
            {"{{status_code}}": per_second("http_requests_total", "status_code")},
            "reqps",
        ),
        Panel(
            "Requests by route",
            {"{{method}} {{route}}": per_second("http_requests_total", "method, route")},
            "reqps",
        ),
        Panel(
            "How long answers take",
            quantiles("http_request_duration_seconds", '{job!~".*console.*"}'),
            "s",
            "The console tells its own under the same name.",
        ),
        Panel(
            "One in twenty takes longer, by route",
            slowest("http_request_duration_seconds", "route", '{job!~".*console.*"}'),
            "s",
        ),
        Panel(
            "Statements: one in twenty takes longer",
            slowest("db_query_duration_seconds", "operation", '{operation!=""}'),
            "s",
        ),
        Panel(
            "Calls of AWS: one in twenty takes longer",
            slowest("external_duration_seconds", "service, operation"),
            "s",
        ),
        Panel(
            "What failed a second",
            {
                "statements": f"sum(rate(db_query_error_total[{RATE}])) or vector(0)",
                "calls of AWS": f"sum(rate(external_error_total[{RATE}])) or vector(0)",
            },
            "ops",
        ),
        Panel(
            "Connections to Postgres that are busy",
            {"{{instance}}": 'imagefleet:db_pool_busy:ratio{job=~".*api.*"}'},
            "percentunit",
        ),
        Panel(
            "Worst delay of the event loop",
            {"{{instance}}": 'event_loop_lag_seconds{job=~".*api.*"}'},
            "s",
        ),
        Panel(
            "Room for files on their way",
            {"{{instance}}": 'imagefleet:temporary_free:ratio{job=~".*api.*"}'},
            "percentunit",
        ),
    ),
)

WORKERS = Dashboard(
    "workers",
    "imagefleet: workers",
    "What they run, how it ends, and what it takes.",
    (
        number("Slots", "sum(worker_slots)", "none"),
        number("Jobs that run", "sum(job_active_count)", "none"),
        number(
            "Jobs taken from dead workers, an hour", "sum(increase(rescued_jobs_total[1h]))", "none"
        ),
        number("Claims that were lost, an hour", "sum(increase(claim_lost_total[1h]))", "none"),
        Panel("Slots that are busy", {"{{lane}}": "imagefleet:lane_busy:ratio"}, "percentunit"),
        Panel(
            "How attempts end", {"{{outcome}}": per_second("job_attempts_total", "outcome")}, "ops"
        ),
        Panel(
            "Attempts: one in twenty takes longer", slowest("job_attempt_seconds", "job_type"), "s"
        ),
        Panel(
            "From due to claimed: one in twenty waits longer",
            slowest("job_wait_seconds", "job_type"),
            "s",
        ),
        Panel(
            "Processor of children, of one job in twenty",
            slowest("child_cpu_seconds", "job_type"),
            "s",
        ),
        Panel(
            "Memory of children, of one job in twenty",
            slowest("child_memory_bytes", "job_type"),
            "bytes",
        ),
        Panel(
            "What children read and make a second",
            {"{{direction}}": per_second("child_bytes_total", "direction")},
            "Bps",
        ),
        Panel(
            "Images that could not be made",
            how_many("image_processing_errors_total", "error_type"),
            "ops",
        ),
        Panel(
            "What claims answer",
            {"{{verdict}}": per_second("claim_verdict_total", "verdict")},
            "ops",
        ),
        Panel("Age of the last beat", {"{{instance}}": "last_beat_age_seconds"}, "s"),
        Panel(
            "S3: one in twenty takes longer",
            slowest("s3_operation_duration_seconds", "operation"),
            "s",
        ),
        Panel(
            "Statements: one in twenty takes longer",
            slowest("db_query_duration_seconds", "query_type", '{query_type!=""}'),
            "s",
        ),
        Panel(
            "What failed a second",
            {
                "statements": f"sum(rate(db_query_errors_total[{RATE}])) or vector(0)",
                "S3": f"sum(rate(s3_operation_errors_total[{RATE}])) or vector(0)",
                "SQS": f"sum(rate(sqs_errors_total[{RATE}])) or vector(0)",
            },
            "ops",
        ),
        Panel(
            "Connections to Postgres that are busy",
            {"{{instance}}": 'imagefleet:db_pool_busy:ratio{job=~".*(worker|maintenance).*"}'},
            "percentunit",
        ),
    ),
)

QUEUE = Dashboard(
    "queue",
    "imagefleet: queue",
    "What waits in Postgres, what was announced in SQS, and who looks after it.",
    (
        number("Jobs that wait", "sum(max by (job_type) (job_queue_depth))", "none"),
        number(
            "The oldest that waits has been due for",
            f"max(oldest_job_age_seconds{WAITS}) or vector(0)",
            "s",
        ),
        number("Jobs that run for over an hour", "max(jobs_stuck)", "none"),
        number("Dead letters", "max(dead_letters_unacknowledged)", "none"),
        Panel("Jobs that wait, by type", {"{{job_type}}": "max by (job_type) (job_queue_depth)"}),
        Panel(
            "Oldest open job",
            {
                "{{job_type}} {{state}}": "max by (job_type, state) (oldest_job_age_seconds)"
                " or vector(0)"
            },
            "s",
        ),
        Panel(
            "Announced, and how many may be",
            {
                "{{lane}}": "max by (lane) (rings_announced)",
                "{{lane}}, at most": "max by (lane) (ring_window)",
            },
        ),
        Panel(
            "The first has waited for its message",
            {"{{lane}}": "max by (lane) (oldest_ring_age_seconds)"},
            "s",
        ),
        Panel(
            "Since a dispatcher looked",
            {"{{lane}}": "max by (lane) (dispatcher_silence_seconds)"},
            "s",
        ),
        Panel(
            "Messages, by SQS's estimate",
            {"{{lane}} {{state}}": "max by (lane, state) (sqs_messages)"},
        ),
        Panel("Messages that SQS lacks", {"{{lane}}": "max by (lane) (queue_drift)"}),
        Panel(
            "The ledger: accepted, and what became of it",
            {
                "accepted": "max(ledger_accepted)",
                "completed": "max(ledger_completed)",
                "failed": "max(ledger_failed)",
                "pruned": "max(ledger_pruned)",
                "open": "max(ledger_open)",
            },
        ),
        Panel("Upkeep is behind", {"{{step}}": "max by (step) (upkeep_behind_seconds)"}, "s"),
        Panel(
            "Upkeep, pieces a second", {"{{step}}": per_second("upkeep_done_total", "step")}, "ops"
        ),
    ),
)

EDGE = Dashboard(
    "edge",
    "imagefleet: edge",
    "What CloudFront is owed, how long it takes, and how much of the month is used up.",
    (
        number("Images whose invalidation is not complete", "max(invalidations_owed)", "none"),
        number("Oldest of them", "max(invalidation_oldest_age_seconds)", "s"),
        number("Paths this month", "max(invalidation_paths_this_month)", "none"),
        number("Objects that are missing in S3", "max(missing_objects) or vector(0)", "none"),
        Panel(
            "What is owed",
            {
                "images": "max(invalidations_owed)",
                "paths in progress": "max(invalidation_paths_in_flight)",
            },
        ),
        Panel("From the request to delete to dark", quantiles("image_dark_seconds"), "s"),
        Panel(
            "Deleted images that were dark after more than 60 seconds",
            {
                "of all": f'1 - sum(rate(image_dark_seconds_bucket{{le="60.0"}}[{RATE}]))'
                f" / sum(rate(image_dark_seconds_count[{RATE}]))"
            },
            "percentunit",
        ),
        Panel(
            "Paths of this month, and what was expected",
            {
                "sent": "max(invalidation_paths_this_month)",
                "expected": "max(invalidation_paths_budget)",
            },
        ),
        Panel(
            "Debts that one path pays",
            {
                "": f"sum(rate(invalidation_debts_total[{RATE}]))"
                f" / sum(rate(invalidation_paths_total[{RATE}]))"
            },
        ),
        Panel(
            "Calls of CloudFront: one in twenty takes longer",
            slowest("cloudfront_operation_duration_seconds", "operation"),
            "s",
        ),
        Panel(
            "Calls of CloudFront that failed",
            how_many("cloudfront_operation_errors_total", "error_code"),
            "ops",
        ),
        Panel(
            "Swept from S3",
            how_many("swept_objects_total", "kind"),
            "ops",
        ),
    ),
)


def cost(prices: Mapping[str, float]) -> Dashboard:
    """With the prices that `imagefleet capacity` reckons with."""
    sqs = prices["sqs_million_requests"] / 1_000_000
    path, free = prices["invalidation_path"], prices["free_paths_a_month"]
    return Dashboard(
        "cost",
        "imagefleet: cost",
        f"What is billed by use, at the prices of {PRICES}."
        " `imagefleet capacity` reckons the rest.",
        (
            number(
                "SQS, a month at this rate",
                f"sum(rate(sqs_requests_total[1h])) * {A_MONTH} * {sqs:g}",
                "currencyUSD",
            ),
            number(
                "Invalidations, this month",
                f"clamp_min(max(invalidation_paths_this_month) - {free:g}, 0) * {path:g}",
                "currencyUSD",
            ),
            number(
                "Requests to SQS for each job",
                f"sum(rate(sqs_requests_total[{RATE}]))"
                f" / sum(rate(job_processed_total{COMPLETED}[{RATE}]))",
            ),
            number(
                "Processor of children for each image",
                f"sum(rate(child_cpu_seconds_sum[{RATE}])) / {A_SECOND}",
                "s",
            ),
            Panel(
                "Requests to SQS",
                {"{{operation}}": per_second("sqs_requests_total", "operation")},
                "reqps",
            ),
            Panel(
                "Calls of S3",
                {
                    "{{operation}}": per_second("s3_operation_duration_seconds_count", "operation"),
                    "API: {{operation}}": per_second(
                        "external_duration_seconds_count", "operation", S3_OF_API
                    ),
                },
                "reqps",
            ),
            Panel(
                "Calls of S3 for each image",
                {
                    "by workers": f"sum(rate(s3_operation_duration_seconds_count[{RATE}]))"
                    f" / {A_SECOND}"
                },
            ),
            Panel(
                "Bytes made of each byte that was read",
                {
                    "": f'sum(rate(child_bytes_total{{direction="made"}}[{RATE}]))'
                    f' / sum(rate(child_bytes_total{{direction="read"}}[{RATE}]))'
                },
            ),
            Panel(
                "Processors that are used",
                {
                    "{{job}}": f"sum by (job) (rate(process_cpu_seconds_total{OF_US}[{RATE}]))",
                    "children": f"sum(rate(child_cpu_seconds_sum[{RATE}]))",
                },
                about="Those of children are in no process that is scraped.",
            ),
            Panel(
                "Memory",
                {"{{instance}}": f"process_resident_memory_bytes{OF_US}"},
                "bytes",
            ),
            Panel(
                "Uploaded, and taken away again",
                {
                    "uploaded": f"sum(rate(upload_size_bytes_sum[{RATE}]))",
                    "swept": f"sum(rate(swept_bytes_total[{RATE}])) or vector(0)",
                },
                "Bps",
            ),
        ),
    )


TENANTS = Dashboard(
    "tenants",
    "imagefleet: tenants",
    "What is refused to them and what they send, all together: no series names a tenant, as there"
    " may be any number of them. Who it is say `imagefleet queue stats`, `tenants list` and"
    " `dlq groups --by-tenant`.",
    (
        number(
            "Requests that a limit refuses", f"sum(rate(limit_refusals_total[{RATE}]))", "reqps"
        ),
        number("Keys that are refused", f"sum(rate(auth_failures_total[{RATE}]))", "reqps"),
        number(
            "Answers that blame who asked",
            f'sum(rate(http_requests_total{{status_code=~"4.."}}[{RATE}]))'
            f" / sum(rate(http_requests_total[{RATE}]))",
            "percentunit",
        ),
        Panel(
            "Which limits refuse",
            {"{{limit}}": per_second("limit_refusals_total", "limit")},
            "reqps",
        ),
        Panel(
            "Why keys are refused",
            {"{{reason}}": per_second("auth_failures_total", "reason")},
            "reqps",
        ),
        Panel(
            "Requests that are refused, by route",
            {
                "{{status_code}} {{route}}": per_second(
                    "http_requests_total", "status_code, route", '{status_code=~"4.."}'
                )
            },
            "reqps",
        ),
        Panel(
            "What is uploaded",
            {"{{mime_type}}": per_second("upload_size_bytes_count", "mime_type")},
            "reqps",
        ),
        Panel("How large uploads are", quantiles("upload_size_bytes"), "bytes"),
        Panel(
            "Jobs that were given up, by reason",
            {"{{job_type}} {{why}}": per_second("jobs_failed_total", "job_type, why")},
            "ops",
        ),
        Panel(
            "How long a lane's first waits for its turn",
            {"{{lane}}": "max by (lane) (oldest_ring_age_seconds)"},
            "s",
            "Where it grows while slots are busy, tenants take turns: see whose jobs run.",
        ),
    ),
)
