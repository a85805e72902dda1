"""Images and uploads, as their producers may see them."""

from datetime import datetime
from typing import Final, Self
from uuid import UUID

from imagefleet.jobs.images import Focal, ImageFormat, stable_path
from imagefleet.jobs.shapes.edge import Deletion
from imagefleet.jobs.shapes.shape import Row, Shape


class Source(Shape):
    """What was uploaded."""

    format: str
    width: int
    height: int
    bytes: int


class Placeholder(Shape):
    """What to show until the image is there."""

    thumbhash: str | None = None
    color: str | None = None


class FocalPoint(Shape):
    """What is kept where the picture is cut, as shares of its width and height."""

    x: float
    y: float


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


class ImageView(Shape):
    """An image, as its producer may see it."""

    image_id: UUID
    status: str
    reference: str | None = None
    revision: int | None = None
    recipe: str | None = None
    recipe_hash: str | None = None
    source: Source | None = None
    placeholder: Placeholder | None = None
    focal_point: FocalPoint | None = None  # of what is shown, or, before that, as asked for
    variants: list[VariantView]
    srcset: dict[str, str]
    deletion: Deletion | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """As far as a row knows: `at` completes the addresses."""
        shown = Placeholder(thumbhash=row["thumbhash"], color=row["color"])
        focal = Focal.of(row["focal_x"], row["focal_y"])
        told: dict[str, object] = {
            "focal_point": focal and FocalPoint(x=focal.x, y=focal.y),
            "placeholder": None if shown == Placeholder() else shown,
            "variants": [VariantView.of(made) for made in row["variants"]],
            "srcset": {},
        }
        return super().of(dict(row) | told)

    def at(self, base_url: str, deletion: Deletion | None = None) -> Self:
        """With the addresses that it is published at, or what became of it."""
        variants = [variant.at(base_url) for variant in self.variants]
        more = {"variants": variants, "srcset": srcset(variants, self.source), "deletion": deletion}
        return self.model_copy(update=more)


_BEST_FIRST: Final = ("avif", "webp", "png", "jpeg")


def srcset(variants: list[VariantView], source: Source | None) -> dict[str, str]:
    """What belongs into `srcset`, by type, the best first; of one width only the first.

    A browser goes by width alone: beside those of the whole picture none that is cut or padded.
    """
    width, height = (source.width, source.height) if source else (0, 0)
    most_off = max(width, height)  # less is a fraction of a pixel
    whole = [one for one in variants if abs(one.width * height - one.height * width) < most_off]
    by_type: dict[str, dict[int, str]] = {}
    for variant in sorted(whole or variants, key=lambda made: _BEST_FIRST.index(made.format)):
        widths = by_type.setdefault(f"image/{variant.format}", {})
        widths.setdefault(variant.width, variant.url)
    return {
        media_type: ", ".join(f"{url} {width}w" for width, url in sorted(widths.items()))
        for media_type, widths in by_type.items()
    }


class ImagePage(Shape):
    """Images, newest first."""

    images: list[ImageView]
    next_cursor: UUID | None = None


class UploadView(Shape):
    """Leave to post one file to S3: a form whose last field is the file."""

    upload_id: UUID
    image_id: UUID
    url: str
    fields: dict[str, str]
    max_bytes: int
    expires_at: datetime
