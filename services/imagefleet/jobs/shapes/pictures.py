"""The pictures that an image is published as, and what a page needs to show the right one of them.

A browser takes the first `<source>` whose type it knows, and of that the width that its layout and
screen ask for; so the order of the sources is the choice of the format.
"""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Final, Literal, NamedTuple, Self

from imagefleet.jobs.images import ImageFormat, stable_path
from imagefleet.jobs.shapes.shape import Row, Shape

Addresses = Literal["stable", "immutable"]
Loading = Literal["lazy", "eager"]


class Placeholder(Shape):
    """What to show until the image is there."""

    thumbhash: str | None = None
    color: str | None = None

    @property
    def is_opaque(self) -> bool:
        """Whether nothing of the picture lets shine through what is behind it."""
        told = base64.b64decode(self.thumbhash or "")
        return len(told) > 2 and not told[2] & 0x80  # noqa: PLR2004 - the last bit of its head


class VariantView(Shape):
    """One made image."""

    name: str
    format: str
    width: int
    height: int
    bytes: int
    url: str
    stable_url: str
    warnings: list[str]

    @classmethod
    def of(cls, row: Row) -> Self:
        """With paths for addresses: where images are published, a row does not know."""
        path = stable_path(row["image_id"], row["name"], ImageFormat(row["format"]).extension)
        return super().of(dict(row) | {"url": row["key"], "stable_url": path})

    def at(self, base_url: str) -> Self:
        """With the addresses that it is published at."""
        urls = {"url": f"{base_url}/{self.url}", "stable_url": f"{base_url}/{self.stable_url}"}
        return self.model_copy(update=urls)


class PictureSource(Shape):
    """One `<source>` of a `<picture>`."""

    type: str
    srcset: str


class Layout(NamedTuple):
    """How a page shows an image."""

    alt: str = ""
    sizes: str | None = None
    loading: Loading = "lazy"
    addresses: Addresses = "stable"


_BEST_FIRST: Final = ("avif", "webp", "png", "jpeg")


def by_format(variants: Sequence[VariantView], source: tuple[int, int]) -> list[list[VariantView]]:
    """What browsers choose from: the best format first, of each one variant a width.

    A browser goes by width alone: beside those of the whole picture none that is cut or padded.
    """
    width, height = source
    most_off = max(width, height)  # less is a fraction of a pixel
    whole = [made for made in variants if abs(made.width * height - made.height * width) < most_off]
    ranked = sorted(whole or variants, key=lambda made: _BEST_FIRST.index(made.format))
    formats = []
    for _, alike in groupby(ranked, key=lambda made: made.format):
        widths: dict[int, VariantView] = {}
        for variant in alike:
            widths.setdefault(variant.width, variant)
        formats.append([widths[width] for width in sorted(widths)])
    return formats


def srcset_of(variants: Sequence[VariantView], addresses: Addresses = "immutable") -> str:
    """What belongs into a `srcset`."""
    return ", ".join(f"{_address(made, addresses)} {made.width}w" for made in variants)


def sources_of(formats: Sequence[list[VariantView]]) -> list[list[VariantView]]:
    """Those formats that `<source>`s may be: of what ends sooner nothing wider would be seen."""
    widest = max((made[-1].width for made in formats), default=0)
    return [made for made in formats if made[-1].width == widest]


def srcset(formats: Sequence[list[VariantView]]) -> dict[str, str]:
    """The same of each format, by type and in their order."""
    return {f"image/{made[0].format}": srcset_of(made) for made in formats}


def snippet(sources: Sequence[list[VariantView]], placeholder: Placeholder, page: Layout) -> str:
    """The `<picture>` of these sources, for a page to have as it is; all of it is escaped.

    Nothing of it is a style or a script, which many a page's policy refuses: what is shown until
    the picture is there are data, and a rule of the page's own makes them visible.
    """
    widest = sources[-1][-1]
    sizes = page.sizes or f"(min-width: {widest.width}px) {widest.width}px, 100vw"
    *others, fallback = ({"srcset": srcset_of(made, page.addresses)} for made in sources)
    html = "<picture>"
    for made, told in zip(sources, others, strict=False):
        html += _tag("source", {"type": f"image/{made[0].format}", **told, "sizes": sizes})
    lazy = page.loading == "lazy"
    image = {
        "src": _address(widest, page.addresses),
        **fallback,
        "sizes": sizes,
        "width": widest.width,
        "height": widest.height,
        "alt": page.alt,
        "loading": "lazy" if lazy else None,
        "fetchpriority": None if lazy else "high",
        "decoding": "async",
        "data-thumbhash": placeholder.thumbhash,
        # Behind a picture that is not opaque it would be seen for ever.
        "data-color": placeholder.color if placeholder.is_opaque else None,
    }
    return f"{html}{_tag('img', image)}</picture>"


def _address(variant: VariantView, addresses: Addresses) -> str:
    return variant.url if addresses == "immutable" else variant.stable_url


def _tag(name: str, attributes: Mapping[str, str | int | None]) -> str:
    told = (f' {at}="{escape(str(is_))}"' for at, is_ in attributes.items() if is_ is not None)
    return f"<{name}{''.join(told)}>"
