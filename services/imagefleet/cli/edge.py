"""`imagefleet edge`: what CloudFront is owed, and telling it by hand."""

from collections.abc import Iterator
from typing import Annotated, Final
from uuid import UUID

import typer

from imagefleet.cli.output import Fields, Part, at, filled, section, show, show_list
from imagefleet.cli.progress import waiting
from imagefleet.cli.verbs import (
    Json,
    ReasonIfAny,
    Wait,
    Within,
    ask,
    below,
    call,
    ends_in,
    group,
    looks,
)
from imagefleet.client.api import ApiClient, Document
from imagefleet.errors import Unavailable

STATUS: Final = "/v1/operator/edge"
INVALIDATIONS: Final = f"{STATUS}/invalidations"

app = group("Look at what CloudFront is owed, and tell it by hand.")

Images = Annotated[list[UUID], typer.Argument(metavar="IMAGE", help="Up to 100 images.")]


@app.command()
def status(as_json: Json = False) -> None:
    """Show what the edge is owed, what is under way, and what it costs this month.

    For example:

        imagefleet edge status
        imagefleet edge status --json | jq .month
    """
    show(ask("GET", STATUS), _stands, as_json=as_json)


def _stands(edge: Document) -> Iterator[Part]:
    month = edge["month"]
    over = ", over budget" if month["overBudget"] else ""
    yield Fields(
        {
            "owed": f"{edge['owed']} images, the oldest for {edge['oldestOwedFor']:.0f} s",
            "in flight": f"{edge['pathsInFlight']} paths",
            "this month": f"{month['paths']} of {month['budget']} paths{over}",
            "debts a path": f"{month['debts'] / month['paths']:.2f}" if month["paths"] else "none",
            "flusher": _office(edge.get("flusher")),
            "last error": edge.get("lastError") or "none",
        }
    )
    yield from section(edge["batches"], {
        "batch": "batchId", "paths": "paths", "sends": "sends", "made (UTC)": at("createdAt"),
        "accepted": at("acceptedAt"), "complete": at("completedAt"), "error": "lastError",
    }, wraps=("error",), drops=("accepted", "sends", "made (UTC)"))  # fmt: skip


def _office(flusher: Document | None) -> str:
    if flusher is None:
        return "nobody yet"
    holds = "since term" if flusher["holds"] else "nobody; last held in term"
    return f"{flusher['holder'] if flusher['holds'] else ''} {holds} {flusher['term']}".strip()


@app.command()
def invalidate(
    images: Images,
    reason: ReasonIfAny = None,
    wait: Wait = False,
    within: Within = 900,
    as_json: Json = False,
) -> None:
    """Have the edge forget images, of any tenant; each costs one path.

    For example:

        imagefleet edge invalidate --wait 0199a5c2-7d41-7000-8000-000000000001
    """
    asked = filled(imageIds=[str(image) for image in images], reason=reason)
    answer = ask("POST", INVALIDATIONS, document=asked)
    if wait:
        owed = answer["invalidations"]
        with waiting("waiting for CloudFront"):
            answer = {"invalidations": call(lambda client: _completed(client, owed, within))}
    show_list(answer, "invalidations", {
        "image": "imageId", "tenant": "tenant", "invalidation": "invalidationId",
        "complete (UTC)": at("completedAt"),
    }, as_json=as_json, drops=("tenant",))  # fmt: skip


async def _completed(client: ApiClient, owed: list[Document], within: float) -> list[Document]:
    done: list[Document] = []
    async for _ in looks(ends_in(within)):
        while len(done) < len(owed):
            path = below(INVALIDATIONS, owed[len(done)]["invalidationId"])
            debt = await client.ask("GET", path)
            if "completedAt" not in debt:
                break
            done.append(debt)
        else:
            return done
    sentence = f"{len(owed) - len(done)} are not complete; they stay owed."
    raise Unavailable("not_complete", sentence)
