"""Bodies, read with a cap and a deadline: JSON into a model, images straight into S3.

An image is never whole in memory. Its first 256 KB say what it is, and are judged before S3 hears
of it; the cap and the rest of the form are judged on the way, and whatever is wrong then leaves no
object. A body that claims a length beyond the cap is not read at all.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ValidationError

from imagefleet.api.errors import Fault, InvalidRequest
from imagefleet.api.forms import OVERHEAD, file_of
from imagefleet.api.tools import Tools
from imagefleet.aws.objects import Headers, Stored
from imagefleet.errors import RequestRejected
from imagefleet.imaging.limits import judge_density, judge_header
from imagefleet.imaging.sniff import HEAD_BYTES, HeaderFacts, agree, sniff

JSON_WITHIN: Final = timedelta(seconds=15)
UPLOADS_AT_ONCE: Final = 64  # each holds up to two parts of 8 MiB; the others wait unread

Model = TypeVar("Model", bound=BaseModel)

_NOT_JSON: Final = "The body is not valid JSON."
_JSON_ONLY: Final = "The body must be application/json."
_PLAIN_ONLY: Final = "The body must not be compressed."
_IMAGES_ONLY: Final = "Send an image, multipart/form-data with a file, or application/json."
_TOO_LATE: Final = "The body did not arrive in time."
_MISMATCH: Final = "The declared content type is not what the file is."


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


def parsed(document: bytes, model: type[Model]) -> Model:
    """Read JSON twice: strictly as JSON (no NaN, no depth without end), then as the model."""
    try:
        value = orjson.loads(document)
    except orjson.JSONDecodeError:
        raise RequestRejected("invalid_json", _NOT_JSON) from None
    return validated(value, model)


def validated(value: object, model: type[Model]) -> Model:
    """A JSON value as this model."""
    try:
        return model.model_validate_json(orjson.dumps(value), strict=True)
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
    body = bytearray()
    try:
        async with asyncio.timeout(JSON_WITHIN.total_seconds()), aclosing(request.stream()) as all_:
            async for chunk in all_:
                body += chunk
                if len(body) > most_bytes:
                    raise _too_large(most_bytes, "payload_too_large")
    except TimeoutError:
        raise RequestRejected("request_timeout", _TOO_LATE) from None
    return bytes(body)


@dataclass(frozen=True, slots=True)
class Arrived:
    """An image that lies in S3 now."""

    stored: Stored
    facts: HeaderFacts


class Intake:
    """Takes images in, a bounded number at once."""

    def __init__(self, tools: Tools) -> None:
        """Begin with nobody."""
        self._tools = tools
        self._room = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self.uploads = 0

    async def store(self, request: Request, key: str) -> Arrived:
        """Stream the request's image to this key; whatever is refused leaves no object there."""
        most = self._tools.settings.max_upload_bytes
        is_form = _is_form(request)
        _refuse_compressed(request)
        _refuse_declared(request, most + OVERHEAD if is_form else most)
        self.uploads += 1
        try:
            async with (
                asyncio.timeout(self._tools.settings.upload_timeout.total_seconds()),
                self._room,
                aclosing(request.stream()) as body,
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

    async def _pass_on(
        self, declared: str | None, file: AsyncGenerator[bytes, None], key: str
    ) -> Arrived:
        async with aclosing(file):
            head = await _head_of(file)
            facts = sniff(head[:HEAD_BYTES])
            if not agree(declared, facts.format):
                raise RequestRejected("type_mismatch", _MISMATCH)
            judge_header(facts, self._tools.limits)
            stored = await self._tools.originals.upload(
                key, _whole(head, file, facts), Headers(content_type=facts.mime_type)
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
