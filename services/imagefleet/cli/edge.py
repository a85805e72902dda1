"""`imagefleet edge`: how the edge stands, and telling it by hand."""

import asyncio
from typing import Annotated, Final
from uuid import UUID

import typer

from imagefleet.cli.connection import open_api
from imagefleet.cli.operating import ask, filled, moment
from imagefleet.cli.output import Json, print_json, print_table, run_async, say, waiting
from imagefleet.client.api import Document
from imagefleet.errors import Unavailable

STATUS: Final = "/v1/operator/edge"
INVALIDATIONS: Final = f"{STATUS}/invalidations"
POLL: Final = 1.0  # seconds

app = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Look at what CloudFront is owed, and tell it by hand.",
)

Images = Annotated[list[UUID], typer.Argument(metavar="IMAGE…", help="Up to 100 images.")]


@app.command()
def status(as_json: Json = False) -> None:
    """Show what the edge is owed, what is under way, and what it costs this month.

    For example:

        imagefleet edge status
        imagefleet edge status --json | jq .month
    """
    found = ask("GET", STATUS)
    if as_json:
        print_json(found)
        return
    month, flusher = found["month"], found.get("flusher")
    ratio = f"{month['debts'] / month['paths']:.2f}" if month["paths"] else "none"
    over = ", over budget" if month["overBudget"] else ""
    rows = [
        ("owed", f"{found['owed']} images, the oldest for {found['oldestOwedFor']:.0f} s"),
        ("in flight", f"{found['pathsInFlight']} paths"),
        ("this month", f"{month['paths']} of {month['budget']} paths{over}"),
        ("debts a path", ratio),
        ("flusher", _office(flusher)),
        ("last error", found.get("lastError") or "none"),
    ]
    print_table(("", ""), rows)
    if found["batches"]:
        say()
        batches = [
            (one["batchId"], one["paths"], one["sends"], moment(one["createdAt"]),
             moment(one.get("acceptedAt")), moment(one.get("completedAt")), one.get("lastError"))
            for one in found["batches"]
        ]  # fmt: skip
        columns = ("batch", "paths", "sends", "made (UTC)", "accepted", "complete", "error")
        print_table(columns, batches)


def _office(flusher: Document | None) -> str:
    if flusher is None:
        return "nobody yet"
    holds = "since term" if flusher["holds"] else "nobody; last held in term"
    return f"{flusher['holder'] if flusher['holds'] else ''} {holds} {flusher['term']}".strip()


@app.command()
def invalidate(
    images: Images,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; kept with the invalidation.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the edge agrees.")] = False,
    within: Annotated[float, typer.Option(help="How many seconds --wait waits.")] = 900,
    as_json: Json = False,
) -> None:
    """Have the edge forget images, of any tenant; each costs one path.

    For example:

        imagefleet edge invalidate --wait --reason "a takedown" 0199a5c2-0000-7000-8000-000000000001
    """
    asked = filled(imageIds=[str(image) for image in images], reason=reason)
    found = ask("POST", INVALIDATIONS, document=asked)
    if wait:
        found = {"invalidations": run_async(_completed(found["invalidations"], within))}
    if as_json:
        print_json(found)
        return
    rows = [
        (one["imageId"], one["tenant"], one["invalidationId"], moment(one.get("completedAt")))
        for one in found["invalidations"]
    ]
    print_table(("image", "tenant", "invalidation", "complete (UTC)"), rows)


async def _completed(owed: list[Document], within: float) -> list[Document]:
    clock = asyncio.get_running_loop().time
    ends_at = clock() + within
    done: list[Document] = []
    async with open_api() as client:
        with waiting("waiting for CloudFront"):
            for one in owed:
                path = f"{INVALIDATIONS}/{one['invalidationId']}"
                while "completedAt" not in (found := await client.ask("GET", path)):
                    if clock() >= ends_at:
                        sentence = f"{len(owed) - len(done)} are not complete; they stay owed."
                        raise Unavailable("not_complete", sentence)
                    await asyncio.sleep(POLL)
                done.append(found)
    return done
