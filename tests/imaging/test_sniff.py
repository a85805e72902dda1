from __future__ import annotations

import struct

import pytest
from PIL import Image

from imagefleet.imaging.headers.facts import MOST_FRAMES
from imagefleet.imaging.headers.jpeg import count_scans
from imagefleet.imaging.sniff import HEAD_BYTES, agree, sniff
from imagefleet.jobs.images import ImageFormat
from tests.imaging.samples import SAMPLES
from tests.support.images import (
    as_a_camera_stores,
    gif_of_frames,
    opened,
    png_claiming,
    quadrants,
    saved,
    scan_bomb,
    with_png_chunk,
    with_trailing_zip,
)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_facts_agree_with_what_pillow_reads(name: str) -> None:
    data = SAMPLES[name]
    picture = opened(data)

    facts = sniff(data)

    assert facts.mime_type == f"image/{facts.format}"
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
@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_the_orientation_is_read(orientation: int, pillow_format: str) -> None:
    facts = sniff(as_a_camera_stores(orientation, quadrants(), pillow_format))

    assert orientation == facts.orientation


@pytest.mark.parametrize(
    "tiff",
    [
        b"",
        b"XX*\0" + bytes(20),
        b"II*\0\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\xff\xff" + bytes(50),
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x01\0\0\0\x06\0\0\0",
    ],
)
def test_broken_exif_is_upright(tiff: bytes) -> None:
    assert sniff(with_png_chunk(png_claiming(5, 5), b"eXIf", tiff)).orientation == 1


def test_a_box_may_give_its_length_in_eight_bytes() -> None:
    avif = SAMPLES["avif"]
    at = avif.index(b"meta") - 4
    length = int.from_bytes(avif[at : at + 4], "big")
    longer = struct.pack(">I4sQ", 1, b"meta", length + 8) + avif[at + 8 :]

    assert sniff(avif[:at] + longer) == sniff(avif)


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
    assert sniff(SAMPLES["mpo"] + b"urn:com:apple:photo:2020:aux:hdrgainmap").gain_map
    assert not sniff(SAMPLES["mpo"]).gain_map
    assert not sniff(SAMPLES["jpeg"]).gain_map


def test_sixteen_bits_a_sample_are_told() -> None:
    assert sniff(saved(Image.new("I;16", (4, 4)), "PNG")).deep


def test_ten_bits_a_sample_and_a_gain_map_of_an_avif_are_told() -> None:
    avif = SAMPLES["avif"]
    at = avif.index(b"av1C") + 6

    ten_bits = avif[:at] + bytes([avif[at] | 0x40]) + avif[at + 1 :]
    with_gain_map = avif.replace(b"miaf", b"tmap", 1)

    assert (sniff(avif).deep, sniff(avif).gain_map) == (False, False)
    assert (sniff(ten_bits).deep, sniff(ten_bits).gain_map) == (True, False)
    assert (sniff(with_gain_map).deep, sniff(with_gain_map).gain_map) == (False, True)


def test_only_properties_of_the_primary_item_turn_an_avif() -> None:
    """The same boxes, associated with another item: decoders do not turn it either."""
    lying = as_a_camera_stores(6, quadrants(), "AVIF")
    at = lying.index(b"pitm") + 8

    assert sniff(lying).orientation == 6
    assert sniff(lying[:at] + b"\0\x09" + lying[at + 2 :]).orientation == 1


def test_a_first_gif_frame_that_leaves_margins_is_told() -> None:
    whole = bytearray(gif_of_frames(2))
    whole[6:10] = struct.pack("<HH", 1, 1)
    small = bytes(whole[:6]) + struct.pack("<HH", 4, 3) + bytes(whole[10:])

    assert sniff(bytes(whole)).first_frame is None
    assert sniff(small).first_frame == (0, 0, 1, 1)


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
    data = gif_of_frames(400, bytes(1_000))

    facts = sniff(data[:HEAD_BYTES])

    assert facts.frames is None
    assert facts.animated
    assert sniff(data).frames == 400


def test_frames_are_counted_no_further_than_is_told() -> None:
    data = gif_of_frames(20_000)

    assert sniff(data[:HEAD_BYTES]).frames == sniff(data).frames == MOST_FRAMES + 1


def test_a_first_gif_frame_larger_than_its_screen_widens_it() -> None:
    gif = bytearray(gif_of_frames(1))
    gif[6:10] = struct.pack("<HH", 1, 1)
    at = gif.index(b"\x2c")
    gif[at + 5 : at + 9] = struct.pack("<HH", 300, 200)

    assert (300, 200) == (sniff(bytes(gif)).width, sniff(bytes(gif)).height)


def test_a_format_knows_how_its_files_are_called() -> None:
    assert ["jpg", "png", "webp", "gif", "avif"] == [form.extension for form in ImageFormat]


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
