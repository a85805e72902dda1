"""Coded pixels of a source are published where ours are larger, and nothing that is with them."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import pytest
from PIL import ExifTags, Image

from imagefleet.imaging import sources
from imagefleet.imaging.graphics import carried
from imagefleet.imaging.headers import png, webp
from imagefleet.imaging.headers.png import SIGNATURE
from imagefleet.imaging.recipes import Fit, Lossless, Metadata, Recipe, VariantSpec, Watermark
from imagefleet.imaging.sizes import Size
from imagefleet.imaging.sniff import sniff
from imagefleet.imaging.sources import Origin, own_file
from imagefleet.jobs.images import ImageFormat
from tests.imaging.rendering import one, rendered
from tests.imaging.test_encoding import chunks, icon, same
from tests.imaging.test_graphics import page
from tests.support.images import (
    CANARY,
    DISPLAY_P3,
    WALK_SIDE,
    exif_with,
    hard_to_match,
    matrix_profile,
    opened,
    png_chunk,
    png_of,
    saved,
    walk,
    with_png_chunk,
)

PNG, WEBP = ImageFormat.PNG, ImageFormat.WEBP
SIDE = WALK_SIDE
WHOLE = {"width": 4 * SIDE, "height": 4 * SIDE}
GREY, RGB, INDEXED = 0, 2, 3


def slowly_made(picture: Image.Image, **options: object) -> bytes:
    """A WebP without loss, by the encoder's slowest way."""
    return saved(picture, "WEBP", lossless=True, quality=100, method=6, **options)


def passed_on(source: bytes, credit: bytes = b"") -> bytes | None:
    """The source's own file, where it is asked for of just the picture that the source shows."""
    facts = sniff(source)
    shown = sources.as_stated(opened(source), facts, source)
    origin = Origin(facts.format, Size(*shown.size), len(source), credit=credit, data=source)
    return own_file(origin, shown)


def made(source: bytes, recipe: Recipe) -> bytes:
    (encoded,) = rendered(source, recipe)[1].values()
    return encoded


def test_a_png_that_nobody_here_makes_as_small_keeps_its_own_pixels() -> None:
    source = hard_to_match()

    assert made(source, one(PNG, **WHOLE)) == source
    assert len(made(source, one(PNG, width=SIDE - 1, height=SIDE - 1))) > len(source)


def test_a_webp_without_loss_keeps_its_own_pixels() -> None:
    picture = page()
    source = slowly_made(picture)
    assert len(saved(picture, "WEBP", lossless=True, quality=100, method=4)) > len(source)

    whole = {"width": picture.width, "height": picture.height}
    assert made(source, one(WEBP, quality=80, **whole)) == source
    never = made(source, one(WEBP, quality=80, lossless=Lossless.NEVER, **whole))
    assert b"VP8L" not in never


SAID = (
    (b"tEXt", b"Comment\0" + CANARY),
    (b"zTXt", b"Comment\0\0" + zlib.compress(CANARY)),
    (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + CANARY),
    (b"eXIf", exif_with(1).tobytes().removeprefix(b"Exif\0\0") + CANARY),
    (b"sBIT", bytes((5, 6, 5))),
    (b"pHYs", bytes(9)),
    (b"tIME", bytes((7, 226, 11, 20, 1, 2, 3))),
    (b"prVt", CANARY),
)


def test_nothing_that_stands_beside_the_pixels_comes_along() -> None:
    bare = hard_to_match()
    source = hard_to_match(*SAID) + CANARY

    assert passed_on(source) == bare
    assert passed_on(with_png_chunk(bare, b"acTL", bytes((0, 0, 0, 1)) * 2)) == bare

    picture = page().crop((0, 0, 300, 200))
    plain = slowly_made(picture)
    profile = matrix_profile(((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971),
                              (0.1431, 0.0606, 0.7141)), description=CANARY)  # fmt: skip
    loud = slowly_made(picture, exif=exif_with(1), xmp=CANARY, icc_profile=profile)
    assert loud.count(CANARY) == 2
    assert passed_on(loud) == plain
    assert passed_on(plain + CANARY) == plain


def test_a_profile_that_changes_colours_keeps_their_pixels_from_being_passed_on() -> None:
    profile = b"p\0\0" + zlib.compress(matrix_profile(DISPLAY_P3))
    source = hard_to_match((b"iCCP", profile))

    encoded = made(source, one(PNG, **WHOLE))

    assert len(encoded) > len(source)
    assert not same(opened(encoded), opened(source))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"background": "#ff0000"}, id="on a ground"),
        pytest.param({"watermark": True}, id="with a mark"),
        pytest.param({"fit": Fit.COVER, "width": 64, "height": 128}, id="cut"),
        pytest.param({"width": 64, "height": 64}, id="scaled"),
        pytest.param({"format": WEBP, "lossless": Lossless.ALWAYS}, id="in another format"),
    ],
)
def test_what_was_changed_is_encoded_by_us(changed: dict[str, object]) -> None:
    rows, palette = walk()
    source = png_of(rows, (b"PLTE", palette), (b"tRNS", bytes((255, 255, 0))))
    if changed.get("watermark"):
        mark = base64.b64encode(saved(Image.new("RGBA", (4, 4), "white"), "PNG")).decode()
        changed = {"watermark": Watermark(mark)}
    spec = VariantSpec("only", **{"format": PNG, "quality": 80, **WHOLE, **changed})  # type: ignore[arg-type]

    encoded = made(source, Recipe("changed", (spec,)))

    assert zlib.compress(rows, 9) not in encoded


@pytest.mark.parametrize("orientation", [2, 3, 4])
def test_what_is_turned_is_encoded_by_us(orientation: int) -> None:
    turned = hard_to_match((b"eXIf", exif_with(orientation).tobytes().removeprefix(b"Exif\0\0")))

    encoded = made(turned, one(PNG, **WHOLE))

    assert zlib.compress(walk()[0], 9) not in encoded
    assert not same(opened(encoded), opened(hard_to_match()))


def test_a_gamma_that_is_not_a_screens_is_encoded_by_us() -> None:
    source = hard_to_match((b"gAMA", (100_000).to_bytes(4)))

    assert zlib.compress(walk()[0], 9) not in made(source, one(PNG, **WHOLE))


# What somebody could have put where the pixels are.

SECRET = b"<script>" + CANARY
EMPTY_BLOCK = b"\0\0\0\xff\xff"


def test_bytes_behind_the_end_of_the_pixels_are_never_passed_on() -> None:
    rows, palette = walk()
    pixels = zlib.compress(rows, 9)
    for chunks_of_pixels in (
        [pixels + SECRET],
        [pixels, SECRET],
        [pixels + zlib.compress(SECRET)],
        [pixels + b"\0"],
    ):
        source = png_of(chunks_of_pixels, (b"PLTE", palette))
        assert opened(source).size == (SIDE, SIDE)
        assert passed_on(source) is None
        encoded = made(source, one(PNG, **WHOLE))
        assert SECRET not in encoded
        assert len(encoded) > len(source)


def test_more_rows_than_the_picture_has_are_never_passed_on() -> None:
    rows, palette = walk()
    for more in (b"\0", b"\0" + bytes(SIDE), b"\0" * (1 << 20), SECRET):
        source = png_of(rows + more, (b"PLTE", palette))
        assert opened(source).size == (SIDE, SIDE)
        assert passed_on(source) is None


def test_a_stream_that_does_not_end_is_never_passed_on() -> None:
    rows, _ = walk()
    whole = zlib.compress(rows, 9)
    assert png._is_filled(whole, len(rows))
    for broken in (whole[:-1], whole[:-4], whole[:-1] + b"x", whole[:99], b"", whole[1:]):
        assert not png._is_filled(broken, len(rows))
    for wanted in (0, len(rows) - 1, len(rows) + 1, 10 * len(rows)):
        assert not png._is_filled(whole, wanted)


def test_no_more_is_inflated_than_the_picture_has() -> None:
    """However much a stream holds, it is left when it has one byte too many."""
    bomb = zlib.compress(bytes(1 << 26), 9)
    inflated: list[int] = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self) -> None:
            self._real = real()

        def decompress(self, data: bytes, most: int) -> bytes:
            piece = self._real.decompress(data, most)
            inflated.append(len(piece))
            return piece

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(zlib, "decompressobj", Counting)
        assert not png._is_filled(bomb, 1000)
    assert sum(inflated) <= 2 * png._INFLATED_BYTES


def test_pixels_behind_another_chunk_are_never_passed_on() -> None:
    rows, palette = walk()
    pixels = zlib.compress(rows, 9)
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, INDEXED, 0, 0, 0)
    names = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", pixels[:900]), (b"tEXt", SECRET)]
    parts = [*names, (b"IDAT", pixels[900:]), (b"IEND", b"")]
    source = SIGNATURE + b"".join(png_chunk(*each) for each in parts)
    shown = opened(hard_to_match())

    origin = Origin(PNG, Size(*shown.size), len(source), data=source)
    assert own_file(origin, shown.convert("RGBA")) is None


def test_pixels_in_several_chunks_come_out_in_one() -> None:
    rows, palette = walk()
    pixels = zlib.compress(rows, 9)
    split = png_of([pixels[:10], b"", pixels[10:700], pixels[700:]], (b"PLTE", palette))

    assert passed_on(split) == hard_to_match()


def test_colours_that_no_pixel_has_are_never_passed_on() -> None:
    rows = b"".join(b"\0" + bytes(x * y % 3 for x in range(SIDE)) for y in range(SIDE))
    mine = bytes(range(9))
    behind = mine + CANARY + bytes(-len(CANARY) % 3)
    between = rows.replace(b"\2", b"\x0c")
    wide = mine[:6] + CANARY[:21] + bytes(9) + mine[6:] + CANARY[:3]

    assert passed_on(png_of(rows, (b"PLTE", behind))) == png_of(rows, (b"PLTE", mine))
    encoded = passed_on(png_of(between, (b"PLTE", wide), (b"tRNS", CANARY[:12] + b"\xff")))
    assert encoded is not None
    assert CANARY[:3] not in encoded
    assert parts(encoded)[2] == (b"tRNS", CANARY[:2])  # of what is shown


def test_a_pixel_without_a_colour_keeps_all_from_being_passed_on() -> None:
    rows = b"".join(b"\0" + bytes(x % 4 for x in range(SIDE)) for _ in range(SIDE))

    assert passed_on(png_of(rows, (b"PLTE", bytes(range(12))))) is not None
    assert passed_on(png_of(rows, (b"PLTE", bytes(range(9))))) is None


def test_a_picture_that_nobody_sees_is_never_passed_on() -> None:
    """What was rubbed out with an eraser that takes opacity alone is there yet."""
    seen = page().crop((0, 0, 300, 200)).convert("RGBA")
    erased, blank = seen.copy(), seen.copy()
    erased.putalpha(Image.new("L", seen.size, 0))
    blank.paste((255, 255, 255, 0), (0, 0, 200, 200))

    for picture, kept in ((seen, True), (erased, False), (blank, True)):
        assert (passed_on(saved(picture, "PNG")) is not None) is kept
        assert (passed_on(slowly_made(picture, exact=True)) is not None) is kept


def test_colours_that_optimisers_leave_behind_what_is_seen_hide_nothing() -> None:
    """Below what nobody sees they go on with the last that somebody does."""
    seen = page().crop((0, 0, 300, 200)).convert("RGBA")
    for at in range(0, 200, 20):
        seen.paste((255, 255, 255, 0), (50, at, 59 + at, at + 9))
    optimised = carried(seen)
    pixels = optimised.tobytes()
    assert len({pixels[at : at + 3] for at in range(0, len(pixels), 4) if not pixels[at + 3]}) > 2

    assert passed_on(saved(optimised, "PNG")) is not None
    red, green, blue, _ = optimised.getpixel((60, 45))  # type: ignore[misc]
    optimised.putpixel((60, 45), (red, green, blue ^ 1, 0))
    assert passed_on(saved(optimised, "PNG")) is None


def test_two_colours_that_nobody_sees_may_draw_something() -> None:
    rows = b"".join(b"\0" + bytes(x * y % 3 for x in range(SIDE)) for y in range(SIDE))
    palette = (b"PLTE", bytes(range(9)))

    (kept,) = [passed_on(png_of(rows, palette, (b"tRNS", bytes((0, 255, 255)))))]
    assert kept is not None
    assert chunks(kept) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    assert (b"PLTE", bytes((0, 0, 0, 3, 4, 5, 6, 7, 8))) == parts(kept)[1]
    assert passed_on(png_of(rows, palette, (b"tRNS", bytes((0, 0, 255))))) is None


def parts(content: bytes) -> list[tuple[bytes, bytes]]:
    at, told = len(SIGNATURE), []
    while at < len(content):
        length = int.from_bytes(content[at : at + 4])
        told.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += length + 12
    return told


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_transparent_grey_is_passed_on_and_what_its_number_has_beyond_it_is_not(
    depth: int,
) -> None:
    stride = SIDE * depth // 8
    rows = b"".join(b"\0" + bytes((37 * (x + y)) % 256 for x in range(stride)) for y in range(SIDE))
    stated = [(b"tRNS", high + b"\1") for high in (b"\0", CANARY[:1])]
    plain, loud = (png_of(rows, each, colour=GREY, depth=depth) for each in stated)

    assert passed_on(plain) == plain
    origin = Origin(PNG, Size(SIDE, SIDE), len(loud), data=loud)
    shown = sources.as_stated(opened(plain), sniff(plain), plain)
    assert own_file(origin, shown) == plain


def test_colours_of_sixteen_bits_are_never_passed_on() -> None:
    rows = b"".join(b"\0" + bytes(2 * SIDE) for _ in range(SIDE))

    assert passed_on(png_of(rows, colour=GREY, depth=16)) is None


def test_interlaced_pixels_are_counted_as_they_are_coded() -> None:
    size, row = (9, 5), b"\0"
    passes = [(2, 1), (1, 1), (3, 1), (2, 2), (5, 1), (4, 3), (9, 2)]
    rows = b"".join((row + bytes(3 * across)) * down for across, down in passes)
    whole = png_of(rows, size=size, colour=RGB, interlaced=1)

    assert passed_on(whole) == whole
    assert passed_on(png_of(rows + row, size=size, colour=RGB, interlaced=1)) is None


def test_a_palette_that_only_suggests_is_left_out() -> None:
    source = saved(page().crop((0, 0, 90, 60)), "PNG")
    suggested = with_png_chunk(source, b"PLTE", CANARY + b"x")

    encoded = passed_on(suggested)

    assert encoded is not None
    assert b"PLTE" not in chunks(encoded)


@pytest.mark.parametrize("twice", [b"PLTE", b"tRNS"])
def test_what_two_readers_could_read_differently_is_never_passed_on(twice: bytes) -> None:
    _, palette = walk()
    more = {b"PLTE": palette, b"tRNS": b"\xff"}[twice]

    assert passed_on(hard_to_match((twice, more), (b"tRNS", b"\xff"))) is None


def test_bytes_behind_the_pixels_of_a_webp_are_never_passed_on() -> None:
    plain = slowly_made(page().crop((0, 0, 300, 200)))
    pixels = webp.coded(plain)
    assert pixels is not None
    assert webp.file_of(pixels) == plain

    for more in (b"\0", b"\xff", b"CA"):  # as encoders write it sometimes
        source = webp.file_of(pixels + more)
        assert same(opened(source), opened(plain))
        assert passed_on(source) == plain
    for more in (CANARY, bytes(9)):
        source = webp.file_of(pixels + more)
        assert same(opened(source), opened(plain))
        assert passed_on(source) is None
        assert CANARY not in made(source, one(WEBP, quality=80, **WHOLE))


def test_a_webp_that_lost_something_or_moves_is_never_passed_on() -> None:
    picture = page().crop((0, 0, 300, 200))
    moving = io.BytesIO()
    picture.save(moving, "WEBP", lossless=True, save_all=True, append_images=[picture.rotate(180)])

    assert passed_on(saved(picture, "WEBP", quality=80)) is None
    assert passed_on(saved(icon(48), "WEBP", quality=80)) is None
    assert webp.coded(moving.getvalue()) is None


def test_a_webp_with_what_nobody_knows_before_its_pixels_has_none_to_pass_on() -> None:
    plain = slowly_made(page().crop((0, 0, 300, 200)), xmp=CANARY)
    chunk = b"JUNK" + (4).to_bytes(4, "little") + CANARY[:4]
    assert (plain[12:16], plain[30:34]) == (b"VP8X", b"VP8L")
    more = plain[8:30] + chunk + plain[30:]

    assert webp.coded(plain) is not None
    assert webp.coded(b"RIFF" + len(more).to_bytes(4, "little") + more) is None


def test_a_webp_that_has_to_say_whose_it_is_is_encoded_by_us() -> None:
    said = exif_with(1)
    said[ExifTags.Base.Copyright] = "mine"
    source = slowly_made(page(), exif=said)
    spec = VariantSpec("only", *page().size, WEBP, 80)

    encoded = made(source, Recipe("credited", (spec,), metadata=Metadata.COPYRIGHT))

    assert dict(opened(encoded).getexif()) == {ExifTags.Base.Copyright: "mine"}
    assert passed_on(source) is not None
    assert passed_on(source, b"Exif\0\0MM") is None


@pytest.mark.parametrize("ends", [12, 16, 20, 29, 40])
def test_a_webp_that_ends_early_has_no_pixels_to_pass_on(ends: int) -> None:
    source = slowly_made(page().crop((0, 0, 300, 200)), xmp=CANARY)[:ends]
    picture = page().crop((0, 0, 300, 200))

    origin = Origin(WEBP, Size(*picture.size), len(source), data=source)
    assert own_file(origin, picture) is None


def test_whose_it_is_is_said_in_our_own_words() -> None:
    said = exif_with(1)
    said[ExifTags.Base.Copyright], said[ExifTags.Base.Model] = "mine", CANARY.decode()
    source = hard_to_match((b"eXIf", said.tobytes().removeprefix(b"Exif\0\0")))
    spec = VariantSpec("only", 4 * SIDE, 4 * SIDE, PNG, 80)

    encoded = made(source, Recipe("credited", (spec,), metadata=Metadata.COPYRIGHT))

    assert zlib.compress(walk()[0], 9) in encoded
    assert CANARY not in encoded
    assert dict(opened(encoded).getexif()) == {ExifTags.Base.Copyright: "mine"}


def test_what_is_very_large_is_not_held_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    source = hard_to_match()
    assert passed_on(source) is not None

    monkeypatch.setattr(sources, "_MOST_PASSED_ON", SIDE * SIDE - 1)
    monkeypatch.setattr(png, "coded", lambda _: pytest.fail("inflated"))
    assert passed_on(source) is None


def test_another_picture_is_never_passed_on() -> None:
    """Whatever a source says of itself, it is its pixels that are compared."""
    source = hard_to_match()
    shown = opened(source).convert("RGB")
    origin = Origin(PNG, Size(*shown.size), len(source), data=source)
    assert own_file(origin, shown) == source

    red, green, blue = shown.getpixel((99, 99))  # type: ignore[misc]
    shown.putpixel((99, 99), (red, green, blue ^ 1))
    assert own_file(origin, shown) is None
    seen_through = opened(source).convert("RGBA")
    seen_through.putpixel((99, 99), (red, green, blue, 254))
    assert own_file(origin, seen_through) is None
