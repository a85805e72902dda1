"""The ports of the stack: said no to before anything starts, when somebody else has one."""

import socket
from dataclasses import dataclass
from typing import Final

from imagefleet.errors import Misconfigured

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where to listen; 0 is any free port."""

    api: int = 8080
    edge: int = 8082
    postgres: int = 0
    aws: int = 0


def chosen(port: int, *, what: str, option: str) -> int:
    """This port if it is free, or a free one for 0; the refusal says how to choose another."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            detail = (
                f"port {port}, where {what} would listen, is taken ({error.strerror}): "
                f"choose another with {option} PORT, or any free one with {option} 0"
            )
            raise Misconfigured(detail) from error
        return int(probe.getsockname()[1])
