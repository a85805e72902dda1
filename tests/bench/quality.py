"""What faster ways cost those who look: how far a JPEG is drafted, how hard WebP tries.

A drafted JPEG is decoded at a half, a quarter or an eighth of its size. The further the draft is
from the size wanted, the less of the decoder's own scaling shows: each row is a distance. Compared
is with the same file decoded whole, as it goes to the encoders, and as it comes out of one: how
like the undrafted picture the encoded one is, without the draft and with it.

Likeness is PSNR over the colours, and SSIM of the luma in windows of eight pixels.

    .venv/bin/python -m tests.bench.quality            # or --photos FOLDER --only draft --json FILE
"""

import argparse
import io
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from PIL import Image, ImageChops, ImageDraw, ImageFont, ImageMath, ImageStat

from imagefleet.imaging.codecs import open_image, reading
from imagefleet.imaging.encoding import ENCODERS, save
from imagefleet.imaging.sizes import Size
from imagefleet.imaging.sniff import sniff
from imagefleet.imaging.steps import resized
from imagefleet.jobs.images import ImageFormat

SIZE: Final = Size(4000, 3000)
SIDES: Final = (1920, 1280, 640, 200)
QUALITY: Final = 80
DISTANCES: Final = (1.0, 1.02, 1.04, 1.1, 1.25, 1.5, 1.95)
SCALES: Final = (2, 4, 8)
METHODS: Final = (2, 3, 4, 5, 6)
WINDOW: Final = 8
_STABLE: Final = ((0.01 * 255) ** 2, (0.03 * 255) ** 2)  # as SSIM is defined
MOST_PIXELS: Final = 200_000_000


def psnr(one: Image.Image, other: Image.Image) -> float:
    """In decibels, over all bands; infinite where the pictures are the same."""
    squares = ImageStat.Stat(ImageChops.difference(one, other))
    mean = statistics.fmean(square / squares.count[0] for square in squares.sum2)
    return 10 * math.log10(255**2 / mean) if mean else math.inf


def ssim(one: Image.Image, other: Image.Image) -> float:
    """Of the luma, over windows that do not overlap: 1 where the pictures are the same."""
    x, y = (picture.convert("L").convert("F") for picture in (one, other))
    bands = {"x": x, "y": y, "xx": _times(x, x), "yy": _times(y, y), "xy": _times(x, y)}
    means = {name: band.reduce(WINDOW) for name, band in bands.items()}
    alike = ImageMath.lambda_eval(_alike, **means)
    return float(alike.reduce(alike.size).getpixel((0, 0)))


def _times(one: Image.Image, other: Image.Image) -> Image.Image:
    product: Image.Image = ImageMath.lambda_eval(
        lambda band: band["one"] * band["other"], one=one, other=other
    )
    return product


def _alike(mean: Mapping[str, ImageMath._Operand]) -> ImageMath._Operand:
    luminance, contrast = _STABLE
    both = mean["x"] * mean["y"]
    squares = mean["x"] * mean["x"] + mean["y"] * mean["y"]
    spread = mean["xx"] + mean["yy"] - squares
    return ((2 * both + luminance) * (2 * (mean["xy"] - both) + contrast)) / (
        (squares + luminance) * (spread + contrast)
    )


# Pictures of three kinds, at any size.


def grain(size: Size) -> Image.Image:
    """Noise at every scale over gradients, as of a photo of leaves in low light."""
    tone = Image.radial_gradient("L").resize(size)
    for step in range(7):
        noise = Image.effect_noise((max(2, size.width >> step), max(2, size.height >> step)), 60)
        tone = Image.blend(tone, noise.resize(size, Image.Resampling.BICUBIC), 0.25)
    across = Image.linear_gradient("L").resize(size)
    return Image.merge(
        "RGB", (tone, Image.blend(tone, across, 0.3), Image.blend(tone, across, 0.6))
    )


def edges(size: Size) -> Image.Image:
    """A fan of hard lines, finer than a pixel where they meet, and rings beside it."""
    picture = Image.new("RGB", size, (240, 240, 235))
    draw = ImageDraw.Draw(picture)
    for ray in range(180):
        angle = math.radians(ray)
        end = (round(size.width * math.cos(angle)), round(size.width * math.sin(angle)))
        draw.line(
            (0, 0, *end), fill=((ray * 37) % 200, (ray * 71) % 200, (ray * 13) % 200), width=4
        )
    for ring in range(60):
        radius = ring * size.height // 130
        x, y = size.width * 2 // 3, size.height * 2 // 3
        draw.ellipse(
            (x - radius, y - radius, x + radius, y + radius), outline=(20, 60, 120), width=3
        )
    return picture


def text(size: Size) -> Image.Image:
    """A page, in letters of many sizes, black and coloured."""
    picture = Image.new("RGB", size, "white")
    draw, top, line = ImageDraw.Draw(picture), 0, 0
    while top < size.height:
        points = 14 + 6 * (line % 12)
        words = "The quick brown fox jumps over 1,234,567,890 lazy dogs; " * 8
        colour = ("black", "navy", "crimson")[line % 3]
        draw.text((20, top), words, fill=colour, font=ImageFont.load_default(points))
        top, line = top + points * 3 // 2, line + 1
    return picture


DRAWN: Final = (grain, edges, text)


def sources(photos: Path | None) -> Mapping[str, bytes]:
    """Somebody's photos as they are, or ours, as JPEG."""
    if photos is not None:
        return {path.stem[:10]: path.read_bytes() for path in sorted(photos.iterdir())}
    return {draw.__name__: jpeg(draw(SIZE)) for draw in DRAWN}


def jpeg(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=92, subsampling="4:2:0")
    return out.getvalue()


def drafted(source: bytes, scale: int, target: Size) -> Image.Image:
    """The picture at the size wanted, decoded at that part of its own."""
    with reading(MOST_PIXELS):
        picture = open_image(source)
        picture.draft(None, (picture.width // scale, picture.height // scale))
        return resized(picture, target)


def decoded(encoded: bytes) -> Image.Image:
    with reading(MOST_PIXELS):
        return open_image(encoded).convert("RGB")


Row = Mapping[str, str | float]


def drafts(pictures: Mapping[str, bytes]) -> Iterator[Row]:
    for scale, distance in itertools.product(SCALES, DISTANCES):
        for name, source in pictures.items():
            size = _fitted(source, 1 / (scale * distance))
            begun = time.process_time()
            whole = drafted(source, 1, size)
            between = time.process_time()
            draft = drafted(source, scale, size)
            ended = time.process_time()
            row: dict[str, str | float] = {
                "scale": f"1/{scale}", "distance": distance, "picture": name,
                "psnr": psnr(whole, draft), "ssim": ssim(whole, draft),
                "whole_ms": 1000 * (between - begun), "draft_ms": 1000 * (ended - between),
            }  # fmt: skip
            for form in (ImageFormat.WEBP, ImageFormat.JPEG):
                for which, picture in (("whole", whole), ("draft", draft)):
                    encoded = save(picture, form, QUALITY)
                    row[f"{form}_{which}"] = ssim(whole, decoded(encoded))
            yield row


def methods(pictures: Mapping[str, bytes]) -> Iterator[Row]:
    given = ENCODERS[ImageFormat.WEBP].items()
    options = {name: value for name, value in given if name != "method"}
    for side, (name, source) in itertools.product(SIDES, pictures.items()):
        picture = drafted(source, 1, _fitted(source, side / max(_size_of(source))))
        for method in METHODS:
            out, begun = io.BytesIO(), time.process_time()
            picture.save(out, "WEBP", quality=QUALITY, method=method, **options)
            spent = time.process_time() - begun
            seen = decoded(out.getvalue())
            yield {
                "side": side, "picture": name, "method": method, "ms": 1000 * spent,
                "bytes": len(out.getvalue()), "psnr": psnr(picture, seen),
                "ssim": ssim(picture, seen),
            }  # fmt: skip


def _size_of(source: bytes) -> Size:
    facts = sniff(source)
    return Size(facts.width or 1, facts.height or 1)


def _fitted(source: bytes, share: float) -> Size:
    return Size(*(round(min(share, 1) * side) for side in _size_of(source)))


TABLES: Final = {"draft": drafts, "method": methods}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, help="a folder of pictures, in place of drawn ones")
    parser.add_argument("--only", choices=[*TABLES])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    pictures = sources(asked.photos)
    told: dict[str, list[Row]] = {}
    for name, table in TABLES.items():
        if asked.only in (None, name):
            for row in table(pictures):
                if name not in told:
                    print("".join(f"{column:>11}" for column in row))
                told.setdefault(name, []).append(row)
                cells = (
                    f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row.values()
                )
                print("".join(f"{cell:>11}" for cell in cells), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
