"""What pictures take in memory, in the children that make them: foretold, allowed, taken.

Every format, in the ways of coding it that cost differently, at 12 to 64 megapixels, and JPEG at as
many as phones have. Each is made once by the worker's renderer, with as much memory as the worker
would give it. The peak is what the kernel counts towards the child's limit, looked at every few
milliseconds. Ends with 1 where one was not made, or took more than was foretold.

Then a crowd: sixteen JPEG and PNG of 64 megapixels at once, into a renderer that has what a
container of 1 GiB leaves for children, and over HTTP into a whole worker in a control group of that
size (contained.py). All have to be made, and none ever has more than its container.

    make bench-memory            # or ARGS="--megapixels 24 --only webp", ARGS="--crowd worker",
                                 # ARGS="--crowd renderer --megapixels 12 --container 640"
"""

import argparse
import asyncio
import base64
import logging
import os
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

import structlog
from PIL import Image

from imagefleet.errors import FleetError
from imagefleet.imaging.foretelling import foretold_bytes
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import MAX_SIDE, Recipe, VariantSpec, Watermark
from imagefleet.jobs.images import ImageFormat
from imagefleet.worker.handling import BESIDE_CHILDREN, SMALLEST_BYTES, Room
from imagefleet.worker.isolation.client import Renderer
from tests.bench.contained import CHILDREN, NoGroupError, crowd_of
from tests.bench.ground import durable_ground
from tests.bench.peers import Peers
from tests.support.children import children_of
from tests.support.images import png_chunk, saved
from tests.support.recipes import RECIPES

SIZES: Final[Mapping[int, tuple[int, int]]] = {
    12: (4000, 3000),
    24: (6000, 4000),
    48: (8000, 6000),
    64: (8000, 8000),
    108: (12_000, 9_000),  # JPEG alone
}
MIB: Final = 2**20
CONTAINER: Final = 1024  # MiB
CROWD: Final = 16
RECIPE: Final = RECIPES["default"]
LIMITS: Final = Limits()
LOOK_EVERY: Final = 0.004  # seconds
GREEN: Final = (10, 200, 90)

Size = tuple[int, int]
Maker = Callable[[Size], bytes]


def tones(mode: str, size: Size) -> Image.Image:
    """Gradients: every row and column is another, and they compress well."""
    across = Image.linear_gradient("L").resize(size)
    if mode == "L":
        return across
    around = Image.radial_gradient("L").resize(size)
    return Image.merge(mode, [across, around, across, around][: len(mode)])


def coded(mode: str, pillow_format: str, size: Size, **options: object) -> bytes:
    return saved(tones(mode, size), pillow_format, **options)


def flat(mode: str, pillow_format: str, size: Size, **options: object) -> bytes:
    colour: tuple[int, ...] = (*GREEN, 77) if mode == "RGBA" else GREEN
    picture = Image.new(mode if mode == "RGBA" else "RGB", size, colour)
    return saved(picture.convert(mode), pillow_format, **options)


def flat_frames(mode: str, pillow_format: str, size: Size, **options: object) -> bytes:
    second = Image.new("RGB", size, (9, 9, 9)).convert(mode)
    return flat(mode, pillow_format, size, save_all=True, append_images=[second], **options)


def png(depth: int, colour_type: int, channels: int, size: Size, *, interlaced: bool) -> bytes:
    """As Pillow does not write them."""
    packer, pixels = zlib.compressobj(1), []
    for left, top, across, down in _passes(interlaced=interlaced):
        wide, high = -(-(size[0] - left) // across), -(-(size[1] - top) // down)
        row = b"\0" + (bytes(range(256)) * (wide * channels * depth // 2048 + 1))
        row = row[: 1 + wide * channels * depth // 8]
        pixels += [packer.compress(row) for _ in range(high)]
    header = struct.pack(">IIBBBBB", *size, depth, colour_type, 0, 0, interlaced)
    chunks = [(b"IHDR", header), (b"IDAT", b"".join([*pixels, packer.flush()])), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def _passes(*, interlaced: bool) -> list[tuple[int, int, int, int]]:
    if not interlaced:
        return [(0, 0, 1, 1)]
    return [
        (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
        (0, 1, 1, 2),
    ]  # fmt: skip


QUICK: Final[Mapping[str, Any]] = {"method": 0, "quality": 0}
ONE_THREAD: Final[Mapping[str, Any]] = {"max_threads": 1, "speed": 10, "quality": 40}

PICTURES: Final[Mapping[str, Maker]] = {
    "jpeg 4:2:0": partial(coded, "RGB", "JPEG", quality=85),
    "jpeg 4:4:4": partial(coded, "RGB", "JPEG", subsampling=0),
    "jpeg progressive 4:2:0": partial(coded, "RGB", "JPEG", quality=85, progressive=True),
    "jpeg progressive 4:4:4": partial(coded, "RGB", "JPEG", subsampling=0, progressive=True),
    "jpeg progressive, restarts": partial(
        coded, "RGB", "JPEG", subsampling=0, progressive=True, restart_marker_blocks=64
    ),
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


# By others, as Pillow writes none: bits a sample, whether colours are whole, whether it has alpha.
DEEP: Final[Mapping[str, tuple[int, bool, bool]]] = {
    "avif, 10 bits": (10, False, False),
    "avif, 10 bits, 4:4:4, alpha": (10, True, True),
    "avif, 12 bits": (12, False, False),
    "avif, 12 bits, 4:4:4, alpha": (12, True, True),
}


def drawn(size: Size) -> bytes:
    """Boxes with sharp edges, and nothing behind them: whole colours, and alpha."""
    picture = Image.new("RGBA", size)
    for number in range(2_000):
        x, y = number * 7_919 % size[0], number * 104_729 % size[1]
        colour = (number * 37 % 256, number * 101 % 256, number * 11 % 256, 255)
        picture.paste(colour, (x, y, x + 10 + number % 90, y + 10 + number % 70))
    return saved(picture, "PNG", compress_level=1)


def whole(image_format: ImageFormat, mark: Image.Image | None = None) -> Recipe:
    """One variant of the source's own size."""
    image = mark and base64.b64encode(saved(mark, "WEBP", lossless=True)).decode()
    watermark = Watermark(image, scale=1.0) if image else None
    spec = VariantSpec("whole", MAX_SIDE, MAX_SIDE, image_format, 63, watermark=watermark)
    return Recipe("whole", (spec,))


# Where encoding takes most, of the smallest size only: these are no sizes for pages.
LARGE_OUTPUTS: Final[Mapping[str, tuple[Maker, Recipe]]] = {
    "photo as avif": (PICTURES["jpeg 4:2:0"], whole(ImageFormat.AVIF)),
    "drawn as avif": (drawn, whole(ImageFormat.AVIF)),
    "drawn as webp": (drawn, whole(ImageFormat.WEBP)),
    "drawn as png": (drawn, whole(ImageFormat.PNG)),
    "drawn, marked, as webp": (drawn, whole(ImageFormat.WEBP, Image.new("RGBA", (1024, 1024)))),
}
MAKERS: Final = {**PICTURES, **{name: maker for name, (maker, _) in LARGE_OUTPUTS.items()}}


class Peak:
    """The most that the children of a zygote had: one of them, and all with everybody else."""

    def __init__(self, zygote: int) -> None:
        self._zygote = zygote
        self.of_one = 0
        """Of what its limit counts."""
        self.of_all = 0
        """Of what is in memory, of this process and the zygote too."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(LOOK_EVERY):
            children = [_status(child) for child in children_of(self._zygote)]
            others = [_status(self._zygote), _status(os.getpid())]
            data = [told.get("VmData", 0) for told in children]
            here = [told.get("RssAnon", 0) + told.get("VmPTE", 0) for told in children + others]
            self.of_one = max(self.of_one, *data, 0)
            self.of_all = max(self.of_all, sum(here))


def _status(pid: int) -> dict[str, int]:
    """Sizes in bytes; nothing of a process that ended meanwhile."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    told = (line.split() for line in lines if line.endswith(" kB"))
    return {name.removesuffix(":"): int(size) * 1024 for name, size, _ in told}


async def plant(path: Path, kind: str, size: Size) -> None:
    """Draw it elsewhere: what that takes would be counted as ours."""
    if kind in DEEP:
        asked: dict[str, object] = dict(zip(("bits", "whole", "alpha"), DEEP[kind], strict=True))
        asked |= {"path": str(path), "width": size[0], "height": size[1]}
        await Peers().ask("deep_avif", asked)
        return
    code = (
        "import sys; from pathlib import Path; from tests.bench.memory import MAKERS; "
        "Path(sys.argv[1]).write_bytes("
        "MAKERS[sys.argv[2]]((int(sys.argv[3]), int(sys.argv[4]))))"
    )
    arguments = ("-c", code, str(path), kind, *map(str, size))
    drawing = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    assert await drawing.wait() == 0


async def make(
    renderer: Renderer, path: Path, memory_bytes: int, recipe: Recipe = RECIPE
) -> tuple[float, str]:
    """The seconds, and how it ended."""
    begun = time.monotonic()
    try:
        rendered = await renderer.render(
            path,
            recipe,
            LIMITS,
            deadline_seconds=300,
            memory_bytes=memory_bytes,
            scratch=path.parent,
        )
    except FleetError as error:
        return time.monotonic() - begun, error.code
    rendered.discard()
    return time.monotonic() - begun, "made"


async def each(sizes: Mapping[int, Size], wanted: str, folder: Path) -> bool:
    """Print a row a picture; whether all were made, in what was foretold."""
    well, room = True, Room(1, 1 << 40)
    print("sizes in MiB")
    print(f"{'picture':<26}{'MP':>4}{'file':>7}{'foretold':>10}{'allowed':>9}{'taken':>7}{'s':>7}")
    async with Renderer() as renderer:
        for name, (megapixels, size) in product((*MAKERS, *DEEP), sizes.items()):
            largest = LIMITS.max_jpeg_pixels if "jpeg" in name else LIMITS.max_pixels
            recipe = RECIPE
            if name in LARGE_OUTPUTS:
                largest, recipe = prod(SIZES[12]), LARGE_OUTPUTS[name][1]
            if wanted not in name or size[0] * size[1] > largest:
                continue
            path = folder / "source"
            await plant(path, name, size)
            foretold = foretold_bytes(path, recipe, LIMITS)
            allowed = room.allowance(foretold)
            assert renderer.zygote_pid is not None
            peak = Peak(renderer.zygote_pid)
            with peak.watched():
                seconds, ending = await make(renderer, path, allowed, recipe)
            fits = ending == "made" and peak.of_one <= max(foretold, SMALLEST_BYTES)
            well = well and fits
            print(
                f"{name:<26}{megapixels:>4}{path.stat().st_size / MIB:>7.1f}{foretold // MIB:>10}"
                f"{allowed // MIB:>9}{peak.of_one // MIB:>7}{seconds:>7.1f}"
                f"{'' if fits else '  ' + ending.upper()}",
                flush=True,
            )
    return well


async def planted(size: Size, folder: Path) -> list[Path]:
    """Four of them, of JPEG and PNG."""
    kinds = ("jpeg 4:2:0", "jpeg progressive 4:2:0", "png rgb", "png rgba")
    paths = [folder / f"{number}" for number in range(len(kinds))]
    for path, kind in zip(paths, kinds, strict=True):
        await plant(path, kind, size)
    return paths


async def whole_worker(paths: list[Path], container: int, folder: Path) -> bool:
    """The same of a real one; true, and told, where no group can be made for it."""
    async with durable_ground(Peers(), folder) as ground:
        try:
            crowd = await crowd_of(ground, paths, CROWD // len(paths), container)
        except NoGroupError as error:
            print(f"a whole worker is not measured, as it cannot have a control group: {error}")
            return True
    print(crowd, flush=True)
    return crowd.well


async def crowd(paths: list[Path], size: Size, container: int) -> bool:
    """Many large ones at once into a small container; whether all were made, and within it."""
    room = Room(CHILDREN, container - BESIDE_CHILDREN)
    at_work = most_at_work = 0

    async def one(renderer: Renderer, path: Path) -> str:
        nonlocal at_work, most_at_work
        memory_bytes = room.allowance(foretold_bytes(path, RECIPE, LIMITS))
        async with room.place(memory_bytes):
            at_work += 1
            most_at_work = max(most_at_work, at_work)
            try:
                return (await make(renderer, path, memory_bytes))[1]
            finally:
                at_work -= 1

    async with Renderer() as renderer:
        assert renderer.zygote_pid is not None
        peak = Peak(renderer.zygote_pid)
        with peak.watched():
            tasks = [one(renderer, paths[number % len(paths)]) for number in range(CROWD)]
            endings = Counter(await asyncio.gather(*tasks))
    print(
        f"{CROWD} of {size[0]}x{size[1]} at once, {room.memory_bytes // MIB} MiB for children: "
        f"{dict(endings)}; {most_at_work} worked at once; all processes {peak.of_all // MIB} MiB "
        f"of {container // MIB}"
    )
    return endings == {"made": CROWD} and peak.of_all <= container


async def run(options: argparse.Namespace, folder: Path) -> bool:
    well = True
    if not options.crowd:
        chosen = options.megapixels or list(SIZES)
        well = await each({mega: SIZES[mega] for mega in chosen}, options.only, folder)
    if not options.only:
        size = SIZES[max(options.megapixels)] if options.crowd and options.megapixels else SIZES[64]
        paths, container = await planted(size, folder), options.container * MIB
        if options.crowd != "worker":
            well = await crowd(paths, size, container) and well
        if options.crowd != "renderer":
            well = await whole_worker(paths, container, folder) and well
    return well


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megapixels", type=int, action="append", choices=list(SIZES))
    parser.add_argument("--only", default="", help="pictures with this in their names")
    parser.add_argument("--crowd", choices=("renderer", "worker"), help="and nothing else")
    parser.add_argument("--container", type=int, default=CONTAINER, help="MiB, of the crowd")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if asyncio.run(run(options, Path(folder))) else 1)


if __name__ == "__main__":
    main()
