"""Which bytes a picture becomes: the smallest that are true, of what its recipe allows."""

from __future__ import annotations

import dataclasses
import io

import pytest
from PIL import ExifTags, Image, ImageDraw, ImageFile, ImageFont

from imagefleet.imaging import encoding
from imagefleet.imaging.encoding import Encoded, encode, encoder_fingerprint
from imagefleet.imaging.graphics import is_drawn
from imagefleet.imaging.recipes import Encoding, Lossless, Recipe, VariantSpec
from imagefleet.imaging.sizes import Size
from imagefleet.imaging.sources import Origin
from imagefleet.jobs.images import Caveat, ImageFormat
from tests.imaging.likeness import distance
from tests.imaging.rendering import one, rendered
from tests.imaging.test_graphics import page, photo
from tests.support.images import opened, saved, translucent
from tests.support.recipes import RECIPES

AVIF, JPEG, PNG, WEBP = ImageFormat.AVIF, ImageFormat.JPEG, ImageFormat.PNG, ImageFormat.WEBP
EXACT = (PNG, WEBP)
VARIANT = VariantSpec("only", 800, 800, WEBP, 80)
TAKEN = Origin(PNG, Size(4000, 3000), 10**7, drawn=False)
DRAWN = TAKEN._replace(drawn=True)


def made(picture: Image.Image, origin: Origin = DRAWN, **asked: object) -> Encoded:
    return encode(picture, dataclasses.replace(VARIANT, **asked), origin)  # type: ignore[arg-type]


def same(one: Image.Image, other: Image.Image) -> bool:
    """To everybody who looks: what is transparent has no colour."""
    first, second = (picture.convert("RGBA").convert("RGBa") for picture in (one, other))
    return first.size == second.size and first.tobytes() == second.tobytes()


def is_lossless(webp: bytes) -> bool:
    return b"VP8L" in webp[:40]


def chroma_is_whole(jpeg: bytes) -> bool:
    """Whether colours have as many samples as the light, by the frame's header."""
    at = jpeg.index(b"\xff\xc0")
    return jpeg[at + 11] == 0x11


def icon(side: int, mode: str = "RGBA") -> Image.Image:
    """Hand-made: every pixel counts, and some are nearly transparent."""
    picture = Image.new("RGBA", (side, side))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((1, 1, side - 2, side - 2), fill=(200, 30, 60, 255), outline=(20, 20, 90, 128))
    for step in range(side):
        picture.putpixel((step, step), (255 - step, step * 7 % 256, step * 31 % 256, 255 - step))
    return picture.convert(mode)


def neon() -> Image.Image:
    """Letters of one loud colour on another: what goes with a quarter of the colours' samples."""
    picture = Image.new("RGB", (320, 240), "blue")
    draw = ImageDraw.Draw(picture)
    for line in range(6):
        draw.text((9, 9 + 38 * line), "Read me first", "red", ImageFont.load_default(30))
    return picture


@pytest.mark.parametrize("side", [10, 16, 24, 32])
@pytest.mark.parametrize("mode", ["RGBA", "RGB", "L", "P"])
@pytest.mark.parametrize("to", EXACT)
def test_an_icon_comes_out_as_it_went_in(side: int, mode: str, to: ImageFormat) -> None:
    source = saved(icon(side, mode), "PNG")

    _, outputs = rendered(source, one(to, quality=80))

    assert same(opened(outputs["only", to]), opened(source))


def test_a_palette_that_is_not_scaled_stays_as_it_is() -> None:
    few = page().quantize(16, dither=Image.Dither.NONE)
    for source in (saved(few, "PNG"), saved(few, "GIF")):
        for to in EXACT:
            (encoded,) = rendered(source, one(to, width=800, height=800))[1].values()
            assert same(opened(encoded), few)


def test_what_is_drawn_is_encoded_without_loss_where_that_is_smaller() -> None:
    lossless, lossy = made(page()).content, made(page(), TAKEN).content

    assert is_lossless(lossless)
    assert not is_lossless(lossy)
    assert len(lossless) < len(lossy)


def test_what_is_drawn_and_larger_without_loss_loses_some() -> None:
    assert not is_lossless(made(photo()).content)


def test_a_photo_is_encoded_as_it_always_was() -> None:
    for to in (JPEG, WEBP, AVIF):
        out = io.BytesIO()
        photo().save(out, to.name, quality=80, **encoding.ENCODERS[to])
        assert made(photo(), TAKEN, format=to).content == out.getvalue()


@pytest.mark.parametrize("source", ["JPEG", "PNG", "WEBP"])
def test_a_photo_of_any_format_is_not_treated_as_drawn(source: str) -> None:
    photographed = saved(photo(), source)
    recipe = RECIPES["default"]
    never = dataclasses.replace(
        recipe,
        variants=tuple(
            dataclasses.replace(spec, lossless=Lossless.NEVER) for spec in recipe.variants
        ),
    )

    assert rendered(photographed, never)[1] == rendered(photographed, recipe)[1]


def test_it_is_the_source_that_is_recognised_before_scaling_softens_it() -> None:
    """Its edges, scaled, look like a photo's."""
    poster = page(1500, 1000)
    poster.paste(neon().crop((0, 0, 240, 50)), (900, 20))

    _, outputs = rendered(saved(poster, "PNG"), one(JPEG, width=500, height=500, quality=80))
    assert chroma_is_whole(outputs["only", JPEG])
    assert not is_drawn(poster.resize((500, 333), Image.Resampling.LANCZOS), PNG)


def test_whatever_sizes_are_made_of_what_is_drawn_each_is_scaled_once() -> None:
    """Edges that are scaled twice ring, which shows, and takes bytes."""
    small = VariantSpec("small", 200, 200, PNG, 100)
    sizes = [
        dataclasses.replace(small, name=str(side), width=side, height=side) for side in (900, 500)
    ]
    source = saved(page(1500, 1000), "PNG")

    _, beside = rendered(source, Recipe("sizes", (*sizes, small)))
    _, without = rendered(source, Recipe("sizes", (sizes[0], small)))

    assert beside["small", PNG] == without["small", PNG]


@pytest.mark.parametrize("quality", [80, 94, 100])
@pytest.mark.parametrize("origin", [DRAWN, TAKEN])
@pytest.mark.parametrize("size", [(300, 260), (3, 5000)])
def test_noise_has_room_in_a_jpeg(quality: int, origin: Origin, size: tuple[int, int]) -> None:
    noise = Image.merge("RGB", [Image.effect_noise(size, 300) for _ in range(3)])
    block = ImageFile.MAXBLOCK

    content = made(noise, origin, format=JPEG, quality=quality).content

    assert opened(content).size == size
    assert block == ImageFile.MAXBLOCK


def test_a_policy_may_forbid_it() -> None:
    for to in (WEBP, JPEG):
        asked = {"format": to, "lossless": Lossless.NEVER}
        assert made(page(), DRAWN, **asked) == made(page(), TAKEN, format=to)


def test_a_policy_may_ask_for_it_always() -> None:
    encoded = made(photo(), TAKEN, lossless=Lossless.ALWAYS)

    assert is_lossless(encoded.content)
    assert same(opened(encoded.content), photo())


def true(content: bytes, picture: Image.Image) -> bool:
    """As golden pictures are."""
    seen = distance(opened(content), picture)
    return seen.mean <= 4 and seen.worst <= 16


def test_a_jpeg_of_what_is_drawn_keeps_all_its_colours_where_less_would_show() -> None:
    less, drawn = (made(neon(), each, format=JPEG).content for each in (TAKEN, DRAWN))

    assert not true(less, neon())
    assert true(drawn, neon())
    assert chroma_is_whole(drawn)


def test_a_jpeg_of_what_is_drawn_keeps_no_more_of_its_colours_than_is_seen() -> None:
    less, drawn = (made(page(), each, format=JPEG).content for each in (TAKEN, DRAWN))

    assert true(less, page())
    assert drawn == less
    assert not chroma_is_whole(drawn)


@pytest.mark.parametrize("picture", [page(), page().convert("L"), icon(64), photo()])
def test_a_png_is_exact_and_says_nothing_but_pixels(picture: Image.Image) -> None:
    content = made(picture, TAKEN, format=PNG).content

    assert same(opened(content), picture)
    assert set(chunks(content)) <= {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}


def chunks(png: bytes) -> list[bytes]:
    names, at = [], 8
    while at < len(png):
        names.append(png[at + 4 : at + 8])
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return names


def test_a_png_of_few_colours_has_a_palette() -> None:
    few = page().quantize(200).convert("RGB")
    content = made(few, format=PNG).content

    assert opened(content).mode == "P"
    assert len(content) < len(saved(few, "PNG", compress_level=9))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_drawn_png_of_many_colours_is_not_filtered_where_that_is_smaller(mode: str) -> None:
    picture = page().resize((470, 310)).convert(mode)
    drawn, taken = made(picture, format=PNG).content, made(picture, TAKEN, format=PNG).content

    assert same(opened(drawn), picture)
    assert len(drawn) < len(taken)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_a_png_without_filters_is_a_png(mode: str) -> None:
    picture = photo(30, 20).convert(mode)
    words = Image.Exif()
    words[ExifTags.Base.Copyright] = "mine"

    silent = encoding._unfiltered(picture, b"")
    credited = encoding._unfiltered(picture, words.tobytes())

    assert same(opened(silent), picture)
    assert same(opened(credited), picture)
    assert dict(opened(credited).getexif()) == dict(words)
    assert chunks(silent) == [b"IHDR", b"IDAT", b"IEND"]


def test_the_smallest_of_several_formats_is_taken() -> None:
    several = (Encoding(AVIF, 63), Encoding(JPEG, 80), Encoding(PNG, 80))

    for picture, origin in ((photo(), TAKEN), (page(), DRAWN)):
        alone = [
            made(picture, origin, format=to, quality=quality)
            for to, quality in (Encoding(WEBP, 80), *several)
        ]
        chosen = made(picture, origin, or_smaller=several)
        assert chosen == min(alone, key=len)
    assert made(page(), or_smaller=several).format in EXACT


def test_of_a_large_photo_only_the_format_that_is_smallest_in_a_small_copy_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    picture = photo(1000, 800)
    whole = {form: made(picture, TAKEN, format=form) for form in (WEBP, JPEG)}
    sizes: list[tuple[int, int]] = []
    save = encoding.save

    def noted(picture: Image.Image, *rest: object, **options: object) -> bytes:
        sizes.append(picture.size)
        return save(picture, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "save", noted)
    chosen = made(picture, TAKEN, format=JPEG, or_smaller=(Encoding(WEBP, 80),))

    assert chosen == whole[WEBP]
    assert [(250, 200), (250, 200), (1000, 800)] == sizes
    budget = len(chosen) // 2
    within = made(picture, TAKEN, format=JPEG, or_smaller=(Encoding(WEBP, 80),), most_bytes=budget)
    assert within.format is WEBP
    assert len(within) <= budget


def test_what_would_lose_transparency_loses_to_what_keeps_it() -> None:
    picture = translucent(400, 300)
    jpeg = made(picture, TAKEN, format=JPEG)

    for kept in (WEBP, AVIF, PNG):
        chosen = made(picture, TAKEN, format=JPEG, or_smaller=(Encoding(kept, 80),))
        assert (kept, ()) == (chosen.format, chosen.caveats)
    assert jpeg.caveats == (Caveat.ALPHA_FLATTENED,)


def test_a_photo_is_not_even_tried_as_png_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[ImageFormat] = []
    save = encoding.save

    def noted(picture: Image.Image, to: ImageFormat, *rest: object, **options: object) -> bytes:
        tried.append(to)
        return save(picture, to, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "save", noted)
    made(photo(), TAKEN, format=PNG, or_smaller=(Encoding(WEBP, 80),))
    assert tried == [WEBP]
    assert made(photo(), TAKEN, format=PNG).format is PNG


@pytest.mark.parametrize("to", [JPEG, WEBP, AVIF])
def test_quality_goes_down_until_the_bytes_are_within_budget(
    to: ImageFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(photo(), TAKEN, format=to)
    qualities: list[int] = []
    save = encoding.save

    def noted(picture: Image.Image, to: ImageFormat, quality: int, **options: object) -> bytes:
        qualities.append(quality)
        return save(picture, to, quality, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "save", noted)
    budget = len(whole) * 2 // 3
    fitting = made(photo(), TAKEN, format=to, most_bytes=budget)

    assert budget // 2 < len(fitting) <= budget
    assert fitting.caveats == ()
    assert len(qualities) <= 9
    assert made(photo(), TAKEN, format=to, most_bytes=len(whole)) == whole


def test_what_fits_at_no_quality_is_the_smallest_and_says_so() -> None:
    encoded = made(photo(), TAKEN, most_bytes=100)

    assert encoded.caveats == (Caveat.OVER_BUDGET,)
    assert len(encoded) == len(made(photo(), TAKEN, quality=1))
    assert made(photo(), TAKEN, format=PNG, most_bytes=100).caveats == (Caveat.OVER_BUDGET,)


def test_without_loss_comes_first_within_a_budget() -> None:
    exact = made(page())

    assert is_lossless(exact.content)
    assert made(page(), most_bytes=len(exact)) == exact

    small = DRAWN._replace(size=Size(24, 24))  # exact, though that is larger
    whole = made(photo(24, 24), small)
    worse = made(photo(24, 24), small, most_bytes=len(whole) - 1)
    assert (True, False) == (is_lossless(whole.content), is_lossless(worse.content))
    assert worse.caveats == ()


def test_a_budget_never_makes_lossy_what_is_always_lossless() -> None:
    encoded = made(page(), most_bytes=100, lossless=Lossless.ALWAYS)

    assert is_lossless(encoded.content)
    assert encoded.caveats == (Caveat.OVER_BUDGET,)


@pytest.mark.parametrize("to", [WEBP, AVIF])
def test_a_drawn_picture_is_not_larger_than_its_source(to: ImageFormat) -> None:
    """Of the same size and format; its bytes are never passed on."""
    source = made(photo(), TAKEN, format=to, quality=60).content
    origin = Origin(to, Size(*photo().size), len(source), drawn=True)

    encoded = made(opened(source), origin, format=to, quality=80)

    assert len(encoded) <= len(source)
    assert encoded.content != source
    assert len(made(opened(source), origin._replace(drawn=False), format=to)) > len(source)


def test_a_lossless_source_that_took_long_is_not_outgrown() -> None:
    """Only what is drawn and came out larger than such a source is encoded so slowly."""
    slowly = io.BytesIO()
    page().save(slowly, "WEBP", lossless=True, quality=100, method=6)
    source = slowly.getvalue()
    origin = Origin(WEBP, Size(*page().size), len(source), drawn=True)

    encoded = made(opened(source), origin)

    assert is_lossless(encoded.content)
    assert same(opened(encoded.content), page())
    assert len(encoded) <= len(source) < len(made(opened(source)))


def test_what_is_tiny_is_encoded_as_slowly_as_can_be() -> None:
    picture = page().crop((0, 250, 64, 314)).convert("RGBA")
    sizes = [len(saved(picture, "WEBP", lossless=True, quality=100, method=n)) for n in (4, 6)]

    assert len(made(picture)) == sizes[1] < sizes[0]


def test_of_few_colours_a_lossy_source_is_not_outgrown_either() -> None:
    """Otherwise they are exact whatever it takes."""
    source = saved(translucent(), "WEBP")
    recipe = one(WEBP, quality=80)

    (encoded,) = rendered(source, recipe)[1].values()
    (exact,) = rendered(saved(opened(source), "PNG"), recipe)[1].values()

    assert len(encoded) <= len(source) < len(exact)


def test_what_nobody_sees_makes_a_png_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Image.new("RGBA", (300, 300))
    for y in range(300):
        seen.paste((y % 256, 7 * y % 256, 13 * y % 256, 255), (0, y, 300, y + 1))
    for at in range(0, 300, 20):
        seen.paste((0, 0, 0, 0), (at + 5, 0, at + 12, 290))
    carrying = made(seen, TAKEN, format=PNG)

    monkeypatch.setattr(encoding, "carried", lambda picture: picture)
    assert len(carrying) < len(made(seen, TAKEN, format=PNG))
    assert same(opened(carrying.content), seen)


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param(TAKEN._replace(size_bytes=1), id="a photo"),
        pytest.param(DRAWN._replace(size_bytes=1), id="scaled"),
        pytest.param(Origin(PNG, Size(600, 400), 1, drawn=True), id="of another format"),
        pytest.param(Origin(WEBP, Size(600, 400), 10**7, drawn=True), id="smaller than its source"),
    ],
)
def test_nothing_else_is_encoded_slowly(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_SLOWEST", "not to be used")
    assert made(page(), origin)
    assert made(page(), origin, lossless=Lossless.ALWAYS)


def test_no_quality_is_given_up_for_a_source_that_is_smaller_at_half_of_it() -> None:
    tiny = Origin(WEBP, Size(*photo().size), 100, drawn=True)

    assert made(photo(), tiny) == made(photo(), DRAWN)


def test_what_is_very_large_is_encoded_without_being_held_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimised, tried_bare = made(photo(), TAKEN, format=JPEG), made(page(), format=PNG)

    monkeypatch.setattr(encoding, "_MOST_HELD", 1)
    assert len(made(photo(), TAKEN, format=JPEG)) > len(optimised)
    assert len(made(page(), format=PNG)) >= len(tried_bare)
    monkeypatch.setattr(encoding, "_unfiltered", lambda *_: pytest.fail("held twice"))
    made(page(), format=PNG)


@pytest.mark.parametrize("to", [JPEG, PNG, WEBP, AVIF])
def test_the_same_picture_gives_the_same_bytes(to: ImageFormat) -> None:
    for picture in (page(), icon(48)):
        assert made(picture, format=to) == made(picture, format=to)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("DRAWN", {JPEG: {"subsampling": "4:4:4"}}),
        ("LOSSLESS", {"lossless": True}),
        ("ENCODERS", {JPEG: {"optimize": False}}),
        ("_MOST_HELD", 1),
        ("_LARGE", 1),
        ("_GLIMPSE", 2),
        ("_UNSEEN", 1),
        ("_UNSEEN_IN_A_BLOCK", 1),
    ],
)
def test_whatever_encoders_are_told_is_in_the_fingerprint(
    name: str, told: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe("any", (VARIANT,))
    before = encoder_fingerprint(recipe)

    monkeypatch.setattr(encoding, name, told)
    assert encoder_fingerprint(recipe) != before
