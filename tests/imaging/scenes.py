"""Pictures to look at: a drawn landscape, and small photos that are free to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw

GOLDEN: Final = Path(__file__).with_name("golden")
PHOTOS: Final = ("astronaut", "cat", "coffee")  # golden/README.md says whose
_FINER: Final = 4


def landscape(width: int = 240, height: int = 160) -> Image.Image:
    """A sky, a sun in it on the right, hills, and a house on the left: no two sides are alike."""
    large = Image.linear_gradient("L").resize((width * _FINER, height * _FINER))
    picture = Image.merge(
        "RGB",
        (
            large.point(lambda level: 120 + level // 3),
            large.point(lambda level: 160 + level // 4),
            large.point(lambda level: 215 - level // 6),
        ),
    )
    draw = ImageDraw.Draw(picture)

    def at(*shares: float) -> list[float]:
        sides = (width * _FINER, height * _FINER)
        return [share * sides[n % 2] for n, share in enumerate(shares)]

    draw.ellipse(at(0.72, 0.1, 0.84, 0.28), fill=(246, 214, 120))
    draw.polygon(at(0.3, 1, 0.75, 0.45, 1, 0.75, 1, 1), fill=(96, 128, 120))
    draw.polygon(at(0, 1, 0, 0.6, 0.35, 0.5, 0.8, 1), fill=(112, 150, 84))
    draw.rectangle(at(0.1, 0.5, 0.26, 0.8), fill=(196, 150, 120))
    draw.polygon(at(0.07, 0.5, 0.18, 0.34, 0.29, 0.5), fill=(150, 76, 66))
    draw.rectangle(at(0.16, 0.62, 0.2, 0.8), fill=(80, 60, 56))
    return picture.reduce(_FINER)


def see_through(picture: Image.Image) -> Image.Image:
    """The picture, more and more transparent to the right, and not there in a corner."""
    alpha = Image.linear_gradient("L").rotate(90).resize(picture.size)
    alpha = alpha.point(lambda level: 255 - level // 2)
    alpha.paste(0, (0, 0, picture.width // 4, picture.height // 4))
    shown = picture.copy()
    shown.putalpha(alpha)
    return shown


def photo(name: str) -> Image.Image:
    """As it was shot."""
    with Image.open(GOLDEN / f"{name}.jpg") as picture:
        return picture.convert("RGB")


def badge() -> Image.Image:
    """A mark: a ring with a bar through it, upright alone, in colours, with nothing around it."""
    side = 64 * _FINER
    picture = Image.new("RGBA", (side * 2, side))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((8, 8, side - 8, side - 8), outline=(250, 250, 250, 255), width=32)
    draw.rectangle((side, side // 3, side * 2 - 8, side // 2), fill=(230, 70, 50, 255))
    return picture.reduce(_FINER)
