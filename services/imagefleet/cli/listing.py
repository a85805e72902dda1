"""What verbs that list have in common: page after page, and since when."""

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias, Unpack

import typer

from imagefleet.cli.output import Columns, GivesWay, complain, print_json, say, show_list
from imagefleet.cli.verbs import call
from imagefleet.client.api import ApiClient, Document, Reply
from imagefleet.errors import Misconfigured
from imagefleet.telemetry.plain import json

MOST_ON_A_PAGE: Final = 100
SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="From then on: 90s, 15m, 2h, 3d, 1w ago, or a time; it is UTC."
    ),
]

Until = Annotated[str | None, typer.Option(help="Until then, in the same forms.")]

Parameters: TypeAlias = Mapping[str, str | None]
Page: TypeAlias = Document | Reply[Any]


Asking: TypeAlias = Callable[[ApiClient, Parameters], Awaitable[Page]]


def route(path: str) -> Asking:
    """Pages of one of the operators' routes."""
    return lambda client, parameters: client.ask("GET", path, parameters)


def show_pages(
    asking: Asking,
    asked: Parameters,
    name: str,
    columns: Columns,
    *,
    every_page: bool,
    as_json: bool,
    most: int = MOST_ON_A_PAGE,
    **gives_way: Unpack[GivesWay],
) -> None:
    """So many, or all of them, page by page; never more than one page is kept."""
    limit = math.inf if every_page else int(asked["limit"] or most)
    if limit <= most:
        page = call(lambda client: asking(client, asked))
        show_list(page, name, columns, as_json=as_json, **gives_way)
        return

    async def show_all(client: ApiClient) -> None:
        parameters, seen = dict(asked), 0
        while True:
            parameters["limit"] = str(min(most, limit - seen))
            page = await asking(client, parameters)
            document = page.document if isinstance(page, Reply) else page
            things, cursor = document[name], document.get("nextCursor")
            if as_json:
                _print_items(things, name, first=not seen)
            elif things or not (seen or cursor):
                gives_way["goes_on"] = seen > 0
                show_list(page, name, columns, as_json=False, **gives_way)
            seen += len(things)
            if cursor is None or seen >= limit:
                break
            parameters["cursor"] = str(cursor)
        further = "" if cursor is None else f', "nextCursor": {json(cursor, on_a_line=True)}'
        if as_json:
            say(f"]{further}}}" if seen else f'{{"{name}": []}}')
        elif cursor is not None:
            complain(f"there are more: --cursor {cursor}")

    call(show_all)


def _print_items(things: list[object], name: str, *, first: bool) -> None:
    """One document in the end, an item a line."""
    for place, thing in enumerate(things):
        before = f'{{"{name}": [\n' if first and not place else ","
        print_json(thing, on_a_line=True, before=before)


def status_of(told: str | None, known: type[StrEnum]) -> str | None:
    """A status that somebody typed, if there is such a one of what is listed."""
    if told is not None and told not in list(known):
        detail = f"--status is one of {', '.join(known)}, not {told!r}"
        raise Misconfigured(detail)
    return told


def instant(told: str | None) -> str | None:
    """A time that somebody typed, as the API takes it; one without a zone is UTC, as in tables."""
    if told is None:
        return None
    ago = re.fullmatch(r"(\d{1,9})([smhdw])", told)
    try:
        if ago is not None:
            span = timedelta(seconds=int(ago[1]) * SPANS[ago[2]])
            return (datetime.now(UTC) - span).isoformat()
        then = datetime.fromisoformat(told)
    except (ValueError, OverflowError):
        detail = f"a time is 90s, 15m, 1h, 2d or 1w ago, or 2026-03-01T00:00:00Z, not {told!r}"
        raise Misconfigured(detail) from None
    return (then if then.tzinfo else then.replace(tzinfo=UTC)).isoformat()
