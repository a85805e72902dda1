"""How upkeep works while there is work: in bounded batches, resting as long as it worked.

No number says how much there may be to do in a day: a backlog is worked off at half of what the
database gives, and nothing to do costs one question. How far behind a step is, is sampled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

Batch: TypeAlias = Callable[[], Awaitable[bool]]
"""Does a bounded part; True: there is more."""

Rest: TypeAlias = Callable[[timedelta], Awaitable[bool]]
"""Waits for this long, or until the process is asked to end; True: it is."""


async def keep_at(batch: Batch, *, within: timedelta, rest: Rest) -> bool:
    """Take batch after batch until there is no more, and say so; False: it ended before that."""
    clock = asyncio.get_running_loop().time
    ends_at = clock() + within.total_seconds()
    while True:
        began = clock()
        if not await batch():
            return True
        ended = clock()
        if ended >= ends_at or await rest(timedelta(seconds=ended - began)):
            return False
