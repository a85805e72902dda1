"""What a page needs to show an image: what belongs into `srcset`, and a whole `<picture>`."""

from html.parser import HTMLParser

import pytest

from imagefleet.imaging.recipes import VariantSpec
from imagefleet.imaging.sizes import Size, scaled
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.shapes.pictures import (
    Layout,
    Placeholder,
    VariantView,
    by_format,
    snippet,
    sources_of,
    srcset,
)

PLAIN = Layout()
OPAQUE = Placeholder(thumbhash="IPgJNYxwh4eKeIh3eHh4iHiPCAd4", color="#aabbcc")
WITH_ALPHA = Placeholder(thumbhash="oNiFFIY4gIZJeImId/jogFN1ePiHeHeICA==", color="#aabbcc")
WIDE = (1920, 1280)


def made(
    name: str, form: str, width: int, height: int, *, picture: str | None = None
) -> VariantView:
    return VariantView(
        name=name, format=form, width=width, height=height, bytes=1, warnings=[],
        url=f"{picture or name}.{form}", stable_url=f"current/{name}.{form}",
    )  # fmt: skip


def test_a_srcset_is_of_the_whole_picture_each_once_and_the_best_type_comes_first() -> None:
    source = (601, 1003)
    variants = [
        each
        for form in ("jpeg", "webp", "avif")
        for each in (
            made("square", form, 200, 200),
            made("thumb", form, 120, 200),
            made("padded", form, 400, 400),
            made("small", form, 383, 640),
            made("large", form, 601, 1003),
            made("larger", form, 601, 1003, picture="large"),
        )
    ]

    told = srcset(by_format(variants, source))

    assert list(told) == ["image/avif", "image/webp", "image/jpeg"]
    assert told["image/avif"] == "thumb.avif 120w, small.avif 383w, large.avif 601w"


@pytest.mark.parametrize(("width", "height"), [(601, 1003), (1003, 601), (9000, 7), (7, 9000)])
def test_whatever_its_shape_a_scaled_picture_is_whole(width: int, height: int) -> None:
    variants = (VariantSpec(str(n), n, n, ImageFormat.WEBP, 80) for n in (50, 99, 200, 1000))
    sizes = {scaled(Size(width, height), variant) for variant in variants}
    shown = [made("x".join(map(str, size)), "webp", *size) for size in sizes]
    cut = made("cut", "webp", 40, 40)

    told = srcset(by_format([cut, *shown], (width, height)))

    widths = {entry.split(" ")[1] for entry in told["image/webp"].split(", ")}
    assert {f"{size.width}w" for size in sizes} == widths


def test_where_all_are_cut_all_are_in_the_srcset() -> None:
    source = (400, 300)

    told = srcset(
        by_format([made("square", "webp", 200, 200), made("tiny", "webp", 50, 50)], source)
    )

    assert told == {"image/webp": "tiny.webp 50w, square.webp 200w"}


class Read(HTMLParser):
    """The tags of a snippet with their attributes, as a browser reads them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs))
        self.tags.append((tag, dict(attrs)))


def shown(
    variants: list[VariantView], page: Layout = PLAIN, placeholder: Placeholder = OPAQUE
) -> list[tuple[str, dict[str, str | None]]]:
    return Read(snippet(sources_of(by_format(variants, WIDE)), placeholder, page)).tags


BOTH = [
    each
    for form in ("jpeg", "webp")
    for each in (made("small", form, 640, 427), made("large", form, 1920, 1280))
]


def test_a_snippet_offers_the_best_type_first_and_says_how_much_room_the_picture_takes() -> None:
    picture, source, image = shown(BOTH)

    assert picture == ("picture", {})
    sizes = "(min-width: 1920px) 1920px, 100vw"
    assert source == (
        "source",
        {
            "type": "image/webp",
            "srcset": "current/small.webp 640w, current/large.webp 1920w",
            "sizes": sizes,
        },
    )
    assert image == (
        "img",
        {
            "src": "current/large.jpeg",
            "srcset": "current/small.jpeg 640w, current/large.jpeg 1920w",
            "sizes": sizes,
            "width": "1920",
            "height": "1280",
            "alt": "",
            "loading": "lazy",
            "decoding": "async",
            "data-thumbhash": "IPgJNYxwh4eKeIh3eHh4iHiPCAd4",
            "data-color": "#aabbcc",
        },
    )


def test_whatever_a_page_says_of_itself_stays_within_its_attribute() -> None:
    bad = "\"><script>alert(1)</script> & '"

    picture, source, image = shown(BOTH, Layout(bad, bad, "eager", "immutable"))

    assert (source[1]["sizes"], image[1]["sizes"], image[1]["alt"]) == (bad, bad, bad)
    assert (picture[0], source[0], image[0]) == ("picture", "source", "img")
    assert image[1]["src"] == "large.jpeg"
    assert "loading" not in image[1]
    assert image[1]["fetchpriority"] == "high"


def test_a_picture_that_lets_shine_through_has_no_colour_behind_it() -> None:
    *_, (_, image) = shown(BOTH, placeholder=WITH_ALPHA)

    assert image["data-thumbhash"] == WITH_ALPHA.thumbhash
    assert "data-color" not in image


def test_without_a_placeholder_a_snippet_has_none() -> None:
    *_, (_, image) = shown(BOTH, placeholder=Placeholder())

    assert {name for name in image if name.startswith("data-")} == set()


def test_a_type_without_the_widest_picture_is_no_source() -> None:
    # A browser that takes it would never see more than what it has.
    icons = [made("small", "png", 640, 427), *BOTH]

    assert list(srcset(sources_of(by_format(icons, WIDE)))) == ["image/webp", "image/jpeg"]
    assert list(srcset(by_format(icons, WIDE))) == ["image/webp", "image/png", "image/jpeg"]


def test_one_type_alone_is_an_image_in_a_picture() -> None:
    assert [tag for tag, _ in shown([made("large", "webp", 1920, 1280)])] == ["picture", "img"]
