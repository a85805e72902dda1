"""Connections: what comes over one, bounded, and how many are open.

uvicorn bounds neither connections nor the headers of a request nor the time they take, nor what
surrounds the data of a chunked body, nor how many requests wait behind the one that is answered;
and a body that nobody reads after its answer was sent may go on for ever. All of that comes before
anybody was asked for a key.

Anybody may connect and say nothing. So those over which no valid key has come yet have a share of
their own: where it is full, the one goes of which nothing came for the longest. Whoever has a key
shows it within moments, and is not among those. Where all places are taken, a connection with a key
goes that is idle; if none is, again one without: the newcomer itself only if there is no other.
Streams and waits have places here.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from imagefleet.api.http.errors import REFUSED_AFTER, refused
from imagefleet.listening import IDLE_WITHIN, Listener, room

MOST_CONNECTIONS: Final = 4000  # twice the streams
MOST_KEYLESS: Final = 1000

LARGEST_HEAD: Final = 65_536  # bytes; `requests` refuses less than this, but politely
HEAD_WITHIN: Final = timedelta(seconds=10)
SEND_WITHIN: Final = timedelta(seconds=60)  # a client that takes nothing for so long has gone
LINGER: Final = timedelta(seconds=5)  # for a refused body to stop, so that its answer arrives
AT_ONCE: Final = 65_536  # bytes read from one connection, before it is asked whether to go on
PIECE: Final = 16_384  # bytes that the parser gets at once: how far over a limit anything can be
LARGEST_FRAMING: Final = 65_536  # bytes of a chunked body that are not its data
FRAMING_A_BYTE: Final = 6  # of data, beyond that: chunks of a single byte cost five
LARGEST_TRAILERS: Final = 16_384  # bytes; also of one chunk's size and extensions
LARGEST_TARGET: Final = 10_240  # bytes of path and query; `requests` refuses a query before that
MOST_HEADERS: Final = 100  # of one request; each costs many times its bytes
MOST_WAITING: Final = 4  # requests sent ahead of the answer to the one before
LARGEST_WAITING: Final = 16_384  # bytes of their heads, together; and MOST_HEADERS, together
HERE: Final = "body_is_here"  # in the state of a request: nobody waits for the rest of its body
MOST_DIGITS: Final = 19  # of a Content-Length; more are zeros, or no file

_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Za-z:.%_~-]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]{0,5})?"
)  # RFC 9112, 3.2: may be empty
_UNREADABLE: Final = "This is not a request that can be read."
_TOO_LONG: Final = f"An address may have {LARGEST_TARGET} bytes."
_TOO_MANY_HEADERS: Final = f"A request may have {MOST_HEADERS} headers."


class _Refused(Exception):
    """The parser reads it, we do not."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. The head of a request has a size and a deadline; so has what is refused."""

    _in_head = True
    _in_body = False
    # All that comes is counted, and then what turns out to be data is not. Where in a piece a head
    # or a body ends the parser does not say: each counts as much of it as it may have at most.
    _piece = 0  # bytes of the piece that is taken now, but those of data
    _bare = 0  # bytes since the last data, or since the head began: a chunk's head, or trailers
    _framing = 0  # bytes of the body that are not its data
    _data = 0
    _deadline: asyncio.TimerHandle | None = None
    _unsent: asyncio.TimerHandle | None = None
    _why = ("bad_request", _UNREADABLE)
    _is_over = False  # refused, and soon told so
    _had_key = False
    _answered: RequestResponseCycle | None = None  # while others wait, not the newest
    open_ones: "Connections"  # of the server

    # uvicorn narrows the transport in the same way, which no subclass of asyncio's may.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._expect(HEAD_WITHIN)
        self.open_ones.made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._expect(None)
        self._end_later(None)
        self.open_ones.lost(self)
        self._tell_gone()
        super().connection_lost(exc)

    @property
    def has_key(self) -> bool:
        """Whether a valid key came over it: `auth` says whose, on the request."""
        if not self._had_key and self.cycle is not None:
            self._had_key = "tenant_id" in self.cycle.scope["state"]
        return self._had_key

    @property
    def is_idle(self) -> bool:
        """Whether it has all its answers."""
        return not self._in_body and (self.cycle is None or self.cycle.response_complete)

    def pause_writing(self) -> None:
        """Wait for the client to take what it was sent, and not for ever."""
        super().pause_writing()
        self._end_later(SEND_WITHIN)

    def resume_writing(self) -> None:
        """Go on, as it did."""
        self._end_later(None)
        super().resume_writing()

    def _end_later(self, within: timedelta | None) -> None:
        self._unsent = self._instead(self._unsent, within, self.end)

    def end(self) -> None:
        """Hang up at once, whatever is under way: whoever takes nothing would keep it open."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what came in, unless it is a head or a framing without end."""
        taken = 0
        while taken < len(data) and not self._is_over and not self.transport.is_closing():
            # So that what comes behind the end of a body is never taken for its trailers.
            room = max(1, LARGEST_TRAILERS - self._bare) if self._in_body else PIECE
            piece = data[taken : taken + min(room, PIECE)]
            taken += len(piece)
            self._take(piece)

    def _take(self, piece: bytes) -> None:
        if self._in_head and self._deadline is None:
            self._expect(HEAD_WITHIN)  # after an idle time, which uvicorn has stopped to measure
        self._piece = len(piece)
        self._bare += len(piece)
        self._framing += len(piece)
        super().data_received(piece)
        if not self._is_over and not self.transport.is_closing() and self._is_endless():
            self.send_400_response(_UNREADABLE)

    def _begin(self, came: int) -> None:
        """A head or a body begins, of which so much has come at most."""
        self._bare = self._framing = self._piece = max(0, min(came, self._piece))
        self._data = 0

    def _is_endless(self) -> bool:
        if self._in_head:
            return self._bare > LARGEST_HEAD
        allowed = LARGEST_FRAMING + FRAMING_A_BYTE * self._data
        return self._framing > allowed or self._bare > LARGEST_TRAILERS

    def on_message_begin(self) -> None:
        """A head begins."""
        self._expect(HEAD_WITHIN)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Keep the address, or a part of it."""
        if len(self.url) + len(url) > LARGEST_TARGET:
            self._why = ("uri_too_long", _TOO_LONG)
            raise _Refused
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are dropped, for whoever reads them here did not ask for them."""
        if not self._in_head:
            return
        if len(self.headers) >= MOST_HEADERS:
            self._why = ("headers_too_large", _TOO_MANY_HEADERS)
            raise _Refused
        # The parser leaves what may follow a value (RFC 9112, 5.1) where it is.
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """The head is whole: the application has its own deadlines."""
        self._judge_head()
        self._expect(None)
        self._in_head, self._in_body = False, True
        line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1")
        self._begin(self._bare - line - _size(self.headers))
        super().on_headers_complete()
        if self.pipeline:
            self._judge_waiting()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        cycle.transport = _InOne(self.transport, self.loop)  # type: ignore[assignment] # all it calls
        super()._start_asgi_task(cycle, app)

    def _tell_gone(self) -> None:
        """Whoever is answered or waits for it is gone. uvicorn tells the newest alone."""
        for cycle in (self._answered, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _judge_waiting(self) -> None:
        """Whoever has no key may not have us keep much until it is told so."""
        headers = [header for cycle, _ in self.pipeline for header in cycle.scope["headers"]]
        size = sum(
            len(cycle.scope["raw_path"]) + len(cycle.scope["query_string"])
            for cycle, _ in self.pipeline
        ) + _size(headers)
        is_too_much = len(headers) > MOST_HEADERS or size > LARGEST_WAITING
        if is_too_much or len(self.pipeline) > MOST_WAITING:
            raise _Refused

    def _judge_head(self) -> None:
        """Refuse what RFC 9112 wants refused, and what proxies may read in another way than we."""
        sent: dict[bytes, list[bytes]] = {b"host": [], b"content-length": []}
        for name, value in self.headers:
            sent.get(name, []).append(value)
        hosts, lengths = sent[b"host"], sent[b"content-length"]
        needs_host = self.parser.get_http_version() != "1.0"
        if len(hosts) > 1 or (needs_host and not hosts):
            raise _Refused
        if any(_HOST.fullmatch(host) is None for host in hosts):
            raise _Refused
        if any(len(length) > MOST_DIGITS for length in lengths):
            raise _Refused
        has_body = any(length.strip(b"0") for length in lengths) or any(
            name == b"transfer-encoding" for name, _ in self.headers
        )
        if has_body and self.parser.should_upgrade():
            raise _Refused  # the parser would take the body for the next request

    def on_body(self, body: bytes) -> None:
        """Data is no framing."""
        self._data += len(body)
        self._framing -= len(body)
        self._bare = self._piece = self._piece - len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next thing to come is another head."""
        if self._is_endless():
            raise _Refused
        self._in_head, self._in_body = True, False
        self._begin(self._piece)
        self.scope["state"][HERE] = True
        if self.cycle.response_complete:
            self._expect(IDLE_WITHIN)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Give a body that is still coming, and that nobody wants, a moment to end."""
        super().on_response_complete()
        self.open_ones.answered(self)
        if self._in_body and self.cycle.response_complete:  # not of one that is answered next
            self._expect(LINGER)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words, not ours
        """What is no HTTP gets a problem too, after a moment, and the end of the connection.

        Only the end, as late, where an answer is still owed to a request before it: it would be
        taken for that one's.
        """
        newest: RequestResponseCycle | None = self.cycle
        owed = newest if newest is not None and not newest.response_complete else None
        its_own = self._in_body and owed is not None and not owed.response_started
        self._tell_gone()  # before the loop does: nothing may follow the 400
        self._is_over = True
        is_told = not self.pipeline and (its_own or (self._in_head and owed is None))
        self.flow.pause_reading()
        self._expect(None)
        end = self._refuse if is_told else self.transport.close
        self._deadline = self.loop.call_later(REFUSED_AFTER, end)

    def _refuse(self) -> None:
        problem = refused(*self._why)
        head = b"".join(b"%s: %s\r\n" % header for header in problem.raw_headers)
        line, body = STATUS_LINE[problem.status_code], bytes(problem.body)
        self.transport.write(b"%s%sconnection: close\r\n\r\n%s" % (line, head, body))
        self.transport.close()

    def _expect(self, within: timedelta | None) -> None:
        self._deadline = self._instead(self._deadline, within, self.transport.close)

    def _instead(
        self, timer: asyncio.TimerHandle | None, within: timedelta | None, then: Callable[[], None]
    ) -> asyncio.TimerHandle | None:
        if timer is not None:
            timer.cancel()
        return None if within is None else self.loop.call_later(within.total_seconds(), then)


class _InOne:
    """A transport for one answer, whose head goes out with what follows it at once, if anything.

    Two packets would wake the client twice, and be half of what an answer costs the kernel.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Keep the head for this turn of the loop; send everything else."""
        if self._head is None:
            self._head = data
            self._loop.call_soon(self._send)
        else:
            self._send(data)

    def close(self) -> None:
        """Send what was kept, and hang up."""
        self._send()
        self._transport.close()

    def _send(self, data: bytes = b"") -> None:
        data, self._head = (self._head or b"") + data, b""
        if data and not self.is_closing():
            self._transport.write(data)


def _size(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """What they had at least, with the ends of their lines and of the head."""
    return sum(len(name) + len(value) + 3 for name, value in headers) + 4


class Connections:
    """Those of this process."""

    def __init__(self, most: int = MOST_CONNECTIONS, most_keyless: int = MOST_KEYLESS) -> None:
        """Begin with none."""
        self.most = most
        self.most_keyless = min(most_keyless, max(1, most // 4))
        # By when something was last done for them, the longest ago first.
        self._keyless: OrderedDict[BoundedProtocol, None] = OrderedDict()
        self._with_key: OrderedDict[BoundedProtocol, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keyless) + len(self._with_key)

    def made(self, connection: BoundedProtocol) -> None:
        """Count one, and end another where there are too many."""
        self._keyless[connection] = None
        while len(self._keyless) > self.most_keyless:
            longest = self._longest_keyless()
            if longest is not None:
                self._end(longest)
        if len(self) > self.most:
            idle = (each for each in self._with_key if each.is_idle)
            gone = next(idle, None) or self._longest_keyless() or connection
            self._end(gone)

    def answered(self, connection: BoundedProtocol) -> None:
        """Something was done for it."""
        if connection in self._with_key:
            self._with_key.move_to_end(connection)
        elif connection in self._keyless:
            self._keyless.move_to_end(connection)
            if connection.has_key:
                self._let_in(connection)

    def lost(self, connection: BoundedProtocol) -> None:
        """Forget it."""
        self._keyless.pop(connection, None)
        self._with_key.pop(connection, None)

    def _longest_keyless(self) -> BoundedProtocol | None:
        while self._keyless:
            longest = next(iter(self._keyless))
            if not longest.has_key:
                return longest
            self._let_in(longest)  # its first answer is still under way
        return None

    def _let_in(self, connection: BoundedProtocol) -> None:
        del self._keyless[connection]
        self._with_key[connection] = None

    def _end(self, connection: BoundedProtocol) -> None:
        self.lost(connection)
        connection.end()


class _Reading(asyncio.BufferedProtocol):
    """Hands over what was read, `AT_ONCE` at a time.

    Whoever pauses reading has that much more at most. Both event loops read a quarter of a megabyte
    otherwise, and uvloop's transport has nothing that says how much.
    """

    def __init__(self, to: BoundedProtocol, buffer: bytearray) -> None:
        """The buffer may be that of all: it is read and handed over before anything else is."""
        self._to = to
        self._buffer = buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._to.connection_made(transport)  # type: ignore[arg-type] # of a stream

    def connection_lost(self, exc: Exception | None) -> None:
        self._to.connection_lost(exc)

    def pause_writing(self) -> None:
        self._to.pause_writing()

    def resume_writing(self) -> None:
        self._to.resume_writing()

    def eof_received(self) -> None:
        self._to.eof_received()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - one size for all
        """Where to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over what was read."""
        self._to.data_received(bytes(memoryview(self._buffer)[:nbytes]))


def protocol(open_ones: Connections) -> Callable[..., asyncio.BufferedProtocol]:
    """What makes one for each connection."""
    bounded = type("Protocol", (BoundedProtocol,), {"open_ones": open_ones})
    buffer = bytearray(AT_ONCE)
    return lambda **given: _Reading(bounded(**given), buffer)


class Server(Listener):
    """The address that the API listens on, and who is connected to it."""

    def __init__(self, host: str, port: int, app: ASGIApp, *, grace: timedelta) -> None:
        """Listen at once, for as many as there are files."""
        self.connections = Connections(room(MOST_CONNECTIONS))
        most, bounded = self.connections.most, protocol(self.connections)
        super().__init__(host, port, app, grace=grace, most=most, protocol=bounded)
