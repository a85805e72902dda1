"""Requests, sent again where that is safe, and refusals in words that say what to do.

Every request that could do something twice carries an idempotency key, so a request whose answer
was lost is simply sent again. What the API says no to is RequestRejected, what does not answer in
time is Unavailable; both carry a sentence that says what to do.
"""

import asyncio
import mimetypes
import random
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import orjson
from pydantic import ValidationError

from imagefleet.errors import RequestRejected, Unavailable
from imagefleet.jobs.shapes.images import ImagePage, ImageView, OriginalView
from imagefleet.jobs.shapes.jobs import JobPage, JobView, OrderedJob
from imagefleet.jobs.shapes.rules import RecipeList
from imagefleet.jobs.shapes.shape import AcceptedImage, AcceptedJob, Problem, Shape

TIMEOUT: Final = httpx.Timeout(30, connect=3, pool=60)  # seconds; between two bytes, not in all
MOST_AT_ONCE: Final = 20  # connections
TRIES: Final = 5
FIRST_PAUSE: Final = 0.3  # seconds
LONGEST_PAUSE: Final = 20.0  # also of what Retry-After may ask
LONG_POLL: Final = timedelta(seconds=20)
CHUNK: Final = 256 * 1024
OCTETS: Final = "application/octet-stream"
EVERY_IMAGE: Final = "/v1/operator/images"
TRY_AGAIN: Final = frozenset({429, 502, 503, 504})
WHAT_TO_DO: Final[Mapping[int, str]] = {
    401: "Set IMAGEFLEET_KEY to a key that is in force (`imagefleet keys create` makes one).",
    403: "This key lacks the scope; `imagefleet keys create --scope ...` makes one that has it.",
    404: "Ids are only known to the tenant whose key is used.",
}

Shown = TypeVar("Shown", bound=Shape)
Document: TypeAlias = dict[str, Any]  # JSON as the API answered it


@dataclass(frozen=True, slots=True)
class Reply(Generic[Shown]):
    """A shape, and the document that it was read from: what a newer API adds is there alone."""

    shape: Shown
    document: Document


class ApiClient:
    """Speaks to one API with one key; made by `open_client`."""

    def __init__(
        self, http: httpx.AsyncClient, *, tries: int = TRIES, bears: Mapping[str, str] = {}
    ) -> None:
        """Without a key of its own it has the one that the connections were opened with."""
        self._http = http
        self._tries = tries
        self._bears = bears

    def bearing(self, key: str) -> "ApiClient":
        """The same connections, with somebody else's key."""
        return self._with("Authorization", f"Bearer {key}")

    def asking_for(self, address: str) -> "ApiClient":
        """The same for somebody at this address, as far as the API believes who says so."""
        return self._with("X-Forwarded-For", address)

    def _with(self, name: str, value: str) -> "ApiClient":
        return ApiClient(self._http, tries=self._tries, bears={**self._bears, name: value})

    async def submit(
        self,
        content: bytes | Path,
        *,
        name: str,
        recipe: str | None = None,
        reference: str | None = None,
        terms: Mapping[str, object] = {},
    ) -> AcceptedImage:
        """Upload an image; what comes back is the promise that it will be made."""
        asked = {"recipe": recipe, "reference": reference, **terms}
        return await self._upload("POST", "/v1/images", content, name, asked)

    async def replace_image(
        self,
        image_id: str,
        content: Path,
        *,
        recipe: str | None = None,
        terms: Mapping[str, object] = {},
    ) -> AcceptedImage:
        asked = {"recipe": recipe, **terms}
        return await self._upload("PUT", _image(image_id), content, content.name, asked)

    async def replace_any_image(
        self, image_id: str, content: Path, *, recipe: str | None, reason: str
    ) -> OrderedJob:
        """The same of any tenant's, as an operator."""
        request = _sending(
            "PUT",
            f"{EVERY_IMAGE}/{image_id}",
            content,
            content.name,
            {"recipe": recipe, "reason": reason},
        )
        return (await self._read(OrderedJob, request)).shape

    async def delete_image(self, image_id: str) -> AcceptedImage:
        """Delete an image; asked again it answers the same."""
        return (await self._read(AcceptedImage, _Request("DELETE", _image(image_id)))).shape

    async def move_focal(
        self, image_id: str, point: tuple[float, float] | None
    ) -> AcceptedImage | ImageView:
        """Move or take away an image's focal point; the image, where nothing would change."""
        focal = point and dict(zip("xy", point, strict=True))
        path = _image(image_id)
        answer = await self._answer(_new(path, {"focalPoint": focal}, method="PATCH"))
        if answer.status_code == HTTPStatus.ACCEPTED:
            return _parsed(AcceptedImage, answer.content).shape
        return _parsed(ImageView, answer.content).shape

    async def reprocess(
        self, image_id: str, *, recipe: str | None = None, terms: Mapping[str, object] = {}
    ) -> AcceptedImage:
        asked = {**terms} if recipe is None else {**terms, "recipe": recipe}
        path = f"{_image(image_id)}/reprocess"
        return (await self._read(AcceptedImage, _new(path, asked))).shape

    async def submit_job(
        self,
        job_type: str,
        payload: Mapping[str, object],
        more: Mapping[str, object] = {},
        idempotency_key: str | None = None,
    ) -> Reply[AcceptedJob]:
        """Submit a job that is about no single image; `more` are the other fields of the body."""
        asked = {**more, "jobType": job_type, "payload": payload}
        return await self._read(AcceptedJob, _new("/v1/jobs", asked, idempotency_key))

    async def job(self, job_id: str, *, wait: timedelta | None = None) -> Reply[JobView]:
        """Ask about a job; with `wait` the answer may take that long, and is early if it ends."""
        parameters = {"wait": f"{wait.total_seconds():.0f}"} if wait else {}
        return await self._read(JobView, _Request("GET", f"/v1/jobs/{job_id}", parameters))

    async def finished_job(self, job_id: str, *, within: timedelta) -> Reply[JobView]:
        """Wait for the end of a job; Unavailable when it takes longer."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within.total_seconds()
        while True:
            left = timedelta(seconds=max(1.0, deadline - clock()))
            job = await self.job(job_id, wait=min(LONG_POLL, left))
            if job.shape.over:
                return job
            if clock() >= deadline:
                sentence = f"Job {job_id} is still {job.shape.status}; it goes on without you."
                raise Unavailable("still_open", sentence)

    async def jobs(self, parameters: Mapping[str, str | None]) -> Reply[JobPage]:
        return await self._read(JobPage, _Request("GET", "/v1/jobs", parameters))

    async def image(self, image_id: str) -> Reply[ImageView]:
        return await self._read(ImageView, _Request("GET", _image(image_id)))

    async def original(self, image_id: str) -> Reply[OriginalView]:
        """Ask where an original may be read from."""
        return await self._read(OriginalView, _Request("GET", f"{_image(image_id)}/original"))

    async def images(self, parameters: Mapping[str, str | None]) -> Reply[ImagePage]:
        return await self._read(ImagePage, _Request("GET", "/v1/images", parameters))

    async def recipes(self) -> Reply[RecipeList]:
        """Ask which recipes there are, and what each of them makes."""
        return await self._read(RecipeList, _Request("GET", "/v1/recipes"))

    async def events(self, job_id: str) -> AsyncIterator[Reply[JobView]]:
        """Follow a job over server-sent events, until its end or until the stream breaks."""
        async with self._http.stream(
            "GET", f"/v1/jobs/{job_id}/events", headers={"Accept": "text/event-stream"}
        ) as answer:
            if answer.is_error:
                await answer.aread()
                raise _refusal(answer)
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    yield _parsed(JobView, line.removeprefix("data:").encode())

    async def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | None] = {},
        document: object = None,
    ) -> Document:
        """One of the operators' routes, each of which may be asked again; its answer as it is."""
        content = None if document is None else orjson.dumps(document)
        headers = {} if content is None else {"Content-Type": "application/json"}
        answer = await self._answer(_Request(method, path, parameters, headers, content))
        return _document(answer.content)

    async def ask_for(
        self,
        shape: type[Shown],
        method: str,
        path: str,
        parameters: Mapping[str, str | None] = {},
        document: object = None,
    ) -> Shown:
        """The same, as the shape that it has."""
        answer = await self.ask(method, path, parameters, document)
        try:
            return shape.model_validate(answer)
        except ValidationError as error:
            raise _unexpected(error) from error

    async def pass_on(
        self,
        shape: type[Shown],
        path: str,
        parameters: Mapping[str, str | None],
        content: AsyncIterable[bytes],
        length: int,
    ) -> Shown:
        """PUT a file as it comes, which can be done once; what is answered."""
        headers = {"Content-Type": OCTETS, "Content-Length": str(length)}
        request = _Request("PUT", path, parameters, headers, content)
        once = ApiClient(self._http, tries=1, bears=self._bears)
        return (await once._read(shape, request)).shape

    async def picture(self, path: str, parameters: Mapping[str, str | None] = {}) -> bytes:
        """The bytes that one of the operators' routes shows."""
        return (await self._answer(_Request("GET", path, parameters))).content

    async def _upload(
        self,
        method: str,
        path: str,
        content: bytes | Path,
        name: str,
        asked: Mapping[str, object],
    ) -> AcceptedImage:
        request = _sending(method, path, content, name, asked)
        return (await self._read(AcceptedImage, request)).shape

    async def _read(self, shape: type[Shown], request: "_Request") -> Reply[Shown]:
        return _parsed(shape, (await self._answer(request)).content)

    async def _answer(self, request: "_Request") -> httpx.Response:
        """Send a request, again while somebody is merely away."""
        for tried in range(1, self._tries + 1):
            last = tried == self._tries
            try:
                answer = await request.send(self._http, self._bears)
            except httpx.TransportError as error:
                if last or isinstance(error, httpx.UnsupportedProtocol):
                    raise self._unreachable(error) from error
                asked = 0.0
            else:
                if answer.status_code not in TRY_AGAIN or last:
                    if answer.is_error:
                        raise _refusal(answer)
                    return answer
                asked = _retry_after(answer)
            backoff = FIRST_PAUSE * 2**tried * (1 + 0.2 * random.random())  # noqa: S311
            await asyncio.sleep(min(LONGEST_PAUSE, max(asked, backoff)))
        raise AssertionError

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        sentence = (
            f"Nothing answers at {self._http.base_url} ({type(error).__name__}). "
            "Is it running? Set IMAGEFLEET_URL to where the API is; `imagefleet up` starts one."
        )
        return Unavailable("api_unreachable", sentence, str(error))


@dataclass(frozen=True, slots=True)
class _Request:
    """One that can be sent again."""

    method: str
    path: str
    parameters: Mapping[str, str | None] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Path | AsyncIterable[bytes] | None = None

    async def send(self, http: httpx.AsyncClient, bears: Mapping[str, str]) -> httpx.Response:
        content = self.content
        return await http.request(
            self.method,
            self.path,
            params={name: value for name, value in self.parameters.items() if value is not None},
            headers={**self.headers, **bears},
            content=_chunks(content) if isinstance(content, Path) else content,
        )


def _sending(
    method: str, path: str, content: bytes | Path, name: str, asked: Mapping[str, object]
) -> _Request:
    headers = {
        "Content-Type": mimetypes.guess_type(name)[0] or OCTETS,
        "Content-Length": str(_length(content)),
        "Idempotency-Key": str(uuid.uuid4()),
    }
    parameters = {name: str(value) for name, value in asked.items() if value is not None}
    return _Request(method, path, parameters, headers, content)


def _image(image_id: str) -> str:
    return f"/v1/images/{quote(image_id, safe='')}"


def _new(path: str, document: object, key: str | None = None, method: str = "POST") -> _Request:
    """Ask for something new, under a key of its own, so that it may be asked again."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key or str(uuid.uuid4())}
    return _Request(method, path, {}, headers, orjson.dumps(document))


@asynccontextmanager
async def open_client(
    url: str,
    key: str | None,
    *,
    agent: str = "imagefleet-cli",
    tries: int = TRIES,
    most_at_once: int = MOST_AT_ONCE,
) -> AsyncIterator[ApiClient]:
    """Speak to the API at this URL; nothing is asked yet. Without a key, by `bearing` others'."""
    bears = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=url,
        headers={**bears, "User-Agent": agent},
        timeout=TIMEOUT,
        limits=httpx.Limits(max_connections=most_at_once),
    ) as http:
        yield ApiClient(http, tries=tries)


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _length(content: bytes | Path) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _retry_after(answer: httpx.Response) -> float:
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else 0.0


def _parsed(shape: type[Shown], content: bytes) -> Reply[Shown]:
    document = _document(content)
    try:
        return Reply(shape.model_validate(document), document)
    except ValidationError as error:
        raise _unexpected(error) from error


def _document(content: bytes) -> Document:
    try:
        document: Document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise _unexpected(error) from error
    return document


def _unexpected(error: ValueError) -> Unavailable:
    sentence = "The answer is not one of imagefleet's. Is IMAGEFLEET_URL right?"
    return Unavailable("unexpected_answer", sentence, str(error))


def _refusal(answer: httpx.Response) -> RequestRejected | Unavailable:
    problem = _problem(answer)
    faults = [f"{fault.field}: {fault.detail or fault.problem}." for fault in problem.errors or ()]
    parts = [problem.detail, *faults, WHAT_TO_DO.get(answer.status_code, "")]
    sentence = " ".join(part for part in parts if part)
    kind = Unavailable if answer.is_server_error else RequestRejected
    return kind(problem.code, sentence, f"{answer.status_code} {answer.request.url}")


def _problem(answer: httpx.Response) -> Problem:
    """What it says, or where something else than the API has answered, as much as there is."""
    try:
        return Problem.model_validate_json(answer.content)
    except ValidationError:
        return Problem(
            type="about:blank",
            title=answer.reason_phrase,
            status=answer.status_code,
            code=f"http_{answer.status_code}",
            detail=answer.reason_phrase,
        )
