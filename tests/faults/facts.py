"""What a run is judged by: plain values, with nothing of the product in them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One request that a client made, and how it ended for the client."""

    tenant: str
    key: str | None
    asked: str
    """The client's own digest of everything it asked for."""
    outcome: Literal["ok", "fail", "info"]
    """`info`: no answer came, so nobody knows."""
    status: int | None = None
    job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    id: str
    tenant: str
    type: str
    state: str
    claim_no: int
    attempts: int
    max_attempts: int
    due: bool
    idempotency_key: str | None = None
    has_origin: bool = False
    """A replay, a follow-up or a deletion: no client posted it as such."""
    image: str | None = None
    target_seq: int | None = None
    result_reason: str | None = None
    failure_code: str | None = None
    ending: str | None = None
    """A digest of the terminal columns as they are now."""
    has_dead_letter: bool = False
    flagged: bool = False
    """Somebody asked that it stop: then it is claimed at once, to be ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of a job's state, claim or owner, in the order of the rows' locks."""

    job_id: str
    old: str | None
    new: str
    claim_no: int
    worker: str | None
    role: str
    at: float
    lock_age: float | None = None
    """Of the lock that a takeover replaced."""
    run_at: float | None = None
    ending: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    job_id: str
    claim_no: int
    worker: str
    claimed_at: float
    ended_at: float
    charged: bool
    outcome: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of what was published."""

    job_id: str
    claim_no: int
    key: str
    width: int
    height: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """One object of the bucket of outputs, fetched and decoded."""

    key: str
    bytes: int
    sha256: str
    modified_at: float
    width: int | None
    height: int | None
    """None where it could not be decoded."""
    talks: bool
    """It carries EXIF, XMP or a comment."""
    cache_control: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything a verdict is made of. Times are seconds, the database's but for `modified_at`."""

    posts: Sequence[Post]
    jobs: Sequence[Job]
    events: Sequence[Event]
    attempts: Sequence[Attempt]
    rings: Mapping[str, float]
    """Job to the time its ring has been due for; negative is not yet."""
    targets: Mapping[str, str]
    """Image to the job that its target says is running."""
    variants: Sequence[Variant]
    objects: Sequence[Object]
    originals: Sequence[str]
    """Keys in the bucket of originals."""
    sources: Mapping[str, str]
    """Key of an original to the image it is of."""
    ledger: Mapping[str, int]
    deleted: Sequence[str] = ()
    """Images whose objects are said to be deleted."""
    letters: Sequence[str] = ()
    """The jobs that dead letters are about, one for each letter."""
    messages: Mapping[str, int] = field(default_factory=dict)
    """By queue and kind: `fast`, `fastNotVisible`, `fastDelayed`, and so on."""
    waited: bool = False
    """Every message had time to come back before they were counted: what is left is left over."""
    lock_timeout: float = 600.0
    backoff_base: float = 30.0
    backoff_cap: float = 3600.0
    variants_each: int = 10
    ring_overdue_after: float = 60.0


def dumped(facts: Facts) -> str:
    return json.dumps(asdict(facts), indent=1)


def loaded(text: str) -> Facts:
    raw = json.loads(text)
    kinds = {
        "posts": Post,
        "jobs": Job,
        "events": Event,
        "attempts": Attempt,
        "variants": Variant,
        "objects": Object,
    }
    for name, kind in kinds.items():
        raw[name] = [kind(**row) for row in raw[name]]
    return Facts(**raw)
