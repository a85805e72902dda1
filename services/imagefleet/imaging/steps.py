"""From an opened file to the largest picture that is wanted: one small function a step.

The order is the point. What is judged is judged before pixels exist; what costs by the pixel comes
after there are few of them.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from PIL import ExifTags, Image, ImageChops, ImageMath

from imagefleet.errors import InputRejected
from imagefleet.imaging.codecs import open_image, reading, to_srgb
from imagefleet.imaging.credit import credit_of
from imagefleet.imaging.graphics import Origin, is_drawn
from imagefleet.imaging.headers.facts import HeaderFacts, corrupt
from imagefleet.imaging.headers.jpeg import ends_in_many_places, overfilled
from imagefleet.imaging.headers.png import check_rows
from imagefleet.imaging.limits import Limits, judge_size
from imagefleet.imaging.recipes import Metadata, Recipe
from imagefleet.imaging.sizes import Size, SizeLevel, levels
from imagefleet.jobs.images import Caveat, Focal, ImageFormat

# The part of its size that a JPEG is decoded at, and how many times the largest variant that has to
# be at least: below, the decoder's own scaling would show (docs/images.md). Of halves it does not.
_DRAFTS = ((8, 1.25), (4, 1.25), (2, 1.0))
# Box-filter to this multiple of the size wanted, then resample: half the price, same picture.
_REDUCING_GAP = 2.0
_FILLING = frozenset({127, 128})  # what a channel is where nothing was coded, upside down or not
_STRIP = 256  # rows that are compared at once
_RESIZABLE = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
_PREMULTIPLIED = {"LA": "La", "RGBA": "RGBa"}
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True)
class Work:
    """A picture on its way, with what is known about it; a step returns the next one."""

    data: bytes
    picture: Image.Image
    facts: HeaderFacts
    recipe: Recipe
    limits: Limits
    size: Size  # of the source, upright, whatever has happened to the picture since
    orientation: int = 1
    focal: Focal | None = None
    levels: tuple[SizeLevel, ...] = ()
    profile: bytes | None = None
    credit: bytes = b""
    drawn: bool = False
    caveats: tuple[Caveat, ...] = ()

    @property
    def origin(self) -> Origin:
        return Origin(self.facts.format, self.size, len(self.data), self.drawn, self.credit)

    def with_caveats(self, *caveats: Caveat) -> "Work":
        fresh = [caveat for caveat in dict.fromkeys(caveats) if caveat not in self.caveats]
        return replace(self, caveats=(*self.caveats, *fresh))


Step = Callable[[Work], Work]


def open_file(
    data: bytes, facts: HeaderFacts, recipe: Recipe, limits: Limits, focal: Focal | None = None
) -> Work:
    """The first step: the header is read by Pillow, no pixel is."""
    with reading(limits.max_pixels) as complaints:
        picture = open_image(data)
        profile = picture.info.get("icc_profile")
    work = Work(
        data, picture, facts, recipe, limits, Size(*picture.size), focal=focal, profile=profile
    )
    lost = {
        Caveat.IRREGULAR_FILE: bool(complaints) or facts.arithmetic,
        Caveat.ANIMATION_FLATTENED: facts.animated,
        Caveat.EXTRA_PICTURES_DROPPED: facts.multi_picture,
        Caveat.GAIN_MAP_DROPPED: facts.gain_map,
        Caveat.DEPTH_REDUCED: facts.deep,
    }
    return work.with_caveats(*(caveat for caveat, happened in lost.items() if happened))


def judge_again(work: Work) -> Work:
    """Two parsers may read one file differently; what Pillow is about to allocate must be legal."""
    judge_size(*work.picture.size, work.limits)
    return work


def read_orientation(work: Work) -> Work:
    """Which way is up. Broken EXIF is no reason to refuse a picture."""
    try:
        with reading(work.limits.max_pixels) as complaints:
            stated = work.picture.getexif().get(ExifTags.Base.Orientation, 1)
    except InputRejected:
        return work.with_caveats(Caveat.IRREGULAR_FILE)
    orientation = stated if stated in _TURNS else 1
    work = replace(work, orientation=orientation, size=work.size.turned(orientation))
    return work.with_caveats(Caveat.IRREGULAR_FILE) if complaints else work


def plan(work: Work) -> Work:
    return replace(work, levels=levels(work.size, work.recipe.variants))


def draft(work: Work) -> Work:
    """Let the JPEG decoder skip what the largest variant does not need; others ignore it."""
    _draft(work.picture, work)
    return work


def _draft(picture: Image.Image, work: Work) -> None:
    wanted = work.levels[0].size.turned(work.orientation)
    pairs = tuple(zip(picture.size, wanted, strict=True))
    fitting = (
        part
        for part, margin in _DRAFTS
        if all(-(-side // part) >= margin * length for side, length in pairs)
    )
    part = next(fitting, 1)
    picture.draft(None, (max(1, picture.width // part), max(1, picture.height // part)))


def decode(work: Work) -> Work:
    """Read the pixels; a file cut short fails here."""
    with reading(work.limits.max_pixels) as complaints:
        work.picture.load()
    return work.with_caveats(Caveat.IRREGULAR_FILE) if complaints else work


def read_credit(work: Work) -> Work:
    """Whose it is, where the recipe has that said. Broken words are none."""
    if work.recipe.metadata is Metadata.COPYRIGHT:
        with suppress(InputRejected), reading(work.limits.max_pixels):
            return replace(work, credit=credit_of(work.picture))
    return work


def miss_nothing(work: Work) -> Work:
    """Refuse a JPEG or a PNG whose pixels end before its picture does, in a file that is whole.

    Pillow passes on no complaint. What is missing of a PNG stays zero: where the last pixel is, or
    the rows do not come in order, its pixels are counted. What is missing of a JPEG is filled with
    grey: where the last pixel is that, or tells nothing of the others, the picture is decoded again
    with bytes behind its pixels; if it changes, they were needed.
    """
    if work.facts.format is ImageFormat.PNG:
        if work.facts.progressive or not any(_last_pixel(work.picture)):
            with reading(work.limits.max_pixels):
                check_rows(work.data)
        return work
    # Twice the decoder's time, so not for all: most have no restarts and one end, and show there
    # what they lack.
    if work.facts.format is not ImageFormat.JPEG or not (
        _FILLING.issuperset(_last_pixel(work.picture)) or ends_in_many_places(work.data)
    ):
        return work
    fuller = overfilled(work.data)
    if fuller is None:
        return work
    with reading(work.limits.max_pixels):
        again = open_image(fuller)
        _draft(again, work)
        again.load()
        if _differ(work.picture, again):
            raise corrupt(work.facts.format, "fewer pixels than its size")
    return work


def _differ(one: Image.Image, other: Image.Image) -> bool:
    """Strip by strip: the difference of all at once would be a third picture in memory."""
    strips = (
        (0, top, one.width, min(top + _STRIP, one.height)) for top in range(0, one.height, _STRIP)
    )
    return one.size != other.size or any(
        ImageChops.difference(one.crop(strip), other.crop(strip)).getbbox() for strip in strips
    )


def _last_pixel(picture: Image.Image) -> tuple[float | None, ...]:
    last = picture.getpixel((picture.width - 1, picture.height - 1))
    return last if isinstance(last, tuple) else (last,)


def unpack(work: Work) -> Work:
    """To eight bits a sample, without palette or transparent colour: what resampling can do."""
    with reading(work.limits.max_pixels):
        return replace(work, picture=unpacked(work.picture))


def recognise(work: Work) -> Work:
    """Whether it is drawn: to be seen before it is scaled, which softens every edge."""
    return replace(work, drawn=is_drawn(work.picture, work.facts.format))


def shrink(work: Work) -> Work:
    """To the largest size wanted. From here on the picture is ours and carries only pixels."""
    largest = work.levels[0].size.turned(work.orientation)
    picture = resized(work.picture, largest)
    picture.info.clear()
    return replace(work, picture=picture)


def orient(work: Work) -> Work:
    turn = _TURNS.get(work.orientation)
    return work if turn is None else replace(work, picture=work.picture.transpose(turn))


def convert_to_srgb(work: Work) -> Work:
    picture, caveats = to_srgb(work.picture, work.profile, work.limits.max_icc_bytes)
    picture.info.clear()  # the transform leaves its own profile there
    return replace(work, picture=picture, profile=None).with_caveats(*caveats)


def drop_idle_alpha(work: Work) -> Work:
    """An alpha channel that hides nothing costs bytes in every variant, and is no transparency."""
    mode = work.picture.mode
    if not mode.endswith("A") or work.picture.getchannel("A").getextrema()[0] != 255:  # noqa: PLR2004
        return work
    return replace(work, picture=work.picture.convert(mode.removesuffix("A")))


STEPS: tuple[Step, ...] = (
    judge_again,
    read_orientation,
    plan,
    draft,
    decode,
    read_credit,
    miss_nothing,
    unpack,
    recognise,
    shrink,
    orient,
    convert_to_srgb,
    drop_idle_alpha,
)


def cascade(work: Work) -> Iterator[tuple[SizeLevel, Image.Image]]:
    """Every level with its picture, each made from the one before, largest first."""
    picture = work.picture
    for level in work.levels:
        if picture.size != level.size:
            picture = resized(picture, level.size)
        yield level, picture


def resized(picture: Image.Image, size: Size) -> Image.Image:
    """A new picture of that size. Colours under full transparency must not bleed into the rest."""
    if picture.size == size:
        return picture.copy()
    working_mode = _PREMULTIPLIED.get(picture.mode)
    if working_mode is None:
        return picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=_REDUCING_GAP)
    premultiplied = picture.convert(working_mode)
    smaller = premultiplied.resize(size, Image.Resampling.LANCZOS, reducing_gap=_REDUCING_GAP)
    return smaller.convert(picture.mode)


def unpacked(picture: Image.Image) -> Image.Image:
    """The picture in eight bits a sample, as a mode that can be resampled."""
    if picture.mode.startswith("I"):
        return _eight_bits(picture)
    if picture.has_transparency_data and picture.mode not in _PREMULTIPLIED:
        return picture.convert("LA" if picture.mode == "L" else "RGBA")
    if picture.mode == "1":
        return picture.convert("L")
    return picture if picture.mode in _RESIZABLE else picture.convert("RGB")


def _eight_bits(picture: Image.Image) -> Image.Image:
    """16-bit grey, scaled: Pillow's own conversion cuts off everything above 255."""
    wide = picture.convert("I")
    grey = wide.point(lambda sample: sample * (1 / 257)).convert("L")
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        opaque = ImageMath.lambda_eval(lambda band: (band["wide"] != transparent) * 255, wide=wide)
        grey.putalpha(opaque.convert("L"))
    return grey
