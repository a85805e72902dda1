"""S3: one bucket. Nothing is held in memory beyond one part, and every byte is checked on its way."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from botocore.exceptions import ClientError

from imagefleet.aws.calls import Line, answered, unavailable
from imagefleet.aws.parts import PART_BYTES, in_parts
from imagefleet.errors import InputRejected

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import (
        CompletedPartTypeDef,
        HeadObjectOutputTypeDef,
        ObjectIdentifierTypeDef,
    )

CHUNK_BYTES: Final = 256 * 1024
SLOWEST_BYTES_PER_SECOND: Final = 512 * 1024  # a transfer slower than this has failed
MOST_DELETES: Final = 1000  # of one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """What is stored with an object and served with it."""

    content_type: str
    cache_control: str | None = None
    cache_tag: str | None = None
    """Stored as `x-amz-meta-cache-tag`, which the edge takes as the object's tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The object is there, with exactly these bytes."""

    bytes: int
    sha256: str
    etag: str


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """An object of this name exists; it was left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What S3 knows about an object."""

    bytes: int
    etag: str
    content_type: str
    modified_at: datetime
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An object of a listing."""

    key: str
    bytes: int
    etag: str
    modified_at: datetime


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """One version of an object, or a delete marker; None is whatever is current."""

    key: str
    version_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """S3's answers to a deletion. What never existed counts as deleted."""

    deleted: tuple[Version, ...] = ()
    failures: Mapping[Version, str] = field(default_factory=dict)
    """The error code of each that is still there."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a browser or curl posts, as multipart/form-data, with the file as the last field."""

    url: str
    fields: Mapping[str, str]
