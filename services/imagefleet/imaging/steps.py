"""From an opened file to the largest picture that is wanted: one small function a step.

The order is the point. What is judged is judged before pixels exist; what costs by the pixel comes
after there are few of them.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from PIL import Image, ImageChops

from imagefleet.errors import InputRejected
from imagefleet.imaging.codecs import open_image, reading, to_srgb
from imagefleet.imaging.graphics import carried, is_drawn
from imagefleet.imaging.headers.facts import HeaderFacts, corrupt
from imagefleet.imaging.headers.jpeg import (
    ended,
    ends_in_many_places,
    overfilled,
    shares_of_pieces,
)
from imagefleet.imaging.headers.png import check_rows
from imagefleet.imaging.limits import Limits, judge_size
from imagefleet.imaging.recipes import Metadata, Recipe, Truncated
from imagefleet.imaging.sizes import Size, SizeLevel, draft_part, levels
from imagefleet.imaging.sources import Origin, as_stated, credit_of
from imagefleet.jobs.images import Caveat, Focal, ImageFormat

# Box-filter to this multiple of the size wanted, then resample: half the price, same picture.
_REDUCING_GAP = 2.0
_FILLING = frozenset({127, 128})  # what a channel is where nothing was coded, upside down or not
_LITTLE = 1 / 32  # of a JPEG's rows; that one misses so few is no more than irregular
_STRIP = 256  # rows that are compared at once
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
    cut_short: bool = False
    orientation: int = 1
    focal: Focal | None = None
    levels: tuple[SizeLevel, ...] = ()
    profile: bytes | None = None
    credit: bytes = b""
    drawn: bool = False
    caveats: tuple[Caveat, ...] = ()

    @property
    def origin(self) -> Origin:
        told = self.facts.format, self.size, len(self.data), self.drawn, self.credit
        return Origin(*told, self.data)

    def with_caveats(self, *caveats: Caveat) -> "Work":
        fresh = [caveat for caveat in dict.fromkeys(caveats) if caveat not in self.caveats]
        return replace(self, caveats=(*self.caveats, *fresh))


Step = Callable[[Work], Work]


def open_file(
    data: bytes, facts: HeaderFacts, recipe: Recipe, limits: Limits, focal: Focal | None = None
) -> Work:
    """The first step: the header is read by Pillow, no pixel is."""
    whole = ended(data) if facts.format is ImageFormat.JPEG else data
    with reading(limits.most_pixels) as complaints:
        picture = open_image(whole)
        profile = picture.info.get("icc_profile")
    size, cut_short = Size(*picture.size), whole is not data
    work = Work(
        whole, picture, facts, recipe, limits, size, cut_short, focal=focal, profile=profile
    )
    lost = {
        Caveat.IRREGULAR_FILE: bool(complaints)
        or facts.arithmetic
        or facts.irregular
        or len(whole) < len(data),
        Caveat.ANIMATION_FLATTENED: facts.animated,
        Caveat.EXTRA_PICTURES_DROPPED: facts.multi_picture,
        Caveat.GAIN_MAP_DROPPED: facts.gain_map,
        Caveat.DEPTH_REDUCED: facts.deep,
    }
    return work.with_caveats(*(caveat for caveat, happened in lost.items() if happened))


def judge_again(work: Work) -> Work:
    """Two parsers may read one file differently; what Pillow is about to allocate must be legal."""
    judge_size(*work.picture.size, work.facts.format, work.limits)
    return work


def read_orientation(work: Work) -> Work:
    """Which way is up, by the header alone; Pillow would believe texts and XMP, too."""
    orientation = work.facts.orientation
    return replace(work, orientation=orientation, size=work.size.turned(orientation))


def plan(work: Work) -> Work:
    return replace(work, levels=levels(work.size, work.recipe.variants))


def draft(work: Work) -> Work:
    """Let the JPEG decoder skip what the largest variant does not need; others ignore it."""
    _draft(work.picture, work)
    return work


def _draft(picture: Image.Image, work: Work) -> None:
    wanted = work.levels[0].size.turned(work.orientation)
    part = draft_part(Size(*picture.size), wanted)
    picture.draft(None, (max(1, picture.width // part), max(1, picture.height // part)))


def decode(work: Work) -> Work:
    """Read the pixels; a file cut short fails here, but for a JPEG."""
    with reading(work.limits.most_pixels) as complaints:
        work.picture.load()
    return work.with_caveats(Caveat.IRREGULAR_FILE) if complaints else work


def read_credit(work: Work) -> Work:
    """Whose it is, where the recipe has that said. Broken words are none."""
    if work.recipe.metadata is Metadata.COPYRIGHT:
        with suppress(InputRejected), reading(work.limits.most_pixels):
            return replace(work, credit=credit_of(work.picture))
    return work


def miss_nothing(work: Work) -> Work:
    """See to it that pixels which end before the picture does are not passed off as all of it.

    Pillow passes on no complaint. What is missing of a PNG stays zero: where the last pixel is, or
    the rows do not come in order, its pixels are counted, and one that lacks any is refused. What
    is missing of a JPEG is filled with grey, and the recipe says whether that is refused.
    """
    if work.facts.format is ImageFormat.PNG:
        if work.facts.progressive or not any(_last_pixel(work.picture)):
            with reading(work.limits.most_pixels):
                check_rows(work.data)
        return work
    missing = _share_missing(work) if work.facts.format is ImageFormat.JPEG else 0
    if not missing:
        return work
    if missing <= _LITTLE:
        return work.with_caveats(Caveat.IRREGULAR_FILE)
    if work.recipe.truncated is Truncated.REFUSE:
        raise corrupt(work.facts.format, f"{missing:.0%} of its rows lack pixels")
    return work.with_caveats(Caveat.TRUNCATED)


def _share_missing(work: Work) -> float:
    """Of a JPEG's rows, those from the first that lacks pixels on.

    Where the last pixel is what missing ones are filled with, or tells nothing of the others, the
    picture is decoded again with bytes behind its pixels; where it changes, they were needed.
    """
    lacking, longest = shares_of_pieces(work.data)
    if lacking:
        return lacking
    # Twice the decoder's time, so not for all: most have no restarts and one end, and show there
    # what they lack.
    if not (
        work.cut_short
        or _FILLING.issuperset(_last_pixel(work.picture))
        or ends_in_many_places(work.data)
    ):
        return 0
    fuller = overfilled(work.data)
    if fuller is None:
        return int(work.cut_short)
    with reading(work.limits.most_pixels):
        again = open_image(fuller)
        _draft(again, work)
        again.load()
        return _share_unlike(work.picture, again, longest)


def _share_unlike(picture: Image.Image, again: Image.Image, longest: float) -> float:
    """Of the rows, those from the first that differs to the end of that piece or the last one.

    What was filled in ends before the piece does.
    """
    rows: list[int] = []
    # Strip by strip: the difference of all at once would be a third picture in memory.
    for top in range(0, picture.height, _STRIP):
        strip = (0, top, picture.width, min(top + _STRIP, picture.height))
        if unlike := ImageChops.difference(picture.crop(strip), again.crop(strip)).getbbox():
            rows += [top + unlike[1], top + unlike[3]]
    if not rows:
        return 0
    return min(max((rows[-1] - rows[0]) / picture.height, longest), 1 - rows[0] / picture.height)


def _last_pixel(picture: Image.Image) -> tuple[float | None, ...]:
    last = picture.getpixel((picture.width - 1, picture.height - 1))
    return last if isinstance(last, tuple) else (last,)


def unpack(work: Work) -> Work:
    """To eight bits a sample, without palette or transparent colour: what resampling can do."""
    with reading(work.limits.most_pixels):
        return replace(work, picture=as_stated(work.picture, work.facts, work.data))


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


def leave_nothing_hidden(work: Work) -> Work:
    """What was rubbed out by opacity alone is there yet, and lossy formats would publish it.

    Scaling has left nothing of it.
    """
    if not work.picture.mode.endswith("A") or work.picture.size != work.size:
        return work
    return replace(work, picture=carried(work.picture))


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
    leave_nothing_hidden,
)


def cascade(work: Work) -> Iterator[tuple[SizeLevel, Image.Image]]:
    """Every level with its picture, largest first, each made from the one before.

    Of what is drawn each is made from the first: edges that are scaled twice ring.
    """
    picture = work.picture
    for level in work.levels:
        if picture.size != level.size:
            picture = resized(work.picture if work.drawn else picture, level.size)
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
