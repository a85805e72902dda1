"""What exists in AWS beside our processes, as data: `topology.json`, which other tools read too.

Names are a prefix and the key. Where a number comes from is told in infra/bootstrap/README.md.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict

DEAD_LETTER = "dead-letter"


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QueueDescription(_Described):
    visibility_seconds: int
    retention_days: int
    max_receives: int | None = None
    """After so many receives SQS itself moves a message to the dead-letter queue; None is never."""


class BucketDescription(_Described):
    takes_forms: bool
    """Browsers post files to it, with a presigned form."""


class EdgeDescription(_Described):
    served_bucket: str
    served_cache_policy: str
    pointers_path: str
    """These addresses are redirects, which the API answers."""
    pointers_cache_policy: str
    headers_policy: str
    """What viewers are told beside what the origins say, of objects and redirects alike."""


class Topology(_Described):
    queues: Mapping[str, QueueDescription]
    long_poll_seconds: int
    buckets: Mapping[str, BucketDescription]
    abort_multipart_after_days: int
    edge: EdgeDescription


@cache
def described() -> Topology:
    """Read the description that comes with this version."""
    return Topology.model_validate_json((files(__package__) / "topology.json").read_bytes())
