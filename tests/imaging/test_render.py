from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFile

from imagefleet.errors import InputRejected
from imagefleet.imaging.caveats import Caveat
from imagefleet.imaging.geometry import Size
from imagefleet.imaging.headers.facts import ImageFormat
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import RECIPES, Fit, Recipe, VariantSpec
from imagefleet.imaging.render import Rendered, render
from imagefleet.imaging.steps import resized
from tests.support.images import (
    BLUE,
    GREEN,
    RED,
    YELLOW,
    alpha_range,
    animated,
    as_a_camera_stores,
    corners,
    jpeg_with_a_second_frame_header,
    near,
    opened,
    pixel,
    quadrants,
    saved,
    translucent,
    with_trailing_zip,
)

DEFAULT = RECIPES["default"]
CORNERS = [RED, GREEN, BLUE, YELLOW]
Outputs = dict[tuple[str, ImageFormat], bytes]


def one(image_format: ImageFormat = ImageFormat.WEBP, **options: object) -> Recipe:
    """A recipe of one variant, sharp enough to compare colours."""
    fields: dict[str, object] = {"width": 160, "height": 160, "quality": 95} | options
    return Recipe("one", (VariantSpec("only", format=image_format, **fields),))  # type: ignore[arg-type]


def rendered(
    source: bytes, recipe: Recipe = DEFAULT, limits: Limits | None = None
) -> tuple[Rendered, Outputs]:
    outputs: Outputs = {}

    def sink(name: str, image_format: ImageFormat, encoded: bytes) -> None:
        outputs[name, image_format] = encoded

    return render(source, recipe, limits or Limits(), sink), outputs


def picture_of(source: bytes, recipe: Recipe | None = None) -> Image.Image:
    (encoded,) = rendered(source, recipe or one())[1].values()
    return opened(encoded)


def test_every_variant_of_the_default_recipe_has_its_size() -> None:
    result, outputs = rendered(saved(quadrants(2400, 1800)))

    sizes = {"thumb": (200, 150), "small": (640, 480), "medium": (1280, 960), "large": (1920, 1440)}
    assert len(outputs) == 8
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
        assert variant.size_bytes == len(encoded)
        assert variant.sha256 == hashlib.sha256(encoded).hexdigest()
        assert variant.content_type == f"image/{variant.format}"
    assert result.source.format is ImageFormat.JPEG
    assert (320, 200) == (result.source.width, result.source.height)
    assert (1, len(source)) == (result.source.frames, result.source.size_bytes)
    assert result.source.sha256 == hashlib.sha256(source).hexdigest()


def test_a_source_may_be_bytes_a_path_or_a_file(tmp_path: Path) -> None:
    source = saved(quadrants())
    path = tmp_path / "picture"
    path.write_bytes(source)

    reports = [
        render(form, one(), Limits(), lambda *_: None)
        for form in (source, path, io.BytesIO(source))
    ]

    assert reports[0] == reports[1] == reports[2]


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


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_no_larger_than_needed(
    orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load

    def recording_load(picture: ImageFile.ImageFile) -> object:
        decoded.append(picture.size)
        return load(picture)

    source = as_a_camera_stores(orientation, quadrants(1600, 1000), "JPEG")
    monkeypatch.setattr(ImageFile.ImageFile, "load", recording_load)
    result, _ = rendered(source, one())

    assert max(decoded) == ((200, 125) if orientation == 1 else (125, 200))
    assert (1600, 1000) == (result.source.width, result.source.height)


def test_a_broken_orientation_is_no_reason_to_refuse() -> None:
    png = saved(quadrants(), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")

    result, _ = rendered(png, one())

    assert result.variants[0].warnings == (Caveat.IRREGULAR_FILE,)


def test_a_source_smaller_than_the_box_keeps_its_size_and_says_so() -> None:
    result, outputs = rendered(saved(quadrants(300, 200)))

    by_name = {variant.name: variant for variant in result.variants}
    assert (200, 133) == (by_name["thumb"].width, by_name["thumb"].height)
    assert by_name["thumb"].warnings == ()
    for name in ("small", "medium", "large"):
        assert (300, 200) == (by_name[name].width, by_name[name].height)
        assert by_name[name].warnings == (Caveat.NOT_ENLARGED,)
    assert len(outputs) == 8


def test_variants_that_come_out_alike_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[str] = []
    save = Image.Image.save

    def counting_save(picture: Image.Image, *args: object, **options: object) -> None:
        saves.append(str(options["format"]))
        save(picture, *args, **options)  # type: ignore[arg-type]

    source = saved(quadrants(100, 80))
    monkeypatch.setattr(Image.Image, "save", counting_save)
    rendered(source)

    assert sorted(saves) == ["JPEG", "WEBP"]


def test_the_same_source_gives_the_same_bytes() -> None:
    source = saved(quadrants(400, 300))
    for recipe in RECIPES.values():
        assert rendered(source, recipe)[1] == rendered(source, recipe)[1]


def test_cover_fills_the_box_around_the_middle() -> None:
    picture = picture_of(saved(quadrants(400, 200)), one(fit=Fit.COVER, width=100, height=100))

    assert picture.size == (100, 100)
    assert all(near(*pair) for pair in zip(CORNERS, corners(picture), strict=True))


def test_cover_never_enlarges() -> None:
    source, recipe = saved(quadrants(400, 50)), one(fit=Fit.COVER, width=100, height=100)

    result, _ = rendered(source, recipe)

    assert (100, 50) == (result.variants[0].width, result.variants[0].height)
    assert result.variants[0].warnings == (Caveat.NOT_ENLARGED,)


def test_contain_lays_the_picture_into_a_box_of_exactly_that_size() -> None:
    webp, jpeg = (
        picture_of(saved(quadrants(400, 200)), one(to, fit=Fit.CONTAIN, width=100, height=100))
        for to in (ImageFormat.WEBP, ImageFormat.JPEG)
    )

    assert webp.size == jpeg.size == (100, 100)
    assert alpha_range(webp, (0, 0, 100, 20)) == (0, 0)
    assert near((255, 255, 255), pixel(jpeg, 50, 5))
    assert near(RED, pixel(jpeg, 20, 40), tolerance=12)


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

    assert {1} == {variant.height for variant in result.variants}


def test_the_size_is_judged_again_by_what_pillow_reads() -> None:
    with pytest.raises(InputRejected) as caught:
        rendered(jpeg_with_a_second_frame_header(900, 900), limits=Limits(max_pixels=10_000))

    assert caught.value.code == "too_many_pixels"


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
