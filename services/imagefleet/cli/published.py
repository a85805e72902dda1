"""What is published of images: `imagefleet images show` and `list`."""

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from imagefleet.cli.listing import EveryPage, show_pages
from imagefleet.cli.naming import ImageId
from imagefleet.cli.output import (
    Columns,
    ExitCode,
    Fields,
    Part,
    Table,
    finish,
    moment,
    show,
)
from imagefleet.cli.verbs import Cursor, Json, Limit, call, ends_in, looks
from imagefleet.client.api import ApiClient, Reply
from imagefleet.jobs.shapes.edge import Deletion
from imagefleet.jobs.shapes.images import ImageView

PENDING: Final = "pending"
FAILED: Final = "failed"


def show_image(
    image_id: ImageId,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Answer when it is made, or after this long.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show one image and where its variants are published.

    Exits with 1 when it could not be made.

    For example:

        imagefleet images show --wait 20 0199a5c2-...
        imagefleet images show --json 0199a5c2-... | jq -r '.variants[].url'
    """
    answer = call(lambda client: _made(client, image_id, wait))
    show(answer, _seen, as_json=as_json)
    finish(ExitCode.FAILED if answer.shape.status == FAILED else ExitCode.DONE)


async def _made(client: ApiClient, image_id: str, within: float) -> Reply[ImageView]:
    """The image, once something has come of its first original, or after this long."""
    answer = await client.image(image_id)
    async for _ in looks(ends_in(within)):
        if not within or answer.shape.status != PENDING:
            break
        answer = await client.image(image_id)
    return answer


def _seen(image: ImageView) -> Iterator[Part]:
    source = image.source
    size = f", {source.format} of {source.width}x{source.height}" if source else ""
    revision = f", revision {image.revision}" if image.revision is not None else ""
    yield f"{image.image_id}  {image.status}{revision}{size}"
    if image.variants:
        columns: Columns = {
            "variant": "name",
            "format": "format",
            "size": lambda variant: f"{variant.width}x{variant.height}",
            "bytes": lambda variant: f"{variant.bytes:,}",
            "address": "url",
        }
        yield Table(image.variants, columns, {"drops": ("bytes", "size", "format")})
    if image.deletion is not None:
        yield _receipt(image.deletion)


def _receipt(gone: Deletion) -> Fields:
    """The deletion of an image."""
    lines: dict[str, object] = {
        "asked for (UTC)": moment(gone.requested_at),
        "objects deleted (UTC)": moment(gone.objects_deleted_at) or "not yet",
    }
    if gone.objects is not None:
        lines |= {
            "  keys deleted": gone.objects.deleted,
            "  not there any more": gone.objects.not_there,
            "  refused at first": gone.objects.errors,
        }
    lines |= {
        "invalidation": gone.invalidation_id,
        "dark (UTC)": moment(gone.dark_at) or "not yet",
    }
    if gone.seconds_to_dark is not None:
        lines["  after"] = f"{gone.seconds_to_dark:.1f} s"
    return Fields(lines)


def list_images(
    reference: Annotated[str | None, typer.Option(help="Only of this reference.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    every_page: EveryPage = False,
    as_json: Json = False,
) -> None:
    """List images, the newest first.

    For example:

        imagefleet images list --reference holiday/1.jpg
        imagefleet images list --all --json | jq -r '.images[].imageId'
    """
    asked = {"reference": reference, "limit": str(limit), "cursor": cursor}
    show_pages(ApiClient.images, asked, "images", {
        "image": "image_id", "status": "status", "reference": "reference",
        "variants": lambda image: len(image.variants),
    }, every_page=every_page, as_json=as_json, wraps=("reference",), drops=("variants",),
        none="no such images; `imagefleet submit FILE` makes one",
    )  # fmt: skip
