"""`imagefleet audit`: who did what, and what the fleet did by itself."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from imagefleet.cli.connection import call
from imagefleet.cli.options import Cursor, Json
from imagefleet.cli.output import at, filled, show_list
from imagefleet.client.api import ApiClient, Document
from imagefleet.errors import Misconfigured

PATH: Final = "/v1/operator/audit"
PAGE: Final = 500
SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def audit(
    since: Annotated[
        str, typer.Option(help="From then on: 90s, 15m, 1h, 2d, 1w ago, or a time with its zone.")
    ] = "1d",
    until: Annotated[str | None, typer.Option(help="Until then, in the same forms.")] = None,
    by: Annotated[
        str | None, typer.Option(help="Only by this one: a key's name or id, user@host, a process.")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="Only on this: a kind, or kind/name.", metavar="KIND[/NAME]")
    ] = None,
    what: Annotated[str | None, typer.Option(help="Only this: pause, reset, revoke...")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only what concerns this tenant.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many lines.")] = 1000,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """Tell who did what, to what and why; the newest first.

    Everything that an operator or the holder of the database changes is there, with what was before
    and after it (--json shows both), and what the fleet did by itself: workers that start, stop or
    are lost, offices that change hands, breakers that open and close. Nobody can change a line, or
    take one away.

    Kinds are pause, circuit_breaker, job, dead_letter, image, key, tenant, setting, worker and
    election.

    For example:

        imagefleet audit --since 1h
        imagefleet audit --since 2d --on circuit_breaker/s3
        imagefleet audit --since 2026-03-01T00:00:00Z --by oncall --what resume --json
    """
    now = datetime.now(UTC)
    parameters = {
        "since": _moment(since, now),
        "until": None if until is None else _moment(until, now),
        "by": by,
        "on": on,
        "what": what,
        "tenant": tenant,
        "cursor": cursor,
    }
    show_list(call(lambda client: _read(client, parameters, limit)), "lines", {
        "at (UTC)": at("at"), "by": _who, "did": _what, "why": "reason",
    }, as_json=as_json)  # fmt: skip


async def _read(client: ApiClient, parameters: dict[str, str | None], limit: int) -> Document:
    """Page by page, until so many are there or nothing is left."""
    lines: list[Document] = []
    while True:
        parameters["limit"] = str(min(PAGE, limit - len(lines)))
        page = await client.ask("GET", PATH, parameters)
        lines += page["lines"]
        cursor = page.get("nextCursor")
        if cursor is None or len(lines) >= limit:
            return filled(lines=lines, nextCursor=cursor)
        parameters["cursor"] = str(cursor)


def _moment(told: str, now: datetime) -> str:
    ago = re.fullmatch(r"(\d{1,9})([smhdw])", told)
    try:
        if ago is not None:
            return (now - timedelta(seconds=int(ago[1]) * SPANS[ago[2]])).isoformat()
        then = datetime.fromisoformat(told)
    except (ValueError, OverflowError):
        pass
    else:
        if then.tzinfo is not None:
            return then.isoformat()
    detail = f"a time is 90s, 15m, 1h, 2d or 1w ago, or 2026-03-01T00:00:00Z, not {told!r}"
    raise Misconfigured(detail)


def _who(line: Document) -> str:
    return f"{line['actor']} from {line['address']}" if line.get("address") else str(line["actor"])


def _what(line: Document) -> str:
    whose = f" of {line['tenant']}" if line.get("tenant") else ""
    return f"{line['action']} {line['kind']} {line['name']}{whose}"
