"""`imagefleet images`: look at images and the addresses they are published at, change them."""

from typing import Annotated

import typer

from imagefleet.cli.connection import open_api
from imagefleet.cli.image_changes import delete, replace, show_receipt
from imagefleet.cli.output import Json, complain, print_json, print_table, run_async, say
from imagefleet.cli.reprocessing import reprocess
from imagefleet.client.api import Reply
from imagefleet.jobs.shapes.images import ImagePage, ImageView

app = typer.Typer(
    rich_markup_mode="markdown", no_args_is_help=True, help="Look at images, change them."
)
app.command()(reprocess)
app.command()(replace)
app.command()(delete)


@app.command()
def show(
    image_id: Annotated[str, typer.Argument(metavar="IMAGE", help="The image's id.")],
    as_json: Json = False,
) -> None:
    """Show one image and where its variants are published.

    For example:

        imagefleet images show --json 0199a5c2-... | jq -r '.variants[].url'
    """
    answer = run_async(_show(image_id))
    if as_json:
        print_json(answer.document)
        return
    image = answer.shape
    source = image.source
    size = f", {source.format} of {source.width}x{source.height}" if source else ""
    revision = f", revision {image.revision}" if image.revision is not None else ""
    say(f"{image.image_id}  {image.status}{revision}{size}")
    rows = [
        (one.name, one.format, f"{one.width}x{one.height}", f"{one.bytes:,}", one.url)
        for one in image.variants
    ]
    if rows:
        print_table(("variant", "format", "size", "bytes", "address"), rows)
    show_receipt(image)


@app.command("list")
def list_images(
    reference: Annotated[str | None, typer.Option(help="Only of this reference.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on behind the last list.")] = None,
    as_json: Json = False,
) -> None:
    """List images, the newest first.

    For example:

        imagefleet images list --reference holiday/1.jpg
    """
    page = run_async(_list({"reference": reference, "limit": str(limit), "cursor": cursor}))
    if as_json:
        print_json(page.document)
        return
    rows = [
        (one.image_id, one.status, one.reference, len(one.variants)) for one in page.shape.images
    ]
    print_table(("image", "status", "reference", "variants"), rows)
    if page.shape.next_cursor:
        complain(f"there are more: --cursor {page.shape.next_cursor}")


async def _show(image_id: str) -> Reply[ImageView]:
    async with open_api() as client:
        return await client.image(image_id)


async def _list(parameters: dict[str, str | None]) -> Reply[ImagePage]:
    async with open_api() as client:
        return await client.images(parameters)
