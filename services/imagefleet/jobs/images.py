"""What an image is to the fleet: where its objects lie, and what a rendering publishes.

A revision belongs to exactly one rendering job: it is that job's place in the order of its image.
Its objects lie under `i/{image_id}/{revision}.{claim_no}/`, so that no two claims ever write the
same key: a worker that lost its claim can only litter. What counts is the pointer in Postgres, and
it is flipped by the statement that completes the job.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Self, TypeAlias
from uuid import UUID

from imagefleet.jobs.model import JobId, TenantId

IMMUTABLE: Final = "public, max-age=31536000, immutable"
REDIRECT_MAX_AGE: Final = timedelta(seconds=5)  # of a stable address, for whom nobody can tell


class ImageStatus(StrEnum):
    """What is shown of an image, or else what its last job came to."""

    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"
    DELETED = "deleted"


class ImageFormat(StrEnum):
    """What pictures are read; all but GIF may be made, too."""

    JPEG = "jpeg"
    PNG = "png"
    WEBP = "webp"
    GIF = "gif"
    AVIF = "avif"

    @property
    def mime_type(self) -> str:
        return f"image/{self.value}"

    @property
    def extension(self) -> str:
        return "jpg" if self is ImageFormat.JPEG else self.value


class Caveat(StrEnum):
    """What a variant could not keep of its source: the vocabulary of every `warnings` list."""

    NOT_ENLARGED = "not_enlarged"  # the source is smaller than the box
    ALPHA_FLATTENED = "alpha_flattened"  # the format has no transparency; white shows through
    ANIMATION_FLATTENED = "animation_flattened"  # the first frame alone
    EXTRA_PICTURES_DROPPED = "extra_pictures_dropped"  # stereo pairs, previews, depth (MPO)
    GAIN_MAP_DROPPED = "gain_map_dropped"  # the HDR half of the picture
    DEPTH_REDUCED = "depth_reduced"  # to 8 bits a sample
    PROFILE_BROKEN = "profile_broken"  # taken as untagged
    PROFILE_MISMATCH = "profile_mismatch"  # made for another kind of picture; taken as untagged
    PROFILE_TOO_LARGE = "profile_too_large"  # taken as untagged
    CMYK_WITHOUT_PROFILE = "cmyk_without_profile"  # colours are a guess
    TRUNCATED = "truncated"  # it ends long before its pixels do; what is missing is grey
    OVER_BUDGET = "over_budget"  # larger than its recipe wants, at whatever quality
    IRREGULAR_FILE = "irregular_file"  # the decoder complained and went on, or could not have


class Focal(NamedTuple):
    """The point of a picture that is kept when it is cut, as shares of its width and height."""

    x: float
    y: float

    @classmethod
    def of(cls, x: float | None, y: float | None) -> Self | None:
        """As columns have it: both, or neither."""
        return None if x is None or y is None else cls(x, y)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFacts:
    """What is so of one encoded picture; width and height are upright."""

    format: ImageFormat
    width: int
    height: int
    bytes: int
    sha256: str = ""
    """Measured where the files are checked; who made them is not asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts(PictureFacts):
    """What came in; frames are None where they were not counted, or are more than a thousand."""

    frames: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderFacts:
    """What is shown until the picture is there."""

    thumbhash: str  # base64
    color: str  # #rrggbb


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFacts(PictureFacts):
    """One encoded output."""

    name: str
    content_type: str
    warnings: tuple[Caveat, ...] = ()
    same_as: str | None = None
    """The variant of this format, before it in the recipe, whose file is this one's, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """What a rendering tells of all that it read and made, over the border and into the tables."""

    source: SourceFacts
    placeholder: PlaceholderFacts
    variants: tuple[VariantFacts, ...]


def original_key(image_id: UUID, upload_id: UUID) -> str:
    """Where an uploaded original lies, in the bucket of originals; never served."""
    return f"{originals_prefix(image_id)}{upload_id}"


def preview_key(image_id: UUID, source_seq: int) -> str:
    """Where operators' picture of an original lies, beside that one, until it is swept."""
    return f"{originals_prefix(image_id)}preview-{source_seq}.webp"


def revision_prefix(image_id: UUID, revision: int, claim_no: int) -> str:
    """The folder that one claim of one rendering job writes to, in the bucket of outputs."""
    return f"{outputs_prefix(image_id)}{revision}.{claim_no}/"


def variant_key(image_id: UUID, revision: int, claim_no: int, name: str, extension: str) -> str:
    """The immutable key of one variant; with a host before it, its URL."""
    return f"{revision_prefix(image_id, revision, claim_no)}{name}.{extension}"


def stable_path(image_id: UUID, name: str, extension: str) -> str:
    """The path that always leads to the current revision of a variant."""
    return f"{outputs_prefix(image_id)}current/{name}.{extension}"


def cache_tag(image_id: UUID) -> str:
    """One tag for all that an image ever published: one path of an invalidation forgets it."""
    return f"img-{image_id}"


def originals_prefix(image_id: UUID) -> str:
    """Below which all originals of an image lie."""
    return f"o/{image_id}/"


def outputs_prefix(image_id: UUID) -> str:
    """Below which everything lies that was ever made of an image, litter included."""
    return f"i/{image_id}/"


_IMAGE: Final = "image:"


def image_target(image_id: UUID) -> str:
    """Return the target of all jobs of one image."""
    return f"{_IMAGE}{image_id}"


def image_of_target(target: str | None) -> UUID | None:
    """The image that a job of this target is about, if it is about one."""
    if target is None or not target.startswith(_IMAGE):
        return None
    try:
        return UUID(target.removeprefix(_IMAGE))
    except ValueError:
        return None  # somebody else's target


_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FILE: Final = r"[A-Za-z0-9_-]{1,64}\.[a-z0-9]{1,8}"
_OUTPUT: Final = re.compile(rf"i/({_UUID})/([0-9]{{1,18}})\.([0-9]{{1,18}})/{_FILE}")
_ORIGINAL: Final = re.compile(rf"o/({_UUID})/{_UUID}")
_PREVIEW: Final = re.compile(rf"o/({_UUID})/preview-[0-9]{{1,19}}\.webp")
_DASHES: Final = frozenset({8, 13, 18, 23})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKey:
    """Whose an object in the bucket of outputs is, by its key."""

    image_id: UUID
    revision: int
    claim_no: int


def parse_output_key(key: str) -> OutputKey | None:
    """Read a key of `variant_key`; None: it is none of ours."""
    match = _OUTPUT.fullmatch(key)
    if match is None:
        return None
    return OutputKey(image_id=UUID(match[1]), revision=int(match[2]), claim_no=int(match[3]))


def is_original_key(key: str) -> bool:
    """Whether this is a key of `original_key`."""
    return _ORIGINAL.fullmatch(key) is not None


def is_preview_key(key: str) -> bool:
    """Whether this is a key of `preview_key`."""
    return _PREVIEW.fullmatch(key) is not None


def image_at(key: str) -> UUID:
    """The place of a key, of any form below `i/` or `o/`, in the order of images.

    Images before this one have only keys before this key; of those with keys behind it, at most
    this one is not behind it itself.
    """
    name, text = key[2:38], ""
    for at, char in enumerate(name):
        allowed = "-" if at in _DASHES else "0123456789abcdef"
        if char in allowed:
            text += char
            continue
        above = [digit for digit in allowed if digit > char]
        return _padded(text + above[0], "0") if above else _padded(text, "f")
    return _padded(text, "0")


def _padded(text: str, digit: str) -> UUID:
    return UUID(text.replace("-", "").ljust(32, digit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A file that a producer uploaded, as it is stored."""

    key: str
    bytes: int
    content_type: str
    etag: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource(Original):
    """An original and what is to be made of it."""

    image_id: UUID
    recipe: str = "default"
    recipe_hash: str | None = None
    """The version of the recipe; releases before this one know of none."""
    focal: Focal | None = None
    width: int | None = None
    """As its header says, and before it is turned; None where that goes on too long."""
    height: int | None = None
    animated: bool | None = None
    """None: that was looked at where it came in, and is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSource(ImageSource):
    """An original that is about to be accepted with its job."""

    tenant_id: TenantId
    reference: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVariant:
    """One variant that was stored."""

    key: str
    facts: VariantFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What there is of one rendering, or what of it is taken over by another."""

    source: SourceFacts
    placeholder: PlaceholderFacts
    variants: tuple[PublishedVariant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Everything one rendering made; it becomes visible when its job completes, or never."""

    job_id: JobId
    claim_no: int
    image_id: UUID
    tenant_id: TenantId
    source_seq: int
    revision: int
    recipe: str
    recipe_hash: str
    focal: Focal | None = None
    """What it was cut around, where it was cut."""
    encoder: str
    source: SourceFacts
    placeholder: PlaceholderFacts
    variants: tuple[PublishedVariant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptied:
    """S3 has nothing of an image any more, in no version; what it answered on the way."""

    image_id: UUID
    tenant_id: TenantId
    deleted: int
    """Keys that were there."""
    not_there: int | None
    """Keys that Postgres names and S3 did not have; None where there were too many to tell."""
    errors: int
    """Refusals of single keys, each of which was asked again until it was deleted."""
    keys: tuple[str, ...]
    """Those that were deleted, the first of them if they were many."""


Bucket: TypeAlias = Literal["outputs", "originals"]

PREFIXES: Final[dict[Bucket, str]] = {"outputs": "i/", "originals": "o/"}
