"""How pages are made: templates, with everything in them harmless.

Whatever a template writes is escaped, and before that loses what would steer the eye of a reader:
controls, and what turns the direction of reading, are written down instead. `exact` is for the few
places where a value is sent back as it is, as a hidden field of a form. A name that is nowhere is
an error, not an empty place. How values are written is told by `wording`.
"""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from imagefleet.console.wording import FILTERS, harmless

HERE: Final = Path(__file__).parent
LIVE: Final = "live_"  # how the names of blocks begin that are followed live
TYPES: Final[Mapping[str, str]] = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}

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
            finalize=harmless,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= FILTERS
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
