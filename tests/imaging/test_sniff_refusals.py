from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.headers.jpeg import count_scans
from imagefleet.imaging.sniff import sniff
from tests.imaging.samples import SAMPLES
from tests.support.images import (
    png_chunk,
    png_claiming,
    with_frame_size,
)


def refusal(data: bytes) -> str:
    with pytest.raises(InputRejected) as caught:
        sniff(data)
    return caught.value.code


@pytest.mark.parametrize(
    "data",
    [
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
        b"\xef\xbb\xbf  <svg onload='x()'/>",
        b"<!DOCTYPE html><script>1</script>",
        b"just text",
        b"%PDF-1.7",
        b"BM" + bytes(60),
        b"II*\0" + bytes(60),
        b"8BPS" + bytes(60),
        b"PK\x03\x04" + bytes(60),
        b"RIFF\0\0\0\0WAVEfmt " + bytes(40),
        b"RIFF\0\0\0\0WEBPJUNK" + bytes(40),
        b"\0\0\0\x18ftypheic\0\0\0\0heicmif1",
        b"\0\0\0\x18ftypmp42\0\0\0\0isommp42",
        b"\0",
    ],
)
def test_what_is_no_accepted_image_is_unsupported(data: bytes) -> None:
    assert refusal(data) == "unsupported"


def test_a_jpeg_of_twelve_bits_is_unsupported() -> None:
    jpeg = bytearray(SAMPLES["jpeg"])
    jpeg[jpeg.index(b"\xff\xc0") + 4] = 12

    assert refusal(bytes(jpeg)) == "unsupported"


def test_nothing_is_an_empty_file() -> None:
    assert refusal(b"") == "empty_file"


@pytest.mark.parametrize(
    "data",
    [
        png_claiming(0, 5),
        png_claiming(5, 0),
        png_claiming(2**32 - 1, 1),
        with_frame_size(SAMPLES["jpeg"], 0, 5),
        with_frame_size(SAMPLES["jpeg"], 5, 0),
        b"GIF89a" + bytes(7) + b"\x2c" + bytes(9) + b"\x02\x00\x3b",
        b"GIF89a\x01\x00\x01\x00\x00\x00\x00\x3b",
        b"RIFF\x1a\0\0\0WEBPVP8 \x0e\0\0\0\0\0\0\x9d\x01\x2a" + bytes(8),
        b"RIFF\x1a\0\0\0WEBPVP8 \x0e\0\0\0" + bytes(20),
        b"RIFF\x1a\0\0\0WEBPVP8L\x0e\0\0\0" + bytes(20),
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"CgBI", bytes(13)),
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xe0\0\0",
        b"\xff\xd8\xff\xda\0\x02" + bytes(100),
        b"\0\0\0\x10ftypavif\0\0\0\0" + b"\0\0\0\x04meta",
    ],
)
def test_a_header_that_cannot_be_true_is_corrupt(data: bytes) -> None:
    assert refusal(data) == "corrupt"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_that_ends_within_its_first_bytes_is_corrupt(name: str) -> None:
    assert refusal(SAMPLES[name][:20]) == "corrupt"


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff" + bytes(100_000) + SAMPLES["jpeg"][2:],
        b"\xff\xd8\xff" + b"\x00\xff" * 100_000 + SAMPLES["jpeg"][2:],
    ],
    ids=["zeros", "stuffing"],
)
def test_a_jpeg_of_much_junk_is_given_up(data: bytes) -> None:
    assert refusal(data) == "corrupt"


SIGNATURES = [
    b"",
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR",
    b"GIF89a",
    b"RIFF\0\0\0\0WEBPVP8X",
    b"\0\0\0\x10ftypavif\0\0\0\0\0\0\0\x40meta",
]


def survives(data: bytes) -> None:
    """Facts or InputRejected; anything else that is raised fails the test by itself."""
    facts, refused = sniffed_or_refused(data)

    if facts is None:
        assert refused in {"empty_file", "unsupported", "corrupt", "too_many_parts"}
    else:
        assert facts.width is None or facts.width > 0
        assert 1 <= facts.orientation <= 8


def sniffed_or_refused(data: bytes) -> tuple[HeaderFacts | None, str]:
    try:
        count_scans(data)
        return sniff(data), ""
    except InputRejected as refused:
        return None, refused.code


@given(st.sampled_from(SIGNATURES), st.binary(max_size=2_000))
def test_any_bytes_behind_any_signature_are_survived(signature: bytes, rest: bytes) -> None:
    survives(signature + rest)


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=8),
    st.one_of(st.none(), st.integers(0, 700)),
)
@example("jpeg", [], 3)
@example("gif", [(10, 0x80)], 15)
def test_any_damage_to_a_real_header_is_survived(
    name: str, damages: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(SAMPLES[name])
    for at, value in damages:
        data[at % len(data)] = value

    survives(bytes(data[:cut]))
