"""Images of any tenant, as operators look at them, and what they order about them.

An order of an operator says why; a verb that is told no reason asks as a producer does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from imagefleet.cli.listing import Parameters, route, show_pages
from imagefleet.cli.naming import EVERY_IMAGE, whole
from imagefleet.cli.output import Columns, Fields, Part, at, filled, run_async, section, show
from imagefleet.cli.results import Result, each, tell
from imagefleet.cli.verbs import ask, below
from imagefleet.client.api import ApiClient, Document

COLUMNS: Final[Columns] = {"image": "imageId", "status": "status", "job": "jobId"}
TERMS_OF_PRODUCERS: Final = (
    "with --reason it is an operator's order, which is not waited for and has no terms of a job: "
    "`imagefleet jobs show --full` tells how far it is"
)


def show_overseen(asked: Parameters, *, every_page: bool, as_json: bool) -> None:
    """The list of operators."""
    columns: Columns = {
        "image": "imageId", "tenant": "tenant", "status": "status", "reference": "reference",
        "variants": lambda image: len(image["variants"]), "created (UTC)": at("createdAt"),
    }  # fmt: skip
    show_pages(route(EVERY_IMAGE.path), asked, "images", columns, every_page=every_page,
        as_json=as_json, wraps=("reference",), drops=("variants", "created (UTC)", "tenant"),
        none="no such images",
    )  # fmt: skip


def show_whole(image_id: str, *, as_json: bool) -> str:
    """Everything about one, with its past; its status."""
    image = ask("GET", below(EVERY_IMAGE.path, whole(image_id, EVERY_IMAGE)))
    show(image, _whole, as_json=as_json)
    status: str = image["status"]
    return status


def _whole(image: Document) -> Iterator[Part]:
    names = ("imageId", "tenant", "status", "reference", "recipe", "recipeHash", "jobId",
             "createdAt", "focalPoint", "failure", "deletion")  # fmt: skip
    yield Fields(filled(**{name: image.get(name) for name in names}))
    yield from section(image["revisions"], {
        "revision": "revision", "of original": "sourceSeq", "recipe": "recipe", "job": "jobId",
        "published (UTC)": at("publishedAt"), "superseded (UTC)": at("supersededAt"),
        "swept (UTC)": at("sweptAt"),
    }, drops=("swept (UTC)", "superseded (UTC)", "recipe", "published (UTC)"))  # fmt: skip
    yield from section(image["originals"], {
        "original": "sourceSeq", "type": "contentType",
        "bytes": lambda original: f"{original['bytes']:,}",
        "accepted (UTC)": at("acceptedAt"), "gone (UTC)": at("goneAt"),
    }, drops=("gone (UTC)", "accepted (UTC)"))  # fmt: skip


def order(
    image_ids: Sequence[str],
    method: str,
    verb: Sequence[str] = (),
    *,
    parameters: Mapping[str, str | None] = {},
    document: object = None,
    as_json: bool,
) -> None:
    """On behalf of whosever images they are; a job each."""
    known = [whole(image_id, EVERY_IMAGE) for image_id in image_ids]
    results = [Result(image_id, {"imageId": image_id, "jobId": None}) for image_id in known]

    async def ordered(client: ApiClient, result: Result) -> None:
        path = below(EVERY_IMAGE.path, result.name, *verb)
        answer = await client.ask(method, path, parameters, document)
        result.document |= {name: answer.get(name) for name in ("jobId", "status")}

    run_async(each(results, ordered))
    tell(results, COLUMNS, as_json=as_json, alone=len(results) == 1 and method == "PATCH")
