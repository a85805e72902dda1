"""Makers of pictures: ordinary ones, ones that carry secrets, and ones that mean harm."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache

from PIL import Image, ImageDraw

RED, GREEN, BLUE, YELLOW = (220, 30, 30), (30, 180, 60), (30, 60, 200), (240, 220, 40)

# Stands in every place where a file can say something about its author.
CANARY = b"CANARY-48.8584N-2.2945E"

TURN_BACK = {  # what a camera held that way would have stored
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def quadrants(width: int = 320, height: int = 200) -> Image.Image:
    """Red, green / blue, yellow: every turn and every mirror is told apart by its corners."""
    picture = Image.new("RGB", (width, height), RED)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((width // 2, 0, width, height // 2 - 1), fill=GREEN)
    draw.rectangle((0, height // 2, width // 2 - 1, height), fill=BLUE)
    draw.rectangle((width // 2, height // 2, width, height), fill=YELLOW)
    return picture


def grain(width: int, height: int) -> Image.Image:
    """Nothing but noise, of which a JPEG keeps about a byte a pixel."""
    return Image.merge("RGB", [Image.effect_noise((width, height), 90) for _ in range(3)])


def translucent(width: int = 64, height: int = 48) -> Image.Image:
    """Red, opaque on the left half and fully transparent on the right."""
    picture = Image.new("RGBA", (width, height), (*RED, 255))
    picture.paste((*RED, 0), (width // 2, 0, width, height))
    return picture


def saved(picture: Image.Image, pillow_format: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    options = {"quality": 95} | options if pillow_format == "JPEG" else options
    picture.save(out, pillow_format, **options)
    return out.getvalue()


def opened(encoded: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(encoded))
    picture.load()
    return picture


def corners(picture: Image.Image) -> list[tuple[int, int, int]]:
    """The colours in the middle of the quadrants, top left first, row by row."""
    rgb = picture.convert("RGB")
    across, down = (rgb.width // 4, rgb.width * 3 // 4), (rgb.height // 4, rgb.height * 3 // 4)
    return [pixel(rgb, x, y) for y in down for x in across]


def pixel(picture: Image.Image, x: int, y: int) -> tuple[int, int, int]:
    red, green, blue = picture.convert("RGB").crop((x, y, x + 1, y + 1)).tobytes()
    return red, green, blue


def near(expected: Sequence[int], actual: Sequence[int], tolerance: int = 6) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(expected, actual, strict=True))


def as_a_camera_stores(orientation: int, picture: Image.Image, pillow_format: str) -> bytes:
    """The picture lying as EXIF says it does, so that turning it upright gives it back."""
    turn = TURN_BACK[orientation]
    stored = picture if turn is None else picture.transpose(turn)
    return saved(stored, pillow_format, exif=exif_with(orientation))


def exif_with(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def talkative(pillow_format: str) -> bytes:
    """A picture with the canary in EXIF, GPS, XMP, comment, text and profile, where it has them."""
    exif = exif_with(1)
    exif[0x010E] = exif[0x013B] = CANARY.decode()
    exif.get_ifd(0x8825)[0x001D] = CANARY.decode()
    profile = matrix_profile(DISPLAY_P3, description=CANARY)
    options: dict[str, object] = {"exif": exif, "icc_profile": profile, "xmp": CANARY}
    picture = quadrants()
    if pillow_format == "GIF":
        return saved(picture.convert("P"), "GIF", comment=CANARY)
    if pillow_format == "JPEG":
        options["comment"] = CANARY
    if pillow_format == "PNG":
        return with_png_chunk(saved(picture, "PNG", **options), b"tEXt", b"Comment\0" + CANARY)
    return saved(picture, pillow_format, **options)


def animated(pillow_format: str, colours: Sequence[tuple[int, int, int]]) -> bytes:
    frames = [Image.new("RGB", (40, 30), colour) for colour in colours]
    options = {"save_all": True, "append_images": frames[1:], "duration": 100}
    if pillow_format == "AVIF":
        options["max_threads"] = 1
    return saved(frames[0], pillow_format, **options)


# Profiles. Pillow makes only sRGB's, so these are written out: a header, a table of tags, the tags.

Primaries = tuple[tuple[float, float, float], ...]

# Red, green and blue as XYZ under D50, which is how profiles give them.
DISPLAY_P3: Primaries = (
    (0.51512, 0.24120, -0.00105),
    (0.29198, 0.69225, 0.04189),
    (0.15710, 0.06657, 0.78407),
)
ADOBE_RGB: Primaries = (
    (0.60974, 0.31111, 0.01947),
    (0.20528, 0.62567, 0.06087),
    (0.14919, 0.06322, 0.74457),
)
_D50 = (0.9642, 1.0, 0.8249)


def matrix_profile(
    primaries: Primaries, gamma: float = 2.2, description: bytes = b"matrix"
) -> bytes:
    tags = dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), map(_xyz, primaries), strict=True))
    curves = dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), _curve(gamma))
    return _profile(b"mntr", b"RGB ", b"XYZ ", {**tags, **curves}, description)


def grey_profile(gamma: float) -> bytes:
    return _profile(b"mntr", b"GRAY", b"XYZ ", {b"kTRC": _curve(gamma)}, b"grey")


def cmyk_profile() -> bytes:
    """A press whose inks are all grey: full cyan is the sRGB grey 128, the others halve it."""
    straight = bytes(range(256))
    nodes = bytearray()
    for node in range(16):
        inks = node.bit_count()
        lightness = 100.0 if inks == 0 else 53.585 / 2 ** (inks - 1)
        nodes += bytes([round(lightness * 2.55), 128, 128])
    identity = struct.pack(">9i", *(65536 if i % 4 == 0 else 0 for i in range(9)))
    table = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + identity
    table += straight * 4 + bytes(nodes) + straight * 3
    return _profile(b"prtr", b"CMYK", b"Lab ", {b"A2B0": table}, b"press")


def _profile(
    kind: bytes, space: bytes, connection: bytes, tags: dict[bytes, bytes], description: bytes
) -> bytes:
    text = b"desc" + bytes(4) + struct.pack(">I", len(description) + 1) + description + bytes(79)
    tags = {b"desc": text, b"cprt": b"text" + bytes(4) + b"none\0", b"wtpt": _xyz(_D50), **tags}
    table, body, at = b"", b"", 132 + 12 * len(tags)
    for name, content in tags.items():
        padded = content + bytes(-len(content) % 4)
        table += name + struct.pack(">II", at, len(content))
        body += padded
        at += len(padded)
    header = struct.pack(">I4sI4s4s4s", at, b"none", 0x02100000, kind, space, connection)
    header += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3i", *map(_fixed, _D50)) + bytes(48)
    return header + struct.pack(">I", len(tags)) + table + body


def _xyz(values: Sequence[float]) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *map(_fixed, values))


def _fixed(value: float) -> int:
    return round(value * 65536)


def _curve(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256))


# Hostile ones.


def png_chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


WALK_SIDE = 128


def png_of(
    rows: bytes | list[bytes],
    *before: tuple[bytes, bytes],
    size: tuple[int, int] = (WALK_SIDE, WALK_SIDE),
    colour: int = 3,
    depth: int = 8,
    interlaced: int = 0,
) -> bytes:
    """A PNG of these rows, in a chunk, or of chunks of pixels as they are."""
    pixels = [zlib.compress(rows, 9)] if isinstance(rows, bytes) else rows
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, interlaced)
    named = [(b"IHDR", header), *before, *((b"IDAT", each) for each in pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*each) for each in named)


@cache
def walk() -> tuple[bytes, bytes]:
    """Rows that say how far it is to the next colour, and colours in an order of nobody's."""
    chosen = random.Random(5)
    steps = [chosen.choices((1, 2), k=WALK_SIDE) for _ in range(WALK_SIDE)]
    used = {sum(row[: n + 1]) for row in steps for n in range(WALK_SIDE)}
    palette = (chosen.randbytes(3) if n in used else bytes(3) for n in range(max(used) + 1))
    return b"".join(b"\1" + bytes(row) for row in steps), b"".join(palette)


def hard_to_match(*before: tuple[bytes, bytes]) -> bytes:
    """A PNG that is half as large as the best that we make of its picture."""
    rows, palette = walk()
    return png_of(rows, *before, (b"PLTE", palette))


def with_png_chunk(png: bytes, name: bytes, content: bytes) -> bytes:
    """The same PNG with one more chunk right behind its header."""
    return png[:33] + png_chunk(name, content) + png[33:]


def png_claiming(width: int, height: int) -> bytes:
    """A few bytes that say they are a picture of that size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = png_chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + pixels + png_chunk(b"IEND", b"")


def jpeg_claiming(width: int, height: int) -> bytes:
    """A small JPEG whose frame header says it is a picture of that size."""
    return with_frame_size(saved(quadrants(16, 16)), width, height)


def with_frame_size(jpeg: bytes, width: int, height: int) -> bytes:
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


def claimed(jpeg: bytes, width: int, height: int) -> bytes:
    """The same JPEG, saying that it is of that size."""
    at = next(jpeg.index(frame) for frame in (b"\xff\xc0\0", b"\xff\xc2\0") if frame in jpeg) + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


def with_restart_interval(jpeg: bytes, units: int) -> bytes:
    """The same JPEG, saying that its restart markers stand that far apart."""
    at = jpeg.index(b"\xff\xdd\0\x04") + 4
    return jpeg[:at] + struct.pack(">H", units) + jpeg[at + 2 :]


def without_pixels(jpeg: bytes) -> bytes:
    """Its head alone: only a decoder notices, and no recipe makes anything of it."""
    return jpeg[: jpeg.index(b"\xff\xda")]


def scan_bomb(scans: int) -> bytes:
    """A progressive JPEG whose last scan is repeated until there are that many."""
    jpeg = saved(quadrants(64, 64).convert("L"), progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    missing = scans - jpeg.count(b"\xff\xda")
    return jpeg[:-2] + jpeg[last:-2] * missing + jpeg[-2:]


def gif_of_frames(frames: int, comment: bytes = b"") -> bytes:
    """Of one pixel each; before each stands the comment."""
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes((0, 0, 0, 255, 255, 255))
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    blocks = [comment[at : at + 255] for at in range(0, len(comment), 255)]
    said = b"".join(bytes([len(block)]) + block for block in blocks)
    return screen + ((b"\x21\xfe" + said + b"\0" if said else b"") + frame) * frames + b"\x3b"


def with_trailing_zip(image: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("payload.html", "<script>alert(1)</script>")
    return image + archive.getvalue()


def damaged(webp: bytes) -> bytes:
    """Its head is as it was, and nothing behind it."""
    half = len(webp) // 2
    return webp[:half] + b"\xff" * (len(webp) - half)
