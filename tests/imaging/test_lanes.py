"""Which lane an image's job is put into, by what is known of the image where it is submitted."""

from uuid import UUID

import pytest

from imagefleet.imaging.lanes import (
    MOST_FAST_BYTES,
    MOST_FAST_PIXELS,
    Slow,
    lane_of_image,
    why_slow,
)
from imagefleet.jobs.images import ImageFormat, ImageSource
from imagefleet.jobs.model import Lane

JPEG, PNG, WEBP, GIF, AVIF = (
    ImageFormat.JPEG,
    *(ImageFormat(n) for n in ("png", "webp", "gif", "avif")),
)
QUICK = (WEBP, JPEG)


def a_source(
    form: ImageFormat = JPEG,
    width: int | None = 4000,
    height: int | None = 3000,
    size: int = 3_000_000,
    *,
    animated: bool | None = False,
) -> ImageSource:
    """A photo of a phone, unless it is another."""
    return ImageSource(
        image_id=UUID(int=7),
        key="o/1",
        bytes=size,
        content_type=form.mime_type,
        width=width,
        height=height,
        animated=animated,
    )


@pytest.mark.parametrize(
    ("source", "makes", "why"),
    [
        (a_source(), QUICK, None),
        (a_source(PNG), (PNG, *QUICK), None),
        (a_source(WEBP), QUICK, None),
        (a_source(GIF), QUICK, None),
        (a_source(width=4096, height=MOST_FAST_PIXELS // 4096), QUICK, None),
        (a_source(width=4096, height=MOST_FAST_PIXELS // 4096 + 1), QUICK, Slow.LARGE),
        (a_source(size=MOST_FAST_BYTES), QUICK, None),
        (a_source(size=MOST_FAST_BYTES + 1), QUICK, Slow.LARGE),
        (a_source(width=None, height=None), QUICK, Slow.LARGE),
        (a_source(AVIF, width=10, height=10), QUICK, Slow.IS_AVIF),
        (a_source(width=10, height=10), (AVIF, JPEG), Slow.MAKES_AVIF),
        (a_source(width=10, height=10), None, Slow.UNKNOWN_RECIPE),
        (a_source(GIF, animated=True), QUICK, Slow.ANIMATED),
        (a_source(WEBP, animated=True), QUICK, Slow.ANIMATED),
        (a_source(PNG, animated=True), QUICK, Slow.ANIMATED),
        (a_source(GIF, animated=None), QUICK, Slow.ANIMATED),
        (a_source(WEBP, animated=None), QUICK, Slow.ANIMATED),
        (a_source(JPEG, animated=None), QUICK, None),
        (a_source(PNG, animated=None), QUICK, None),
    ],
    ids=str,
)
def test_what_is_small_and_quick_is_fast_and_all_else_is_general(
    source: ImageSource, makes: tuple[ImageFormat, ...] | None, why: Slow | None
) -> None:
    assert why == why_slow(source, makes)
    assert (Lane.FAST if why is None else Lane.GENERAL) == lane_of_image(why)
