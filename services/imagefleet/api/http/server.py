"""The address that the API listens on, with the connections that uvicorn does not bound."""

import resource
from datetime import timedelta
from typing import Final

import structlog
from starlette.types import ASGIApp

from imagefleet.api.http.connections import MOST_CONNECTIONS, Connections, protocol
from imagefleet.listening import ACCEPTED_AT_ONCE, Listener

RESERVED: Final = 256  # files: pools, S3, uploads under way, the program itself

log = structlog.get_logger()


class Server(Listener):
    """That address, and who is connected to it."""

    def __init__(self, host: str, port: int, app: ASGIApp, *, grace: timedelta) -> None:
        """Listen at once, for as many as there are files."""
        self.connections = Connections(room())
        super().__init__(
            host,
            port,
            app,
            grace=grace,
            most=self.connections.most,
            protocol=protocol(self.connections),
        )


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
