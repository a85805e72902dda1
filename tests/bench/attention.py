"""Where a picture is cut around what is to be seen, beside libvips' `attention`.

Each picture is cut to boxes of several shapes, by us, by libvips and around its centre. Told is how
far the cuts lie apart, as a share of the play: of what a window can be moved at all. The pictures
are samples that Python packages bring, installed for this alone below .bench/. Of some it is known
what they are of, by a look at them; of those it is told, too, how often each way keeps it.

    .venv/bin/python -m tests.bench.attention          # or --photos FOLDER --json FILE
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from PIL import Image, ImageOps

from imagefleet.imaging.attention import attention
from imagefleet.imaging.sizes import Size, window
from tests.bench.peers import Peers
from tests.support.wheels import mirror, run_uv

MOST: Final = 1280  # pixels of the longer side, as a large variant has
FEWEST: Final = 100  # of the shorter: below are icons
SHAPES: Final = MappingProxyType({"square": (1, 1), "wide": (2, 1), "tall": (2, 3)})
LEAST_PLAY: Final = 0.1  # of the side: less cannot be far wrong
AGREED: Final = (0.1, 0.25)
WAYS: Final = ("ours", "libvips", "centre")
SUFFIXES: Final = frozenset({".jpg", ".jpeg", ".png", ".webp"})
SAMPLES: Final = MappingProxyType(
    {
        "gradio==4.44.1": "gradio/test_data/*[!y].jpg",  # one is there as a copy, too
        "imgaug==0.4.0": "imgaug/quokka.jpg",
        "matplotlib==3.10.1": "matplotlib/mpl-data/sample_data/*",
        "scikit-image==0.25.2": "skimage/data/*",
        "scikit-learn==1.6.1": "sklearn/datasets/images/*",
        "ultralytics==8.3.80": "ultralytics/assets/*",
    }
)
# What a picture is of, by its name: where, as shares of its sides.
SUBJECTS: Final = MappingProxyType(
    {
        "astronaut": (0.45, 0.25), "camera": (0.44, 0.28), "cheetah1": (0.5, 0.45),
        "cheetah2": (0.47, 0.42), "chelsea": (0.45, 0.45), "china": (0.32, 0.45),
        "coffee": (0.5, 0.28), "flower": (0.48, 0.5), "grace_hopper": (0.52, 0.38),
        "horse": (0.88, 0.18), "lion": (0.45, 0.3), "logo2": (0.58, 0.5),
        "motorcycle_left": (0.52, 0.55), "quokka": (0.37, 0.3), "rocket": (0.5, 0.62),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cut:
    """One picture in one shape: where on its play each way begins, as shares of it."""

    picture: str
    shape: str
    side: int
    """Of the picture, along which the window can be moved."""
    play: int
    subject: float | None
    """Where on that side it is; None: nobody looked."""
    begins: Mapping[str, float]

    def apart(self, way: str) -> float:
        return abs(self.begins[way] - self.begins["libvips"])

    def keeps(self, way: str) -> bool:
        begin = self.begins[way] * self.play
        at = (self.subject or 0.0) * self.side
        return begin <= at <= begin + self.side - self.play


def samples(cache: Path) -> list[Path]:
    """The packages' files, unpacked and never run."""
    folder = cache / "pictures"
    run_uv("pip", "install", "--no-deps", "--target", str(folder), *SAMPLES, **mirror())
    return [path for pattern in SAMPLES.values() for path in folder.glob(pattern)]


def pictures(paths: Iterable[Path]) -> Iterator[tuple[str, Image.Image]]:
    for path in sorted(path for path in paths if path.suffix.lower() in SUFFIXES):
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened)
            if min(picture.size) >= FEWEST and not picture.has_transparency_data:
                picture.thumbnail((MOST, MOST))
                yield path.stem, picture.convert("RGB")


def _kept(size: Size, shape: tuple[int, int]) -> Size:
    part = min(size.width / shape[0], size.height / shape[1])
    return Size(*(max(1, round(side * part)) for side in shape))


async def measured(paths: Iterable[Path], peers: Peers) -> tuple[list[Cut], float]:
    """Every cut, and the milliseconds that looking at a picture takes us."""
    cuts: list[tuple[int, Cut]] = []
    orders: list[tuple[str, int, int]] = []
    took: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, picture in pictures(paths):
            path, size = Path(scratch) / f"{len(orders)}.png", Size(*picture.size)
            picture.save(path, compress_level=1)
            begun = time.process_time()
            focal = attention(picture)
            took.append(1000 * (time.process_time() - begun))
            for shape, sides in SHAPES.items():
                kept = _kept(size, sides)
                play = [whole - part for whole, part in zip(size, kept, strict=True)]
                axis = play.index(max(play))
                if play[axis] < LEAST_PLAY * size[axis]:
                    continue
                subject = SUBJECTS[name][axis] if name in SUBJECTS else None
                begins = {"ours": window(size, kept, focal)[axis] / play[axis], "centre": 0.5}
                cuts.append((axis, Cut(name, shape, size[axis], play[axis], subject, begins)))
                orders.append((str(path), *kept))
        theirs = (await peers.ask("attention", orders))["cuts"]
    for (axis, cut), corner in zip(cuts, theirs, strict=True):
        cut.begins["libvips"] = corner[axis] / cut.play  # type: ignore[index]  # made here
    return [cut for _, cut in cuts], statistics.median(took)


def told_of(cuts: Sequence[Cut]) -> Mapping[str, Mapping[str, float]]:
    known = [cut for cut in cuts if cut.subject is not None]
    told = {}
    for way in WAYS:
        apart = [cut.apart(way) for cut in cuts]
        told[way] = {
            "median": statistics.median(apart),
            **{f"within {most}": sum(far <= most for far in apart) / len(cuts) for most in AGREED},
            "keeps": sum(cut.keeps(way) for cut in known) / max(1, len(known)),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, help="a folder of pictures, in place of samples")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    peers = Peers()
    paths = given.photos.rglob("*") if given.photos else samples(peers.cache)
    cuts, ms = asyncio.run(measured(paths, peers))
    for cut in cuts:
        begins = " ".join(f"{way} {cut.begins[way]:.2f}" for way in WAYS)
        print(f"{cut.picture[:28]:28} {cut.shape:7} {begins}")
    told = told_of(cuts)
    known = sum(cut.subject is not None for cut in cuts)
    print(
        f"{len({cut.picture for cut in cuts})} pictures, {len(cuts)} cuts, {known} with a subject"
    )
    for way, figures in told.items():
        print(f"{way:8}", ", ".join(f"{name}: {figure:.3f}" for name, figure in figures.items()))
    print(f"{ms:.1f} ms a picture")
    if given.json:
        rows = [asdict(cut) for cut in cuts]
        given.json.write_text(json.dumps({"cuts": rows, "told": told, "ms": ms}, indent=1))


if __name__ == "__main__":
    main()
