"""How many connections are open, and who goes when there are too many.

Anybody may connect and say nothing. So those over which no valid key has come yet have a share of
their own: where it is full, the one goes of which nothing came for the longest. Whoever has a key
shows it within moments, and is not among those. Where all places are taken, a connection with a key
goes that is idle; if none is, again one without: the newcomer itself only if there is no other.
Streams and waits have places here.
"""

import resource
from collections import OrderedDict
from typing import Final, Protocol

import structlog

MOST_CONNECTIONS: Final = 4000  # twice the streams
MOST_KEYLESS: Final = 1000
ACCEPTED_AT_ONCE: Final = 512  # before any of them is counted here; what waits in the kernel, too
RESERVED: Final = 256  # files: pools, S3, uploads under way, the program itself

log = structlog.get_logger()


class Connection(Protocol):
    """What is asked of one."""

    @property
    def has_key(self) -> bool:
        """Whether a valid key came over it."""

    @property
    def is_idle(self) -> bool:
        """Whether it has all its answers."""

    def end(self) -> None:
        """At once: whoever takes nothing would keep it open."""


class Connections:
    """Those of this process."""

    def __init__(self, most: int = MOST_CONNECTIONS, most_keyless: int = MOST_KEYLESS) -> None:
        """Begin with none."""
        self.most = most
        self.most_keyless = min(most_keyless, max(1, most // 4))
        # By when something was last done for them, the longest ago first.
        self._keyless: OrderedDict[Connection, None] = OrderedDict()
        self._with_key: OrderedDict[Connection, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keyless) + len(self._with_key)

    def made(self, connection: Connection) -> None:
        """Count one, and end another where there are too many."""
        self._keyless[connection] = None
        while len(self._keyless) > self.most_keyless:
            longest = self._longest_keyless()
            if longest is not None:
                self._end(longest)
        if len(self) > self.most:
            idle = (one for one in self._with_key if one.is_idle)
            gone = next(idle, None) or self._longest_keyless() or connection
            self._end(gone)

    def answered(self, connection: Connection) -> None:
        """Something was done for it."""
        if connection in self._with_key:
            self._with_key.move_to_end(connection)
        elif connection in self._keyless:
            self._keyless.move_to_end(connection)
            if connection.has_key:
                self._let_in(connection)

    def lost(self, connection: Connection) -> None:
        """Forget it."""
        self._keyless.pop(connection, None)
        self._with_key.pop(connection, None)

    def _longest_keyless(self) -> Connection | None:
        while self._keyless:
            longest = next(iter(self._keyless))
            if not longest.has_key:
                return longest
            self._let_in(longest)  # its first answer is still under way
        return None

    def _let_in(self, connection: Connection) -> None:
        del self._keyless[connection]
        self._with_key[connection] = None

    def _end(self, connection: Connection) -> None:
        self.lost(connection)
        connection.end()


def room() -> int:
    """How many connections this process has files for; it takes all it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + ACCEPTED_AT_ONCE + RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_CONNECTIONS
    most = max(soft // 4, soft - ACCEPTED_AT_ONCE - RESERVED)
    log.warning("http.few_files", files=soft, connections=most)
    return most
