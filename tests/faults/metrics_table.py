"""Every series the fleet promises, typed out: name, type, labels, buckets, and whose it is.

Dashboards and alarms are built on these. The table is written by hand and imports nothing, so that
a change in the product is seen here before it is seen on a dashboard. Buckets are upper bounds;
`+Inf` is understood.
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["histogram", "counter", "gauge"]

API: Final = (0.1, 0.3, 0.5, 1, 2, 5, 10)
AWS: Final = (0.1, 0.3, 0.5, 1, 3, 5, 7, 10)
WORK: Final = (0.1, 0.3, 0.5, 0.7, 1, 3, 5, 7, 10)
LATENCY: Final = (
    *(10, 30, 50, 70, 100, 300, 500, 700),
    *(1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000, 5500),
    *(6000, 6500, 7000, 7500, 8000, 8500, 9000, 9500, 10000),
)
UPLOAD: Final = (
    *(1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576),
    *(2097152, 5242880, 10485760, 20971520, 52428800),
)


@dataclass(frozen=True, slots=True)
class Series:
    kind: Kind
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


HTTP: Final = ("method", "route", "status_code")

PROMISED: Final[dict[str, dict[str, Series]]] = {
    "api": {
        "http_request_duration_seconds": Series("histogram", HTTP, API),
        "http_requests_total": Series("counter", HTTP),
        "upload_size_bytes": Series("histogram", ("mime_type",), UPLOAD),
        "limit_refusals_total": Series("counter", ("limit",)),
        "db_query_duration_seconds": Series("histogram", ("operation", "table"), API),
        "db_query_error_total": Series("counter", ("operation", "table", "error_code")),
        "auth_failures_total": Series("counter", ("reason",)),
        "external_duration_seconds": Series("histogram", ("service", "operation"), API),
        "external_error_total": Series("counter", ("service", "operation", "error_code")),
        "sqs_requests_total": Series("counter", ("operation",)),
    },
    "worker": {
        "job_processing_duration_seconds": Series("histogram", ("job_type", "status"), WORK),
        "job_queue_latency_milliseconds": Series("histogram", ("job_type",), LATENCY),
        "job_processed_total": Series("counter", ("job_type", "status")),
        "image_processing_errors_total": Series("counter", ("error_type",)),
        "s3_operation_duration_seconds": Series("histogram", ("operation", "bucket"), AWS),
        "s3_operation_errors_total": Series("counter", ("operation", "bucket", "error_code")),
        "db_query_duration_seconds": Series("histogram", ("query_type",), WORK),
        "db_query_errors_total": Series("counter", ("query_type", "error_type")),
        "job_active_count": Series("gauge", ("job_type",)),
        "claim_verdict_total": Series("counter", ("verdict",)),
        "claim_lost_total": Series("counter"),
        "sqs_requests_total": Series("counter", ("operation",)),
    },
    "maintenance": {
        # Of attempts that it ended itself, for workers that are dead.
        "job_processing_duration_seconds": Series("histogram", ("job_type", "status"), WORK),
        "job_processed_total": Series("counter", ("job_type", "status")),
        "db_query_duration_seconds": Series("histogram", ("query_type",), WORK),
        "db_query_errors_total": Series("counter", ("query_type", "error_type")),
        "cloudfront_operation_duration_seconds": Series("histogram", ("operation",), AWS),
        "cloudfront_operation_errors_total": Series("counter", ("operation", "error_code")),
        "invalidation_paths_total": Series("counter"),
        "invalidation_debts_total": Series("counter"),
        "invalidation_paths_this_month": Series("gauge"),
        "invalidation_paths_budget": Series("gauge"),
        "invalidations_owed": Series("gauge"),
        "invalidation_oldest_age_seconds": Series("gauge"),
        "job_queue_depth": Series("gauge", ("job_type",)),
        "sqs_requests_total": Series("counter", ("operation",)),
    },
}
