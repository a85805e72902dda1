"""The end of an attempt: counted and told in one line, once, by whoever wrote its row.

Most attempts end with their worker's own settlement. A dead worker's are ended by the rescuer, and
one whose lock ran out by the claim that finds it so. Whoever that is calls `tell_ends` once its
transaction is committed; nobody else does. A process that is killed between the two has told
nothing of what it had just written, and nobody makes up for it: at most the jobs that one settle,
one claim or one rescue can end. The same is so of a claim or a rescue whose answer is lost on the
way: its rows do not say who wrote them. A settle is asked again.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import structlog

from imagefleet.jobs.model import Ended
from imagefleet.telemetry.logs import ids_of
from imagefleet.telemetry.metrics import FleetMetrics

EVENTS: Final[Mapping[str, str]] = MappingProxyType(
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

log = structlog.get_logger()


def tell_ends(metrics: FleetMetrics, ended: Iterable[Ended]) -> None:
    """Count each, and write its line: how long, what came of it and why, how often, what now."""
    for one in ended:
        metrics.attempt_ended(one)
        log.info(
            EVENTS[one.outcome],
            **ids_of(one),
            worker_id=str(one.worker_id),
            duration_seconds=_seconds(one.duration),
            queue_seconds=_seconds(one.queue_time),
            outcome=one.outcome,
            why=one.why,
            retries=max(0, one.attempts - 1),
            max_attempts=one.max_attempts,
            state=one.state.value,
        )


def _seconds(span: timedelta) -> float:
    return round(span.total_seconds(), 3)
