"""Ids as people type them: whole, or by how they begin, where only one begins so.

What is named whole is not looked up. Ids of jobs and images begin with the time of their making:
those of about a minute share their first 8 digits, those of one millisecond the first 12.
"""

import re
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import typer

from imagefleet.cli.verbs import ask
from imagefleet.errors import Misconfigured, NotFound

FEWEST: Final = 8  # digits
WHOLE: Final = 32
MOST_TOLD: Final = 5
DIGITS: Final = re.compile(r"([0-9a-f]-?)+", re.IGNORECASE)


class Noun(NamedTuple):
    """What has an id, and where those are listed that begin alike."""

    name: str
    path: str
    items: str
    id: str


JOBS: Final = Noun("job", "/v1/jobs", "jobs", "jobId")
EVERY_JOB: Final = Noun("job", "/v1/operator/jobs", "jobs", "jobId")
IMAGES: Final = Noun("image", "/v1/images", "images", "imageId")
EVERY_IMAGE: Final = Noun("image", "/v1/operator/images", "images", "imageId")
LETTERS: Final = Noun("dead letter", "/v1/operator/dead-letters", "letters", "id")


def whole(given: str, noun: Noun) -> str:
    """The one id that begins so; what is none at all is for the API to refuse."""
    count = len(given.replace("-", ""))
    if count >= WHOLE or DIGITS.fullmatch(given) is None:
        return given
    if count < FEWEST:
        detail = f"{given} is too short for an id: type {FEWEST} of its digits at least"
        raise Misconfigured(detail)
    page = ask("GET", noun.path, {"idPrefix": given, "limit": str(MOST_TOLD + 1)})
    ids = [str(thing[noun.id]) for thing in page[noun.items]]
    if len(ids) > 1:
        more = ", and more" if ids[MOST_TOLD:] else ""
        detail = f"{given} may be any of {', '.join(ids[:MOST_TOLD])}{more}: type more of it"
        raise Misconfigured(detail)
    if not ids:
        raise NotFound(noun.name)
    return ids[0]


def _one(noun: Noun) -> Callable[[typer.Context, str], str]:
    def named(context: typer.Context, given: str) -> str:
        return given if context.resilient_parsing else whole(given, noun)

    return named


def _each(noun: Noun) -> Callable[[typer.Context, list[str] | None], list[str]]:
    def named(context: typer.Context, given: list[str] | None) -> list[str]:
        ids = given or []
        return ids if context.resilient_parsing else [whole(id_, noun) for id_ in ids]

    return named


def _target(context: typer.Context, given: str) -> str:
    what, _, about = given.partition(":")
    is_named = what == "image" and not context.resilient_parsing
    return f"image:{whole(about, IMAGES)}" if is_named else given


A_JOB: Final = "The job's id, or how it begins."
JobId = Annotated[str, typer.Argument(metavar="JOB", help=A_JOB, callback=_one(JOBS))]
AnyJobId = Annotated[str, typer.Argument(metavar="JOB", help=A_JOB, callback=_one(EVERY_JOB))]
ImageId = Annotated[
    str,
    typer.Argument(
        metavar="IMAGE", help="The image's id, or how it begins.", callback=_one(IMAGES)
    ),
]
ImageNamed = Annotated[
    str, typer.Argument(metavar="IMAGE", help="The image's id, or how it begins.")
]
"""As it was typed: whose it is, another option says."""
ImagesNamed = Annotated[
    list[str], typer.Argument(metavar="IMAGE", help="Ids of images, or how they begin.")
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Such as image:ID, which the jobs of an image have; its id, or how it begins.",
        callback=_target,
    ),
]
A_LETTER: Final = "id, or that of its job, or how it begins."
LetterId = Annotated[
    str, typer.Argument(metavar="LETTER", help=f"Its {A_LETTER}", callback=_one(LETTERS))
]
LetterIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[LETTER]...", help=f"A letter's {A_LETTER}", callback=_each(LETTERS)),
]
