"""One file: what is made of it, and how far that is from what is shown of it."""

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from PIL import Image, ImageChops, ImageStat

from imagefleet.errors import FleetError, InputRejected
from imagefleet.imaging.graphics import carried, is_drawn
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Fit, Lossless, Recipe, VariantSpec
from imagefleet.imaging.sizes import Size
from imagefleet.imaging.steps import resized
from imagefleet.jobs.images import Caveat, ImageFormat
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import QUARANTINE_MEMORY_BYTES
from tests.corpus.browser import Shown
from tests.corpus.fetching import Found
from tests.support.recipes import RECIPES

LIMITS: Final = Limits()
WITHIN: Final = 90.0  # seconds for a child, on a machine that does other things
ALIKE: Final = 4.0  # levels of 255, a mean over all pixels
GROUNDS: Final = ("white", "black")


def with_what_was_decoded(recipe: Recipe) -> tuple[Recipe, VariantSpec, VariantSpec]:
    """A recipe whose largest variant is made without loss, too; both of them, that one last.

    The largest is the nearest to its source. Without loss it is what was decoded, scaled: what
    differs there is a fault of the way to it, and what differs beyond is what the encoder loses.
    """
    inside = [each for each in recipe.variants if each.fit is Fit.INSIDE]
    largest = max(inside, key=lambda each: (each.width, each.format is ImageFormat.WEBP))
    decoded = replace(
        largest, name="decoded", format=ImageFormat.WEBP, or_smaller=(),
        lossless=Lossless.ALWAYS, most_bytes=None,
    )  # fmt: skip
    return replace(recipe, variants=(*recipe.variants, decoded)), largest, decoded


RECIPE, ENCODED, DECODED = with_what_was_decoded(RECIPES["default"])
# Those that know a way without loss, which graphics get: made anew at their own size.
ANEW: Final = {
    form: Recipe("anew", (VariantSpec("anew", 16383, 16383, form, 80),))
    for form in (ImageFormat.PNG, ImageFormat.WEBP)
}
MOST_ANEW: Final = 1 << 24  # pixels

Look = Callable[[bytes], Shown | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one file here and there."""

    found: Found
    said: str
    """`made`, or the code of the refusal, or how its child ended."""
    detail: str = ""
    warnings: tuple[Caveat, ...] = ()
    shown: bool | None = None
    """None: nobody was there to show it."""
    same_size: bool | None = None
    difference: float | None = None
    """Of what was decoded; it is what is judged."""
    encoded: float | None = None
    """Of the file that is published, so with what its encoder loses."""
    source_bytes: int = 0
    anew_bytes: int | None = None
    """Of the same format at the same size, where it is drawn."""
    changed: bool = False
    """Whether that has other pixels than the source: in sRGB, or without what nobody sees."""

    @property
    def larger(self) -> bool:
        return (self.anew_bytes or 0) > self.source_bytes

    @property
    def outgrown(self) -> bool:
        """Larger, though it is the same picture."""
        return self.larger and not self.changed

    @property
    def made(self) -> bool:
        return self.said == "made"


async def judged(found: Found, renderer: Renderer, scratch: Path, look: Look | None) -> Verdict:
    """Have it shown, render it, compare."""
    content = found.path.read_bytes()
    shown = await asyncio.to_thread(look, content) if look is not None else None
    verdict = Verdict(
        found, "made", shown=None if look is None else shown is not None, source_bytes=len(content)
    )
    try:
        files = await renderer.render(
            found.path, RECIPE, LIMITS, deadline_seconds=WITHIN, scratch=scratch,
            memory_bytes=QUARANTINE_MEMORY_BYTES,
        )  # fmt: skip
    except InputRejected as refused:
        return replace(verdict, said=refused.code, detail=refused.detail or "")
    except FleetError as error:
        return replace(verdict, said=type(error).__name__, detail=str(error))
    verdict = await anew(verdict, renderer, scratch)
    with files:
        made = {(each.facts.name, each.facts.format): each for each in files.variants}
        decoded, encoded = (made[each.name, each.format] for each in (DECODED, ENCODED))
        verdict = replace(verdict, warnings=decoded.facts.warnings)
        if shown is None:
            return verdict
        with Image.open(decoded.path) as exact, Image.open(encoded.path) as published:
            return replace(
                verdict,
                same_size=(files.source.width, files.source.height) == (shown.width, shown.height),
                difference=difference(exact, shown.picture),
                encoded=difference(published, shown.picture),
            )


async def anew(verdict: Verdict, renderer: Renderer, scratch: Path) -> Verdict:
    """What is drawn is made once more, in its own format and size."""
    found, recipe = verdict.found, ANEW.get(verdict.found.format)
    if recipe is None or not await asyncio.to_thread(drawn, found):
        return verdict
    files = await renderer.render(
        found.path, recipe, LIMITS, deadline_seconds=WITHIN, scratch=scratch,
        memory_bytes=QUARANTINE_MEMORY_BYTES,
    )  # fmt: skip
    with files:
        (made,) = files.variants
        changed = made.facts.bytes > verdict.source_bytes and differ(found.path, made.path)
        return replace(verdict, anew_bytes=made.facts.bytes, changed=changed)


def drawn(found: Found) -> bool:
    """Whether it is taken for drawn, as it is in the file."""
    with Image.open(found.path) as file:
        if file.width * file.height > MOST_ANEW:
            return False
        picture = file.convert("RGBA" if file.has_transparency_data else "RGB")
    return is_drawn(picture, found.format)


def differ(source: Path, made: Path) -> bool:
    """Whether a file has other pixels than its source, or that hides a picture from all who look.

    One colour hides nothing, nor do those that are seen beside it.
    """
    with Image.open(source) as file, Image.open(made) as other:
        whole, copy = file.convert("RGBA"), other.convert("RGBA")
    below = whole.convert("RGB")
    below.paste(0, mask=whole.getchannel("A").point(lambda level: 255 if level else 0))
    if len(below.getcolors(3) or range(4)) > 2 and whole.tobytes() != carried(whole).tobytes():
        return True
    pair = (each.convert("RGBa") for each in (whole, copy))
    return ImageChops.difference(*pair).getbbox(alpha_only=False) is not None


def difference(ours: Image.Image, shown: Image.Image) -> float:
    """In levels, where it is largest: on white or on black. Of the size of ours."""
    theirs = resized(shown.convert("RGBA"), Size(*ours.size))
    return max(_distance(_on(ours, ground), _on(theirs, ground)) for ground in GROUNDS)


def _on(picture: Image.Image, ground: str) -> Image.Image:
    below = Image.new("RGBA", picture.size, ground)
    return Image.alpha_composite(below, picture.convert("RGBA")).convert("RGB")


def _distance(one: Image.Image, other: Image.Image) -> float:
    return statistics.fmean(ImageStat.Stat(ImageChops.difference(one, other)).mean)


def row(form: str, verdicts: Sequence[Verdict]) -> list[str]:
    """One line of the table."""
    made = [each for each in verdicts if each.made]
    compared = [each.difference for each in made if each.difference is not None]
    published = [each.encoded for each in made if each.encoded is not None]
    refused = Counter(each.said for each in verdicts if not each.made)
    return [
        form,
        str(len(verdicts)),
        str(len(made)),
        ", ".join(f"{code} {count}" for code, count in refused.most_common()) or "none",
        str(sum(each.same_size is False for each in made)),
        f"{statistics.median(compared):.2f}" if compared else "",
        f"{max(compared):.1f}" if compared else "",
        _percent(share_alike(verdicts)),
        f"{statistics.median(published):.2f}" if published else "",
        _percent(share_alike(map(as_published, verdicts))),
        str(sum(each.shown is True and not each.made for each in verdicts)),
        _outgrown(verdicts),
    ]


def _outgrown(verdicts: Sequence[Verdict]) -> str:
    anew = [each for each in verdicts if each.anew_bytes is not None]
    same = [each for each in anew if not (each.larger and each.changed)]
    return f"{sum(each.outgrown for each in same)} of {len(same)}" if anew else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


HEAD: Final = (
    "format", "files", "made", "refused", "other size", "median", "worst", "under 4",
    "encoded: median", "encoded: under 4", "shown, not made", "drawn, larger anew",
)  # fmt: skip


def as_published(verdict: Verdict) -> Verdict:
    """Judged by the file that is published instead."""
    return replace(verdict, difference=verdict.encoded)


def share_alike(verdicts: Iterable[Verdict]) -> float | None:
    """Of those that are shown and were made, how many are alike: upright in size and in picture."""
    compared = [each for each in verdicts if each.made and each.difference is not None]
    if not compared:
        return None
    alike = sum(bool(each.same_size) and (each.difference or 0) < ALIKE for each in compared)
    return alike / len(compared)


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """In Markdown."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|" + "---|" * len(HEAD)
    for form in ImageFormat:
        if of_form := [each for each in verdicts if each.found.format is form]:
            yield f"| {' | '.join(row(form.name, of_form))} |"


def findings(verdicts: Sequence[Verdict], most: int) -> Iterator[str]:
    """What somebody should look at: what a browser shows and we refuse, and what differs most."""
    shown = [each for each in verdicts if each.shown and not each.made]
    causes = Counter((each.found.format.name, each.said) for each in shown)
    for cause, count in causes.most_common():
        yield f"shown and refused: {' '.join(cause)}: {count}"
        of_cause = [each for each in shown if (each.found.format.name, each.said) == cause]
        yield from (f"    {each.found} {each.detail}" for each in of_cause[:most])
    for each in verdicts:
        if each.larger:
            how = "anew, and changed" if each.changed else "anew"
            yield f"larger {how}: {each.anew_bytes} of {each.source_bytes} bytes: {each.found}"
    unlike = [each for each in verdicts if each.difference is not None]
    unlike = [each for each in unlike if not each.same_size or (each.difference or 0) >= ALIKE]
    unlike.sort(key=lambda each: (each.found.format, -(each.difference or 0)))
    for each in unlike:
        size = "" if each.same_size else " other size"
        said = f" ({', '.join(each.warnings)})" if each.warnings else ""
        yield (f"unlike: {each.found.format.name} {each.difference:.1f}{size} {each.found}{said}")
