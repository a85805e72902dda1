"""Which lane an image's job is put into: decided where it is submitted, by what is known then.

The lane `fast` is for what is small and quick, so that nothing slow ever stands before it: with the
shipped recipe up to 0.7 s of one processor and 250 MiB of a child (docs/images.md). Everything else
goes to `general`, and so does what nobody has looked at: a wrong guess there costs a wait, and in
`fast` it would cost everybody's.
"""

from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum
from typing import Final

from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.jobs.images import ImageFormat, ImageSource, NewSource
from imagefleet.jobs.kinds import Draft
from imagefleet.jobs.model import JsonObject, Lane, Submission

MOST_FAST_PIXELS: Final = 2**24  # what phones take: 12 megapixels, with some room
MOST_FAST_BYTES: Final = 16 * 2**20  # a second or so from S3 to a worker

_MAY_MOVE: Final = frozenset({ImageFormat.GIF, ImageFormat.WEBP})


class Slow(StrEnum):
    """What sends an image to the lane general; the word is kept with its job."""

    UNKNOWN_RECIPE = "unknown_recipe"
    MAKES_AVIF = "makes_avif"
    IS_AVIF = "is_avif"
    LARGE = "large"
    ANIMATED = "animated"


def seen(source: NewSource, facts: HeaderFacts) -> NewSource:
    """The same, by what its header says."""
    return replace(
        source,
        content_type=facts.mime_type,
        width=facts.width,
        height=facts.height,
        animated=facts.animated or facts.frames is None,
    )


def why_slow(source: ImageSource, makes: Collection[ImageFormat] | None) -> Slow | None:
    """The first thing about this image that is not quick, made by a recipe of these formats.

    None: there is nothing. Formats are None of a version that is not in force here.
    """
    form = _FORMATS.get(source.content_type)
    if makes is None:
        return Slow.UNKNOWN_RECIPE
    if ImageFormat.AVIF in makes:
        return Slow.MAKES_AVIF
    if form is ImageFormat.AVIF:
        return Slow.IS_AVIF
    if _is_large(source):
        return Slow.LARGE
    if form in _MAY_MOVE if source.animated is None else source.animated:
        return Slow.ANIMATED
    return None


def _is_large(source: ImageSource) -> bool:
    if source.width is None or source.height is None:  # its header alone is longer than most files
        return True
    pixels = source.width * source.height
    return pixels > MOST_FAST_PIXELS or source.bytes > MOST_FAST_BYTES


def lane_of_image(slow: Slow | None) -> Lane:
    """Whatever its priority is: that orders the jobs of a tenant within their lane."""
    return Lane.FAST if slow is None else Lane.GENERAL


def rendering(
    draft: Draft, payload: JsonObject, slow: Slow | None, *, fingerprint: str = ""
) -> Submission:
    """The job that renders this, in its lane, which it can say the reason of."""
    told = payload if slow is None else {**payload, "slow": slow}
    return draft.whole(told, fingerprint=fingerprint, lane=lane_of_image(slow))


_FORMATS: Final[dict[str, ImageFormat]] = {form.mime_type: form for form in ImageFormat}
