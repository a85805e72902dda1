"""Images, uploads and targets, as their producers may see them."""

from datetime import datetime, timedelta
from typing import Final, Literal, Self
from uuid import UUID

from imagefleet.jobs.images import Focal, ImageStatus
from imagefleet.jobs.shapes.edge import Deletion
from imagefleet.jobs.shapes.jobs import Failure, JobView
from imagefleet.jobs.shapes.pictures import (
    Layout,
    PictureSource,
    Placeholder,
    VariantView,
    by_format,
    snippet,
    sources_of,
    srcset,
)
from imagefleet.jobs.shapes.shape import Row, Shape


class Source(Shape):
    """What was uploaded."""

    format: str
    width: int
    height: int
    bytes: int


class KeptOriginal(Shape):
    """The file that an image is made of: since when it is ours, and how long it will be."""

    accepted_at: datetime
    kept_until: datetime | None = None
    gone: bool | None = None

    def kept_for(self, span: timedelta | None) -> Self:
        """With the end of it, if it has one."""
        if span is None or self.gone:
            return self
        return self.model_copy(update={"kept_until": self.accepted_at + span})


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
    created_at: datetime | None = None  # of an API of the release before, none
    reference: str | None = None
    revision: int | None = None
    recipe: str | None = None
    recipe_hash: str | None = None
    source: Source | None = None
    original: KeptOriginal | None = None
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

    def at(
        self,
        base_url: str,
        deletion: Deletion | None = None,
        kept_for: timedelta | None = None,
    ) -> Self:
        """With the addresses that it is published at, or what became of it.

        And until when its original is kept, where that is not for as long as the image itself.
        """
        variants = [variant.at(base_url) for variant in self.variants]
        formats = self._by_format(variants)
        sources = srcset(sources_of(formats))
        told = {
            "srcset": srcset(formats),
            "original": self.original and self.original.kept_for(kept_for),
            "sources": tuple(PictureSource(type=of, srcset=each) for of, each in sources.items()),
        }
        return self.model_copy(update={"variants": variants, "deletion": deletion, **told})

    def _by_format(self, variants: list[VariantView]) -> list[list[VariantView]]:
        source = self.source
        return by_format(variants, (source.width, source.height) if source else (0, 0))

    def on_a(self, page: Layout) -> Self:
        """With a `<picture>` for a page, where there is one to show."""
        sources = sources_of(self._by_format(self.variants))
        if not sources:
            return self
        html = snippet(sources, self.placeholder or Placeholder(), page)
        return self.model_copy(update={"html": html})


class ImagePage(Shape):
    """Images, newest first."""

    images: list[ImageView]
    next_cursor: UUID | None = None


class OverseenImage(ImageView):
    """An image in a list of operators."""

    tenant: str


class OverseenImagePage(Shape):
    """Images of any tenant, newest first."""

    images: list[OverseenImage]
    next_cursor: UUID | None = None


class RevisionOfImage(Source):
    """A version of an image that was published: what it was made of, and until when it is kept."""

    revision: int
    source_seq: int
    job_id: UUID
    recipe: str
    recipe_hash: str | None = None
    focal_point: FocalPoint | None = None
    published_at: datetime
    superseded_at: datetime | None = None
    swept_at: datetime | None = None

    @classmethod
    def of(cls, row: Row) -> Self:
        """With the point that it was cut around."""
        focal = Focal.of(row["focal_x"], row["focal_y"])
        point = focal and FocalPoint(x=focal.x, y=focal.y)
        return super().of(dict(row) | {"focal_point": point})


class OriginalOfImage(Shape):
    """A file that an image was given; `source_seq` names it beside the image."""

    source_seq: int
    accepted_at: datetime
    content_type: str
    bytes: int
    width: int | None = None
    height: int | None = None
    sha256: str | None = None
    gone_at: datetime | None = None


class WholeImage(OverseenImage):
    """Everything about one image, with its past."""

    revisions: list[RevisionOfImage]
    originals: list[OriginalOfImage]
    cuts: bool | None = None
    """Whether its recipe cuts anything; absent where this API has not that version of it."""


class UploadView(Shape):
    """Leave to post one file to S3: a form whose last field is the file."""

    upload_id: UUID
    image_id: UUID
    url: str
    fields: dict[str, str]
    max_bytes: int
    expires_at: datetime


class OriginalView(Shape):
    """Leave to read an original from S3, as a download."""

    image_id: UUID
    url: str
    expires_at: datetime
    content_type: str
    bytes: int
    sha256: str | None = None
    accepted_at: datetime
    kept_until: datetime | None = None


BY_POLICY: Final = "policy"  # as the trigger of a failed job writes it


class TargetPause(Shape):
    """Why nothing at a target runs. What operators say to each other is theirs."""

    by: Literal["tenant", "failure", "operators"]
    reason: str | None = None
    paused_by: str | None = None
    paused_at: datetime

    @classmethod
    def of(cls, row: Row) -> Self:
        """Whose it is decides what is told of it."""
        if row["of_tenant"]:
            whose: Literal["tenant", "failure"] = "tenant"
        elif row["paused_by"] == BY_POLICY:
            whose = "failure"
        else:
            return cls(by="operators", paused_at=row["paused_at"])
        by = row["paused_by"] if row["of_tenant"] else None
        return cls(by=whose, reason=row["reason"], paused_by=by, paused_at=row["paused_at"])


class TargetView(Shape):
    """A target, and a page of its open jobs, in the order that they run in."""

    target: str
    pause: TargetPause | None = None
    jobs: list[JobView]
    next_cursor: int | None = None


class TargetState(Shape):
    """Whether a target is paused, after somebody has asked for that."""

    target: str
    pause: TargetPause | None = None
