"""When something that failed is tried again: a job by its retry policy, a service by its breaker.

A job waits `min(cap, base * 2^(n-1))`, and up to a fifth more by chance. A service counts as down
when a share of its calls fails, and enough of them to mean something. They are counted over all
workers in windows of some seconds. Half of what a window counted is carried into the next one, so
that neither a slow service nor a busy one is judged by a moment.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

LONGEST_CAP: Final = timedelta(days=7)  # who waits longer means a date, and has `run_at` for it
MOST_ATTEMPTS: Final = 100  # a job that needs more is not retried, it is polled


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a job may run, and how long it waits between two runs."""

    base: timedelta = timedelta(seconds=30)
    """The wait after the first failure; each further one doubles it."""
    cap: timedelta = timedelta(hours=1)
    """No wait grows beyond this, jitter apart."""
    max_attempts: int = 5
    """Charged runs, the first one included."""
    jitter: float = 0.2
    """The largest random addition, as a share of the wait: jobs that failed together part ways."""

    def __post_init__(self) -> None:
        """Refuse numbers with which `delay` would not be a wait."""
        if not timedelta(0) < self.base <= self.cap <= LONGEST_CAP:
            msg = f"0 < base <= cap <= {LONGEST_CAP} does not hold for {self.base} and {self.cap}"
            raise ValueError(msg)
        if not 1 <= self.max_attempts <= MOST_ATTEMPTS:
            msg = f"max_attempts must be 1 to {MOST_ATTEMPTS}, not {self.max_attempts}"
            raise ValueError(msg)
        if not 0 <= self.jitter <= 1:
            msg = f"jitter must be a share from 0 to 1, not {self.jitter}"
            raise ValueError(msg)

    def delay(self, charged_attempts: int, jitter: float) -> timedelta:
        """Return the wait after the n-th charged attempt; `jitter` is a draw from [0, 1)."""
        if charged_attempts < 1:
            msg = f"a wait follows an attempt, and {charged_attempts} were charged"
            raise ValueError(msg)
        if not 0 <= jitter <= 1:
            msg = f"jitter must be drawn from 0 to 1, not {jitter}"
            raise ValueError(msg)
        doublings = charged_attempts - 1
        # So many doublings pass the cap for certain, and far more would overflow a timedelta.
        enough = (self.cap // self.base).bit_length()
        wait = self.cap if doublings >= enough else self.base * 2**doublings
        return wait + wait * (self.jitter * jitter)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """When the breaker of a service opens, and for how long."""

    failures: int = 5
    """Of fewer in a window nobody takes notice."""
    ratio: float = 0.5
    """The share of the calls of a window that have to fail."""
    window: timedelta = timedelta(seconds=30)
    open_for: timedelta = timedelta(seconds=60)
    """Until a first job may try the service again."""
    listen_for: timedelta = timedelta(seconds=1.5)
    """From the failure that is enough: what others have to say of the service is heard first. A
    worker that tells of successes only when asked would else be outvoted by one with a broken net.
    """


STANDARD: Final = BreakerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWindow:
    """What workers have told of a service, as its row says."""

    ends_at: datetime | None = None
    """None: nothing is counted now."""
    failures: int = 0
    successes: int = 0
    judged_from: datetime | None = None
    """Set by the failure that was enough; until then others are heard."""

    def counting(
        self, failures: int, successes: int, limits: BreakerLimits, now: datetime
    ) -> "CallWindow":
        """Return it with more calls, or the next one; successes alone begin none."""
        begun = self._at(now, limits)
        if begun.ends_at is None:
            if not failures:
                return self
            begun = CallWindow(ends_at=now + limits.window)
        failed = begun.failures + failures
        enough = failed >= limits.failures
        return replace(
            begun,
            failures=failed,
            successes=begun.successes + successes,
            judged_from=(begun.judged_from or now + limits.listen_for) if enough else None,
        )

    def _at(self, now: datetime, limits: BreakerLimits) -> "CallWindow":
        if self.ends_at is None or self.ends_at > now:
            return self
        if self.ends_at + limits.window <= now:
            return CallWindow()
        return replace(
            self,
            ends_at=self.ends_at + limits.window,
            failures=self.failures // 2,
            successes=self.successes // 2,
        )

    def is_listening(self, now: datetime) -> bool:
        """Whether there are enough failures, but others may still have successes to tell."""
        return self.judged_from is not None and now < self.judged_from

    def trips(self, limits: BreakerLimits, now: datetime) -> bool:
        """Whether the breaker opens."""
        if self.judged_from is None or self.is_listening(now):
            return False
        return self.failures >= limits.ratio * (self.failures + self.successes)
