from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from imagefleet.errors import InputRejected
from imagefleet.imaging.sniff import (
    HEAD_BYTES,
    HeaderFacts,
    ImageFormat,
    agree,
    count_scans,
    sniff,
)
from tests.support.images import (
    RED,
    animated,
    as_a_camera_stores,
    exif_with,
    gif_of_frames,
    opened,
    png_chunk,
    png_claiming,
    quadrants,
    saved,
    scan_bomb,
    translucent,
    with_frame_size,
    with_png_chunk,
    with_trailing_zip,
)

SAMPLES = {
    "jpeg": saved(quadrants()),
    "progressive jpeg": saved(quadrants(), progressive=True, exif=exif_with(6)),
    "mpo": saved(quadrants(), "MPO", save_all=True, append_images=[quadrants()]),
    "png": saved(quadrants(), "PNG", exif=exif_with(3)),
    "animated png": animated("PNG", [RED, (0, 0, 0)]),
    "lossy webp": saved(quadrants(), "WEBP"),
    "lossless webp": saved(quadrants(), "WEBP", lossless=True),
    "extended webp": saved(translucent(), "WEBP", exif=exif_with(8)),
    "animated webp": animated("WEBP", [RED, (0, 0, 0)]),
    "gif": saved(quadrants().convert("P"), "GIF"),
    "animated gif": animated("GIF", [RED, (0, 0, 0)]),
    "avif": saved(quadrants(), "AVIF", max_threads=1),
    "avif with alpha": saved(translucent(), "AVIF", max_threads=1),
    "animated avif": animated("AVIF", [RED, (0, 0, 0)]),
}


def refusal(data: bytes) -> str:
    with pytest.raises(InputRejected) as caught:
        sniff(data)
    return caught.value.code


@pytest.mark.parametrize("name", SAMPLES)
def test_the_facts_agree_with_what_pillow_reads(name: str) -> None:
    data = SAMPLES[name]
    picture = opened(data)

    facts = sniff(data)

    assert facts.format.name == picture.format.replace("MPO", "JPEG")  # type: ignore[union-attr]
    assert (facts.width, facts.height) == picture.size
    assert facts.animated == name.startswith("animated")
    assert facts.frames == (2 if facts.animated else 1)
    assert facts.orientation == picture.getexif().get(0x0112, 1)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_head_tells_the_size_of_a_file_of_any_length(name: str) -> None:
    data = SAMPLES[name]

    facts = sniff((data + bytes(HEAD_BYTES))[:HEAD_BYTES])

    assert (facts.width, facts.height) == opened(data).size


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP"])
def test_the_orientation_is_read(orientation: int, pillow_format: str) -> None:
    facts = sniff(as_a_camera_stores(orientation, quadrants(), pillow_format))

    assert orientation == facts.orientation


def test_what_costs_the_whole_picture_in_memory_is_told() -> None:
    interlaced_gif = saved(quadrants().convert("P"), "GIF", interlace=1)
    interlaced_png = bytearray(png_claiming(10, 10))
    interlaced_png[28] = 1

    assert sniff(SAMPLES["progressive jpeg"]).progressive
    assert sniff(interlaced_gif).progressive
    assert sniff(bytes(interlaced_png)).progressive
    assert not sniff(SAMPLES["jpeg"]).progressive


def test_a_phones_second_picture_and_its_gain_map_are_told() -> None:
    ultra_hdr = saved(quadrants(), xmp=b'<x hdrgm:Version="1.0"/>')

    assert sniff(SAMPLES["mpo"]).multi_picture
    assert sniff(ultra_hdr).gain_map
    assert not sniff(SAMPLES["jpeg"]).gain_map


def test_sixteen_bits_a_sample_are_told() -> None:
    assert sniff(saved(Image.new("I;16", (4, 4)), "PNG")).deep


@pytest.mark.parametrize("filler", [50_000, HEAD_BYTES])
def test_metadata_is_counted_even_where_it_exceeds_the_head(filler: int) -> None:
    png = with_png_chunk(png_claiming(10, 10), b"tEXt", bytes(filler))

    facts = sniff(png[:HEAD_BYTES])

    assert (10, 10, filler) == (facts.width, facts.height, facts.metadata_bytes)


def test_a_jpeg_whose_size_lies_behind_the_head_has_no_size_yet() -> None:
    comment = b"\xff\xfe\xff\xff" + bytes(65_533)
    jpeg = SAMPLES["jpeg"]
    data = jpeg[:2] + comment * 5 + jpeg[2:]

    assert sniff(data[:HEAD_BYTES]).width is None
    assert sniff(data).width == 320


def test_a_gif_whose_frames_exceed_the_head_has_no_count_yet() -> None:
    data = gif_of_frames(HEAD_BYTES // 10)

    facts = sniff(data[:HEAD_BYTES])

    assert facts.frames is None
    assert facts.animated
    assert sniff(data).frames == HEAD_BYTES // 10


def test_a_first_gif_frame_larger_than_its_screen_widens_it() -> None:
    gif = bytearray(gif_of_frames(1))
    gif[6:10] = struct.pack("<HH", 1, 1)
    at = gif.index(b"\x2c")
    gif[at + 5 : at + 9] = struct.pack("<HH", 300, 200)

    assert (300, 200) == (sniff(bytes(gif)).width, sniff(bytes(gif)).height)


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
        b"\xff\xd8" + b"\xff\xfe\x00\x02" * 20_000,
        b"\xff\xd8\xff" + bytes(100_000) + b"\xff\xc0",
        b"\xff\xd8\xff" + b"\x00\xff" * 100_000,
        png_claiming(1, 1)[:33] + png_chunk(b"teXt", b"") * 100_001,
        gif_of_frames(1)[:-2] + b"\x01\x00" * 1_000_001,
        saved(translucent(), "WEBP") + b"junk\0\0\0\0" * 100_001,
        b"\0\0\0\x10ftypavif\0\0\0\0" + b"\0\0\0\x08skip" * 20_000,
    ],
    ids=["jpeg segments", "jpeg junk", "jpeg stuffing", "png", "gif", "webp", "avif"],
)
def test_a_file_of_too_many_tiny_pieces_is_given_up(data: bytes) -> None:
    assert refusal(data) == "corrupt"


def test_scans_are_counted_up_to_the_number_of_interest() -> None:
    assert count_scans(SAMPLES["jpeg"]) == 1
    assert count_scans(scan_bomb(150)) == 150
    assert count_scans(scan_bomb(150), stop_after=100) == 101
    assert count_scans(SAMPLES["png"]) == 0
    assert count_scans(b"") == 0


def test_only_the_first_pictures_scans_count() -> None:
    noise = b"\xff\xda\x00\x0c" * 500
    comment = b"\xff\xfe" + struct.pack(">H", len(noise) + 2) + noise
    jpeg = SAMPLES["jpeg"]

    assert count_scans(jpeg[:2] + comment + jpeg[2:]) == 1
    assert count_scans(jpeg + noise) == 1
    assert count_scans(SAMPLES["mpo"]) == 1


def test_the_scans_of_a_jpeg_cut_short_are_counted_as_far_as_it_goes() -> None:
    assert count_scans(SAMPLES["jpeg"][:-50]) == 1


def test_restart_markers_end_no_scan() -> None:
    assert count_scans(saved(quadrants(), restart_marker_blocks=1)) == 1


def test_a_polyglot_is_what_its_beginning_says() -> None:
    assert sniff(with_trailing_zip(SAMPLES["png"])).format is ImageFormat.PNG


@pytest.mark.parametrize(
    ("declared", "sniffed", "expected"),
    [
        ("image/jpeg", ImageFormat.JPEG, True),
        ("image/jpg", ImageFormat.JPEG, True),
        ("IMAGE/JPEG; charset=binary", ImageFormat.JPEG, True),
        ("image/apng", ImageFormat.PNG, True),
        (None, ImageFormat.GIF, True),
        ("", ImageFormat.GIF, True),
        ("application/octet-stream", ImageFormat.AVIF, True),
        ("image/png", ImageFormat.JPEG, False),
        ("image/jpg", ImageFormat.PNG, False),
        ("text/html", ImageFormat.WEBP, False),
        ("image/*", ImageFormat.WEBP, False),
    ],
)
def test_a_declared_type_must_fit_the_bytes(
    declared: str | None, sniffed: ImageFormat, *, expected: bool
) -> None:
    assert expected == agree(declared, sniffed)


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
        assert refused in {"empty_file", "unsupported", "corrupt"}
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
