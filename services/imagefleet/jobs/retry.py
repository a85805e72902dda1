"""When a failed job may run again: `min(cap, base * 2^(n-1))`, and up to a fifth more by chance."""

from dataclasses import dataclass
from datetime import timedelta
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
