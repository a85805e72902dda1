"""The beginning of an image, judged beside the event loop.

What is read of a head is bounded (imaging/headers), some two milliseconds at the worst. They are
still not the loop's to spend: whoever sends one bad head after another should wait for his own. So
one thread reads them, one at a time, and only so many may wait for it.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from imagefleet.errors import RequestRejected, Unavailable
from imagefleet.imaging.limits import Limits, judge_header
from imagefleet.imaging.sniff import HeaderFacts, agree, sniff

MOST_WAITING: Final = 128  # 32 MiB of heads, and a quarter of a second for the last of them

_MISMATCH: Final = "The declared content type is not what the file is."
_TOO_MANY: Final = "Too many images are being looked at. Try again later."


class Heads:
    """Reads heads in a thread of its own, which begins with the first of them."""

    def __init__(self) -> None:
        """Begin with nobody."""
        # One is enough: they compute in Python, where two threads are no faster than one.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="heads")
        self.waiting = 0

    async def judged(self, head: bytes, declared: str | None, limits: Limits) -> HeaderFacts:
        """The facts of an image that may come in; what it was declared to be, it must be."""
        if self.waiting >= MOST_WAITING:
            raise Unavailable("busy", _TOO_MANY)
        self.waiting += 1
        try:
            loop = asyncio.get_running_loop()
            facts = await loop.run_in_executor(self._thread, sniff, head)
        finally:
            self.waiting -= 1
        if not agree(declared, facts.format):
            raise RequestRejected("type_mismatch", _MISMATCH)
        judge_header(facts, limits)
        return facts
