"""What a job of this type is asked, and by which rules it runs.

The API loads this module, and its container has no Pillow: nothing here may need more than
imagefleet itself.
"""

from datetime import timedelta
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from imagefleet.jobs.kinds import JobKind, Payload, VisibleResult
from imagefleet.jobs.policies import RetryPolicy


class ImagePalette(Payload):
    """Find the colours of the newest original of an image."""

    image_id: UUID
    colors: Annotated[int, Field(ge=1, le=16)] = 5


class Color(VisibleResult):
    """One of the colours, as #rrggbb, and its share of the picture."""

    color: str
    share: float


class Palette(VisibleResult):
    """What whoever submitted the job may read of its result; the rest stays with the operators."""

    image_id: UUID
    colors: list[Color]


def one_at_a_time(payload: ImagePalette) -> str:
    """Palettes of one image are found one after the other, in the order they were asked for."""
    return f"image_palette:{payload.image_id}"


IMAGE_PALETTE: Final = JobKind(
    name="image_palette",
    payload=ImagePalette,
    retry=RetryPolicy(base=timedelta(seconds=10), max_attempts=3),
    timeout=timedelta(minutes=2),
    target=one_at_a_time,
    services=("s3",),
    result_visible=Palette,
)
