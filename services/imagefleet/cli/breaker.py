"""`imagefleet breaker`: the circuit breakers of services that jobs need."""

from typing import Annotated, Final
from urllib.parse import quote

import typer

from imagefleet.cli.operating import Reason, ask, moment
from imagefleet.cli.output import Json, print_json, print_table, say
from imagefleet.client.api import Document

PATH: Final = "/v1/operator/breakers"

app = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Look at circuit breakers, open and reset them.",
)

Service = Annotated[str, typer.Argument(metavar="SERVICE", help="Such as s3.")]


@app.command("list")
def list_breakers(as_json: Json = False) -> None:
    """List circuit breakers.

    For example:

        imagefleet breaker list
    """
    found = ask("GET", PATH)
    if as_json:
        print_json(found)
        return
    rows = [
        (one["service"], one["state"], _failed(one), one["trips"], moment(one.get("retryAt")),
         moment(one.get("lastFailureAt")), one.get("lastErrorCode"), one["updatedBy"])
        for one in found["breakers"]
    ]  # fmt: skip
    columns = (
        "service", "state", "failed", "trips", "retry (UTC)", "last failure (UTC)", "with", "by",
    )  # fmt: skip
    print_table(columns, rows)


@app.command("open")
def force_open(service: Service, reason: Reason, as_json: Json = False) -> None:
    """Hold back every job that needs a service, until it is reset.

    For example:

        imagefleet breaker open --reason "the bucket is being moved" s3
    """
    found = ask("POST", f"{PATH}/{quote(service, safe='')}/open", {"reason": reason})
    _changed(found, as_json=as_json)


@app.command()
def reset(service: Service, reason: Reason, as_json: Json = False) -> None:
    """Close a breaker and forget its failures; what it held back is due at once.

    For example:

        imagefleet breaker reset --reason "S3 is back" s3
    """
    found = ask("POST", f"{PATH}/{quote(service, safe='')}/reset", {"reason": reason})
    _changed(found, as_json=as_json)


def _failed(breaker: Document) -> str:
    failures = breaker["failures"]
    return f"{failures} of {failures + breaker.get('successes', 0)}"


def _changed(found: Document, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        say(f"{found['service']} is {found['state']}")
