"""`/v1/errors/{code}`: what a code of a problem means, where the problem's own `type` leads.

A section of docs/errors.md each, made into a page when it is first asked for. The page is ours and
yet trusted with nothing: it has one style, known by its hash, and no script, picture or frame.
"""

import base64
import hashlib
import html
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from fastapi import Request
from starlette.responses import Response

import imagefleet
from imagefleet.api.http.documents import DESCRIBED_FOR
from imagefleet.api.http.errors import EXPLAINED_AT
from imagefleet.api.http.openapi import Routes
from imagefleet.errors import NotFound

_PAGE: Final = "errors.md"
_HEADING: Final = re.compile(r"^## `([a-z_]+)`\n", re.MULTILINE)
_STYLE: Final = (
    "body{max-width:44rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif;"
    "color:#222;background:#fff}code{font:.9em ui-monospace,monospace;background:#eef}"
    "td{vertical-align:top;padding:.2rem 1rem .2rem 0}"
)
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": f"public, max-age={DESCRIBED_FOR}",
}

router = Routes()


@router.get(EXPLAINED_AT, include_in_schema=False)
async def show_errors(request: Request) -> Response:
    """What problems are, and every code."""
    return await _answered(request, "")


@router.get(EXPLAINED_AT + "/{code}", include_in_schema=False)
async def show_error(request: Request, code: str) -> Response:
    """One code."""
    return await _answered(request, code)


async def _answered(request: Request, code: str) -> Response:
    page = pages().get(code)
    if page is None:
        raise NotFound("code")
    await request.app.state.unhurried.answer(request)
    return Response(page, headers=_HEADERS, media_type="text/html")


@cache
def pages() -> dict[str, bytes]:
    """The page of each code; of none: what all have in common, and where they are."""
    packaged = resources.files(imagefleet) / _PAGE
    checkout = Path(imagefleet.__file__).parents[2] / "docs" / _PAGE
    text = (packaged if packaged.is_file() else checkout).read_text(encoding="utf-8")
    about, *parts = _HEADING.split(text)
    said = dict(zip(parts[::2], parts[1::2], strict=True))
    index = ", ".join(f'<a href="{EXPLAINED_AT}/{code}"><code>{code}</code></a>' for code in said)
    about = about.removeprefix("# Errors")
    up = f'<p><a href="{EXPLAINED_AT}">All codes</a></p>'
    whole = {"": _page("Errors", f"{_blocks(about)}\n<p>{index}</p>")}
    return whole | {code: _page(code, f"{_blocks(text)}\n{up}") for code, text in said.items()}


def _page(title: str, body: str) -> bytes:
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    ).encode()


def _blocks(text: str) -> str:
    return "\n".join(_block(block) for block in text.strip().split("\n\n"))


def _block(block: str) -> str:
    """A paragraph or a table, which is all that the page is made of."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(block))
    if not marked.startswith("|"):
        return f"<p>{marked}</p>"
    rows = [line.strip("|").split("|") for line in marked.splitlines()[2:]]
    cells = ("".join(f"<td>{cell.strip()}</td>" for cell in row) for row in rows)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
