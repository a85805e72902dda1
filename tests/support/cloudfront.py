"""CloudFront's invalidations, over HTTP, with the limits and faults that no emulator has.

What it promises is asked of it and of the emulators by the same tests (tests/aws/test_edge.py), and
each limit by tests/aws/test_edge_limits.py, which quote AWS. Time is its own: it moves with the
clock, and by `pass_time`.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from aiohttp import web

from tests.support.aws import Answer, serving

NAMESPACE: Final = "http://cloudfront.amazonaws.com/doc/2020-05-31/"
FILES: Final = 3000
WILDCARDS: Final = 15
BURST: Final = 6  # calls
CALLS_A_SECOND: Final = 1.0
DISTRIBUTION: Final = "EFAKE"

EXISTS: Final = "InvalidationBatchAlreadyExists"
TOO_MANY: Final = "TooManyInvalidationsInProgress"
# Status codes are those of the API's model, by which SDKs are made.
STATUSES: Final = {
    "AccessDenied": 403,
    "BatchTooLarge": 413,
    "InconsistentQuantities": 400,
    "InvalidArgument": 400,
    EXISTS: 400,
    "MalformedXML": 400,
    "MissingBody": 400,
    "NoSuchDistribution": 404,
    "NoSuchInvalidation": 404,
    "ServiceUnavailable": 503,
    "Throttling": 400,
    TOO_MANY: 400,
}


class Refused(Exception):
    """An answer that is an error."""


@dataclass(frozen=True, slots=True)
class Made:
    """An invalidation that was accepted."""

    id: str
    reference: str
    items: tuple[str, ...]
    accepted_at: float


@dataclass(slots=True)
class Limits:
    """What CloudFront bears; None switches a limit off."""

    files: int | None = FILES
    """Files and tags in progress."""
    wildcards: int | None = WILDCARDS
    burst: int | None = BURST
    """Calls at once; then one a second."""


@dataclass(slots=True)
class CloudFront:
    """One distribution, and what was asked of it."""

    limits: Limits = field(default_factory=Limits)
    completes_after: float = 0.0
    """Seconds from the acceptance to `Completed`."""
    remembers_references: bool = True
    on_accepted: Callable[[Made], Awaitable[None]] | None = None
    """Awaited before the answer to each invalidation that is new."""
    refuses: str | None = None
    """The code of every answer, while it is set."""
    malformed: frozenset[str] = frozenset()
    """Items that are never taken."""
    loses_replies: int = 0
    """So many requests are carried out, and their connection is cut instead of an answer."""
    url: str = ""
    made: dict[str, Made] = field(default_factory=dict)
    """By id, in the order of acceptance."""
    calls: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    most_in_progress: int = 0
    _holds: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request to create has come, whatever becomes of it."""
    _passed: float = 0.0
    _calls: float = 0.0
    _called_at: float = 0.0

    @property
    def accepted(self) -> list[tuple[str, ...]]:
        """The items of every invalidation, in the order of acceptance."""
        return [made.items for made in self.made.values()]

    @property
    def now(self) -> float:
        return time.monotonic() + self._passed

    def pass_time(self, seconds: float) -> None:
        """Let time pass at once."""
        self._passed += seconds

    def hold(self) -> None:
        """Answer no more requests to create until `release`; those held are not carried out."""
        self._holds = asyncio.Event()
        self.arrived.clear()

    def release(self) -> None:
        """Carry out what is held, and go on."""
        assert self._holds is not None
        self._holds.set()
        self._holds = None

    def forget(self) -> None:
        """Know no invalidation any more."""
        self.made.clear()

    def in_progress(self) -> list[str]:
        return [
            item for made in self.made.values() if not self._is_done(made) for item in made.items
        ]

    def _is_done(self, made: Made) -> bool:
        return self.now - made.accepted_at >= self.completes_after

    async def respond(self, request: web.Request) -> Answer:
        """Carry out one request, or refuse it as CloudFront does."""
        try:
            answer = await self._carry_out(request)
        except Refused as refused:
            code = str(refused)
            self.refusals[code] += 1
            return _error(code)
        if self.loses_replies > 0:
            self.loses_replies -= 1
            assert request.transport is not None
            request.transport.abort()
        return answer

    async def _carry_out(self, request: web.Request) -> Answer:
        version, kind, distribution, what, *rest = request.path.strip("/").split("/")
        assert (version, kind, what) == ("2020-05-31", "distribution", "invalidation")
        operation = "Get" if rest else "Create" if request.method == "POST" else "List"
        self.calls[operation] += 1
        body = await request.text()
        if operation == "Create":
            self.arrived.set()
            if self._holds is not None:
                await self._holds.wait()
        self._throttle()
        if self.refuses is not None:
            raise Refused(self.refuses)
        if distribution != DISTRIBUTION:
            raise Refused("NoSuchDistribution")
        if operation == "Create":
            return await self._create(body)
        return self._get(rest[0]) if rest else self._list(request)

    def _throttle(self) -> None:
        if self.limits.burst is None:
            return
        refilled = (self.now - self._called_at) * CALLS_A_SECOND
        self._calls, self._called_at = max(0.0, self._calls - refilled), self.now
        if self._calls + 1 > self.limits.burst:
            raise Refused("Throttling")
        self._calls += 1

    async def _create(self, body: str) -> Answer:
        reference, items = _batch(body)
        if self.malformed.intersection(items):
            raise Refused("InvalidArgument")
        if self.remembers_references:
            for made in self.made.values():
                if made.reference == reference:
                    if sorted(made.items) != sorted(items):
                        raise Refused(EXISTS)
                    return self._shown(made, status=201)
        self._make_room(items)
        made = Made("I" + secrets.token_hex(6).upper(), reference, tuple(items), self.now)
        if self.on_accepted is not None:
            await self.on_accepted(made)
        self.made[made.id] = made
        self.most_in_progress = max(self.most_in_progress, len(self.in_progress()))
        return self._shown(made, status=201)

    def _make_room(self, items: Sequence[str]) -> None:
        wildcards, files = _sorts(items)
        if self.limits.files is not None and files > self.limits.files:
            raise Refused("BatchTooLarge")
        wildcards_now, files_now = _sorts(self.in_progress())
        for there, more, most in (
            (files_now, files, self.limits.files),
            (wildcards_now, wildcards, self.limits.wildcards),
        ):
            if most is not None and more and there + more > most:
                raise Refused(TOO_MANY)

    def _get(self, invalidation_id: str) -> Answer:
        if invalidation_id not in self.made:
            raise Refused("NoSuchInvalidation")
        return self._shown(self.made[invalidation_id], status=200)

    def _list(self, request: web.Request) -> Answer:
        """Newest first, as AWS lists them."""
        most, marker = int(request.query.get("MaxItems", "100")), request.query.get("Marker", "")
        newest = list(self.made.values())[::-1]
        begin = next((n + 1 for n, made in enumerate(newest) if made.id == marker), 0)
        page, more = newest[begin : begin + most], len(newest) > begin + most
        summaries = "".join(
            f"<InvalidationSummary>{self._head(made)}</InvalidationSummary>" for made in page
        )
        text = (
            f"<Marker>{escape(marker)}</Marker><MaxItems>{most}</MaxItems>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated><Quantity>{len(page)}</Quantity>"
            f"<Items>{summaries}</Items>"
        )
        if more:
            text += f"<NextMarker>{page[-1].id}</NextMarker>"
        return _xml(f'<InvalidationList xmlns="{NAMESPACE}">{text}</InvalidationList>', 200)

    def _shown(self, made: Made, *, status: int) -> Answer:
        items = "".join(f"<Path>{escape(item)}</Path>" for item in made.items)
        text = (
            f"{self._head(made)}<InvalidationBatch><Paths><Quantity>{len(made.items)}</Quantity>"
            f"<Items>{items}</Items></Paths><CallerReference>{escape(made.reference)}"
            "</CallerReference></InvalidationBatch>"
        )
        return _xml(f'<Invalidation xmlns="{NAMESPACE}">{text}</Invalidation>', status)

    def _head(self, made: Made) -> str:
        status = "Completed" if self._is_done(made) else "InProgress"
        return (
            f"<Id>{made.id}</Id><Status>{status}</Status>"
            "<CreateTime>2026-01-01T00:00:00.000Z</CreateTime>"
        )


def _batch(body: str) -> tuple[str, list[str]]:
    """The reference and the items of a request."""
    if not body:
        raise Refused("MissingBody")
    try:
        batch = ET.fromstring(body)  # noqa: S314 - of our own SDK
    except ET.ParseError as error:
        raise Refused("MalformedXML") from error
    named = {"c": NAMESPACE}
    items = [path.text or "" for path in batch.iterfind("c:Paths/c:Items/c:Path", named)]
    quantity = int(batch.findtext("c:Paths/c:Quantity", "-1", named))
    reference = batch.findtext("c:CallerReference", "", named)
    if quantity != len(items):
        raise Refused("InconsistentQuantities")
    if not reference or not items or not all(_is_item(item) for item in items):
        raise Refused("InvalidArgument")
    return reference, items


def _is_item(item: str) -> bool:
    if item.startswith("#"):
        tag = item[1:]
        return (
            0 < len(tag) <= 256 and all("!" <= letter <= "~" for letter in tag) and ("," not in tag)
        )
    # The wildcard can only be the last character.
    return item.startswith("/") and len(item) <= 4000 and "*" not in item[:-1]


def _sorts(items: Sequence[str]) -> tuple[int, int]:
    wildcards = sum(item.startswith("/") and item.endswith("*") for item in items)
    return wildcards, len(items) - wildcards


def _error(code: str) -> Answer:
    kind = "Receiver" if STATUSES[code] >= 500 else "Sender"
    text = (
        f'<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{kind}</Type><Code>{code}</Code>'
        "<Message>as told by a test</Message></Error><RequestId>1</RequestId></ErrorResponse>"
    )
    return _xml(text, STATUSES[code])


def _xml(text: str, status: int) -> Answer:
    return web.Response(status=status, text=text, content_type="text/xml")


@asynccontextmanager
async def a_cloudfront(cloudfront: CloudFront | None = None) -> AsyncIterator[CloudFront]:
    """One that listens on this machine."""
    played = cloudfront or CloudFront()
    async with serving(played.respond) as server:
        played.url = server.url
        yield played
