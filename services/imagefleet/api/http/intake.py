"""Images, read with a cap and a deadline, straight into S3.

An image is never whole in memory: where it is large, it waits for S3 part by part in a file without
a name (aws/transfers.py). Its first 256 KB say what it is, and are judged before S3 hears
of it; the cap and the rest of the form are judged on the way, and whatever is wrong then leaves no
object. A body that claims a length beyond the cap is not read at all.

What is read of a head is bounded (imaging/headers), some two milliseconds at the worst. They are
still not the loop's to spend: whoever sends one bad head after another should wait for his own. So
one thread reads them, one at a time, and only so many may wait for it; and each that is refused
counts as many requests, for the 256 KB that came with it are work, too.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from fastapi import Request
from pydantic import BaseModel

from imagefleet.api.http.forms import OVERHEAD, file_of
from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.openapi import Piece, json_content
from imagefleet.api.http.requests import Tools
from imagefleet.api.http.turns import Turns
from imagefleet.aws.objects import Headers, ObjectFacts, Stored
from imagefleet.aws.transfers import digest_of
from imagefleet.errors import InputRejected, NotFound, RequestRejected, Unavailable
from imagefleet.imaging.headers.facts import HeaderFacts
from imagefleet.imaging.limits import Limits, judge_bytes, judge_density, judge_header
from imagefleet.imaging.sniff import HEAD_BYTES, NO_DECLARATION, agree, sniff
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.store.fleet.keys import ApiKey

REFUSED_HEAD: Final = 20  # requests more: ten a second by default, after the first twenty
MOST_WAITING: Final = 128  # 32 MiB of heads, and a quarter of a second for the last of them
IMAGE_TYPES: Final = tuple(each.mime_type for each in ImageFormat)

Admit: TypeAlias = Callable[[HeaderFacts], None]

TOO_LATE: Final = "The body did not arrive in time."
_OR_TYPED: Final = (
    f"The file, which may be declared as what it is, too: {', '.join(IMAGE_TYPES)}; or a form with"
    " one file, whose field may have any name."
)
_PLAIN_ONLY: Final = "The body must not be compressed."
_IMAGES_ONLY: Final = "Send an image, multipart/form-data with a file, or application/json."
_MISMATCH: Final = "The declared content type is not what the file is."
_NOT_THERE: Final = "Nothing was posted under this upload yet."
_TOO_MANY: Final = "Too many images are being looked at. Try again later."


def media_type(request: Request) -> str:
    """The content type without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def image_body(*, or_json: type[BaseModel] | None = None) -> Piece:
    """How the body is described: an image, one file in a form, or the JSON that stands for it."""
    file = {"type": "string", "format": "binary"}
    form = {
        "type": "object",
        "properties": {"file": file},
        "required": ["file"],
        "additionalProperties": False,
    }
    content: Piece = {"multipart/form-data": {"schema": form}}
    content["application/octet-stream"] = {"schema": file}
    if or_json is not None:
        content |= json_content(or_json)
    # Programs that write clients refuse a type of image, and do not need it.
    return {"requestBody": {"description": _OR_TYPED, "required": True, "content": content}}


@dataclass(frozen=True, slots=True)
class Arrived:
    """An image that was read to its end, and lies in S3 now unless it was not to."""

    stored: Stored
    facts: HeaderFacts


class Heads:
    """Reads heads in a thread of its own, which begins with the first of them."""

    def __init__(self) -> None:
        # One is enough: they compute in Python, where two threads are no faster than one.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="heads")
        self.waiting = 0

    async def judged(self, head: bytes, declared: str | None, limits: Limits) -> HeaderFacts:
        """The facts of an image that may come in; what it was declared to be, it must be."""
        if self.waiting >= MOST_WAITING:
            raise Unavailable("busy", _TOO_MANY)
        self.waiting += 1
        try:
            loop = asyncio.get_running_loop()
            facts = await loop.run_in_executor(self._thread, sniff, head)
        finally:
            self.waiting -= 1
        if not agree(declared, facts.format):
            raise RequestRejected("type_mismatch", _MISMATCH)
        judge_header(facts, limits)
        return facts


class Intake:
    """Takes images in, a bounded number at once."""

    def __init__(self, tools: Tools, heads: Heads, limiting: Limiting) -> None:
        self._tools = tools
        self._heads = heads
        self._limiting = limiting
        self._turns = Turns(limiting, stalled=self._stalled)

    async def store(
        self, request: Request, by: ApiKey, key: str | None, admit: Admit = lambda _: None
    ) -> Arrived:
        """Stream the request's image to this key; whatever is refused leaves no object there.

        Without a key it is read, judged and hashed as otherwise, and left nowhere. Its head is told
        to `admit`, which may refuse the rest.
        """
        settings = self._tools.settings
        most = self._tools.limits.max_bytes
        is_form = _is_form(request)
        refuse_compressed(request)
        refuse_declared(request, most + OVERHEAD if is_form else most)
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
                arrived = await self._pass_on(by, declared, capped(file, most), key, admit)
        except TimeoutError:
            raise RequestRejected("request_timeout", TOO_LATE) from None
        self._tools.metrics.uploaded(arrived.facts.mime_type, arrived.stored.bytes)
        return arrived

    async def posted(
        self, by: ApiKey, key: str, declared: str, most_bytes: int
    ) -> tuple[ObjectFacts, HeaderFacts]:
        """What was posted to S3, judged as if it came through here: S3 believes what it is told.

        One that is refused may be asked for again and again, so it has an upload's place and bytes.
        """
        within = self._tools.settings.upload_timeout.total_seconds()
        originals, limits = self._tools.originals, self._tools.limits
        try:
            async with (
                asyncio.timeout(within) as deadline,
                self._turns.turn(by, deadline, least_rate=0),
            ):
                stored = await originals.head(key)
                if stored.bytes == 0:
                    raise InputRejected("empty_file", failure_sentence("empty_file"))
                judge_bytes(stored.bytes, replace(limits, max_bytes=most_bytes))
                head = await originals.fetch_head(
                    key, most_bytes=HEAD_BYTES, expected_etag=stored.etag
                )
                self._limiting.sent(by, len(head))
                facts = await self._judged(by, head, declared)
        except TimeoutError:
            raise RequestRejected("request_timeout", TOO_LATE) from None
        except NotFound:
            raise RequestRejected("upload_incomplete", _NOT_THERE) from None
        judge_density(facts, stored.bytes)
        return stored, facts

    async def _judged(self, by: ApiKey, head: bytes, declared: str | None) -> HeaderFacts:
        """The facts of an image that begins so; one that is refused counts as many requests."""
        try:
            return await self._heads.judged(head, declared, self._tools.limits)
        except (InputRejected, RequestRejected):
            self._limiting.weigh(by, REFUSED_HEAD)
            raise

    def _stalled(self) -> None:
        self._tools.metrics.limited("least_rate")

    async def _pass_on(
        self,
        by: ApiKey,
        declared: str | None,
        file: AsyncGenerator[bytes, None],
        key: str | None,
        admit: Admit,
    ) -> Arrived:
        async with aclosing(file):
            head = await _head_of(file)
            facts = await self._judged(by, head[:HEAD_BYTES], declared)
            admit(facts)
            whole = _whole(head, file, facts)
            del head  # it is as large as all else of an upload, and is passed on first
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
    del head
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
            raise too_large(most_bytes, "too_large")
        yield chunk


def _is_form(request: Request) -> bool:
    sent = media_type(request)
    if sent == "multipart/form-data":
        return True
    if sent.startswith("image/") or sent in NO_DECLARATION:
        return False
    raise RequestRejected("unsupported_media_type", _IMAGES_ONLY)


def refuse_compressed(request: Request) -> None:
    """Every reader of a body begins so: what is inside would be larger than it says."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise RequestRejected("unsupported_media_type", _PLAIN_ONLY)


def refuse_declared(request: Request, most_bytes: int) -> None:
    """Of a body that says it is too large nothing is read."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most_bytes:
        image = media_type(request) != "application/json"
        raise too_large(most_bytes, "too_large" if image else "payload_too_large")


def too_large(most_bytes: int, code: str) -> RequestRejected:
    """The refusal of a body beyond its cap."""
    return RequestRejected(code, f"The body is larger than {most_bytes} bytes.")
