"""`imagefleet jobs types`: which types of jobs the API knows, and what each is asked."""

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from imagefleet.cli.output import Fields, Part, filled, section, show, show_list
from imagefleet.cli.verbs import Json, ask
from imagefleet.client.api import Document
from imagefleet.errors import Misconfigured

PATH: Final = "/v1/job-types"
_TOLD_APART: Final = frozenset({"title", "description"})


def list_job_types(
    name: Annotated[str | None, typer.Argument(metavar="TYPE", help="Only this one.")] = None,
    as_json: Json = False,
) -> None:
    """List the job types that the API knows; or of one its policies and the fields of its payload.

    For example:

        imagefleet jobs types
        imagefleet jobs types reprocess_images
    """
    page = ask("GET", PATH)
    if name is None:
        show_list(page, "jobTypes", {
            "type": "jobType", "lane": "lane", "attempts": "maxAttempts", "timeout": _timeout,
            "payload": lambda each: ", ".join(_fields(each)),
        }, as_json=as_json)  # fmt: skip
        return
    known = {each["jobType"]: each for each in page["jobTypes"]}
    if name not in known:
        detail = f"there is no job type {name}; known are: {', '.join(known)}"
        raise Misconfigured(detail)
    show(known[name], _seen, as_json=as_json)


def _seen(each: Document) -> Iterator[Part]:
    about = {"lane": each["lane"], "attempts": each["maxAttempts"], "timeout": _timeout(each)}
    yield Fields(filled(**about, madeBy=each.get("madeBy")))
    needed = each["payload"].get("required", ())
    lines = [
        {
            "field": name,
            "needed": "yes" if name in needed else "no",
            "what": schema.get("description"),
            "schema": {key: schema[key] for key in schema if key not in _TOLD_APART},
        }
        for name, schema in _fields(each).items()
    ]
    columns = ("field", "needed", "schema", "what")
    yield from section(lines, dict(zip(columns, columns, strict=True)))


def _fields(each: Document) -> dict[str, Any]:
    properties: dict[str, Any] = each["payload"].get("properties", {})
    return properties


def _timeout(each: Document) -> str:
    return f"{each['timeout']:g} s"
