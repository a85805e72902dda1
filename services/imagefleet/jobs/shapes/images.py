"""Images and uploads, as their producers may see them."""

from datetime import datetime
from typing import Self
from uuid import UUID

from imagefleet.jobs.images import Focal, ImageStatus
from imagefleet.jobs.shapes.edge import Deletion
from imagefleet.jobs.shapes.jobs import Failure
from imagefleet.jobs.shapes.pictures import (
    Layout,
    PictureSource,
    Placeholder,
    Source,
    VariantView,
    by_format,
    snippet,
    sources_of,
    srcset,
)
from imagefleet.jobs.shapes.shape import Row, Shape


class FocalPoint(Shape):
    """What is kept where the picture is cut, as shares of its width and height."""

    x: float
    y: float


class ImageView(Shape):
    """An image, as its producer may see it."""

    image_id: UUID
    status: ImageStatus
    failure: Failure | None = None
    """Why its last job failed, also while what was made before is shown."""
    job_id: UUID | None = None
    """The last of its jobs, as long as that is kept."""
    created_at: datetime
    reference: str | None = None
    revision: int | None = None
    recipe: str | None = None
    recipe_hash: str | None = None
    source: Source | None = None
    placeholder: Placeholder | None = None
    focal_point: FocalPoint | None = None  # of what is shown, or, before that, as asked for
    variants: list[VariantView]
    srcset: dict[str, str]
    sources: tuple[PictureSource, ...] = ()
    html: str | None = None
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
        formats = by_format(variants, self.source)
        sources = srcset(sources_of(formats))
        told = {
            "srcset": srcset(formats),
            "sources": tuple(PictureSource(type=of, srcset=each) for of, each in sources.items()),
        }
        return self.model_copy(update={"variants": variants, "deletion": deletion, **told})

    def on_a(self, page: Layout) -> Self:
        """With a `<picture>` for a page, where there is one to show."""
        sources = sources_of(by_format(self.variants, self.source))
        if not sources:
            return self
        html = snippet(sources, self.placeholder or Placeholder(), page)
        return self.model_copy(update={"html": html})


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
