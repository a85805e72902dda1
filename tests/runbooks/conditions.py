"""What each alert asks for, asked of processes that were scraped.

Of what an alert wants to see for minutes, or as a rate, here is the moment, and what was counted
since a mark. `test_pages.py` holds the names of series against those of the rules.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from tests.runbooks.fleet import Look

Condition: TypeAlias = Callable[[Look, Look], bool]
"""Whether it is so now; the first look is the mark."""

WAITING: Final = ("queued", "failed_retryable")
CONDITIONS: Final[dict[str, Condition]] = {}


def of(alert: str) -> Callable[[Condition], Condition]:
    def keep(condition: Condition) -> Condition:
        CONDITIONS[alert] = condition
        return condition

    return keep


def grown(name: str, before: Look, now: Look, **labels: str | tuple[str, ...]) -> float:
    """By how much a counter grew; of a process that began anew, all that it has."""
    total = 0.0
    for process in {each.process for each in now.of(name, **labels)}:
        past, present = (look.sum(name, process, **labels) for look in (before, now))
        total += present - past if present >= past else present
    return total


@of("ApiFails")
def _(before: Look, now: Look) -> bool:
    failures = tuple(str(status) for status in range(500, 600))
    failed = grown("http_requests_total", before, now, status_code=failures)
    return failed > 0.01 * grown("http_requests_total", before, now)


@of("BacklogGrows")
def _(_: Look, now: Look) -> bool:
    return sum(now.by("job_type", "job_queue_depth").values()) > 500


@of("BeatStale")
def _(_: Look, now: Look) -> bool:
    return now.most("last_beat_age_seconds") > 10


@of("BreakerOpen")
def _(_: Look, now: Look) -> bool:
    return now.most("breaker_open") == 1


@of("DarkBurnsFast")
def _(before: Look, now: Look) -> bool:
    return dark_late(before, now) > 0.144


@of("DarkBurnsSlowly")
def _(before: Look, now: Look) -> bool:
    return dark_late(before, now) > 0.03


def dark_late(before: Look, now: Look) -> float:
    """The share of what was counted."""
    all_of_it = grown("image_dark_seconds_count", before, now)
    in_time = grown("image_dark_seconds_bucket", before, now, le="60.0")
    return (all_of_it - in_time) / all_of_it if all_of_it else 0.0


@of("DarkLate")
def _(_: Look, now: Look) -> bool:
    waiting = ("queued", "failed_retryable")
    deletions = now.most("oldest_job_age_seconds", job_type="delete_image", state=waiting)
    return max(now.most("invalidation_oldest_age_seconds"), deletions) > 300


@of("DatabaseAway")
def _(before: Look, now: Look) -> bool:
    away = ("database_unavailable", "database_timeout")
    of_workers = grown("db_query_errors_total", before, now, error_type=away)
    return of_workers + grown("db_query_error_total", before, now, error_code=away) > 0


@of("DeadLetters")
def _(_: Look, now: Look) -> bool:
    return now.most("dead_letters_unacknowledged") > 0


@of("DiskFull")
def _(_: Look, now: Look) -> bool:
    free = now.by("process", "temporary_bytes", state="free")
    used = now.by("process", "temporary_bytes", state="used")
    return any(free[process] < 0.1 * (free[process] + used[process]) for process in free)


@of("DispatcherSilent")
def _(_: Look, now: Look) -> bool:
    return now.most("dispatcher_silence_seconds") > 30


@of("FastLaneFull")
def _(_: Look, now: Look) -> bool:
    busy = now.sum("worker_slots", lane="fast", state="busy")
    return busy > 0.9 * now.sum("worker_slots", lane="fast")


@of("JobsFail")
def _(before: Look, now: Look) -> bool:
    failing = grown("job_processed_total", before, now, status=("failed", "failed_retryable"))
    ended = grown("job_processed_total", before, now)
    return ended >= 10 and failing > 0.1 * ended


@of("JobsStuck")
def _(_: Look, now: Look) -> bool:
    return now.most("jobs_stuck") > 0


@of("LedgerMissing")
def _(_: Look, now: Look) -> bool:
    return now.most("ledger_missing") not in {0, float("-inf")}


@of("MaintenanceAway")
def _(_: Look, now: Look) -> bool:
    return not now.of("job_queue_depth")


@of("NoProgress")
def _(before: Look, now: Look) -> bool:
    late = now.most("oldest_job_age_seconds", state=WAITING) > 300
    return late and not grown("job_processed_total", before, now, status="completed")


@of("NoWorkers")
def _(_: Look, now: Look) -> bool:
    late = now.most("oldest_job_age_seconds", state=WAITING) > 60
    return late and not now.sum("worker_slots") > 0


@of("NotAnnounced")
def _(_: Look, now: Look) -> bool:
    announced = now.by("lane", "rings_announced")
    windows = now.by("lane", "ring_window")
    late = now.by("lane", "oldest_ring_age_seconds")
    return any(age > 60 and announced[lane] < windows[lane] for lane, age in late.items())


@of("ObjectsMissing")
def _(_: Look, now: Look) -> bool:
    return now.most("missing_objects") > 0


@of("OldestJobWaits")
def _(_: Look, now: Look) -> bool:
    return now.most("oldest_job_age_seconds", state=WAITING) > 3600


@of("PathBudgetUsed")
def _(_: Look, now: Look) -> bool:
    return now.most("invalidation_paths_this_month") > now.most("invalidation_paths_budget")


@of("PoolFull")
def _(_: Look, now: Look) -> bool:
    by_process: dict[str, dict[str, float]] = {}
    for each in now.of("db_pool_connections"):
        by_process.setdefault(each.process, {})[each.labels["state"]] = each.value
    return any(states["busy"] > 0.9 * sum(states.values()) for states in by_process.values())


@of("ProcessDown")
def _(_: Look, now: Look) -> bool:
    return now.silent != []  # `up` is Prometheus's own


@of("PublishBurnsFast")
def _(before: Look, now: Look) -> bool:
    return published_late(before, now) > 0.144


@of("PublishBurnsSlowly")
def _(before: Look, now: Look) -> bool:
    return published_late(before, now) > 0.03


def published_late(before: Look, now: Look) -> float:
    """The share of what was counted."""
    all_of_it = grown("image_published_seconds_count", before, now)
    in_time = grown("image_published_seconds_bucket", before, now, le="30.0")
    return (all_of_it - in_time) / all_of_it if all_of_it else 0.0


@of("QueueDrifts")
def _(_: Look, now: Look) -> bool:
    return now.most("queue_drift") > 0


@of("UpkeepBehind")
def _(_: Look, now: Look) -> bool:
    return now.most("upkeep_behind_seconds") > 3600


@of("WorkersDie")
def _(before: Look, now: Look) -> bool:
    return grown("rescued_jobs_total", before, now) > 0
