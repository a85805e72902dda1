"""How values are written on a page: text of strangers, moments, spans, sizes, amounts, documents.

Times are told in UTC, as elements that `console.js` tells in the reader's zone.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup, escape

from imagefleet.imaging.placeholder import picture
from imagefleet.telemetry import plain

MINUTE: Final = 60  # seconds
UNITS: Final = ((86_400, "d"), (3600, "h"), (MINUTE, "min"), (1, "s"))
FEW: Final = 10  # of which a part is told
MANY: Final = 100  # of which no part is
KIBI: Final = 1024
MOST_DRAWN: Final = 500  # placeholders that are kept, half a kilobyte each
MOST_OF_A_TEXT: Final = 20_000  # characters of one value that a page shows

PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "_paused": ("/controls#pauses", "What is paused"),
    "breaker_open": ("/controls#breakers", "The circuit breakers"),
    "no_worker_for": ("/workers", "Which workers are up"),
    "lane_saturated": ("/workers", "What the workers have in their hands"),
    "lease_": ("/workers", "The worker that has it"),
    "window_full": ("/workers", "What the workers have in their hands"),
    "no_dispatcher": ("/timeline?on=election", "Who held which office last"),
}
"""By parts of the reasons that an explanation gives."""

MOMENT_OR_JOB: Final = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|[Jj]ob [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)


def harmless(value: object) -> object:
    """What is written into a page: nothing for nothing, and text that steers nothing."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return plain.plain(value)
    return value


def exact(value: object) -> Markup:
    """As it is, for a form to send it back; escaped, and never for the eye."""
    return escape(str(value))


def lines(text: str | None) -> Markup:
    """A text of several lines, for a `<pre>`."""
    told = (text or "")[:MOST_OF_A_TEXT]
    return Markup("\n").join(escape(plain.plain(line)) for line in told.splitlines())


def as_json(document: object) -> Markup:
    """A document as it means, for a `<pre>`."""
    return escape(plain.json(document)[:MOST_OF_A_TEXT])


def moment(at: datetime | None) -> Markup:
    """A moment; the reader's own clock tells it where scripts run."""
    return _time(at, "")


def since(at: datetime | None) -> Markup:
    """How long ago a moment was, which goes on being told."""
    return _time(at, Markup(' data-ago=""'))


def _time(at: datetime | None, how: str) -> Markup:
    if at is None:
        return Markup('<span class="none">never</span>')
    at = at.astimezone(UTC)
    told = at.isoformat(timespec="milliseconds")
    return Markup('<time{} datetime="{}">{}</time>').format(
        how, told, f"{at:%Y-%m-%d %H:%M:%S} UTC"
    )


def told(sentence: str) -> Markup:
    """A sentence of the API: its moments as such, its jobs as ways there."""
    pieces = MOMENT_OR_JOB.split(plain.plain(sentence))
    return Markup().join(
        escape(piece) if at % 2 == 0 else _pointed(piece) for at, piece in enumerate(pieces)
    )


def _pointed(piece: str) -> Markup:
    if piece.endswith(" UTC"):
        return moment(datetime.strptime(piece, "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC))
    word, _, job_id = piece.partition(" ")
    return Markup('<a href="/jobs/{}">{} …{}</a>').format(job_id, word, job_id[-8:])


def span(duration: timedelta | float | None) -> str:
    """A duration in the one or two units that matter."""
    if duration is None:
        return "—"
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < FEW else f"{seconds:.0f} s"
    for (unit, name), (part, its_name) in pairwise(UNITS):
        count = int(seconds // unit)
        if count:
            left = int(seconds % unit // part)
            return (
                f"{count} {name} {left} {its_name}" if left and count < MANY else f"{count} {name}"
            )
    raise AssertionError


def size(count: float | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "—"
    value, name = float(count), "bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        if value < KIBI:
            break
        value, name = value / KIBI, unit
    return f"{value:.0f} {name}" if name == "bytes" or value >= MANY else f"{value:.1f} {name}"


def amount(number: float | None) -> str:
    """A number with its thousands apart; a part only of what is small."""
    if number is None:
        return "—"
    whole = isinstance(number, int) or number.is_integer() or number >= MANY
    told = f"{round(number):,}" if whole else f"{number:.1f}"
    return told.replace(",", "\u202f")


def short(value: object) -> Markup:
    """The end of an id, which differs most; the whole of it where the eye rests on it."""
    text = str(value)
    return Markup('<span class="id" title="{}">{}</span>').format(text, f"…{text[-8:]}")


@lru_cache(maxsize=MOST_DRAWN)
def drawn(thumbhash: str | None) -> str:
    """What stands in the place of a picture until it is there, as an address; of none, nothing."""
    try:
        png = picture(b64decode(thumbhash or "", validate=True))
    except ValueError:
        return ""
    return f"data:image/png;base64,{b64encode(png).decode()}"


def waits_for(reason: str) -> tuple[str, str] | None:
    """Where more is shown of what the API says that something waits for, and what that is."""
    kinds = (kind for kind in PLACES if kind in reason)
    return next((PLACES[kind] for kind in kinds), None)


def words(code: object) -> str:
    """A code of machines as words of people."""
    return str(code).replace("_", " ")


def query(fields: Mapping[str, object]) -> Markup:
    """The query of an address, of what has a value."""
    return escape(there("", fields))


def there(path: str, fields: Mapping[str, object]) -> str:
    """An address with a query of what has a value; not escaped yet."""
    given = {name: str(value) for name, value in fields.items() if value not in {None, ""}}
    return f"{path}?{urlencode(given)}" if given else path


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "amount": amount,
    "drawn": drawn,
    "exact": exact,
    "json": as_json,
    "lines": lines,
    "query": query,
    "short": short,
    "since": since,
    "size": size,
    "span": span,
    "time": moment,
    "told": told,
    "waits_for": waits_for,
    "words": words,
}
"""By the names that templates have for them."""
