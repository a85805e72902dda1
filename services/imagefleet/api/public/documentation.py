"""`/docs`: the documents of the API as pages for people, by Swagger UI, which lies in the package.

The files of others are as `make vendor` fetched them; ours are beside them. The pages may load from
here alone and run no script that stands in them: what a document says can start nothing.
"""

import asyncio
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Final

from fastapi import Request
from starlette.responses import Response

from imagefleet.api.http.documents import DESCRIBED_FOR, DOCUMENTS, OPERATORS, PRODUCERS, Document
from imagefleet.api.http.openapi import Routes
from imagefleet.api.http.requests import ToolsHere
from imagefleet.errors import NotFound

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_FILES: Final = MappingProxyType(
    {
        "page.css": "text/css",
        "page.js": "text/javascript",
        "swagger-ui.css": "text/css",
        "swagger-ui-bundle.js": "text/javascript",
    }
)

router = Routes(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class _File:
    packed: bytes
    tag: str


@router.get(PRODUCERS.page)
async def show_docs(request: Request, tools: ToolsHere) -> Response:
    """The page of producers."""
    return await _page(request, tools, PRODUCERS)


@router.get(OPERATORS.page)
async def show_docs_of_operators(request: Request, tools: ToolsHere) -> Response:
    """The page of operators, where their routes are."""
    return await _page(request, tools, OPERATORS)


@router.get("/docs/{name}")
async def show_file(request: Request, name: str) -> Response:
    """A file that the pages load."""
    if name not in _FILES:
        raise NotFound("page")
    await request.app.state.unhurried.answer(request)
    file = await asyncio.to_thread(_read, name)
    headers = {
        "ETag": file.tag,
        "Cache-Control": f"public, max-age={DESCRIBED_FOR}",
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    content = file.packed
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        content = await asyncio.to_thread(gzip.decompress, content)
    return Response(content, headers=headers, media_type=_FILES[name])


async def _page(request: Request, tools: ToolsHere, document: Document) -> Response:
    shown = [each for each in DOCUMENTS if tools.operators is not None or not each.of_operators]
    if document not in shown:
        raise NotFound("page")
    await request.app.state.unhurried.answer(request)
    page = _template().substitute(
        title=document.title,
        document=document.address,
        links=" ".join(f'<a href="{each.page}">{each.title}</a>' for each in shown),
    )
    headers = {
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": f"public, max-age={DESCRIBED_FOR}",
    }
    return Response(page, headers=headers, media_type="text/html")


@cache
def _template() -> Template:
    return Template((files(__package__) / "docs" / "page.html").read_text(encoding="utf-8"))


@cache
def _read(name: str) -> _File:
    """Read once, and kept as most are sent."""
    folder = "docs" if name.startswith("page.") else "swagger-ui"
    content = (files(__package__) / folder / name).read_bytes()
    return _File(gzip.compress(content), f'W/"{hashlib.sha256(content).hexdigest()[:32]}"')
