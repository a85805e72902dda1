"""Nothing of a file but its pixels leaves: asserted on the bytes that were made, not on intent."""

from __future__ import annotations

import dataclasses

import pytest
from PIL import ExifTags, Image

from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Fit, Lossless, Metadata, Recipe, VariantSpec
from imagefleet.imaging.render import render
from imagefleet.jobs.images import ImageFormat
from tests.support.images import CANARY, grain, opened, quadrants, saved, talkative, with_png_chunk
from tests.support.recipes import RECIPES

# What introduces metadata in the formats we write.
TRACES = [
    CANARY,
    b"Exif",
    b"EXIF",
    b"http://ns.adobe.com",
    b"XMP ",
    b"ICC_PROFILE",
    b"ICCP",
    b"acsp",
]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP", "GIF", "AVIF", "MPO"])
def test_no_word_of_the_source_is_in_any_output(pillow_format: str, recipe: str) -> None:
    source = talkative(pillow_format)
    outputs: list[bytes] = []

    made = render(
        source, RECIPES[recipe], Limits(), lambda _name, _format, data: outputs.append(data)
    )

    assert CANARY in source
    assert len([each for each in made.variants if each.same_as is None]) == len(outputs)
    for encoded in outputs:
        assert not [trace for trace in TRACES if trace in encoded]
        assert not dict(opened(encoded).getexif())
        assert not {"comment", "xmp", "icc_profile", "exif", "photoshop"} & set(
            opened(encoded).info
        )


@pytest.mark.parametrize("quality", [1, 80, 100])
@pytest.mark.parametrize("box", [(300, 200), (100, 200)], ids=["whole", "cut"])
@pytest.mark.parametrize("image_format", ["jpeg", "png", "webp", "avif"])
def test_what_was_rubbed_out_by_opacity_alone_is_not_published(
    image_format: str, box: tuple[int, int], quality: int
) -> None:
    """Its colours are in the file yet, and formats keep them that lose other things."""
    seen = Image.new("RGBA", (300, 200), (10, 120, 200, 255))
    secret = grain(220, 160).convert("RGBA")
    secret.putalpha(0)
    seen.paste(secret, (40, 20))
    spec = VariantSpec(
        "only", *box, ImageFormat(image_format), quality, Fit.COVER, lossless=Lossless.NEVER
    )

    (encoded,) = outputs_of(saved(seen, "PNG"), Recipe("any", (spec,)))

    published = opened(encoded).convert("RGB").crop((48, 32, 80, 160))
    spread = max(high - low for low, high in published.getextrema())  # type: ignore[misc]
    assert spread < 40


def test_the_comment_of_a_gif_is_not_carried_into_a_jpeg() -> None:
    """Pillow hands a picture's comment on to the next file, unless it is told not to."""
    outputs: dict[str, bytes] = {}

    def sink(_name: str, image_format: str, encoded: bytes) -> None:
        outputs[image_format] = encoded

    render(talkative("GIF"), RECIPES["default"], Limits(), sink)

    assert b"\xff\xfe" not in outputs["jpeg"][:400]


ARTIST, COPYRIGHT = ExifTags.Base.Artist, ExifTags.Base.Copyright
CREDITED = Recipe(
    "credited",
    tuple(
        VariantSpec("only", 80, 80, image_format, 80)
        for image_format in (ImageFormat.JPEG, ImageFormat.PNG, ImageFormat.WEBP, ImageFormat.AVIF)
    ),
    metadata=Metadata.COPYRIGHT,
)
XMP = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description>
<dc:rights> <rdf:Alt>
<rdf:li xml:lang="x-default">\u00a9 Ren\u00e9 &amp; Co</rdf:li></rdf:Alt></dc:rights>
<dc:creator><rdf:Seq><rdf:li>Ren\u00e9</rdf:li></rdf:Seq></dc:creator>
<exif:GPSLatitude>48,51.5N</exif:GPSLatitude></rdf:Description></rdf:RDF></x:xmpmeta>""".encode()


def outputs_of(source: bytes, recipe: Recipe = CREDITED) -> list[bytes]:
    outputs: list[bytes] = []
    render(source, recipe, Limits(), lambda _name, _format, data: outputs.append(data))
    return outputs


def stated(encoded: bytes) -> dict[int, str]:
    """Every word of EXIF, in all of its directories, as the UTF-8 that it is."""
    exif = opened(encoded).getexif()
    assert not [exif.get_ifd(ifd) for ifd in ExifTags.IFD if exif.get_ifd(ifd)]
    return {tag: words.encode("latin-1").decode() for tag, words in exif.items()}


def saying(pillow_format: str = "JPEG", **words: str | bytes) -> bytes:
    exif = Image.Exif()
    for tag, said in words.items():
        exif[ExifTags.Base[tag]] = said if isinstance(said, bytes) else said.encode()
    exif[ExifTags.Base.Orientation] = 6
    exif[ExifTags.Base.Model] = exif[ExifTags.Base.ImageDescription] = CANARY.decode()
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSAreaInformation] = CANARY.decode()
    return saved(quadrants(), pillow_format, exif=exif)


@pytest.mark.parametrize("pillow_format", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_artist_and_copyright_are_kept_where_the_recipe_says_so_and_nothing_else(
    pillow_format: str,
) -> None:
    source = saying(pillow_format, Artist="Rene", Copyright="(c) 2024 Rene")

    for encoded in outputs_of(source):
        assert stated(encoded) == {ARTIST: "Rene", COPYRIGHT: "(c) 2024 Rene"}
        assert CANARY not in encoded
        assert opened(encoded).size == (50, 80)
    for encoded in outputs_of(source, dataclasses.replace(CREDITED, metadata=Metadata.NONE)):
        assert stated(encoded) == {}


def test_what_xmp_says_counts_where_exif_is_silent() -> None:
    sources = [saved(quadrants(), name, xmp=XMP) for name in ("JPEG", "WEBP", "AVIF")]
    in_png = b"XML:com.adobe.xmp\0\0\0\0\0" + XMP
    sources.append(with_png_chunk(saved(quadrants(), "PNG"), b"iTXt", in_png))
    for source in sources:
        for encoded in outputs_of(source):
            assert stated(encoded) == {ARTIST: "Ren\u00e9", COPYRIGHT: "\u00a9 Ren\u00e9 & Co"}
            assert b"48,51" not in encoded
    exif = Image.Exif()
    exif[COPYRIGHT] = "mine"
    for encoded in outputs_of(saved(quadrants(), xmp=XMP, exif=exif)):
        assert stated(encoded) == {ARTIST: "Ren\u00e9", COPYRIGHT: "mine"}


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b"Ren\xe9", "Ren\u00e9"),  # not UTF-8, so it can only be what a camera of 2003 wrote
        (b"  two\0editors\r\n\x1b[2J ", "two editors [2J"),
        ("right\u202eleft\u200bno\ufeff", "right left no"),
        ("x" * 10_000, "x" * 512),
        (b"\0\x01 \t", None),
        ("<script>", "<script>"),
    ],
)
def test_words_are_cut_and_what_does_not_print_is_taken_out(
    said: str | bytes, kept: str | None
) -> None:
    for encoded in outputs_of(saying(Copyright=said)):
        assert stated(encoded) == ({} if kept is None else {COPYRIGHT: kept})


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0of another kind",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x98\x82\x05\0\x01\0\0\0\x1a\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x98\x82\x02\0\xff\xff\xff\x7f\x1a\0\0\0",
    ],
    ids=["no header", "broken", "a number", "beyond its end"],
)
def test_a_credit_that_cannot_be_read_is_none(exif: bytes) -> None:
    for encoded in outputs_of(saved(quadrants(), exif=exif)):
        assert stated(encoded) == {}


def test_words_that_pillow_chokes_on_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def choking(_picture: Image.Image) -> bytes:
        raise SyntaxError("not a TIFF file")  # noqa: TRY003 - as Pillow says it

    monkeypatch.setattr("imagefleet.imaging.steps.credit_of", choking)

    for encoded in outputs_of(saying(Copyright="mine")):
        assert stated(encoded) == {}
