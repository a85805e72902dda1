from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFile

from imagefleet.errors import InputRejected
from imagefleet.imaging.headers.facts import MOST_FRAMES
from imagefleet.imaging.headers.jpeg import _end_of_scan
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Fit, Focus, Recipe, VariantSpec
from imagefleet.imaging.render import render
from imagefleet.imaging.sniff import HEAD_BYTES
from imagefleet.jobs.images import Caveat, ImageFormat
from tests.imaging.rendering import CORNERS, DEFAULT, alpha_range, one, picture_of, rendered
from tests.support.images import (
    RED,
    as_a_camera_stores,
    corners,
    gif_of_frames,
    grain,
    near,
    opened,
    pixel,
    quadrants,
    saved,
    with_frame_size,
    with_trailing_zip,
)
from tests.support.recipes import RECIPES


def test_every_variant_of_the_default_recipe_has_its_size() -> None:
    result, outputs = rendered(saved(quadrants(2400, 1800)))

    sizes = {"thumb": (200, 150), "small": (640, 480), "medium": (1280, 960), "large": (1920, 1440)}
    sizes["square"] = (200, 200)
    assert len(outputs) == 10
    for (name, image_format), encoded in outputs.items():
        picture = opened(encoded)
        assert picture.format == image_format.name
        assert picture.size == sizes[name]
        assert all(near(*pair) for pair in zip(CORNERS, corners(picture), strict=True))
    assert not any(variant.warnings for variant in result.variants)


def test_the_report_describes_what_the_sink_was_given() -> None:
    source = saved(quadrants())

    result, outputs = rendered(source)

    reported = [(variant.name, variant.format) for variant in result.variants]
    assert [(spec.name, spec.format) for spec in DEFAULT.variants] == reported
    for variant in result.variants:
        encoded = outputs[variant.name, variant.format]
        assert (variant.width, variant.height) == opened(encoded).size
        assert variant.bytes == len(encoded)
        assert variant.content_type == f"image/{variant.format}"
    assert result.source.format is ImageFormat.JPEG
    assert (320, 200) == (result.source.width, result.source.height)
    assert (1, len(source)) == (result.source.frames, result.source.bytes)


def test_a_source_may_be_bytes_a_path_or_a_file(tmp_path: Path) -> None:
    source = saved(quadrants())
    path = tmp_path / "picture"
    path.write_bytes(source)

    reports = [
        render(form, one(), Limits(), lambda *_: None)
        for form in (source, path, io.BytesIO(source))
    ]

    assert reports[0] == reports[1] == reports[2]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes at which pictures are decoded from now on."""
    sizes: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load

    def recording_load(picture: ImageFile.ImageFile) -> object:
        sizes.append(picture.size)
        return load(picture)

    monkeypatch.setattr(ImageFile.ImageFile, "load", recording_load)
    return sizes


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(
    ("width", "height", "decoded_at"),
    [
        (318, 200, (318, 200)),
        (320, 200, (160, 100)),  # a half may be no larger than what is wanted
        (320, 201, (160, 101)),
        (796, 500, (398, 250)),
        (800, 500, (200, 125)),  # a quarter has to be a fourth larger, an eighth as well
        (1592, 1000, (398, 250)),
        (1600, 1000, (200, 125)),
        (2, 4000, (1, 2000)),
    ],
)
def test_a_large_jpeg_is_decoded_no_larger_than_needed(
    decoded: list[tuple[int, int]],
    orientation: int,
    width: int,
    height: int,
    decoded_at: tuple[int, int],
) -> None:
    source = as_a_camera_stores(orientation, quadrants(width, height), "JPEG")
    decoded.clear()

    result, _ = rendered(source, one())

    assert decoded[0] == (decoded_at if orientation == 1 else decoded_at[::-1])
    assert (width, height) == (result.source.width, result.source.height)


@pytest.mark.parametrize(
    ("box", "decoded_at"),
    [((100, 100), (200, 125)), ((160, 40), (200, 125)), ((161, 40), (400, 250))],
)
def test_a_jpeg_that_is_cut_is_decoded_as_large_as_all_of_it_has_to_be(
    decoded: list[tuple[int, int]], box: tuple[int, int], decoded_at: tuple[int, int]
) -> None:
    source = saved(quadrants(800, 500))
    decoded.clear()

    rendered(source, one(fit=Fit.COVER, width=box[0], height=box[1]))

    assert decoded_at == decoded[0]


@pytest.mark.parametrize(("progressive", "scans"), [(0, 1), (1, 10)])
def test_nobody_looks_twice_for_the_end_of_a_scan(progressive: int, scans: int) -> None:
    """A millisecond of each photo, four times: its scans are counted, ended and judged."""
    _end_of_scan.cache_clear()

    rendered(saved(grain(400, 300), progressive=progressive))

    assert _end_of_scan.cache_info().misses == scans
    assert _end_of_scan.cache_info().hits >= 2 * scans


def test_of_a_photo_with_twelve_megapixels_three_are_decoded(
    decoded: list[tuple[int, int]],
) -> None:
    rendered(saved(quadrants(4000, 3000)))

    assert set(decoded) == {(2000, 1500)}


def test_a_source_smaller_than_the_box_keeps_its_size_and_says_so() -> None:
    result, outputs = rendered(saved(quadrants(300, 200)))

    by_name = {variant.name: variant for variant in result.variants}
    assert (200, 133) == (by_name["thumb"].width, by_name["thumb"].height)
    assert by_name["thumb"].warnings == ()
    for name in ("small", "medium", "large"):
        assert (300, 200) == (by_name[name].width, by_name[name].height)
        assert by_name[name].warnings == (Caveat.NOT_ENLARGED,)
    assert len(outputs) == 10


def test_variants_that_come_out_alike_are_encoded_and_handed_over_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saves: list[str] = []
    written: list[tuple[str, ImageFormat]] = []
    save = Image.Image.save

    def counting_save(picture: Image.Image, *args: object, **options: object) -> None:
        saves.append(str(options["format"]))
        save(picture, *args, **options)  # type: ignore[arg-type]

    source = saved(quadrants(100, 80))
    monkeypatch.setattr(Image.Image, "save", counting_save)
    recipe = replace(DEFAULT, variants=DEFAULT.variants[:8])
    result = render(source, recipe, Limits(), lambda name, form, _: written.append((name, form)))

    assert sorted(saves) == ["JPEG", "WEBP"]
    assert sorted(written) == [("thumb", ImageFormat.JPEG), ("thumb", ImageFormat.WEBP)]
    for made in result.variants:
        assert made.same_as == (None if made.name == "thumb" else "thumb")


SMALLER = VariantSpec("one", 300, 300, ImageFormat.WEBP, 80)


@pytest.mark.parametrize(
    ("other", "is_one"),
    [
        ({"width": 400}, True),
        ({"width": 400, "height": 100}, False),
        ({"width": 400, "fit": Fit.COVER}, True),
        ({"width": 400, "fit": Fit.PAD}, True),
        ({"width": 400, "fit": Fit.COVER, "focus": Focus.ATTENTION}, True),
        ({"fit": Fit.COVER}, False),
        ({"width": 100, "fit": Fit.COVER}, False),
        ({"fit": Fit.CONTAIN}, False),
        ({"format": ImageFormat.JPEG}, False),
        ({"quality": 79}, False),
        ({"most_bytes": 500}, False),
        ({"background": "#ff0000"}, False),
        ({"sharpen": 0.5}, True),  # nothing is scaled
    ],
)
def test_they_are_alike_where_all_that_shows_is_alike(
    other: dict[str, object],
    is_one: bool,  # noqa: FBT001
) -> None:
    recipe = Recipe("pair", (SMALLER, replace(SMALLER, name="other", **other)))  # type: ignore[arg-type]

    result, _ = rendered(saved(quadrants(240, 180)), recipe)

    assert [None, "one" if is_one else None] == [made.same_as for made in result.variants]


def test_what_they_are_named_by_is_the_first_of_the_recipe() -> None:
    variants = (replace(SMALLER, name="wide", width=900), SMALLER, replace(SMALLER, name="third"))

    result, _ = rendered(saved(quadrants(640, 480)), Recipe("three", variants))

    assert [(made.name, made.same_as) for made in result.variants] == [
        ("wide", None), ("one", None), ("third", "one"),
    ]  # fmt: skip


def test_the_same_source_gives_the_same_bytes() -> None:
    source = saved(quadrants(400, 300))
    for recipe in RECIPES.values():
        assert rendered(source, recipe)[1] == rendered(source, recipe)[1]


def test_cover_fills_the_box_around_the_middle() -> None:
    picture = picture_of(saved(quadrants(400, 200)), one(fit=Fit.COVER, width=100, height=100))

    assert picture.size == (100, 100)
    assert all(near(*pair) for pair in zip(CORNERS, corners(picture), strict=True))


@pytest.mark.parametrize("fit", Fit)
def test_a_picture_of_the_boxs_own_shape_needs_no_fitting(fit: Fit) -> None:
    picture = picture_of(saved(quadrants(400, 200)), one(fit=fit, width=200, height=100))

    assert (picture.size, picture.mode) == ((200, 100), "RGB")
    assert all(near(*pair) for pair in zip(CORNERS, corners(picture), strict=True))


def test_cover_never_enlarges_and_keeps_the_boxs_shape() -> None:
    source, recipe = saved(quadrants(400, 50)), one(fit=Fit.COVER, width=100, height=100)

    result, outputs = rendered(source, recipe)

    assert (50, 50) == (result.variants[0].width, result.variants[0].height)
    assert (50, 50) == opened(outputs["only", ImageFormat.WEBP]).size
    assert result.variants[0].warnings == (Caveat.NOT_ENLARGED,)


@pytest.mark.parametrize("fit", [Fit.COVER, Fit.PAD, Fit.INSIDE])
def test_boxes_of_one_shape_are_one_picture_of_a_source_that_is_too_small(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[tuple[int, int]] = []
    save = Image.Image.save

    def counting_save(picture: Image.Image, *args: object, **options: object) -> None:
        saves.append(picture.size)
        save(picture, *args, **options)  # type: ignore[arg-type]

    source = saved(quadrants(100, 80))
    boxes = [VariantSpec(f"v{side}", side, side, ImageFormat.JPEG, 80, fit) for side in (200, 400)]
    wide = VariantSpec("wide", 300, 120, ImageFormat.JPEG, 80, fit)
    monkeypatch.setattr(Image.Image, "save", counting_save)
    _, outputs = rendered(source, Recipe("boxes", (*boxes, wide)))

    assert outputs["v200", ImageFormat.JPEG] == outputs["v400", ImageFormat.JPEG]
    assert (1 if fit is Fit.INSIDE else 2) == len(saves)


def test_contain_lays_the_picture_into_a_box_of_exactly_that_size() -> None:
    webp, jpeg = (
        picture_of(saved(quadrants(400, 200)), one(to, fit=Fit.CONTAIN, width=100, height=100))
        for to in (ImageFormat.WEBP, ImageFormat.JPEG)
    )

    assert webp.size == jpeg.size == (100, 100)
    assert alpha_range(webp, (0, 0, 100, 20)) == (0, 0)
    assert near((255, 255, 255), pixel(jpeg, 50, 5))
    assert near(RED, pixel(jpeg, 20, 40), tolerance=12)


def test_what_trails_behind_a_picture_does_not_come_along() -> None:
    _, outputs = rendered(with_trailing_zip(saved(quadrants())))

    assert not any(b"PK\x03\x04" in encoded for encoded in outputs.values())


def test_the_placeholder_has_the_pictures_colour_and_shape() -> None:
    picture = quadrants(400, 300)
    ImageDraw.Draw(picture).rectangle((0, 0, 400, 220), fill=(20, 60, 200))

    result, _ = rendered(saved(picture))

    colour = bytes.fromhex(result.placeholder.color.removeprefix("#"))
    assert near((20, 60, 200), colour)
    assert 20 < len(result.placeholder.thumbhash) <= 36


def test_a_picture_of_one_pixel_is_a_picture() -> None:
    result, _ = rendered(saved(Image.new("RGB", (1, 1), RED), "PNG"))

    assert {(1, 1)} == {(variant.width, variant.height) for variant in result.variants}


def test_a_very_long_picture_keeps_a_pixel_of_height() -> None:
    result, _ = rendered(saved(Image.new("RGB", (8_000, 2), RED), "PNG"))

    heights = {variant.name: variant.height for variant in result.variants}
    assert {"thumb": 1, "small": 1, "medium": 1, "large": 1, "square": 2} == heights


def jpeg_with_a_second_frame_header(width: int, height: int) -> bytes:
    """Small in its first header, large in its second: parsers differ on which one counts."""
    jpeg = saved(quadrants(16, 16))
    start = jpeg.index(b"\xff\xc0")
    frame = jpeg[start : start + 2 + int.from_bytes(jpeg[start + 2 : start + 4], "big")]
    larger = with_frame_size(frame, width, height)
    return jpeg[: start + len(frame)] + larger + jpeg[start + len(frame) :]


@pytest.mark.parametrize(("width", "height"), [(900, 900), (60_000, 2)])
def test_the_size_is_judged_again_by_what_pillow_reads(width: int, height: int) -> None:
    source = jpeg_with_a_second_frame_header(width, height)

    with pytest.raises(InputRejected) as caught:
        rendered(source, limits=Limits(max_jpeg_pixels=100_000))

    assert caught.value.code == "too_many_pixels"


def test_of_many_frames_the_first_is_made_and_no_number_is_told_that_nobody_counted() -> None:
    few, many = (rendered(gif_of_frames(frames))[0] for frames in (MOST_FRAMES, 5_000))

    assert (few.source.frames, many.source.frames) == (MOST_FRAMES, None)
    for made in (few, many):
        assert Caveat.ANIMATION_FLATTENED in made.variants[0].warnings


@pytest.mark.parametrize("size", [(65_535, 1), (1, 65_535), (1, 4_000_000), (4_000_000, 1)])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "GIF", "WEBP"])
def test_long_thin_pictures_are_made(image_format: str, size: tuple[int, int]) -> None:
    if max(size) > {"JPEG": 65_500, "PNG": 2**31, "GIF": 65_535, "WEBP": 16_383}[image_format]:
        size = (min(size[0], 16_383), min(size[1], 16_383))
    made, _ = rendered(saved(Image.new("RGB", size, (10, 200, 90)), image_format))

    assert (made.source.width, made.source.height) == size
    assert max(max(variant.width, variant.height) for variant in made.variants) == 1_920
    assert min(min(variant.width, variant.height) for variant in made.variants) == 1


def test_pillows_own_limit_is_as_it_was_afterwards() -> None:
    before = Image.MAX_IMAGE_PIXELS

    rendered(saved(quadrants()), limits=Limits(max_pixels=64_000, max_jpeg_pixels=64_000))

    assert before == Image.MAX_IMAGE_PIXELS


class EndlessFile(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert 0 < size <= 1_001
        return bytes(size)


def test_no_more_is_read_than_it_takes_to_refuse() -> None:
    with pytest.raises(InputRejected) as caught:
        render(EndlessFile(), DEFAULT, Limits(max_bytes=1_000), lambda *_: None)

    assert caught.value.code == "too_large"


def test_a_file_whose_header_never_ends_is_corrupt() -> None:
    source = (b"\xff\xd8" + b"\xff\xfe\xff\xff" * 5 + bytes(HEAD_BYTES))[:HEAD_BYTES]

    with pytest.raises(InputRejected) as caught:
        rendered(source)

    assert caught.value.code == "corrupt"


class OutOfTimeError(Exception):
    pass


@pytest.mark.parametrize("allowed", [0, 5, 12])
def test_a_checkpoint_stops_the_work_between_steps(allowed: int) -> None:
    passed: list[str] = []

    def checkpoint() -> None:
        if len(passed) == allowed:
            raise OutOfTimeError
        passed.append("")

    with pytest.raises(OutOfTimeError):
        render(saved(quadrants()), DEFAULT, Limits(), lambda *_: None, checkpoint=checkpoint)


def test_what_the_sink_raises_is_not_blamed_on_the_picture() -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        render(saved(quadrants()), DEFAULT, Limits(), full_disk)


def test_running_out_of_memory_is_the_pictures_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    source = saved(quadrants())
    monkeypatch.setattr(Image.Image, "resize", no_memory)

    with pytest.raises(InputRejected) as caught:
        rendered(source)
    assert caught.value.code == "memory"
