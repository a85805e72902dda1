"""Rendering as tests want it: one variant, and its pixels."""

from __future__ import annotations

from PIL import Image

from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe, VariantSpec
from imagefleet.imaging.render import render
from imagefleet.jobs.images import Focal, ImageFormat, Rendering
from tests.support.images import BLUE, GREEN, RED, YELLOW, opened
from tests.support.recipes import RECIPES

DEFAULT = RECIPES["default"]
CORNERS = [RED, GREEN, BLUE, YELLOW]
Outputs = dict[tuple[str, ImageFormat], bytes]


def one(image_format: ImageFormat = ImageFormat.WEBP, **options: object) -> Recipe:
    """A recipe of one variant, sharp enough to compare colours."""
    fields: dict[str, object] = {"width": 160, "height": 160, "quality": 95} | options
    return Recipe("one", (VariantSpec("only", format=image_format, **fields),))  # type: ignore[arg-type]


def rendered(
    source: bytes,
    recipe: Recipe = DEFAULT,
    limits: Limits | None = None,
    focal: Focal | None = None,
) -> tuple[Rendering, Outputs]:
    """The facts, and the bytes of every variant, whichever of those that are one was written."""
    outputs: Outputs = {}

    def sink(name: str, image_format: ImageFormat, encoded: bytes) -> None:
        outputs[name, image_format] = encoded

    rendering = render(source, recipe, limits or Limits(), sink, focal=focal)
    for made in rendering.variants:
        outputs[made.name, made.format] = outputs[made.same_as or made.name, made.format]
    return rendering, outputs


def picture_of(
    source: bytes, recipe: Recipe | None = None, focal: Focal | None = None
) -> Image.Image:
    (encoded,) = rendered(source, recipe or one(), focal=focal)[1].values()
    return opened(encoded)


def alpha_range(
    picture: Image.Image, box: tuple[int, int, int, int] | None = None
) -> tuple[int, int]:
    """The least and the most opaque there is in the box, or in the whole picture."""
    alpha = picture.convert("RGBA").getchannel("A").crop(box or (0, 0, *picture.size)).tobytes()
    return min(alpha), max(alpha)
