"""The numbers of the design, each written out once more, and what must hold between them.

Who changes one of them says so here too. Those that only SQL knows are in
tests/store/test_numbers.py.
"""

from datetime import timedelta

import pytest

from imagefleet.jobs.kinds import TIMEOUTS
from imagefleet.jobs.model import Lane
from imagefleet.jobs.policies import STANDARD
from imagefleet.maintenance.rescuer import LONGEST_GAP, RESCUE_AFTER
from imagefleet.settings.slices import Maintenance, Worker
from imagefleet.store.jobs.rescue import RESCUE_SPREAD
from imagefleet.worker.attempt import RENEWAL_MARGIN
from imagefleet.worker.consumer import MOST_AT_ONCE
from imagefleet.worker.lease import BEAT_EVERY, BEAT_WITHIN, FRESH_FOR, STOP_AFTER

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
LOCK_TIMEOUT = 10 * MINUTE

NUMBERS: dict[str, tuple[object, object]] = {
    "seconds between two beats": (2.0, BEAT_EVERY),
    "seconds for one beat": (4.0, BEAT_WITHIN),
    "seconds that a beat is young": (5.0, FRESH_FOR),
    "seconds without a beat until work stops": (20.0, STOP_AFTER),
    "silence until a rescue": (30 * SECOND, RESCUE_AFTER),
    "silence until a rescue, by default": (30 * SECOND, Maintenance().rescue_after),
    "between two looks of a rescuer": (5 * SECOND, LONGEST_GAP),
    "spread of rescued jobs": (5 * SECOND, RESCUE_SPREAD),
    "renewal after the type's timeout": (MINUTE, RENEWAL_MARGIN),
    "timeout of the fast lane": (2 * MINUTE, TIMEOUTS[Lane.FAST]),
    "timeout of the general lane": (20 * MINUTE, TIMEOUTS[Lane.GENERAL]),
    "timeout of the quarantine": (20 * MINUTE, TIMEOUTS[Lane.QUARANTINE]),
    "fast slots": (16, Worker().fast_slots),
    "general slots": (16, Worker().general_slots),
    "grace of a worker": (300 * SECOND, Worker().shutdown_grace),
    "messages of one receive": (10, MOST_AT_ONCE),
    "failures that a breaker needs to open": (5, STANDARD.failures),
    "share of failures that opens a breaker": (0.5, STANDARD.ratio),
    "time in which they have to happen": (30 * SECOND, STANDARD.window),
    "time a breaker is open": (60 * SECOND, STANDARD.open_for),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_it_is_the_number_of_the_design(what: str) -> None:
    wanted, found = NUMBERS[what]

    assert wanted == found


def test_a_worker_lets_go_before_anybody_may_take_its_jobs() -> None:
    """The clock starts when a beat was sent; the rescuer's, when one arrived."""
    assert STOP_AFTER + BEAT_EVERY < RESCUE_AFTER.total_seconds()
    assert STOP_AFTER + BEAT_EVERY < Maintenance().rescue_after.total_seconds()


def test_one_slow_beat_neither_stops_receiving_nor_the_work() -> None:
    assert BEAT_EVERY < BEAT_WITHIN < FRESH_FOR < STOP_AFTER


def test_a_claim_is_renewed_little_longer_than_it_may_work() -> None:
    assert LOCK_TIMEOUT / 5 >= RENEWAL_MARGIN
