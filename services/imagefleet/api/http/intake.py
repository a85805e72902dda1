"""Bodies, read with a cap and a deadline: JSON into a model, images straight into S3.

An image is never whole in memory. Its first 256 KB say what it is, and are judged before S3 hears
of it; the cap and the rest of the form are judged on the way, and whatever is wrong then leaves no
object. A body that claims a length beyond the cap is not read at all.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ValidationError

from imagefleet.api.http.bodies import OVERHEAD, Heads, file_of
from imagefleet.api.http.errors import InvalidRequest
from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.tools import Tools
from imagefleet.api.http.turns import Held, Pace, Turns
from imagefleet.aws.objects import Headers, Stored
from imagefleet.aws.transfers import digest_of
from imagefleet.errors import RequestRejected
from imagefleet.imaging.limits import judge_density
from imagefleet.imaging.sniff import HEAD_BYTES, HeaderFacts
from imagefleet.jobs.shapes.shape import Fault
from imagefleet.store.fleet.keys import ApiKey

JSON_WITHIN: Final = timedelta(seconds=15)
MOST_CONTAINERS: Final = 20_000  # each is made three times on the way, and collected as garbage
_CONTAINERS: Final = (dict, list)
BYTES_OF_A_REQUEST: Final = 16_384  # of JSON; larger bodies cost what as many requests do
MOST_FIELDS: Final = 64  # far more than any model has: of what is unknown, each costs an error

_TOO_DEEP: Final = Fault(field="body", problem="nested_too_deep")

Model = TypeVar("Model", bound=BaseModel)

MOST_NESTED: Final = 64  # below what Postgres, every reader and every answer around it can take

_NOT_JSON: Final = "The body is not valid JSON."
_TOO_DENSE: Final = f"The body has more than {MOST_CONTAINERS:,} arrays and objects."
_ITEM_TOO_LARGE: Final = "The job is larger than {} bytes."
_JSON_ONLY: Final = "The body must be application/json."
_PLAIN_ONLY: Final = "The body must not be compressed."
_IMAGES_ONLY: Final = "Send an image, multipart/form-data with a file, or application/json."
_TOO_LATE: Final = "The body did not arrive in time."


def media_type(request: Request) -> str:
    """The content type without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: Request, model: type[Model], *, most_bytes: int) -> Model:
    """The body as this model; a refusal names fields and echoes no value."""
    if media_type(request) != "application/json":
        raise RequestRejected("unsupported_media_type", _JSON_ONLY)
    return parsed(await _read(request, most_bytes), model)


async def read_json_if_any(request: Request, model: type[Model], *, most_bytes: int) -> Model:
    """The same where the body may be missing: then it is what the model is without one."""
    has_none = request.headers.get("content-length", "0") == "0"
    if has_none and "transfer-encoding" not in request.headers:
        return model()
    return await read_json(request, model, most_bytes=most_bytes)


async def read_envelope(request: Request, model: type[Model], *, most_bytes: int) -> Model:
    """The same of a body whose items are judged one by one: what is in them is not looked at."""
    if media_type(request) != "application/json":
        raise RequestRejected("unsupported_media_type", _JSON_ONLY)
    value = _loaded(await _read(request, most_bytes))
    _refuse_many_fields(value)
    return _as_model(lambda: model.model_validate(value, strict=True))


def parsed(document: bytes, model: type[Model]) -> Model:
    """Read JSON twice: strictly as JSON (no NaN, no depth without end), then as the model."""
    return validated(_loaded(document), model)


def _loaded(document: bytes) -> object:
    # In one go on the event loop, so what costs most in the fewest bytes is counted before.
    if document.count(b"[") + document.count(b"{") > MOST_CONTAINERS:
        raise RequestRejected("payload_too_large", _TOO_DENSE)
    try:
        value: object = orjson.loads(document)
    except orjson.JSONDecodeError:
        raise RequestRejected("invalid_json", _NOT_JSON) from None
    return value


def validated(value: object, model: type[Model], *, most_bytes: int | None = None) -> Model:
    """A JSON value as this model; of one that is larger, nothing else is judged."""
    try:
        document = orjson.dumps(value)
    except orjson.JSONEncodeError:  # of what was read as JSON, only for its depth
        raise InvalidRequest([_TOO_DEEP]) from None
    if most_bytes is not None and len(document) > most_bytes:
        raise RequestRejected("payload_too_large", _ITEM_TOO_LARGE.format(most_bytes))
    _refuse_many_fields(value)
    if _may_nest_too_deep(document) and _nests_too_deep(value):
        raise InvalidRequest([_TOO_DEEP])
    return _as_model(lambda: model.model_validate_json(document, strict=True))


def _refuse_many_fields(value: object) -> None:
    if isinstance(value, dict) and len(value) > MOST_FIELDS:
        raise InvalidRequest([Fault(field="body", problem="too_many_fields")])


def _may_nest_too_deep(document: bytes) -> bool:
    return document.count(b"[") + document.count(b"{") > MOST_NESTED


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


def _as_model(read: Callable[[], Model]) -> Model:
    try:
        return read()
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        faults = [Fault(field=_field(each["loc"]), problem=each["type"]) for each in found]
        raise InvalidRequest(faults) from None


def _field(location: tuple[int | str, ...]) -> str:
    """Name a field, unless the name itself was made up by the sender and is no name."""
    parts = [str(part) for part in location]
    known = [part if part.isascii() and part.isalnum() else "?" for part in parts]
    return ".".join(part[:63] for part in known) or "body"


async def _read(request: Request, most_bytes: int) -> bytes:
    _refuse_compressed(request)
    _refuse_declared(request, most_bytes)
    intake: Intake = request.app.state.intake
    body = bytearray()
    try:
        async with (
            asyncio.timeout(JSON_WITHIN.total_seconds()),
            intake.reading(request) as (hold, all_),
        ):
            async for chunk in all_:
                _count(request, len(chunk))
                if len(body) + len(chunk) > most_bytes:
                    raise _too_large(most_bytes, "payload_too_large")
                hold(len(chunk))
                body += chunk
    except TimeoutError:
        raise RequestRejected("request_timeout", _TOO_LATE) from None
    _weigh(request, len(body))
    return bytes(body)


def _producer(request: Request) -> ApiKey | None:
    """Whose limits hold for a body; of operators' routes nobody's."""
    if not getattr(request.state, "sends", False):
        return None
    key: ApiKey | None = getattr(request.state, "key", None)
    return key


def _weigh(request: Request, size_bytes: int) -> None:
    """Reading JSON is the loop's work, and its time goes with the bytes."""
    key = _producer(request)
    more = max(0, math.ceil(size_bytes / BYTES_OF_A_REQUEST) - 1)
    if key is not None and more:
        limiting: Limiting = request.app.state.limiting
        limiting.weigh(key, more)


def _count(request: Request, size_bytes: int) -> None:
    """Only where bytes are limited: what operators send counts for nobody."""
    if getattr(request.state, "sends", False):
        key: ApiKey = request.state.key
        limiting: Limiting = request.app.state.limiting
        limiting.sent(key, size_bytes)


@dataclass(frozen=True, slots=True)
class Arrived:
    """An image that was read to its end, and lies in S3 now unless it was not to."""

    stored: Stored
    facts: HeaderFacts


class Intake:
    """Takes images in, a bounded number at once."""

    def __init__(self, tools: Tools, heads: Heads, limiting: Limiting) -> None:
        """Begin with nobody."""
        self._tools = tools
        self._heads = heads
        self._turns = Turns(limiting, stalled=self._stalled)
        self.held = Held(limiting)
        self.uploads = 0

    @asynccontextmanager
    async def reading(
        self, request: Request
    ) -> AsyncIterator[tuple[Callable[[int], None], AsyncGenerator[bytes, None]]]:
        """Surround the reading of JSON: what tells that a part came, and the parts as they come."""
        key = _producer(request)
        pace = Pace(self._tools.settings.upload_least_rate)
        try:
            with self.held.body(key) as hold:
                async with aclosing(request.stream()) as sent, aclosing(pace.paced(sent)) as body:
                    yield hold, body
        finally:
            if pace.is_ended:
                self._stalled()

    async def store(self, request: Request, by: ApiKey, key: str | None) -> Arrived:
        """Stream the request's image to this key; whatever is refused leaves no object there.

        Without a key it is read, judged and hashed as otherwise, and left nowhere.
        """
        settings = self._tools.settings
        most = settings.max_upload_bytes
        is_form = _is_form(request)
        _refuse_compressed(request)
        _refuse_declared(request, most + OVERHEAD if is_form else most)
        self.uploads += 1
        try:
            async with (
                asyncio.timeout(settings.upload_timeout.total_seconds()) as deadline,
                self._turns.turn(by, deadline, least_rate=settings.upload_least_rate) as turn,
                aclosing(request.stream()) as sent,
                aclosing(turn.paced(sent)) as body,
            ):
                if is_form:
                    everything = capped(body, most + OVERHEAD)
                    declared, file = await file_of(request.headers["content-type"], everything)
                else:
                    declared, file = request.headers.get("content-type"), body
                arrived = await self._pass_on(declared, capped(file, most), key)
        except TimeoutError:
            raise RequestRejected("request_timeout", _TOO_LATE) from None
        finally:
            self.uploads -= 1
        self._tools.metrics.uploaded(arrived.facts.mime_type, arrived.stored.bytes)
        return arrived

    @asynccontextmanager
    async def looking(self, by: ApiKey) -> AsyncIterator[None]:
        """Surround a look at what was posted to S3: it takes the place that an upload would."""
        within = self._tools.settings.upload_timeout.total_seconds()
        try:
            async with (
                asyncio.timeout(within) as deadline,
                self._turns.turn(by, deadline, least_rate=0),
            ):
                yield
        except TimeoutError:
            raise RequestRejected("request_timeout", _TOO_LATE) from None

    def _stalled(self) -> None:
        self._tools.metrics.limited("least_rate")

    async def _pass_on(
        self, declared: str | None, file: AsyncGenerator[bytes, None], key: str | None
    ) -> Arrived:
        async with aclosing(file):
            head = await _head_of(file)
            facts = await self._heads.judged(head[:HEAD_BYTES], declared, self._tools.limits)
            whole = _whole(head, file, facts)
            if key is None:
                digest = await digest_of(whole)
                return Arrived(Stored(bytes=digest.bytes, sha256=digest.sha256, etag=""), facts)
            stored = await self._tools.originals.upload(
                key, whole, Headers(content_type=facts.mime_type)
            )
        return Arrived(stored, facts)


async def _head_of(file: AsyncIterator[bytes]) -> bytes:
    head = bytearray()
    async for chunk in file:
        head += chunk
        if len(head) >= HEAD_BYTES:
            break
    return bytes(head)


async def _whole(
    head: bytes, rest: AsyncIterator[bytes], facts: HeaderFacts
) -> AsyncIterator[bytes]:
    size_bytes = len(head)
    yield head
    async for chunk in rest:
        size_bytes += len(chunk)
        yield chunk
    judge_density(facts, size_bytes)


async def capped(chunks: AsyncIterator[bytes], most_bytes: int) -> AsyncGenerator[bytes, None]:
    """The same stream, which ends with an error instead of growing beyond the cap."""
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > most_bytes:
            raise _too_large(most_bytes, "too_large")
        yield chunk


def _is_form(request: Request) -> bool:
    sent = media_type(request)
    if sent == "multipart/form-data":
        return True
    if sent.startswith("image/") or sent == "application/octet-stream":
        return False
    raise RequestRejected("unsupported_media_type", _IMAGES_ONLY)


def _refuse_compressed(request: Request) -> None:
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise RequestRejected("unsupported_media_type", _PLAIN_ONLY)


def _refuse_declared(request: Request, most_bytes: int) -> None:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most_bytes:
        image = media_type(request) != "application/json"
        raise _too_large(most_bytes, "too_large" if image else "payload_too_large")


def _too_large(most_bytes: int, code: str) -> RequestRejected:
    sentence = f"The body is larger than {most_bytes} bytes."
    return RequestRejected(code, sentence)
