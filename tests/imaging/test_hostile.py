"""Files that mean harm: each is refused by name, and before the work it is made to cause."""

from __future__ import annotations

import random
import re
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.png import SIGNATURE, check_rows
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Truncated
from imagefleet.imaging.render import render
from imagefleet.jobs.images import Caveat
from tests.support.images import (
    animated,
    claimed,
    grain,
    jpeg_claiming,
    png_chunk,
    png_claiming,
    quadrants,
    saved,
    scan_bomb,
    translucent,
    with_png_chunk,
    with_restart_interval,
)
from tests.support.recipes import RECIPES


class Decoder:
    """Counts how often Pillow opened a file and how often it started on its pixels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = self.loaded = 0
        open_, load = Image.open, ImageFile.ImageFile.load

        def counting_open(*args: object, **options: object) -> object:
            self.opened += 1
            return open_(*args, **options)  # type: ignore[arg-type]

        def counting_load(picture: ImageFile.ImageFile) -> object:
            self.loaded += 1
            return load(picture)

        monkeypatch.setattr(Image, "open", counting_open)
        monkeypatch.setattr(ImageFile.ImageFile, "load", counting_load)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    return Decoder(monkeypatch)


def refusal(source: bytes, limits: Limits | None = None) -> str:
    """Of a recipe that refuses a JPEG that lacks pixels; what becomes of it otherwise: test_cut."""
    recipe = replace(RECIPES["default"], truncated=Truncated.REFUSE)
    with pytest.raises(InputRejected) as caught:
        render(source, recipe, limits or Limits(), lambda *_: None)
    return caught.value.code


NEVER_OPENED = {
    "nothing": (b"", "empty_file"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "unsupported"),
    "text named jpg": (b"hello, I am holiday.jpg", "unsupported"),
    "html": (b"<!doctype html><script>alert(1)</script>", "unsupported"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "unsupported"),
    "png of 0x0": (png_claiming(0, 0), "corrupt"),
    "png bomb": (png_claiming(100_000, 100_000), "too_many_pixels"),
    "png of 200 megapixels": (png_claiming(20_000, 10_000), "too_many_pixels"),
    "jpeg of 200 megapixels": (jpeg_claiming(20_000, 10_000), "too_many_pixels"),
    "jpeg of 4 gigapixels": (jpeg_claiming(65_535, 65_535), "too_many_pixels"),
    "scan bomb": (scan_bomb(2_000), "too_many_scans"),
    "png of 20 MB of text": (
        with_png_chunk(png_claiming(9, 9), b"tEXt", b"a\0" + bytes(20_000_000)),
        "too_much_metadata",
    ),
}


@pytest.mark.parametrize(("source", "code"), NEVER_OPENED.values(), ids=NEVER_OPENED.keys())
def test_what_the_header_gives_away_never_reaches_pillow(
    source: bytes, code: str, decoder: Decoder
) -> None:
    assert code == refusal(source)
    assert decoder.opened == 0


def test_a_file_over_the_limit_is_not_even_looked_at(decoder: Decoder) -> None:
    assert refusal(bytes(2_001), Limits(max_bytes=2_000)) == "too_large"
    assert decoder.opened == 0


def test_text_that_inflates_a_thousandfold_is_refused_before_any_pixel(decoder: Decoder) -> None:
    bomb = with_png_chunk(png_claiming(9, 9), b"zTXt", b"a\0\0" + zlib.compress(bytes(20_000_000)))

    assert refusal(bomb) == "too_much_metadata"
    assert decoder.loaded == 0


@pytest.mark.parametrize("name", [b"zTXt", b"iTXt"])
def test_texts_that_inflate_to_too_much_together_are_refused_by_that_name(name: bytes) -> None:
    """Each is as long as a text may be, and of one file."""
    said = {b"zTXt": b"a\0\0", b"iTXt": b"a\0\1\0\0\0"}[name]
    text = said + zlib.compress(bytes(3_000_000))
    bomb = saved(quadrants(), "PNG")
    assert render(with_png_chunk(bomb, name, text), RECIPES["default"], Limits(), ignore).variants
    for _ in range(6):
        bomb = with_png_chunk(bomb, name, text)

    assert refusal(bomb) == "too_much_metadata"


def test_as_many_scans_as_an_encoder_may_write_are_read(decoder: Decoder) -> None:
    progressive = saved(quadrants(), progressive=True)

    render(progressive, RECIPES["default"], Limits(), lambda *_: None)

    assert decoder.opened == 1


WHOLE = {
    "jpeg": saved(quadrants()),
    "progressive jpeg": saved(grain(320, 200), progressive=True),
    "png": saved(quadrants(), "PNG"),
    "webp": saved(quadrants(), "WEBP"),
    "gif": saved(quadrants().convert("P"), "GIF"),
    "avif": saved(quadrants(), "AVIF", max_threads=1),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_file_is_corrupt(name: str, share: float) -> None:
    source = WHOLE[name]

    assert refusal(source[: int(len(source) * share)]) == "corrupt"


def test_a_png_with_one_changed_bit_in_its_pixels_is_corrupt(decoder: Decoder) -> None:
    source = bytearray(WHOLE["png"])
    source[len(source) // 2] ^= 1

    assert refusal(bytes(source)) == "corrupt"
    assert decoder.opened == 0


@pytest.mark.parametrize("name", ["webp", "avif"])
def test_a_file_with_its_pixels_overwritten_is_corrupt(name: str) -> None:
    source = WHOLE[name]
    half = len(source) // 2

    assert refusal(source[:half] + b"\xff" * (len(source) - half)) == "corrupt"


def test_a_header_without_pixels_is_corrupt() -> None:
    assert refusal(png_claiming(300, 300)) == "corrupt"
    assert refusal(jpeg_claiming(3_000, 3_000)) == "corrupt"


CODINGS: dict[str, dict[str, object]] = {
    "baseline": {},
    "every pixel its colour": {"subsampling": 0},
    "progressive": {"progressive": True},
    "tables of its own": {"optimize": True},
    "restarts": {"restart_marker_blocks": 7},
    "restarts by row": {"restart_marker_rows": 1},
}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(7_000, 7_000), (2_000, 1_500), (400, 360)])
def test_a_jpeg_with_fewer_pixels_than_its_size_is_corrupt(
    size: tuple[int, int], mode: str, coding: str
) -> None:
    photo = saved(grain(400, 300).convert(mode), "JPEG", **CODINGS[coding])

    assert refusal(claimed(photo, *size)) == "corrupt"


# What may stand where the end should; to a decoder that wants no more pixels it is all the same.
ENDS = {
    "a restart": b"\xff\xd0",
    "a restart and an end": b"\xff\xd0\xff\xd9",
    "a segment beyond the file": b"\xff\xe0\xff\xff",
    "a scan beyond the file": b"\xff\xda\xff\xff",
    "a comment": b"\xff\xfe\0\x04ab",
    "an interval": b"\xff\xdd\0\x04\0\x01",
    "nothing of meaning": b"\xff\x01" + bytes(1_000),
    "nothing of meaning and an end": b"\xff\x01\xff\xd9",
    "an end after a fill byte": b"\xff\xff\xd9",
    "an end after many": b"\xff" * 70_000 + b"\xd9",
    "a second beginning": b"\xff\xd8\xff\xd9",
    "a reserved marker": b"\xff\x02\xff\xd9",
    "half a marker": b"\xff",
}


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_however_it_ends_a_jpeg_with_fewer_pixels_than_its_size_is_corrupt(
    end: str, *, progressive: bool
) -> None:
    photo = claimed(saved(grain(400, 300), progressive=progressive), 7_000, 7_000)

    assert refusal(photo.removesuffix(b"\xff\xd9") + ENDS[end]) == "corrupt"


@pytest.mark.parametrize(
    ("seed", "end"),
    [(55, b"\xff\xd9"), (225, b"\xff\xd9"), (84, b"\xff\xd0"), (209, b"\xff\xff\xd9")],
)
def test_a_jpeg_whose_last_bits_are_black_to_a_decoder_that_reads_on_is_corrupt(
    seed: int, end: bytes
) -> None:
    """Its coding ends in seven ones or more, the beginning of a number as large as there are."""
    noise = Image.frombytes("RGB", (400, 300), random.Random(seed).randbytes(400 * 300 * 3))
    photo = claimed(saved(noise), 7_000, 7_000).removesuffix(b"\xff\xd9")

    assert photo.endswith((b"\x7f", b"\xff\0"))
    assert refusal(photo + end) == "corrupt"


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(
    "end", ["nothing of meaning and an end", "an end after a fill byte", "an end after many"]
)
def test_however_it_ends_a_whole_jpeg_that_ends_in_grey_is_made(
    end: str, decoder: Decoder, *, progressive: bool
) -> None:
    picture = Image.new("RGB", (400, 300), (128, 128, 128))
    picture.paste(grain(400, 280))
    photo = saved(picture, progressive=progressive).removesuffix(b"\xff\xd9") + ENDS[end]

    render(photo, RECIPES["default"], Limits(), ignore)

    assert decoder.opened == 2


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("interval", [63_947, 65_535, 1_000])
def test_a_jpeg_whose_last_piece_alone_is_whole_is_corrupt(
    interval: int, *, progressive: bool
) -> None:
    """The last of the pieces between restart markers has few pixels, so the very last one shows."""
    photo = saved(grain(400, 300), progressive=progressive, restart_marker_blocks=2)

    source = with_restart_interval(claimed(photo, 7_000, 7_000), interval)

    assert refusal(source) == "corrupt"


def in_scans_of_one_channel(*greys: bytes) -> bytes:
    """A JPEG whose channels come one after the other, each as a grey one has it."""
    first = greys[0]
    tables, frame, _ = split_grey(first)
    colour = frame[:9] + bytes((len(greys),))
    colour += b"".join(bytes((number, *frame[11:13])) for number in range(len(greys)))
    out = tables + colour[:2] + (len(colour) - 2).to_bytes(2, "big") + colour[4:]
    for number, grey in enumerate(greys):
        for piece in re.split(rb"(?=\xff\xda\0\x08\x01)", split_grey(grey)[2]):
            scan = piece.startswith(b"\xff\xda")
            out += piece[:5] + bytes((number,)) + piece[6:] if scan else piece
    return out + b"\xff\xd9"


def split_grey(jpeg: bytes) -> tuple[bytes, bytes, bytes]:
    """What stands before the frame header, that, and what stands behind it up to the end."""
    at = next(jpeg.index(frame) for frame in (b"\xff\xc0\0", b"\xff\xc2\0") if frame in jpeg)
    return jpeg[:at], jpeg[at : at + 13], jpeg[at + 13 : -2]


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("short", [0, 1, 2])
def test_a_jpeg_that_lacks_pixels_of_one_channel_is_corrupt(
    short: int, *, progressive: bool
) -> None:
    whole, part = (
        saved(grain(400, height).convert("L"), progressive=progressive) for height in (300, 100)
    )
    channels = [whole] * 3
    render(in_scans_of_one_channel(*channels), RECIPES["default"], Limits(), ignore)

    channels[short] = claimed(part, 400, 300)

    assert refusal(in_scans_of_one_channel(*channels)) == "corrupt"


def test_restart_markers_without_number_are_refused() -> None:
    """Each would be filled, and take thirty times its own length in memory."""
    grey = saved(Image.new("RGB", (400, 300), (128, 128, 128)))

    source = grey.removesuffix(b"\xff\xd9") + b"\xff\xd0" * 1_000_000 + b"\xff\xd9"

    assert refusal(source) == "too_many_parts"


def test_fill_bytes_without_number_are_passed_over_once() -> None:
    """Looked at from each of them, they would take an hour."""
    grey = saved(Image.new("RGB", (400, 300), (128, 128, 128)))
    fill = b"\xff" * 5_000_000 + b"\0"

    render(
        grey.removesuffix(b"\xff\xd9") + fill + b"\xff\xd9", RECIPES["default"], Limits(), ignore
    )


def test_a_hole_in_the_middle_of_a_jpeg_is_found() -> None:
    pieces = re.split(rb"(\xff[\xd0-\xd7])", saved(grain(400, 300), restart_marker_blocks=20))
    assert len(pieces) > 20

    assert refusal(b"".join([*pieces[:10], *pieces[11:]])) == "corrupt"
    assert refusal(b"".join([*pieces[:10], *pieces[12:]])) == "corrupt"


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(64, 64), (333, 217)])
def test_a_whole_jpeg_that_ends_in_the_very_grey_is_made(
    size: tuple[int, int], mode: str, coding: str, decoder: Decoder
) -> None:
    picture = Image.new(mode, size, (128,) * len(mode))
    picture.paste(grain(*size).convert(mode).crop((0, 0, size[0] // 2, size[1] // 2)))
    photo = saved(picture, "JPEG", **CODINGS[coding])

    render(photo, RECIPES["default"], Limits(), ignore)

    assert decoder.opened == 2  # it had to be looked at again


def test_a_phones_two_pictures_that_end_in_grey_are_made() -> None:
    grey = Image.new("RGB", (64, 48), (128, 128, 128))

    render(
        saved(grey, "MPO", save_all=True, append_images=[quadrants()]),
        RECIPES["default"],
        Limits(),
        ignore,
    )


@pytest.mark.parametrize("coding", ["restarts", "restarts by row"])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_whole_jpeg_with_restarts_is_made_and_looked_at_again(
    mode: str, coding: str, decoder: Decoder, *, progressive: bool
) -> None:
    options = {**CODINGS[coding], "progressive": progressive}

    render(
        saved(grain(333, 217).convert(mode), "JPEG", **options),
        RECIPES["default"],
        Limits(),
        ignore,
    )

    assert decoder.opened == 2


def test_other_jpegs_are_decoded_once(decoder: Decoder) -> None:
    render(saved(grain(64, 48)), RECIPES["default"], Limits(), ignore)

    assert decoder.opened == 1


KINDS = [
    *((colour, depth) for colour in (2, 4, 6) for depth in (8, 16)),
    *((3, depth) for depth in (1, 2, 4, 8)),
    *((0, depth) for depth in (1, 2, 4, 8, 16)),
]


def png_of_rows(
    size: tuple[int, int],
    *,
    missing: int,
    depth: int = 8,
    colour: int = 2,
    interlaced: bool = False,
    sample: int = 0xA5,
) -> bytes:
    """A PNG in good order, but for that many bytes of its last rows."""
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, interlaced)
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    rows = b""
    for left, top, across, down in passes:
        columns, count = -(-(size[0] - left) // across), -(-(size[1] - top) // down)
        if columns > 0 and count > 0:
            rows += (b"\0" + bytes([sample]) * -(-columns * bits // 8)) * count
    chunks = [(b"IHDR", header), (b"PLTE", bytes(range(256)) * 3)][: 2 if colour == 3 else 1]
    chunks += [(b"IDAT", zlib.compress(rows[: len(rows) - missing])), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


ADAM7 = (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)
)  # fmt: skip


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("colour", "depth"), KINDS)
@pytest.mark.parametrize("size", [(61, 43), (5, 1), (1, 5), (8, 8)])
def test_a_png_with_fewer_pixels_than_its_size_is_corrupt(
    size: tuple[int, int], colour: int, depth: int, *, interlaced: bool
) -> None:
    for sample in (0, 0xA5):
        for missing in (1, size[0] * 20):
            short = png_of_rows(
                size, missing=missing, depth=depth, colour=colour,
                interlaced=interlaced, sample=sample,
            )  # fmt: skip
            assert refusal(short) == "corrupt"
            with pytest.raises(InputRejected, match="are needed"):  # some of them Pillow refuses
                check_rows(short)
        whole = png_of_rows(
            size, missing=0, depth=depth, colour=colour, interlaced=interlaced, sample=sample
        )
        assert len(render(whole, RECIPES["default"], Limits(), ignore).variants) == 10


def test_a_png_that_claims_the_most_over_few_rows_is_corrupt() -> None:
    full = saved(Image.new("RGB", (7_000, 300), (10, 200, 90)), "PNG")
    header = full[16:20] + (7_000).to_bytes(4, "big") + full[24:29]

    assert refusal(full[:8] + png_chunk(b"IHDR", header) + full[33:]) == "corrupt"


def test_the_last_bytes_that_zlib_kept_are_counted() -> None:
    """It has read all there is, and the bound fell into a repetition."""
    header = struct.pack(">IIBBBBB", 2_621, 100, 8, 0, 0, 0, 0)
    coded = zlib.compress(bytes(2_622 * 100))[:-4]
    chunks = (png_chunk(b"IHDR", header), png_chunk(b"IDAT", coded), png_chunk(b"IEND", b""))

    check_rows(SIGNATURE + b"".join(chunks))


def test_a_second_header_of_a_png_is_never_gone_by(decoder: Decoder) -> None:
    source = WHOLE["png"]

    assert refusal(with_png_chunk(source, b"IHDR", source[16:29])) == "corrupt"
    assert decoder.opened == 0


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA"])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_a_whole_black_png_is_made(mode: str, level: int) -> None:
    """Its last pixel is what a missing one would be."""
    black = saved(Image.new(mode, (1_500, 701)), "PNG", compress_level=level)

    assert len(render(black, RECIPES["default"], Limits(), ignore).variants) == 10


def test_an_arithmetic_jpeg_is_marked() -> None:
    """Where its pixels end nobody can tell: a decoder may go on with none."""
    frame = WHOLE["jpeg"].index(b"\xff\xc0")
    source = WHOLE["jpeg"][:frame] + b"\xff\xc9" + WHOLE["jpeg"][frame + 2 :]

    made = render(source, RECIPES["default"], Limits(), ignore)

    assert {Caveat.IRREGULAR_FILE in each.warnings for each in made.variants} == {True}


SMALL = [
    saved(quadrants(40, 30)),
    saved(quadrants(40, 30), progressive=True),
    saved(translucent(40, 30), "PNG"),
    saved(translucent(40, 30), "WEBP"),
    saved(quadrants(40, 30).convert("P"), "GIF"),
    animated("GIF", [(0, 0, 0), (9, 9, 9)]),
    saved(translucent(40, 30), "AVIF", max_threads=1),
    saved(quadrants(40, 30), "MPO", save_all=True, append_images=[quadrants(40, 30)]),
]
CODES = {
    "corrupt",
    "empty_file",
    "memory",
    "too_many_parts",
    "too_many_pixels",
    "too_many_scans",
    "too_much_metadata",
    "unsupported",
}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from(SMALL),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), max_size=12),
    st.integers(0, 200),
)
def test_any_damage_ends_in_variants_or_in_a_refusal_by_name(
    source: bytes, damages: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(source)
    for at, value in damages:
        data[at % len(data)] = value
    limits = Limits(max_pixels=1_000_000, max_jpeg_pixels=1_000_000)

    try:
        made = len(
            render(bytes(data[: len(data) - cut]), RECIPES["default"], limits, ignore).variants
        )
        code = ""
    except InputRejected as refused:
        made, code = 0, refused.code

    assert made == 10 or code in CODES


def ignore(*_: object) -> None:
    pass
