"""Entries of a batch that fail: what no emulator can be made to answer."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from aiohttp import web

from imagefleet.aws.queue import MOST_BYTES, EntryFailure, Message, Queue, ReceiptHandle
from imagefleet.aws.session import open_session
from tests.support.aws import Answer, Server, serving, settings_for, sqs_error
from tests.support.emulators import CREDENTIALS

Refuse = Callable[[str, int], tuple[str, bool] | None]
"""Of an entry (what it says, the how-manieth time): its error code and whose fault it is."""


class Sqs:
    """Answers batches; each entry is asked about by itself."""

    def __init__(self, refuse: Refuse) -> None:
        self.refuse = refuse
        self.seen: Counter[str] = Counter()
        self.batches: list[list[str]] = []

    async def respond(self, request: web.Request) -> Answer:
        entries = (await request.json())["Entries"]
        texts = [entry.get("MessageBody") or entry["ReceiptHandle"] for entry in entries]
        self.batches.append(texts)
        successful, failed = [], []
        for entry, text in zip(entries, texts, strict=True):
            self.seen[text] += 1
            refusal = self.refuse(text, self.seen[text])
            if refusal is None:
                successful.append({"Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": "x"})
            else:
                code, senders = refusal
                failed.append({"Id": entry["Id"], "Code": code, "SenderFault": senders})
        return web.json_response({"Successful": successful, "Failed": failed})


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def a_queue(stack: AsyncExitStack, server: Server) -> Queue:
    settings = settings_for(server.url)  # room for what the SDK waits between its tries
    session = await stack.enter_async_context(open_session(settings, credentials=CREDENTIALS))
    return await session.queue(f"{server.url}/000000000000/queue")


async def a_queue_that(stack: AsyncExitStack, refuse: Refuse) -> tuple[Queue, Sqs]:
    sqs = Sqs(refuse)
    server = await stack.enter_async_context(serving(sqs.respond))
    return await a_queue(stack, server), sqs


def messages(*bodies: str) -> list[Message]:
    return [Message(body=body, group="tenant-a") for body in bodies]


def codes(failures: Sequence[EntryFailure | None]) -> list[str | None]:
    return [failure.code if failure else None for failure in failures]


async def test_an_entry_that_failed_is_sent_again_alone(stack: AsyncExitStack) -> None:
    def refuse(text: str, time: int) -> tuple[str, bool] | None:
        return ("InternalError", False) if text == "b" and time == 1 else None

    queue, sqs = await a_queue_that(stack, refuse)

    failures = await queue.send(messages("a", "b", "c"))

    assert codes(failures) == [None, None, None]
    assert sqs.batches == [["a", "b", "c"], ["b"]]


async def test_an_entry_that_goes_on_failing_is_given_up(stack: AsyncExitStack) -> None:
    queue, sqs = await a_queue_that(
        stack, lambda text, _: ("InternalError", False) if text == "b" else None
    )

    failures = await queue.send(messages("a", "b", "c"))

    assert codes(failures) == [None, "InternalError", None]
    assert sqs.batches == [["a", "b", "c"], ["b"], ["b"]]


async def test_an_entry_that_is_wrong_is_not_sent_again(stack: AsyncExitStack) -> None:
    queue, sqs = await a_queue_that(
        stack, lambda text, _: ("InvalidMessageContents", True) if text == "b" else None
    )

    failures = await queue.send(messages("a", "b"))

    assert failures == (None, EntryFailure("InvalidMessageContents", "", final=True))
    assert sqs.batches == [["a", "b"]]


async def test_deletes_that_failed_are_repeated_alone(stack: AsyncExitStack) -> None:
    def refuse(text: str, time: int) -> tuple[str, bool] | None:
        return ("InternalError", False) if text == "h1" and time == 1 else None

    queue, sqs = await a_queue_that(stack, refuse)

    failures = await queue.delete([ReceiptHandle("m1", "h1"), ReceiptHandle("m2", "h2")])

    assert codes(failures) == [None, None]
    assert sqs.batches == [["h1", "h2"], ["h1"]]


async def test_visibility_changes_answer_for_each_message(stack: AsyncExitStack) -> None:
    queue, sqs = await a_queue_that(
        stack, lambda text, _: ("MessageNotInflight", True) if text == "h1" else None
    )
    minute = timedelta(minutes=1)

    failures = await queue.change_visibility(
        [(ReceiptHandle("m1", "h1"), minute), (ReceiptHandle("m2", "h2"), minute)]
    )

    assert codes(failures) == ["MessageNotInflight", None]
    assert sqs.batches == [["h1", "h2"]]


async def test_large_messages_share_no_request_that_would_be_too_large(
    stack: AsyncExitStack,
) -> None:
    queue, sqs = await a_queue_that(stack, lambda *_: None)

    await queue.send(messages("a" * (MOST_BYTES - 10), "b" * 20, "c"))

    assert [len(batch) for batch in sqs.batches] == [1, 2]


async def test_one_entry_that_spoils_the_request_does_not_hold_up_the_others(
    stack: AsyncExitStack,
) -> None:
    async def respond(request: web.Request) -> Answer:
        entries = (await request.json())["Entries"]
        if any(entry["MessageBody"] == "b" for entry in entries):
            return await sqs_error("InvalidMessageContents")(request)
        return web.json_response({"Successful": [{"Id": entry["Id"]} for entry in entries]})

    server = await stack.enter_async_context(serving(respond))
    queue = await a_queue(stack, server)

    failures = await queue.send(messages("a", "b", "c"))

    assert codes(failures) == [None, "sqs_rejected", None]
    assert server.requests["SendMessageBatch"] == 4  # together, then each alone, the bad one once


async def test_when_sqs_throttles_what_is_left_is_not_tried(stack: AsyncExitStack) -> None:
    server = await stack.enter_async_context(serving(sqs_error("ThrottlingException")))
    queue = await a_queue(stack, server)

    failures = await queue.send(messages(*[str(number) for number in range(25)]))

    assert codes(failures) == ["sqs_throttled"] * 25
    assert server.requests["SendMessageBatch"] == 3  # tries of one batch, by the SDK


async def test_what_was_sent_before_sqs_went_away_counts_as_sent(stack: AsyncExitStack) -> None:
    async def respond(request: web.Request) -> Answer:
        entries = json.loads(await request.read())["Entries"]
        if entries[0]["MessageBody"] == "0":
            return web.json_response({"Successful": [{"Id": entry["Id"]} for entry in entries]})
        return await sqs_error("InternalError", status=500)(request)

    server = await stack.enter_async_context(serving(respond))
    queue = await a_queue(stack, server)

    failures = await queue.send(messages(*[str(number) for number in range(12)]))

    assert codes(failures) == [None] * 10 + ["sqs_unavailable"] * 2
