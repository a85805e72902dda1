"""Who is logged in: a key in memory, behind a cookie that says nothing of it.

The cookie is a random name of the session and a signature; what it is signed with, and the keys,
live as long as this process: a restart logs everybody out. A session is over when it was left alone
for too long, at its end, at a logout, or when the API says that its key is no longer in force; then
its key is forgotten, and what follows a page live ends.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Final, Literal

import structlog

from imagefleet.client.api import ApiClient

MOST_SESSIONS: Final = 500
MOST_NOTICES: Final = 5
MOST_WATCHED: Final = 10  # faults
SECRET_BYTES: Final = 32
SHOWN_OF_A_KEY: Final = 4  # characters
TRIES_A_MINUTE: Final = 10  # of one address
MINUTE: Final = 60  # seconds
MOST_ADDRESSES: Final = 1000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Notice:
    """What became of something that was asked for, told on the next page."""

    kind: Literal["done", "refused"]
    sentence: str


@dataclass(frozen=True, slots=True)
class Watched:
    """A replay that is counted on a page: by the new jobs, or by the job that replays letters."""

    job_ids: tuple[str, ...] = ()
    walk: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """Somebody who is logged in."""

    id: str
    client: ApiClient
    """Bears the key."""
    name: str
    """What pages call them: the end of the key, or the name that the proxy knows."""
    of_proxy: str | None = None
    reads_only: bool = False
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    opened_at: float = field(default_factory=monotonic)
    seen_at: float = field(default_factory=monotonic)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0
    notices: list[Notice] = field(default_factory=list)
    watched: dict[str, Watched] = field(default_factory=dict)
    """By fingerprint of the fault."""

    def tell(self, notice: Notice) -> None:
        """Keep it for the next page that is shown."""
        self.notices = [*self.notices, notice][-MOST_NOTICES:]

    def watch(self, fingerprint: str, watched: Watched) -> None:
        """Count from now on how these fare; of few faults at once."""
        self.watched.pop(fingerprint, None)
        self.watched = dict([*self.watched.items()][1 - MOST_WATCHED :]) | {fingerprint: watched}

    def told(self) -> list[Notice]:
        """What was kept, once."""
        notices, self.notices = self.notices, []
        return notices


class Sessions:
    """Those of this process."""

    def __init__(self, client: ApiClient, *, idle: timedelta, longest: timedelta) -> None:
        self._client = client
        self._idle = idle.total_seconds()
        self._longest = longest.total_seconds()
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # who was seen last, last

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, key: str, *, name: str | None = None, of_proxy: str | None = None, reads_only: bool
    ) -> Session:
        """Begin one for a key that the API was asked about."""
        session = Session(
            id=secrets.token_urlsafe(SECRET_BYTES),
            client=self._client.bearing(key),
            name=name or f"key …{key[-SHOWN_OF_A_KEY:]}",
            of_proxy=of_proxy,
            reads_only=reads_only,
        )
        self._sessions[session.id] = session
        self.end_old()
        while len(self._sessions) > MOST_SESSIONS:
            self.end(next(iter(self._sessions.values())), "crowded_out")
        log.info("console.login", who=session.name, reads_only=reads_only, sessions=len(self))
        return session

    def cookie_of(self, session: Session) -> str:
        """What the browser is given."""
        return f"{session.id}.{self._signature(session.id)}"

    def find(self, cookie: str | None) -> Session | None:
        """Whose cookie this is, if the session is not over; it counts as seen."""
        name, _, signature = (cookie or "").partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(name).encode()):
            return None
        session = self._sessions.get(name)
        if session is None or self._is_old(session):
            return None
        session.seen_at = monotonic()
        self._sessions.move_to_end(name)
        return session

    def of_proxy(self, name: str) -> Session | None:
        """The session of somebody whom a proxy names."""
        found = (each for each in self._sessions.values() if each.of_proxy == name)
        return next((each for each in found if not self._is_old(each)), None)

    def end(self, session: Session, why: str) -> None:
        """Forget it, with its key."""
        if self._sessions.pop(session.id, None) is not None:
            session.over.set()
            log.info("console.logout", who=session.name, why=why, sessions=len(self))

    def end_old(self) -> None:
        """Forget those that are over by now."""
        for session in [each for each in self._sessions.values() if self._is_old(each)]:
            self.end(session, "expired")

    def end_all(self) -> None:
        """Forget everybody: the process ends."""
        for session in [*self._sessions.values()]:
            self.end(session, "drained")

    def _is_old(self, session: Session) -> bool:
        now = monotonic()
        idle, age = now - session.seen_at, now - session.opened_at
        return session.over.is_set() or idle > self._idle or age > self._longest

    def _signature(self, name: str) -> str:
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()


class Attempted:
    """How often each address has tried to log in, within a minute."""

    def __init__(self) -> None:
        self._tries: OrderedDict[str, list[float]] = OrderedDict()

    def too_often(self, address: str) -> bool:
        """Count a try; whether there were too many before it."""
        now = monotonic()
        tries = [at for at in self._tries.pop(address, []) if at > now - MINUTE]
        refused = len(tries) >= TRIES_A_MINUTE
        self._tries[address] = tries if refused else [*tries, now]
        if len(self._tries) > MOST_ADDRESSES:
            self._tries.popitem(last=False)
        return refused
