"""One file of every kind we accept, small enough to damage."""

from __future__ import annotations

from tests.support.images import RED, animated, exif_with, quadrants, saved, translucent

SAMPLES = {
    "jpeg": saved(quadrants()),
    "progressive jpeg": saved(quadrants(), progressive=True, exif=exif_with(6)),
    "mpo": saved(quadrants(), "MPO", save_all=True, append_images=[quadrants()]),
    "png": saved(quadrants(), "PNG", exif=exif_with(3)),
    "animated png": animated("PNG", [RED, (0, 0, 0)]),
    "lossy webp": saved(quadrants(), "WEBP"),
    "lossless webp": saved(quadrants(), "WEBP", lossless=True),
    "extended webp": saved(translucent(), "WEBP", exif=exif_with(8)),
    "animated webp": animated("WEBP", [RED, (0, 0, 0)]),
    "gif": saved(quadrants().convert("P"), "GIF"),
    "animated gif": animated("GIF", [RED, (0, 0, 0)]),
    "avif": saved(quadrants(), "AVIF", max_threads=1),
    "avif with alpha": saved(translucent(), "AVIF", max_threads=1),
    "animated avif": animated("AVIF", [RED, (0, 0, 0)]),
}
