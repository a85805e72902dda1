"""What the largest pictures that are accepted take in memory, in the children that make them.

Every format, in the ways of coding it that cost differently, at as many pixels as are allowed. Each
is made once by the worker's renderer, with as much memory as the worker would give it. The peak is
what the kernel counts towards the child's limit, looked at every few milliseconds; beside it stands
what `decoding_bytes` had foretold from the head. Ends with 1 where one was not made, or took more.

    make bench-memory            # or ARGS="--side 2000 --only webp"
"""

import argparse
import asyncio
import logging
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from PIL import Image

from imagefleet.errors import FleetError
from imagefleet.imaging.limits import decoding_bytes
from imagefleet.imaging.sniff import sniff
from imagefleet.worker.handlers.process_image import LIMITS, MUCH_MEMORY_BYTES, needs_much
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import GENERAL_MEMORY_BYTES
from tests.support.children import children_of
from tests.support.images import png_chunk, saved
from tests.support.recipes import RECIPES

SIDE: Final = 7071  # squared, the most pixels that are allowed
MIB: Final = 2**20
LOOK_EVERY: Final = 0.004  # seconds
GREEN: Final = (10, 200, 90)

Maker = Callable[[int], bytes]


def tones(mode: str, side: int) -> Image.Image:
    """Gradients: every row and column is another, and they compress well."""
    across = Image.linear_gradient("L").resize((side, side))
    if mode == "L":
        return across
    around = Image.radial_gradient("L").resize((side, side))
    return Image.merge(mode, [across, around, across, around][: len(mode)])


def coded(mode: str, pillow_format: str, side: int, **options: object) -> bytes:
    return saved(tones(mode, side), pillow_format, **options)


def flat(mode: str, pillow_format: str, side: int, **options: object) -> bytes:
    colour: tuple[int, ...] = (*GREEN, 77) if mode == "RGBA" else GREEN
    picture = Image.new(mode if mode == "RGBA" else "RGB", (side, side), colour)
    return saved(picture.convert(mode), pillow_format, **options)


def flat_frames(mode: str, pillow_format: str, side: int, **options: object) -> bytes:
    second = Image.new("RGB", (side, side), (9, 9, 9)).convert(mode)
    return flat(mode, pillow_format, side, save_all=True, append_images=[second], **options)


def png(depth: int, colour_type: int, channels: int, side: int, *, interlaced: bool) -> bytes:
    """As Pillow does not write them."""
    packer, pixels = zlib.compressobj(1), []
    for left, top, across, down in _passes(interlaced=interlaced):
        wide, high = -(-(side - left) // across), -(-(side - top) // down)
        row = b"\0" + (bytes(range(256)) * (wide * channels * depth // 2048 + 1))
        row = row[: 1 + wide * channels * depth // 8]
        pixels += [packer.compress(row) for _ in range(high)]
    header = struct.pack(">IIBBBBB", side, side, depth, colour_type, 0, 0, interlaced)
    chunks = [(b"IHDR", header), (b"IDAT", b"".join([*pixels, packer.flush()])), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def _passes(*, interlaced: bool) -> list[tuple[int, int, int, int]]:
    if not interlaced:
        return [(0, 0, 1, 1)]
    return [
        (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
        (0, 1, 1, 2),
    ]  # fmt: skip


QUICK: Final = {"method": 0, "quality": 0}
ONE_THREAD: Final = {"max_threads": 1, "speed": 10, "quality": 40}

PICTURES: Final[Mapping[str, Maker]] = {
    "jpeg 4:2:0": partial(coded, "RGB", "JPEG", quality=85),
    "jpeg 4:4:4": partial(coded, "RGB", "JPEG", subsampling=0),
    "jpeg progressive 4:2:0": partial(coded, "RGB", "JPEG", quality=85, progressive=True),
    "jpeg progressive 4:4:4": partial(coded, "RGB", "JPEG", subsampling=0, progressive=True),
    "jpeg progressive cmyk": partial(coded, "CMYK", "JPEG", quality=85, progressive=True),
    "png rgb": partial(coded, "RGB", "PNG", compress_level=1),
    "png rgba": partial(coded, "RGBA", "PNG", compress_level=1),
    "png palette": partial(flat, "P", "PNG", compress_level=1, transparency=0),
    "png one bit": partial(flat, "1", "PNG"),
    "png grey, 16 bits": partial(png, 16, 0, 1, interlaced=False),
    "png grey, alpha, 16 bits": partial(png, 16, 4, 2, interlaced=False),
    "png rgb, 16 bits": partial(png, 16, 2, 3, interlaced=False),
    "png rgba, 16 bits": partial(png, 16, 6, 4, interlaced=False),
    "png rgba, interlaced": partial(png, 8, 6, 4, interlaced=True),
    "png rgba, 16, interlaced": partial(png, 16, 6, 4, interlaced=True),
    "webp lossy": partial(coded, "RGB", "WEBP", **QUICK),
    "webp lossy, alpha": partial(coded, "RGBA", "WEBP", **QUICK),
    "webp lossless": partial(flat, "RGB", "WEBP", lossless=True, **QUICK),
    "webp lossless, alpha": partial(flat, "RGBA", "WEBP", lossless=True, exact=True, **QUICK),
    "webp animated": partial(flat_frames, "RGB", "WEBP", lossless=True, **QUICK),
    "gif": partial(coded, "L", "GIF"),
    "gif transparent": partial(flat, "P", "GIF", transparency=0),
    "gif animated": partial(flat_frames, "P", "GIF"),
    "avif 4:2:0": partial(coded, "RGB", "AVIF", **ONE_THREAD),
    "avif 4:4:4": partial(coded, "RGB", "AVIF", subsampling="4:4:4", **ONE_THREAD),
    "avif 4:4:4, alpha": partial(coded, "RGBA", "AVIF", subsampling="4:4:4", **ONE_THREAD),
}


class Peak:
    """The most that any child of this zygote had, of what its limit counts."""

    bytes = 0

    @contextmanager
    def of_children(self, zygote: int) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(zygote, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, zygote: int, over: threading.Event) -> None:
        while not over.wait(LOOK_EVERY):
            for child in children_of(zygote):
                try:
                    status = Path(f"/proc/{child}/status").read_text(encoding="utf-8")
                except OSError:  # it ended meanwhile
                    continue
                _, said, counted = status.partition("VmData:")
                if said:  # a child that is over has none
                    self.bytes = max(self.bytes, int(counted.split()[0]) * 1024)


async def measure(renderer: Renderer, path: Path, scratch: Path) -> tuple[int, float, str]:
    """The peak, the seconds, and how it ended."""
    peak, begun = Peak(), time.monotonic()
    memory_bytes = MUCH_MEMORY_BYTES if needs_much(path) else GENERAL_MEMORY_BYTES
    assert renderer.zygote_pid is not None
    with peak.of_children(renderer.zygote_pid):
        try:
            rendered = await renderer.render(
                path,
                RECIPES["default"],
                LIMITS,
                deadline_seconds=120,
                memory_bytes=memory_bytes,
                scratch=scratch,
            )
        except FleetError as error:
            ending = error.code
        else:
            rendered.discard()
            ending = "made"
    return peak.bytes, time.monotonic() - begun, ending


async def run(side: int, wanted: str, folder: Path) -> bool:
    """Print a row a picture; whether all were made, in what was foretold."""
    well = True
    print(f"{side}x{side} pixels, {side * side:,}; sizes in MiB")
    print(f"{'picture':<26}{'file':>7}{'foretold':>10}{'limit':>7}{'peak':>7}{'s':>7}  ending")
    async with Renderer() as renderer:
        for name, make in PICTURES.items():
            if wanted not in name:
                continue
            path = folder / "source"
            path.write_bytes(await asyncio.to_thread(make, side))
            size = path.stat().st_size
            foretold = decoding_bytes(sniff(path.read_bytes()), size, LIMITS)
            limit = MUCH_MEMORY_BYTES if needs_much(path) else GENERAL_MEMORY_BYTES
            peak, seconds, ending = await measure(renderer, path, folder)
            well = well and ending == "made" and peak <= foretold
            print(
                f"{name:<26}{size / MIB:>7.1f}{foretold // MIB:>10}{limit // MIB:>7}"
                f"{peak // MIB:>7}{seconds:>7.1f}  {ending}"
            )
    return well


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--only", default="", help="pictures with this in their names")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if asyncio.run(run(options.side, options.only, Path(folder))) else 1)


if __name__ == "__main__":
    main()
