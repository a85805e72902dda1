"""A head costs few steps, whatever is in it; and what people have is far from the bounds."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from imagefleet.errors import InputRejected
from imagefleet.imaging import sniff as sniffing
from imagefleet.imaging.headers.facts import MOST_FRAMES
from imagefleet.imaging.sniff import HEAD_BYTES, sniff
from tests.imaging.samples import SAMPLES
from tests.support.heads import HEADS
from tests.support.images import exif_with, gif_of_frames, png_chunk, png_claiming, quadrants, saved

PARSERS = str(Path(sniffing.__file__).parent)
MOST_STEPS = 60_000  # lines of the parsers; without budgets these heads take up to 1,100,000


class Steps:
    taken = 0


@contextmanager
def counted() -> Iterator[Steps]:
    """Count every line that the parsers run."""
    steps, before = Steps(), sys.gettrace()

    def in_parser(_frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401
        steps.taken += event == "line"
        return in_parser

    def begin(frame: FrameType, _event: str, _argument: object) -> Any:  # noqa: ANN401
        return in_parser if frame.f_code.co_filename.startswith(PARSERS) else None

    sys.settrace(begin)
    try:
        yield steps
    finally:
        sys.settrace(before)


def steps_of(head: bytes) -> tuple[int, str]:
    code = ""
    with counted() as steps:
        try:
            sniff(head)
        except InputRejected as refused:
            code = refused.code
    return steps.taken, code


@pytest.mark.parametrize("name", HEADS)
def test_no_head_takes_more_than_so_many_steps(name: str) -> None:
    head = HEADS[name]
    assert len(head) == HEAD_BYTES

    steps, code = steps_of(head)

    assert 0 < steps < MOST_STEPS
    assert code in {"", "corrupt", "too_many_parts"}


@pytest.mark.parametrize(
    "name",
    [
        "jpeg segments", "jpeg metadata", "jpeg markers", "png chunks", "png exif", "png frames",
        "webp chunks", "gif blocks", "gif extensions", "avif boxes", "avif items",
    ],
)  # fmt: skip
def test_too_many_pieces_are_refused_by_that_name(name: str) -> None:
    with pytest.raises(InputRejected, match="too_many_parts") as caught:
        sniff(HEADS[name])

    assert caught.value.public_message == "The image is made of more pieces than it may be."


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def test_a_profile_and_extended_metadata_of_the_most_segments_are_read() -> None:
    """255 of a profile, and a depth map in XMP of as much as metadata may have at all."""
    jpeg = SAMPLES["jpeg"]
    profile = segment(0xE2, b"ICC_PROFILE\0" + bytes(50)) * 255
    extended = segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + bytes(65_400)) * 256

    facts = sniff(jpeg[:2] + profile + extended + jpeg[2:])

    assert (facts.width, facts.height) == (320, 200)
    assert facts.metadata_bytes > 16_000_000


def test_a_png_of_many_texts_and_one_pixel_a_chunk_is_read() -> None:
    texts = png_chunk(b"tEXt", b"Comment\0said") * 900
    pixels = png_chunk(b"IDAT", b"") * 5_000

    facts = sniff(png_claiming(9, 9)[:33] + texts + pixels)

    assert (facts.width, facts.metadata_bytes) == (9, 900 * 12)


def test_an_animation_of_as_many_frames_as_are_allowed_is_counted() -> None:
    frames = gif_of_frames(MOST_FRAMES, b"as everybody does")
    webp = bytearray(HEADS["webp frames"][: 30 + 8 * MOST_FRAMES])
    webp[4:8] = struct.pack("<I", len(webp) - 8)

    assert sniff(frames).frames == MOST_FRAMES
    assert sniff(bytes(webp)).frames == MOST_FRAMES


def test_the_first_exif_counts() -> None:
    turned, upright = (saved(quadrants(), exif=exif_with(way)) for way in (6, 1))
    second = upright[2 : upright.index(b"\xff\xdb")]
    at = turned.index(b"\xff\xdb")

    assert sniff(turned[:at] + second + turned[at:]).orientation == 6
