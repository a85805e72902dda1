"""What is published of images: `imagefleet images show`, `list` and `download`.

Variants are fetched from where they are published, as anybody would, without the key. A file has
its name only once all its bytes are there; what is under that name already is replaced in one step.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import httpx
import typer

from imagefleet.cli.listing import Since, Until, instant, show_pages, status_of
from imagefleet.cli.naming import IMAGES, ImageId, ImageNamed, whole
from imagefleet.cli.output import (
    Columns,
    ExitCode,
    Fields,
    Part,
    Table,
    finish,
    moment,
    print_bytes,
    run_async,
    show,
    takes_bytes,
)
from imagefleet.cli.overseen import show_overseen, show_whole
from imagefleet.cli.progress import counting
from imagefleet.cli.results import AT_ONCE
from imagefleet.cli.verbs import (
    STDIN,
    WITHIN,
    All,
    Cursor,
    EveryTenant,
    Full,
    IntoIfAny,
    Json,
    Limit,
    OfReference,
    OfStatus,
    OfTenant,
    Wait,
    Within,
    call,
    ends_in,
    looks,
)
from imagefleet.client.api import ApiClient, Reply
from imagefleet.errors import InputRejected, Misconfigured, RequestRejected, Unavailable
from imagefleet.jobs.images import ImageStatus
from imagefleet.jobs.shapes.edge import Deletion
from imagefleet.jobs.shapes.images import ImageView
from imagefleet.jobs.shapes.pictures import VariantView


def show_image(
    image_id: ImageNamed,
    wait: Wait = False,
    within: Within = WITHIN,
    everything: Full = False,
    as_json: Json = False,
) -> None:
    """Show one image and where its variants are published.

    Exits with 1 when it could not be made.

    For example:

        imagefleet images show --wait 0199a5c2-7d41
        imagefleet images show --json 0199a5c2-7d41 | jq -r '.variants[].url'
        imagefleet images show --full 0199a5c2-7d41
    """
    if everything:
        failed = show_whole(image_id, as_json=as_json) == ImageStatus.FAILED
        finish(ExitCode.FAILED if failed else ExitCode.DONE)
        return
    image_id = whole(image_id, IMAGES)
    answer = call(lambda client: _made(client, image_id, within if wait else 0))
    show(answer, _seen, as_json=as_json)
    finish(ExitCode.FAILED if answer.shape.status is ImageStatus.FAILED else ExitCode.DONE)


async def _made(client: ApiClient, image_id: str, within: float) -> Reply[ImageView]:
    """The image, once something has come of its first original, or after this long."""
    answer = await client.image(image_id)
    async for _ in looks(ends_in(within)):
        if not within or answer.shape.status is not ImageStatus.PENDING:
            break
        answer = await client.image(image_id)
    return answer


def _seen(image: ImageView) -> Iterator[Part]:
    source = image.source
    size = f", {source.format} of {source.width}x{source.height}" if source else ""
    revision = f", revision {image.revision}" if image.revision is not None else ""
    yield f"{image.image_id}  {image.status}{revision}{size}"
    if image.failure is not None:
        yield f"its last job failed: {image.failure.code}: {image.failure.message}"
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
    reference: OfReference = None,
    status: OfStatus = None,
    since: Since = None,
    until: Until = None,
    tenant: OfTenant = None,
    everybody: EveryTenant = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    every_page: All = False,
    as_json: Json = False,
) -> None:
    """List images, the newest first: pending, ready, failed or deleted ones.

    For example:

        imagefleet images list --status failed --since 3d --until 1d
        imagefleet images list --all --json | jq -r '.images[].imageId'
        imagefleet images list --every-tenant --since 2h
    """
    asked = {
        "reference": reference, "status": status_of(status, ImageStatus), "cursor": cursor,
        "createdAfter": instant(since), "createdBefore": instant(until), "limit": str(limit),
    }  # fmt: skip
    if everybody or tenant is not None:
        show_overseen(asked | {"tenant": tenant}, every_page=every_page, as_json=as_json)
        return
    show_pages(ApiClient.images, asked, "images", {
        "image": "image_id", "status": "status", "reference": "reference",
        "variants": lambda image: len(image.variants),
    }, every_page=every_page, as_json=as_json, wraps=("reference",), drops=("variants",),
        none="no such images; `imagefleet submit FILE` makes one",
    )  # fmt: skip


TIMEOUT: Final = httpx.Timeout(30, connect=3, pool=60)  # seconds; between two bytes, not in all
TRIES: Final = 3
PAUSE: Final = 1.0  # seconds before the second try, twice as many before the third

NOTHING: Final = {
    ImageStatus.PENDING: Unavailable,
    ImageStatus.FAILED: InputRejected,
}
"""By status, what it means that there is nothing; else it will not help to ask again."""

_ONE: Final = "--into - takes one file: choose it by --variant and --format"
_TERMINAL: Final = "this is no picture for a terminal: send it to a file or a pipe"


def download(
    image_id: ImageId,
    into: IntoIfAny = None,
    names: Annotated[
        list[str] | None, typer.Option("--variant", help="Only this one. Repeat for more.")
    ] = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="Only such. Repeat for more.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Download the variants of an image, each into a file of its name.

    If no folder is given, it is one that is named by the id. A file that is there already is
    replaced; none is ever there in part.

    For example:

        imagefleet images download 0199a5c2-7d41
        imagefleet images download --into pictures --format avif 0199a5c2-7d41
        imagefleet images download --into - --variant thumb 0199a5c2-7d41 > a.webp
    """
    if into == STDIN and not takes_bytes():
        raise Misconfigured(_TERMINAL)
    image = call(lambda client: client.image(image_id)).shape
    chosen = _chosen(image, names, formats)
    if into == STDIN:
        _print(chosen)
        return
    folder = into or Path(str(image.image_id))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        detail = f"{folder} cannot be made: {error.strerror}"
        raise Misconfigured(detail) from error
    with counting("download", len(chosen)) as advance:
        files = run_async(_fetch_all(chosen, folder, advance))
    told = [
        {"file": str(file), "variant": made.name, "format": made.format, "bytes": made.bytes}
        for file, made in zip(files, chosen, strict=True)
    ]
    show(told, lambda _: Table(told, {"file": "file", "bytes": "bytes"}), as_json=as_json)


def _chosen(
    image: ImageView, names: Sequence[str] | None, formats: Sequence[str] | None
) -> list[VariantView]:
    """Those that were asked for; the refusal says which there are."""
    if not image.variants:
        sentence = f"Nothing is published of image {image.image_id}: it is {image.status}."
        raise NOTHING.get(image.status, RequestRejected)("nothing_published", sentence)
    chosen = [
        made
        for made in image.variants
        if made.name in (names or (made.name,)) and made.format in (formats or (made.format,))
    ]
    if not chosen:
        detail = f"no variant is such; there are {', '.join(map(_name, image.variants))}"
        raise Misconfigured(detail)
    return chosen


def _print(chosen: Sequence[VariantView]) -> None:
    """One file, once all of it is there."""
    if len(chosen) != 1:
        raise Misconfigured(_ONE)
    with TemporaryDirectory(prefix="imagefleet-") as folder:
        (file,) = run_async(_fetch_all(chosen, Path(folder), lambda: None))
        with file.open("rb") as whole:
            print_bytes(whole)


async def _fetch_all(
    chosen: Sequence[VariantView], folder: Path, advance: Callable[[], None]
) -> list[Path]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def fetch(http: httpx.AsyncClient, made: VariantView) -> Path:
        async with slots:
            file = await _fetch(http, made, folder / _name(made))
        advance()
        return file

    async with httpx.AsyncClient(timeout=TIMEOUT) as http, asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch(http, made)) for made in chosen]
    return [task.result() for task in tasks]


def _name(made: VariantView) -> str:
    """As its address ends; of whatever answers, nothing leads out of a folder."""
    name = f"{made.name}.{made.stable_url.rpartition('.')[2]}"
    if Path(name).name != name:
        raise Unavailable("unexpected_answer", "The API names a variant as no file may be named.")
    return name


async def _fetch(http: httpx.AsyncClient, made: VariantView, file: Path) -> Path:
    """One variant, again while its host is merely away."""
    unfinished, fault = file.with_name(f".{file.name}.{os.getpid()}"), ""
    for tried in range(TRIES):
        await asyncio.sleep(PAUSE * tried)
        try:
            async with http.stream("GET", made.url) as answer:
                answer.raise_for_status()
                await _keep(answer, unfinished, most=made.bytes + 1)
            if unfinished.stat().st_size == made.bytes:
                return unfinished.replace(file)
            fault = f"has not the {made.bytes} bytes that it should have"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            fault = f"cannot be fetched: {error}"
        except OSError as error:
            detail = f"{file} cannot be written: {error.strerror}"
            raise Misconfigured(detail) from error
        finally:
            unfinished.unlink(missing_ok=True)
    raise Unavailable("not_downloaded", f"{made.url} {fault}; there is no new {file}.")


async def _keep(answer: httpx.Response, file: Path, *, most: int) -> None:
    with file.open("wb") as kept:
        async for piece in answer.aiter_bytes():
            kept.write(piece[: most - kept.tell()])
            if kept.tell() >= most:
                return
