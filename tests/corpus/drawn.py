"""A few files that need no network, and who shows them where there is no browser."""

import io
from pathlib import Path
from typing import Final

from PIL import Image, ImageOps

from imagefleet.jobs.images import ImageFormat
from tests.corpus.browser import Shown
from tests.corpus.fetching import Found
from tests.support.images import (
    animated,
    as_a_camera_stores,
    hard_to_match,
    png_claiming,
    quadrants,
    saved,
    translucent,
)

DRAWN: Final = {
    "plain.jpeg": saved(quadrants()),
    "lying.jpeg": as_a_camera_stores(6, quadrants(), "JPEG"),
    "progressive.jpeg": saved(quadrants(), progressive=True),
    "plain.png": saved(quadrants(), "PNG"),
    "translucent.png": saved(translucent(), "PNG"),
    "optimised.png": hard_to_match(),
    "broken.png": png_claiming(300, 300),
    "plain.gif": saved(quadrants().convert("P"), "GIF"),
    "animated.gif": animated("GIF", [(220, 30, 30), (0, 0, 0)]),
    "lossy.webp": saved(quadrants(), "WEBP"),
    "translucent.webp": saved(translucent(), "WEBP"),
    "lying.avif": as_a_camera_stores(8, quadrants(), "AVIF"),
}


def drawn(folder: Path) -> list[Found]:
    """They, as files."""
    found = []
    for name, content in DRAWN.items():
        path = folder / name
        path.write_bytes(content)
        found.append(Found(ImageFormat(path.suffix[1:]), "drawn", name, path))
    return found


def drawn_by_pillow(content: bytes) -> Shown | None:
    """The decoders are ours, the steps are not."""
    try:
        with Image.open(io.BytesIO(content)) as opened:
            upright = ImageOps.exif_transpose(opened).convert("RGBA")
    except (OSError, SyntaxError, ValueError):
        return None
    return Shown(*upright.size, upright)
