"""The same request gets the same answer: which key it bears, and what "the same" means."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID, uuid5

import orjson
from fastapi import Request
from structlog.contextvars import bind_contextvars

from imagefleet.api.producers.schemas import PRINTABLE_ASCII
from imagefleet.errors import RequestRejected
from imagefleet.jobs.model import TenantId

HEADER: Final = "Idempotency-Key"
_FORM: Final = re.compile(PRINTABLE_ASCII)
_NAMESPACE: Final = UUID("2b1f6f52-6f0a-4d6c-9a3e-5f0f6f3f0d11")
_NO_KEY: Final = "An idempotency key is 1 to 255 printable ASCII characters without spaces."
_TWO_KEYS: Final = "The idempotency keys of the header and of the body differ."


def key_of(request: Request, in_body: str | None = None) -> str | None:
    """The key of this request, from its header or its JSON body."""
    given = set(request.headers.getlist(HEADER))
    if any(_FORM.fullmatch(key) is None for key in given):
        raise RequestRejected("invalid_idempotency_key", _NO_KEY)
    given |= {in_body} if in_body is not None else set()
    if len(given) > 1:
        raise RequestRejected("idempotency_keys_differ", _TWO_KEYS)
    return next(iter(given), None)


def fingerprint(route: str, asked: Mapping[str, object]) -> str:
    """A digest of what is asked; neither the key nor the correlation id is part of that."""
    canonical = orjson.dumps({"route": route, "asked": asked}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()


def correlate(request: Request, tenant_id: TenantId, key: str | None, asked: str | None) -> str:
    """The correlation id of what this request submits, and of its answer.

    Where the caller named none it follows from the key: a repeat is answered with the same headers.
    """
    state = request.state
    if asked is not None:
        state.correlation_id = asked
    elif key is not None and not state.correlation_given:
        state.correlation_id = uuid5(_NAMESPACE, f"{tenant_id}/{key}").hex
    chosen: str = state.correlation_id
    bind_contextvars(correlation_id=chosen)
    return chosen
