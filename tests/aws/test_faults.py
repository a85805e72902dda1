"""AWS that is slow, broken or not there: every call ends in time, with an error of ours."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from imagefleet.aws.objects import Headers
from imagefleet.aws.session import AwsSession, Credentials, open_session
from imagefleet.embedded.machine import free_port
from imagefleet.errors import FleetError, Unavailable
from tests.support.aws import Answer, Heard, hang, serving, settings_for, sqs_error, xml_error
from tests.support.emulators import CREDENTIALS, Emulator

READ_TIMEOUT = 0.3  # seconds
DEADLINE = 1 + 2 * READ_TIMEOUT  # what `session_at` makes of its settings, in seconds
SLACK = 10.0  # a busy machine; a missing deadline would be a minute


@asynccontextmanager
async def session_at(
    url: str,
    heard: Heard | None = None,
    *,
    credentials: Credentials | None = CREDENTIALS,
    read_timeout: float = READ_TIMEOUT,
) -> AsyncIterator[AwsSession]:
    settings = settings_for(url, read_timeout=read_timeout)
    async with open_session(settings, calls=heard, credentials=credentials) as session:
        yield session


async def depth(session: AwsSession, folder: Path) -> object:
    return await (await session.queue("http://nowhere/000000000000/queue")).depth()


async def receive(session: AwsSession, folder: Path) -> object:
    queue = await session.queue("http://nowhere/000000000000/queue")
    return await queue.receive(most=1, wait=timedelta())


async def put(session: AwsSession, folder: Path) -> object:
    objects = await session.objects("bucket")
    return await objects.put("key", b"x", Headers(content_type="image/png"))


async def copy(session: AwsSession, folder: Path) -> object:
    objects = await session.objects("bucket")
    await objects.copy("key", "other", Headers(content_type="image/png"), sha256="00" * 32)
    return None


async def fetch(session: AwsSession, folder: Path) -> object:
    objects = await session.objects("bucket")
    return await objects.fetch_to_file("key", folder / "file", max_bytes=1000)


async def invalidate(session: AwsSession, folder: Path) -> object:
    edge = await session.edge("E1")
    return await edge.create_invalidation(["/*"], caller_reference="1")


CALLS = [depth, receive, put, copy, fetch, invalidate]
Ask = Callable[[AwsSession, Path], Awaitable[object]]


async def half_a_reply(request: web.Request) -> Answer:
    """Promise a thousand bytes, send ten and hang up."""
    reply = web.StreamResponse(headers={"Content-Length": "1000", "ETag": '"half"'})
    await reply.prepare(request)
    await reply.write(b"0123456789")
    assert request.transport is not None
    request.transport.close()
    return reply


@pytest.mark.parametrize("ask", CALLS)
async def test_a_server_that_never_answers_is_unavailable_in_time(tmp_path: Path, ask: Ask) -> None:
    heard = Heard()
    async with serving(hang) as server, session_at(server.url, heard) as session:
        begun = time.monotonic()
        with pytest.raises(Unavailable) as error:
            await ask(session, tmp_path)

    assert time.monotonic() - begun < DEADLINE + SLACK
    assert error.value.code in {"sqs_unavailable", "s3_unavailable", "cloudfront_unavailable"}
    assert heard.ended_calls[-1][1] == error.value.code


@pytest.mark.parametrize("ask", CALLS)
async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path, ask: Ask) -> None:
    async with session_at(f"http://127.0.0.1:{free_port()}") as session:
        with pytest.raises(Unavailable):
            await ask(session, tmp_path)


@pytest.mark.parametrize("ask", CALLS)
async def test_half_a_reply_is_none(tmp_path: Path, ask: Ask) -> None:
    async with serving(half_a_reply) as server, session_at(server.url) as session:
        with pytest.raises(Unavailable) as error:
            await ask(session, tmp_path)

    assert error.value.code in {"sqs_unavailable", "s3_unavailable", "cloudfront_unavailable"}


@pytest.mark.parametrize(
    ("respond", "ask", "code"),
    [
        (sqs_error("ThrottlingException"), depth, "sqs_throttled"),
        (sqs_error("InternalFailure", 500), depth, "sqs_unavailable"),
        (sqs_error("QueueDoesNotExist"), depth, "sqs_missing"),
        (sqs_error("InvalidClientTokenId", 403), depth, "aws_credentials"),
        (sqs_error("AccessDenied", 403), depth, "sqs_denied"),
        (sqs_error("InvalidParameterValue"), depth, "sqs_rejected"),
        (xml_error("SlowDown", 503), put, "s3_throttled"),
        (xml_error("InternalError", 500), put, "s3_unavailable"),
        (xml_error("BadDigest", 400), put, "s3_unavailable"),
        (xml_error("ConditionalRequestConflict", 409), put, "s3_conflict"),
        (xml_error("ExpiredToken", 400), put, "aws_credentials"),
        (xml_error("EntityTooLarge", 400), put, "s3_rejected"),
        (xml_error("NoSuchKey", 404), fetch, "not_found"),
        (xml_error("NoSuchKey", 404), copy, "not_found"),
        (xml_error("AccessDenied", 403), copy, "s3_denied"),
        # An error after it had begun to answer, under a status that promises success.
        (xml_error("InternalError", 200), copy, "s3_unavailable"),
    ],
)
async def test_every_refusal_has_a_code_of_ours(
    tmp_path: Path, respond: Callable[..., Awaitable[Answer]], ask: Ask, code: str
) -> None:
    heard = Heard()
    # Long enough for the SDK to have tried three times.
    async with (
        serving(respond) as server,
        session_at(server.url, heard, read_timeout=10) as session,
    ):
        with pytest.raises(FleetError) as error:
            await ask(session, tmp_path)

    assert code == error.value.code == heard.ended_calls[-1][1]


async def test_a_lost_reply_is_asked_for_again(tmp_path: Path) -> None:
    """The SDK's own retry, within the deadline of the call."""
    replies = [hang, sqs_error("ServiceUnavailable", 503)]

    async def respond(request: object) -> Answer:
        return await replies[min(server.requests.total(), 2) - 1](request)  # type: ignore[arg-type]

    async with serving(respond) as server, session_at(server.url, read_timeout=1) as session:
        with pytest.raises(Unavailable):
            await depth(session, tmp_path)

    assert server.requests.total() >= 2


async def test_no_credentials_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))

    async with serving(hang) as server, session_at(server.url, credentials=None) as session:
        with pytest.raises(Unavailable) as error:
            await depth(session, tmp_path)

    assert error.value.code == "aws_credentials"
    assert server.requests.total() == 0


async def test_a_key_that_nobody_has(
    emulator: Emulator, tmp_path: Path, differs: Callable[[str], bool]
) -> None:
    stranger = Credentials("AKIAIOSFODNN7EXAMPLE", "nobody")
    settings = settings_for(emulator.url)

    async with open_session(settings, credentials=stranger) as session:
        if differs("any-key-is-accepted"):
            with pytest.raises(Unavailable) as error:
                await depth(session, tmp_path)
            assert error.value.code == "sqs_missing"
            return
        for ask in (depth, put, invalidate):
            with pytest.raises(Unavailable) as error:
                await ask(session, tmp_path)
            assert error.value.code == "aws_credentials"


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(Credentials("key", "hush"))
