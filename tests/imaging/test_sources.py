from __future__ import annotations

import struct
import zlib

import pytest
from PIL import Image, ImageDraw

from imagefleet.imaging.headers.png import SIGNATURE
from imagefleet.imaging.sizes import Size
from imagefleet.imaging.steps import resized
from imagefleet.jobs.images import Caveat, ImageFormat
from tests.imaging.rendering import CORNERS, alpha_range, one, picture_of, rendered
from tests.support.images import (
    BLUE,
    GREEN,
    RED,
    animated,
    as_a_camera_stores,
    corners,
    exif_with,
    near,
    opened,
    pixel,
    png_chunk,
    quadrants,
    saved,
    translucent,
    with_png_chunk,
)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_every_orientation_is_turned_upright(orientation: int, pillow_format: str) -> None:
    source = as_a_camera_stores(orientation, quadrants(), pillow_format)

    result, outputs = rendered(source, one())

    (encoded,) = outputs.values()
    assert (320, 200) == (result.source.width, result.source.height)
    assert opened(encoded).size == (160, 100)
    colours = corners(opened(encoded))
    assert all(near(*pair, tolerance=16) for pair in zip(CORNERS, colours, strict=True))
    assert 0x0112 not in opened(encoded).getexif()


def test_a_broken_orientation_is_no_reason_to_refuse() -> None:
    png = saved(quadrants(), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")

    result, _ = rendered(png, one())

    assert result.variants[0].warnings == (Caveat.IRREGULAR_FILE,)


LYING = b'<x:xmpmeta xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'


def in_text(orientation: int) -> bytes:
    """As some programs keep EXIF in a PNG: in hexadecimal digits."""
    said = exif_with(orientation).tobytes()
    return f"\nexif\n{len(said)}\n{said.hex()}\n".encode()


LIES = {
    "jpeg, xmp": saved(quadrants(), xmp=LYING),
    "webp, xmp": saved(quadrants(), "WEBP", xmp=LYING),
    "avif, xmp": saved(quadrants(), "AVIF", xmp=LYING, max_threads=1),
    "png, xmp": with_png_chunk(
        saved(quadrants(), "PNG"), b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + LYING
    ),
    "png, text": with_png_chunk(
        saved(quadrants(), "PNG"), b"tEXt", b"Raw profile type exif\0" + in_text(6)
    ),
    "png, compressed text": with_png_chunk(
        saved(quadrants(), "PNG"),
        b"zTXt",
        b"Raw profile type exif\0\0" + zlib.compress(in_text(6)),
    ),
    "png, behind the pixels": saved(quadrants(), "PNG")[:-12]
    + png_chunk(b"eXIf", exif_with(6).tobytes().removeprefix(b"Exif\0\0"))
    + saved(quadrants(), "PNG")[-12:],
}


@pytest.mark.parametrize("name", LIES)
def test_an_orientation_that_no_browser_obeys_turns_nothing(name: str) -> None:
    """In XMP or a text alone, or behind the pixels of a PNG."""
    result, outputs = rendered(LIES[name], one())

    assert (320, 200) == (result.source.width, result.source.height)
    colours = corners(opened(*outputs.values()))
    assert all(near(*pair, tolerance=16) for pair in zip(CORNERS, colours, strict=True))


def test_transparency_is_kept_by_webp_and_avif_and_white_in_jpeg() -> None:
    source = saved(translucent(), "PNG")

    for image_format in (ImageFormat.WEBP, ImageFormat.AVIF):
        kept = picture_of(source, one(image_format))
        assert kept.mode == "RGBA"
        assert alpha_range(kept, (40, 10, 60, 40))[1] < 8
        assert near(RED, pixel(kept, 10, 24), tolerance=10)
    flat, _ = rendered(source, one(ImageFormat.JPEG))
    assert near((255, 255, 255), pixel(picture_of(source, one(ImageFormat.JPEG)), 50, 24))
    assert Caveat.ALPHA_FLATTENED in flat.variants[0].warnings


def test_colours_hidden_by_transparency_do_not_bleed_when_scaled() -> None:
    picture = translucent(640, 480)
    ImageDraw.Draw(picture).rectangle((320, 0, 640, 480), fill=(0, 0, 0, 0))

    smaller = resized(picture, Size(160, 120))

    assert 0 < alpha_range(smaller, (80, 60, 81, 61))[0] < 40
    assert near(RED, pixel(smaller, 80, 60), tolerance=8)


def test_an_alpha_channel_that_hides_nothing_is_dropped() -> None:
    source = saved(quadrants().convert("RGBA"), "PNG")

    result, _ = rendered(source, one(ImageFormat.JPEG))

    assert picture_of(source).mode == "RGB"
    assert Caveat.ALPHA_FLATTENED not in result.variants[0].warnings


def test_a_palette_with_a_transparent_colour_becomes_transparency() -> None:
    picture = Image.new("P", (40, 40), 1)
    picture.putpalette([0, 0, 0, *RED])
    picture.paste(0, (0, 0, 20, 40))
    for pillow_format in ("PNG", "GIF"):
        result = picture_of(saved(picture, pillow_format, transparency=0))

        assert alpha_range(result, (2, 2, 16, 38))[1] < 8
        assert near(RED, pixel(result, 30, 20), tolerance=10)


def test_a_transparent_colour_of_true_colour_and_grey_becomes_transparency() -> None:
    for mode, hidden in (("RGB", RED), ("L", 77), ("I;16", 30_000), ("1", 1)):
        source = saved(Image.new(mode, (8, 8), hidden), "PNG", transparency=hidden)

        assert alpha_range(picture_of(source)) == (0, 0), mode


@pytest.mark.parametrize(("bits", "hidden"), [(1, 0), (1, 1), (2, 1), (2, 3), (4, 7), (4, 15)])
def test_a_transparent_grey_of_few_bits_becomes_transparency(bits: int, hidden: int) -> None:
    """The left half has it, the right half has another."""
    other = (hidden + 1) % 2**bits
    row = bytes([sum(hidden << at for at in range(0, 8, bits))] * bits)
    row += bytes([sum(other << at for at in range(0, 8, bits))] * bits)
    png = png_of(16, 0, bits, hidden.to_bytes(2), (b"\0" + row) * 16)

    result = picture_of(png)

    assert alpha_range(result, (0, 0, 7, 16)) == (0, 0)
    assert alpha_range(result, (9, 0, 16, 16)) == (255, 255)
    assert near((other * 255 // (2**bits - 1),) * 3, pixel(result, 12, 8))


def test_a_transparent_colour_of_sixteen_bits_becomes_transparency() -> None:
    hidden, other = struct.pack(">3H", 51_200, 7_700, 7_711), struct.pack(">3H", 7, 7, 60_000)
    png = png_of(16, 2, 16, hidden, (b"\0" + hidden * 8 + other * 8) * 16)

    result = picture_of(png)

    assert alpha_range(result, (0, 0, 7, 16)) == (0, 0)
    assert alpha_range(result, (9, 0, 16, 16)) == (255, 255)


def png_of(side: int, colour: int, bits: int, hidden: bytes, rows: bytes) -> bytes:
    """A square PNG with a transparent colour, of rows as they are before they are compressed."""
    header = struct.pack(">IIBBBBB", side, side, bits, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"tRNS", hidden), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return SIGNATURE + b"".join(png_chunk(*chunk) for chunk in chunks)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P"])
def test_a_png_of_another_gamma_is_brought_to_what_screens_show(mode: str) -> None:
    """As browsers do; a profile or the word that it is sRGB goes before it."""
    picture = Image.new("RGB", (16, 16), (128, 128, 128))
    grey = saved(picture.quantize(2) if mode == "P" else picture.convert(mode), "PNG")
    linear = with_png_chunk(grey, b"gAMA", (100_000).to_bytes(4))
    screens = with_png_chunk(grey, b"gAMA", (45_455).to_bytes(4))

    assert near((188, 188, 188), pixel(picture_of(linear), 8, 8), tolerance=2)
    assert near((128, 128, 128), pixel(picture_of(screens), 8, 8), tolerance=2)
    said = with_png_chunk(linear, b"sRGB", b"\0")
    assert near((128, 128, 128), pixel(picture_of(said), 8, 8), tolerance=2)


def test_alpha_has_no_gamma() -> None:
    half = saved(Image.new("RGBA", (16, 16), (128, 128, 128, 100)), "PNG")

    result = picture_of(with_png_chunk(half, b"gAMA", (100_000).to_bytes(4)))

    assert alpha_range(result) == (100, 100)


@pytest.mark.parametrize("others", [0, 1])
def test_around_a_first_gif_frame_smaller_than_its_screen_is_nothing(others: int) -> None:
    frame = Image.new("P", (10, 10), 1)
    frame.putpalette([*BLUE, *RED])
    small = saved(frame, "GIF")
    at = small.index(b"\x2c", 13)
    moved = small[at:-1].replace(struct.pack("<HH", 0, 0), struct.pack("<HH", 20, 10), 1)
    screen = small[:6] + struct.pack("<HH", 40, 30) + small[10:at]

    result = picture_of(screen + moved + moved * others + b"\x3b")

    assert result.size == (40, 30)
    assert near(RED, pixel(result, 25, 15), tolerance=10)
    assert alpha_range(result, (21, 11, 29, 19)) == (255, 255)
    for margin in ((0, 0, 40, 8), (0, 0, 18, 30), (32, 0, 40, 30), (0, 22, 40, 30)):
        assert alpha_range(result, margin) == (0, 0)


def test_grey_with_alpha_keeps_both() -> None:
    picture = Image.new("LA", (40, 40), (90, 255))
    picture.paste((90, 0), (20, 0, 40, 40))

    result = picture_of(saved(picture, "PNG"))

    assert near((90, 90, 90), pixel(result, 5, 20))
    assert alpha_range(result, (24, 2, 38, 38))[1] < 8


def test_sixteen_bit_grey_is_scaled_and_not_cut_off() -> None:
    picture = Image.new("I;16", (40, 40), 0x8080)

    result, _ = rendered(saved(picture, "PNG"), one())

    assert near((128, 128, 128), pixel(picture_of(saved(picture, "PNG")), 20, 20), tolerance=2)
    assert Caveat.DEPTH_REDUCED in result.variants[0].warnings


def test_black_and_white_comes_out_as_black_and_white() -> None:
    picture = Image.new("1", (40, 40), 1)

    assert near((255, 255, 255), pixel(picture_of(saved(picture, "PNG")), 20, 20))


def test_grey_stays_grey_in_jpeg() -> None:
    assert picture_of(saved(quadrants().convert("L")), one(ImageFormat.JPEG)).mode == "L"


def test_a_progressive_jpeg_is_read_like_any_other() -> None:
    picture = picture_of(saved(quadrants(), progressive=True))

    assert all(near(*pair) for pair in zip(CORNERS, corners(picture), strict=True))


@pytest.mark.parametrize("pillow_format", ["GIF", "WEBP", "PNG", "AVIF"])
def test_an_animation_gives_its_first_frame_and_says_so(pillow_format: str) -> None:
    source = animated(pillow_format, [RED, GREEN, BLUE])

    result, outputs = rendered(source, one())

    (encoded,) = outputs.values()
    assert near(RED, pixel(opened(encoded), 20, 15), tolerance=10)
    assert getattr(opened(encoded), "n_frames", 1) == 1
    assert result.source.frames == 3
    assert Caveat.ANIMATION_FLATTENED in result.variants[0].warnings


def test_a_phones_file_of_several_pictures_is_a_jpeg_with_one() -> None:
    others = [Image.new("RGB", (320, 200), "white")]
    source = saved(quadrants(), "MPO", save_all=True, append_images=others, quality=95)

    result, outputs = rendered(source, one())

    (encoded,) = outputs.values()
    assert result.source.format is ImageFormat.JPEG
    assert result.source.frames == 1
    assert Caveat.EXTRA_PICTURES_DROPPED in result.variants[0].warnings
    assert all(near(*pair) for pair in zip(CORNERS, corners(opened(encoded)), strict=True))


def test_a_dropped_gain_map_is_no_secret() -> None:
    result, _ = rendered(saved(quadrants(), xmp=b'<x hdrgm:Version="1.0"/>'), one())

    assert result.variants[0].warnings == (Caveat.GAIN_MAP_DROPPED,)


def test_a_file_the_decoder_complains_about_says_so() -> None:
    broken_index = b"MPF\0II*\0\xff\xff\0\0"
    jpeg = saved(quadrants())
    source = jpeg[:2] + b"\xff\xe2" + struct.pack(">H", len(broken_index) + 2) + broken_index
    source += jpeg[2:]

    result, _ = rendered(source, one())

    assert Caveat.IRREGULAR_FILE in result.variants[0].warnings
