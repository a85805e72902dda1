"""Bodies of JSON, read with a cap and a deadline, and judged before they become a model.

What has come of a body lies in memory until its end has, so that is bounded, too.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from typing import Final, TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ValidationError

from imagefleet.api.http.connections import HERE
from imagefleet.api.http.errors import InvalidRequest
from imagefleet.api.http.intake import (
    TOO_LATE,
    media_type,
    refuse_compressed,
    refuse_declared,
    too_large,
)
from imagefleet.api.http.limiting import Counts, Limiting, refusal
from imagefleet.api.http.requests import Tools
from imagefleet.api.http.turns import Pace
from imagefleet.errors import RequestRejected, Unavailable
from imagefleet.jobs.faults import Fault
from imagefleet.store.fleet.keys import ApiKey

JSON_WITHIN: Final = timedelta(seconds=15)
MOST_BYTES: Final = 16_384  # of a body, where its route does not say otherwise
MOST_CONTAINERS: Final = 20_000  # each is made three times on the way, and collected as garbage
_CONTAINERS: Final = (dict, list)
BYTES_OF_A_REQUEST: Final = 16_384  # of JSON; larger bodies cost what as many requests do
MOST_FIELDS: Final = 64  # far more than any model has: of what is unknown, each costs an error
MOST_NESTED: Final = 64  # below what Postgres, every reader and every answer around it can take
MOST_HELD: Final = 64 * 2**20  # bytes of JSON; so many once more lie in the sockets' buffers
MOST_BODIES: Final = 256  # of a tenant: each has a connection, and a share of those is for others

_BODY: Final = "body"
_TOO_DEEP: Final = Fault(
    field=_BODY, problem="nested_too_deep", detail=f"must nest at most {MOST_NESTED} deep"
)
_TOO_MANY: Final = Fault(
    field=_BODY, problem="too_many_fields", detail=f"must have at most {MOST_FIELDS} fields"
)
_NOT_JSON: Final = "The body is not valid JSON."
_TOO_DENSE: Final = f"The body has more than {MOST_CONTAINERS:,} arrays and objects."
_ITEM_TOO_LARGE: Final = "The job is larger than {} bytes."
_JSON_ONLY: Final = "The body must be application/json."
_TOO_MUCH: Final = "Too many bodies are being read at the moment."

Model = TypeVar("Model", bound=BaseModel)


async def read_json(request: Request, model: type[Model], *, most_bytes: int = MOST_BYTES) -> Model:
    """The body as this model; a refusal names fields and echoes no value."""
    return validated(await _read(request, most_bytes), model)


async def read_json_if_any(
    request: Request, model: type[Model], *, most_bytes: int = MOST_BYTES
) -> Model:
    """The same where the body may be missing: then it is what the model is without one."""
    has_none = request.headers.get("content-length", "0") == "0"
    if has_none and "transfer-encoding" not in request.headers:
        return model()
    return await read_json(request, model, most_bytes=most_bytes)


async def read_envelope(request: Request, model: type[Model], *, most_bytes: int) -> Model:
    """The same of a body whose items are judged one by one: what is in them is not looked at."""
    value = await _read(request, most_bytes)
    _refuse_many_fields(value)
    return _as_model(model, lambda: model.model_validate(value, strict=True))


def validated(value: object, model: type[Model], *, most_bytes: int | None = None) -> Model:
    """A JSON value as this model; of one that is larger, nothing else is judged."""
    try:
        document = orjson.dumps(value)
    except orjson.JSONEncodeError:  # of what was read as JSON, only for its depth
        raise InvalidRequest([_TOO_DEEP]) from None
    if most_bytes is not None and len(document) > most_bytes:
        raise RequestRejected("payload_too_large", _ITEM_TOO_LARGE.format(most_bytes))
    _refuse_many_fields(value)
    brackets = document.count(b"[") + document.count(b"{")
    if brackets > MOST_NESTED and _nests_too_deep(value):
        raise InvalidRequest([_TOO_DEEP])
    return _as_model(model, lambda: model.model_validate_json(document, strict=True))


def _refuse_many_fields(value: object) -> None:
    if isinstance(value, dict) and len(value) > MOST_FIELDS:
        raise InvalidRequest([_TOO_MANY])


def _nests_too_deep(value: object) -> bool:
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MOST_NESTED):
        if not level:
            return False
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, _CONTAINERS)
        ]
    return True


def _as_model(model: type[Model], read: Callable[[], Model]) -> Model:
    try:
        return read()
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        known = [field.alias or name for name, field in model.model_fields.items()]
        raise InvalidRequest(Fault.all_of(errors, _BODY, known)) from None


async def _read(request: Request, most_bytes: int) -> object:
    """The JSON of the body, read whole; the model is not judged yet."""
    if media_type(request) != "application/json":
        raise RequestRejected("unsupported_media_type", _JSON_ONLY)
    refuse_compressed(request)
    refuse_declared(request, most_bytes)
    limiting: Limiting = request.app.state.limiting
    # What operators send counts for nobody.
    key: ApiKey | None = request.state.key if request.state.sends else None
    if HERE in request.scope["state"]:  # nobody waits for it, and it is not held
        body = await request.body()
        if key is not None:
            limiting.sent(key, len(body))
        if len(body) > most_bytes:
            raise too_large(most_bytes, "payload_too_large")
    else:
        body = await _arriving(request, key, most_bytes)
    # Reading JSON is the loop's work, and its time goes with the bytes.
    more = max(0, math.ceil(len(body) / BYTES_OF_A_REQUEST) - 1)
    if key is not None and more:
        limiting.weigh(key, more)
    return _loaded(body)


async def _arriving(request: Request, key: ApiKey | None, most_bytes: int) -> bytes:
    """A body of which the end is still to come, as it comes."""
    tools: Tools = request.app.state.tools
    limiting: Limiting = request.app.state.limiting
    bodies: Bodies = request.app.state.bodies
    pace = Pace(tools.settings.upload_least_rate)
    body = bytearray()
    try:
        with bodies.body(key) as hold:
            async with (
                asyncio.timeout(JSON_WITHIN.total_seconds()),
                aclosing(request.stream()) as sent,
                aclosing(pace.paced(sent)) as chunks,
            ):
                async for chunk in chunks:
                    if key is not None:
                        limiting.sent(key, len(chunk))
                    if len(body) + len(chunk) > most_bytes:
                        raise too_large(most_bytes, "payload_too_large")
                    hold(len(chunk))
                    body += chunk
    except TimeoutError:
        raise RequestRejected("request_timeout", TOO_LATE) from None
    finally:
        if pace.is_ended:
            tools.metrics.limited("least_rate")
    return bytes(body)


def _loaded(document: bytes) -> object:
    """Strictly as JSON: no NaN."""
    # In one go on the event loop, so what costs most in the fewest bytes is counted before.
    if document.count(b"[") + document.count(b"{") > MOST_CONTAINERS:
        raise RequestRejected("payload_too_large", _TOO_DENSE)
    try:
        value: object = orjson.loads(document)
    except orjson.JSONDecodeError:
        raise RequestRejected("invalid_json", _NOT_JSON) from None
    return value


class Bodies:
    """What has come of JSON bodies whose end has not: bounded a tenant, a key and the process.

    Bytes are counted, since it is they that take memory; and bodies, since one of which nothing
    comes takes a connection. Of most bodies all is here before anybody waits for it.
    """

    def __init__(self, limiting: Limiting, *, most_bytes: int = MOST_HELD) -> None:
        self._limiting = limiting
        self._most = most_bytes
        self.bytes = 0

    @contextmanager
    def body(self, key: ApiKey | None) -> Iterator[Callable[[int], None]]:
        """Surround a body while it is read; what is given is called for each part of it.

        That raises LimitReached or Unavailable where there is no room for the part; entering does,
        where there is none for another body.
        """
        mine = 0
        by = [] if key is None else self._counts(key)
        for counts, _, most_bodies in by:
            if counts.bodies >= most_bodies:
                raise refusal("bodies")

        def hold(size_bytes: int) -> None:
            nonlocal mine
            for counts, most, _ in by:
                if counts.held + size_bytes > most:
                    raise refusal("bodies")
            if self.bytes + size_bytes > self._most:
                raise Unavailable("busy", _TOO_MUCH)
            mine += size_bytes
            self.bytes += size_bytes
            for counts, _, _ in by:
                counts.held += size_bytes

        for counts, _, _ in by:
            counts.bodies += 1
        try:
            yield hold
        finally:
            self.bytes -= mine
            for counts, _, _ in by:
                counts.held -= mine
                counts.bodies -= 1

    def _counts(self, key: ApiKey) -> list[tuple[Counts, int, int]]:
        """Whose they are, with the most bytes and the most bodies."""
        most = self._limiting.of(key.tenant_id, "bodies")
        ours = self._limiting.tenants.of(key.tenant_id)
        mine = self._limiting.keys.of(key.id)
        return [(mine, most * 3 // 4, MOST_BODIES * 3 // 4), (ours, most, MOST_BODIES)]
