"""How pages are made: templates, with everything in them harmless.

Whatever a template writes is escaped, and before that loses what would steer the eye of a reader:
controls, and what turns the direction of reading, are written down instead. `exact` is for the few
places where a value is sent back as it is, as a hidden field of a form. A name that is nowhere is
an error, not an empty place. Times are told in UTC; `console.js` tells them in the reader's zone.
"""

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from imagefleet.telemetry import plain

HERE: Final = Path(__file__).parent
LIVE: Final = "live_"  # how the names of blocks begin that are followed live
TYPES: Final[Mapping[str, str]] = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
MINUTE: Final = 60  # seconds
UNITS: Final = ((86_400, "d"), (3600, "h"), (MINUTE, "min"), (1, "s"))
FEW: Final = 10  # of which a part is told
MANY: Final = 100  # of which no part is
KIBI: Final = 1024
MOST_OF_A_TEXT: Final = 20_000  # characters of one value that a page shows

MOMENT_OR_JOB: Final = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC|[Jj]ob [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)

Context: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trouble:
    """What could not be asked, in the place of what would be shown."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that pages load, by an address that is never of another content."""

    address: str
    content: bytes
    packed: bytes
    media_type: str


class Showing:
    """The templates and files of the console."""

    def __init__(self, **told: object) -> None:
        """What every page is told besides, by name."""
        self.files = {each.address: each for each in _files()}
        by_name = {each.address.split("/", 3)[3]: each.address for each in self.files.values()}
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_harmless,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= {
            "amount": amount,
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
            "words": words,
        }
        self._templates.tests["trouble"] = lambda value: isinstance(value, Trouble)
        self._templates.globals |= {"static": by_name.__getitem__, **told}
        macros: Any = self._templates.get_template("macros.html").module
        self._templates.globals["m"] = macros

    def page(self, name: str, context: Context) -> str:
        """A whole page."""
        return self._templates.get_template(name).render(context)

    def block(self, name: str, block: str, context: Context) -> str:
        """One block of a page, by itself."""
        return _block(self._templates.get_template(name), block, context)

    def live(self, name: str, context: Context) -> dict[str, str]:
        """The blocks of a page that are followed, by their names."""
        template = self._templates.get_template(name)
        followed = [block for block in template.blocks if block.startswith(LIVE)]
        return {block: _block(template, block, context) for block in followed}


def _block(template: Template, block: str, context: Context) -> str:
    return "".join(template.blocks[block](template.new_context(dict(context))))


def _files() -> Iterator[StaticFile]:
    """Those that pages load; what only comes with them, as licences, is not among them."""
    folder = HERE / "static"
    for path in sorted(folder.rglob("*")):
        if path.suffix in TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:16]
            name = path.relative_to(folder).as_posix()
            yield StaticFile(
                address=f"/static/{digest}/{name}",
                content=content,
                packed=gzip.compress(content, mtime=0),
                media_type=TYPES[path.suffix],
            )


def _harmless(value: object) -> object:
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
    """A number with its thousands apart."""
    if number is None:
        return "—"
    whole = isinstance(number, int) or number.is_integer()
    return f"{int(number):,}".replace(",", "\u202f") if whole else f"{number:,.2f}"


def short(value: object) -> Markup:
    """The end of an id, which differs most; the whole of it where the eye rests on it."""
    text = str(value)
    return Markup('<span class="id" title="{}">{}</span>').format(text, f"…{text[-8:]}")


def words(code: object) -> str:
    """A code of machines as words of people."""
    return str(code).replace("_", " ")


def query(fields: Mapping[str, object]) -> Markup:
    """The query of an address, of what has a value."""
    given = {name: str(value) for name, value in fields.items() if value not in {None, ""}}
    return escape(f"?{urlencode(given)}" if given else "")
