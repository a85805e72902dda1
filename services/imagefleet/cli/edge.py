"""What is published: `imagefleet edge`, how the edge stands and telling it by hand, and `sweep`."""

from collections.abc import Iterator
from typing import Annotated, Final
from uuid import UUID

import typer

from imagefleet.cli.output import (
    ExitCode,
    Fields,
    Part,
    Table,
    at,
    complain,
    filled,
    finish,
    moment,
    section,
    show,
    show_list,
    waiting,
)
from imagefleet.cli.verbs import Json, WithinSeconds, ask, below, call, ends_in, group, looks
from imagefleet.client.api import ApiClient, Document
from imagefleet.errors import Unavailable

STATUS: Final = "/v1/operator/edge"
INVALIDATIONS: Final = f"{STATUS}/invalidations"

app = group("Look at what CloudFront is owed, and tell it by hand.")

Images = Annotated[list[UUID], typer.Argument(metavar="IMAGE…", help="Up to 100 images.")]


@app.command()
def status(as_json: Json = False) -> None:
    """Show what the edge is owed, what is under way, and what it costs this month.

    For example:

        imagefleet edge status
        imagefleet edge status --json | jq .month
    """
    show(ask("GET", STATUS), _stands, as_json=as_json)


def _stands(found: Document) -> Iterator[Part]:
    month = found["month"]
    over = ", over budget" if month["overBudget"] else ""
    yield Fields(
        {
            "owed": f"{found['owed']} images, the oldest for {found['oldestOwedFor']:.0f} s",
            "in flight": f"{found['pathsInFlight']} paths",
            "this month": f"{month['paths']} of {month['budget']} paths{over}",
            "debts a path": f"{month['debts'] / month['paths']:.2f}" if month["paths"] else "none",
            "flusher": _office(found.get("flusher")),
            "last error": found.get("lastError") or "none",
        }
    )
    yield from section(found["batches"], {
        "batch": "batchId", "paths": "paths", "sends": "sends", "made (UTC)": at("createdAt"),
        "accepted": at("acceptedAt"), "complete": at("completedAt"), "error": "lastError",
    })  # fmt: skip


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
    within: WithinSeconds = 900,
    as_json: Json = False,
) -> None:
    """Have the edge forget images, of any tenant; each costs one path.

    For example:

        imagefleet edge invalidate --wait --reason "a takedown" 0199a5c2-0000-7000-8000-000000000001
    """
    asked = filled(imageIds=[str(image) for image in images], reason=reason)
    found = ask("POST", INVALIDATIONS, document=asked)
    if wait:
        owed = found["invalidations"]
        with waiting("waiting for CloudFront"):
            found = {"invalidations": call(lambda client: _completed(client, owed, within))}
    show_list(found, "invalidations", {
        "image": "imageId", "tenant": "tenant", "invalidation": "invalidationId",
        "complete (UTC)": at("completedAt"),
    }, as_json=as_json)  # fmt: skip


async def _completed(client: ApiClient, owed: list[Document], within: float) -> list[Document]:
    done: list[Document] = []
    async for _ in looks(ends_in(within)):
        while len(done) < len(owed):
            path = below(INVALIDATIONS, owed[len(done)]["invalidationId"])
            found = await client.ask("GET", path)
            if "completedAt" not in found:
                break
            done.append(found)
        else:
            return done
    sentence = f"{len(owed) - len(done)} are not complete; they stay owed."
    raise Unavailable("not_complete", sentence)


def sweep(as_json: Json = False) -> None:
    """Show what sweeping removed from S3 lately, and which objects are missing there.

    Maintenance sweeps every minute by itself; nobody has to ask for it.
    Exits with 1 when objects are missing.

    For example:

        imagefleet sweep
        imagefleet sweep --json | jq -r '.missing[].imageId'
    """
    found = ask("GET", "/v1/operator/sweep")
    show(found, _swept, as_json=as_json)
    if not as_json and any(one["reprocess"] for one in found["missing"]):
        complain(
            "`imagefleet images reprocess IMAGE…` with a key of the tenant makes variants anew"
        )
    finish(ExitCode.FAILED if found["missingInAll"] else ExitCode.DONE)


def _swept(found: Document) -> Iterator[Part]:
    least = "at least " if found["supersededIsAtLeast"] else ""
    yield f"{least}{found['superseded']} superseded versions wait for their time"
    walk = found.get("walk")
    yield from _walked(walk) if walk else ["no walk through the buckets yet"]
    yield Table(found["runs"], {
        "period (UTC)": at("periodStart"), "finished (UTC)": at("finishedAt"),
        "versions": "revisions", "uploads": "uploads", "listed": "listed", "objects": "objects",
        "bytes": "bytes",
    })  # fmt: skip
    if found["missing"]:
        yield ""
        yield f"{found['missingInAll']} objects are missing in S3:"
        yield Table(found["missing"], {
            "bucket": "bucket", "key": "key", "tenant": "tenant", "found (UTC)": at("foundAt"),
            "what helps": lambda one: "reprocess" if one["reprocess"] else "restore or replace",
        })  # fmt: skip


def _walked(walk: Document) -> list[str]:
    ended = moment(walk.get("finishedAt"))
    where = f"through at {ended}" if ended else f"now in {walk['bucket']} behind {walk['after']!r}"
    counted = f"{walk['litter']} litter, {walk['swept']} swept, {walk['unknown']} unknown"
    begun = moment(walk["startedAt"])
    lines = [f"walk of {begun}: {where}; {walk['listed']} objects, of which {counted}"]
    if walk["heldBack"]:
        lines.append(f"{walk['heldBack']} originals are held back: is this their database?")
    return lines
