"""Pictures to bytes: every field of an encoder explicit, nothing left to the file."""

import hashlib
import io
import json
import math
import mmap
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import PIL
from PIL import AvifImagePlugin, Image, ImageChops, ImageFile, ImageStat, features

from imagefleet.imaging.codecs import open_image
from imagefleet.imaging.graphics import FEW_COLOURS, carried, simplest
from imagefleet.imaging.headers.png import Coded
from imagefleet.imaging.recipes import OUTPUTS, Encoding, Lossless, Recipe, VariantSpec
from imagefleet.imaging.sources import Origin, own_file
from imagefleet.jobs.images import Caveat, ImageFormat

# Raise it when the pipeline itself starts to make other pixels from the same recipe.
_PIPELINE_VERSION = 6

EncoderOptions = Mapping[str, int | str | bool]

# Everything an encoder is told besides quality. An optimised JPEG has 2 % fewer bytes, a small one
# 5, for 10 ms more of all sizes of a photo; a progressive one 2 % fewer again, for 33. Method 4 of
# WebP takes 2.4 times as long as 2, once, and saves 4 % of the bytes and 0.3 dB each time somebody
# looks (docs/images.md). AVIF's bytes depend on its number of threads, so it has one.
ENCODERS: Mapping[ImageFormat, EncoderOptions] = MappingProxyType(
    {
        ImageFormat.JPEG: MappingProxyType(
            {"subsampling": "4:2:0", "progressive": False, "optimize": True}
        ),
        ImageFormat.PNG: MappingProxyType({"compress_level": 9}),
        ImageFormat.WEBP: MappingProxyType(
            {"lossless": False, "alpha_quality": 100, "method": 4, "exact": False}
        ),
        ImageFormat.AVIF: MappingProxyType(
            {
                "subsampling": "4:2:0",
                "speed": 8,
                "range": "full",
                "codec": "aom",
                "max_threads": 1,
                "autotiling": False,
            }
        ),
    }
)
# What is told otherwise of what is drawn: its colours have edges, too, and where a quarter of their
# samples shows, a JPEG has all. The quality of lossless WebP is how hard it tries.
DRAWN: Mapping[ImageFormat, EncoderOptions] = MappingProxyType(
    dict.fromkeys((ImageFormat.JPEG, ImageFormat.AVIF), MappingProxyType({"subsampling": "4:4:4"}))
)
LOSSLESS: EncoderOptions = MappingProxyType({"lossless": True, "quality": 100, "method": 4})
# Its slowest method takes up to 8 seconds a megapixel for 3 % fewer bytes: it is for what is tiny,
# and for sources that had it themselves.
_SLOWEST, _TINY = 6, 1 << 12

# Pixels up to which a JPEG is optimised, which holds four bytes of each until the last, and up to
# which a PNG is tried without filters, which holds its bytes twice.
_MOST_HELD = 1 << 23
_MOST_A_PIXEL, _ENDS = 8, 16  # bytes of a JPEG, rather more than less; pixels that it ends with
# What the encoder of AVIF takes, at least and a pixel: it does not look whether it is given that.
_AVIF_AT_LEAST = 2 << 20
_AVIF_TAKES = MappingProxyType({"4:2:0": 33, "4:4:4": 46})
# From this many pixels on, which format makes the smallest photo is asked of a small copy. A third
# less processor time than encoding all of them, for 0.3 to 1 % more bytes (docs/images.md).
_LARGE, _GLIMPSE = 1 << 18, 4
_MOST_SLOWLY = 1 << 20  # pixels that are worth the slowest method
_LOWEST_QUALITY = 1
# Levels that nobody sees: in the mean over all pixels, and over any block of so many a side.
_UNSEEN, _UNSEEN_IN_A_BLOCK, _BLOCK = 4, 16, 8

# What may carry somebody's words, place or profile. Named and emptied, as several encoders fall
# back on the picture's own info where the caller is silent.
_NOTHING: dict[str, bytes] = {"exif": b"", "xmp": b"", "icc_profile": b"", "comment": b""}
_PNG_COLOURS = MappingProxyType({"L": 0, "RGB": 2, "LA": 4, "RGBA": 6})


def encoder_fingerprint(recipe: Recipe) -> str:
    """What the bytes of a variant depend on besides its source: the same gives the same bytes.

    The recipe, by the hash of all that is in it; our own pipeline, with the encoders' options;
    Pillow, and the codecs in it.
    """
    told = [{form: dict(told) for form, told in each.items()} for each in (ENCODERS, DRAWN)]
    bounds = (_MOST_HELD, _LARGE, _GLIMPSE, _UNSEEN, _UNSEEN_IN_A_BLOCK, _TINY, _MOST_SLOWLY)
    options = json.dumps([*told, dict(LOSSLESS), _SLOWEST, *bounds], sort_keys=True)
    versions = {
        "recipe": recipe.hash,
        "pipeline": f"{_PIPELINE_VERSION}.{hashlib.sha256(options.encode()).hexdigest()[:8]}",
        "pillow": PIL.__version__,
        "jpeg": features.version("libjpeg_turbo") or features.version("jpg"),
        "zlib": features.version("zlib_ng") or features.version("zlib"),
        "deflate": zlib.ZLIB_RUNTIME_VERSION,
        "webp": features.version("webp"),
        "avif": features.version("avif"),
        "aom": AvifImagePlugin.get_codec_version("aom"),
        "dav1d": AvifImagePlugin.get_codec_version("dav1d"),
        "lcms": features.version("littlecms2"),
    }
    return " ".join(f"{name}/{version or 'none'}" for name, version in versions.items())


@dataclass(frozen=True, slots=True)
class Encoded:
    """A variant's bytes, in the format that it came out in."""

    format: ImageFormat
    content: bytes
    caveats: tuple[Caveat, ...] = ()

    def __len__(self) -> int:
        return len(self.content)


class _Way(NamedTuple):
    """One of the ways in which a variant may be encoded."""

    format: ImageFormat
    quality: int
    """0: nothing is lost."""


_Make = Callable[[_Way], Encoded]


def encode(picture: Image.Image, variant: VariantSpec, origin: Origin) -> Encoded:
    """A clean picture to bytes: the smallest of what the variant allows.

    The same picture and settings give the same bytes, as long as the fingerprint is the same.
    """
    drawn = origin.drawn and variant.lossless is not Lossless.NEVER

    def made(way: _Way, shown: Image.Image = picture) -> Encoded:
        flat, caveats = flatten(shown, way.format)
        content = save(flat, *way, drawn=drawn, credit=origin.credit)
        return Encoded(way.format, content, caveats)

    lossy, exact = _ways(picture, variant, drawn=drawn)
    if len(lossy) > 1 and not exact and picture.width * picture.height >= _LARGE:
        glimpse = picture.reduce(_GLIMPSE)
        lossy = [min(lossy, key=lambda way: len(made(way, glimpse)))]
    few = drawn and (origin.is_icon or picture.getcolors(FEW_COLOURS) is not None)
    tried = {way: made(way) for way in (exact if few and exact else (*lossy, *exact))}
    best = min(tried, key=lambda way: len(tried[way]))
    its_own = (best.format, picture.size) == (origin.format, origin.size)
    outgrown = its_own and len(tried[best]) > origin.size_bytes
    if outgrown and best.format in [way.format for way in exact]:
        own = own_file(origin, picture)
        if own is not None and len(own) <= (variant.most_bytes or origin.size_bytes):
            return replace(tried[best], content=own)
    if variant.most_bytes is not None and len(tried[best]) > variant.most_bytes:
        lower = min(lossy, key=lambda way: len(tried[way]) if way in tried else 0, default=None)
        return _within(variant.most_bytes, tried[best], lower, made)
    if not (drawn and outgrown):
        return tried[best]
    # Even of few colours: who has a smaller file of them has lost something before.
    tried |= {way: made(way) for way in lossy if way.format is best.format and way not in tried}
    best = min(tried, key=lambda way: len(tried[way]))
    return _no_larger(origin, picture, best, tried[best], made)


def _no_larger(
    origin: Origin, picture: Image.Image, way: _Way, encoded: Encoded, made: _Make
) -> Encoded:
    """Than its source: with less quality, down to half, or more effort, if either helps."""
    if way.quality:
        fitting = _fitting(made, way, -(-way.quality // 2), origin.size_bytes)
        return fitting if len(fitting) <= origin.size_bytes else encoded
    if way.format is ImageFormat.WEBP and picture.width * picture.height <= _MOST_SLOWLY:
        slowly = save(picture, *way, credit=origin.credit, method=_SLOWEST)
        return min(encoded, replace(encoded, content=slowly), key=len)
    return encoded


def _ways(
    picture: Image.Image, variant: VariantSpec, *, drawn: bool
) -> tuple[list[_Way], list[_Way]]:
    """Those that lose something and those that do not, of each the first asked for first.

    None that loses transparency where another keeps it, and of a photo no PNG beside others.
    """
    asked = [Encoding(variant.format, variant.quality), *variant.or_smaller]
    if picture.mode.endswith("A"):
        asked = [each for each in asked if each.format is not ImageFormat.JPEG] or asked
    if not drawn:
        asked = [each for each in asked if each.format is not ImageFormat.PNG] or asked
    both = {ImageFormat.PNG, ImageFormat.WEBP}
    always = variant.lossless is Lossless.ALWAYS
    exact = both if always or drawn else {ImageFormat.PNG}
    lossy = OUTPUTS - (both if always else {ImageFormat.PNG})
    return (
        [_Way(*each) for each in asked if each.format in lossy],
        [_Way(each.format, 0) for each in asked if each.format in exact],
    )


def _within(most_bytes: int, encoded: Encoded, lower: _Way | None, made: _Make) -> Encoded:
    """As good as fits, or the smallest there is, which says that it does not fit."""
    if lower is not None:
        fitting = _fitting(made, lower, _LOWEST_QUALITY, most_bytes)
        encoded = min(fitting, encoded, key=len)
    if len(encoded) <= most_bytes:
        return encoded
    return replace(encoded, caveats=(*encoded.caveats, Caveat.OVER_BUDGET))


def _fitting(made: _Make, way: _Way, lowest: int, most_bytes: int) -> Encoded:
    """With the best quality below the way's own that fits, or with the lowest."""
    best, low, high = made(way._replace(quality=lowest)), lowest + 1, way.quality
    while len(best) <= most_bytes and low < high:
        middle = (low + high) // 2
        nearer = made(way._replace(quality=middle))
        if len(nearer) <= most_bytes:
            best, low = nearer, middle + 1
        else:
            high = middle
    return best


def save(
    picture: Image.Image,
    image_format: ImageFormat,
    quality: int,
    *,
    drawn: bool = False,
    credit: bytes = b"",
    method: int | None = None,
) -> bytes:
    """Every field of the encoder explicit, nothing left to the file. Quality 0 loses nothing."""
    told: dict[str, object] = {**ENCODERS[image_format], **_NOTHING, "exif": credit}
    told |= DRAWN.get(image_format, {}) if drawn else {}
    much = picture.width * picture.height > _MOST_HELD
    if image_format is ImageFormat.PNG:
        pictures = simplest(picture)
        if not much and pictures[-1].mode.endswith("A"):
            pictures.append(carried(pictures[-1]))
        files = [_saved(each, image_format, told) for each in pictures]
        if drawn and not much and pictures[-1].mode in _PNG_COLOURS:
            files += [_unfiltered(each, credit) for each in pictures if each.mode != "P"]
        return min(files, key=len)
    if drawn and (image_format, picture.mode, much) == (ImageFormat.JPEG, "RGB", False):
        quartered = save(picture, image_format, quality, credit=credit)
        if _shows(quartered, picture):
            return quartered
    if much:
        told.pop("optimize", None)
    told |= {"quality": quality} if quality else LOSSLESS
    tiny = not quality and math.prod(picture.size) <= _TINY
    told |= {"method": _SLOWEST if tiny else method} if tiny or method else {}
    if image_format is ImageFormat.AVIF:
        wanted = _AVIF_AT_LEAST + _AVIF_TAKES[str(told["subsampling"])] * math.prod(picture.size)
        mmap.mmap(-1, wanted, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()  # OSError: not there
    clean = picture.convert("RGBA") if picture.mode == "LA" else picture
    return _saved(clean, image_format, told)


def _saved(picture: Image.Image, image_format: ImageFormat, told: Mapping[str, object]) -> bytes:
    out, usual = io.BytesIO(), ImageFile.MAXBLOCK
    if "optimize" in told:  # comes in one piece; Pillow has room for a byte a pixel, noise needs 4
        ImageFile.MAXBLOCK = max(usual, _MOST_A_PIXEL * math.prod(n + _ENDS for n in picture.size))
    try:
        picture.save(out, format=image_format.name, **told)
    finally:
        ImageFile.MAXBLOCK = usual
    return out.getvalue()


def _shows(content: bytes, picture: Image.Image) -> bool:
    """Whether a file shows its picture, whole and in every place, as far as anybody can see."""
    apart = ImageChops.difference(open_image(content), picture).reduce(_BLOCK)
    levels = ImageStat.Stat(apart.convert("L", (1 / 3, 1 / 3, 1 / 3, 0)))
    return levels.mean[0] <= _UNSEEN and levels.extrema[0][1] <= _UNSEEN_IN_A_BLOCK


def _unfiltered(picture: Image.Image, credit: bytes) -> bytes:
    """A PNG whose rows are as they are: Pillow filters each, which makes what is drawn larger."""
    raw, stride = picture.tobytes(), picture.width * len(picture.getbands())
    rows = b"".join(b"\0" + raw[at : at + stride] for at in range(0, len(raw), stride))
    header = struct.pack(">IIBBBBB", *picture.size, 8, _PNG_COLOURS[picture.mode], 0, 0, 0)
    return Coded(header, zlib.compress(rows, 9)).file(credit)


def flatten(
    picture: Image.Image, image_format: ImageFormat
) -> tuple[Image.Image, tuple[Caveat, ...]]:
    """The picture on white where the format knows no transparency."""
    if image_format is not ImageFormat.JPEG or not picture.mode.endswith("A"):
        return picture, ()
    mode = picture.mode.removesuffix("A")
    paper = Image.new(mode, picture.size, "white")
    paper.paste(picture.convert(mode), mask=picture.getchannel("A"))
    return paper, (Caveat.ALPHA_FLATTENED,)
