"""Connections: polls have their own."""

import asyncio
from datetime import timedelta

from aiohttp import web

from imagefleet.aws.session import open_session
from tests.support.aws import Answer, hang, operation_of, serving, settings_for
from tests.support.emulators import CREDENTIALS
from tests.support.eventually import eventually


async def test_polls_keep_nobody_waiting_for_a_connection() -> None:
    async def respond(request: web.Request) -> Answer:
        if operation_of(request) == "ReceiveMessage":
            return await hang(request)
        names = ("Messages", "MessagesNotVisible", "MessagesDelayed")
        attributes = {f"ApproximateNumberOf{name}": "0" for name in names}
        return web.json_response({"Attributes": attributes})

    async with serving(respond) as server:
        settings = settings_for(server.url, read_timeout=5).model_copy(
            update={"max_connections": 1}
        )
        async with open_session(settings, credentials=CREDENTIALS) as session:
            queue = await session.queue(f"{server.url}/0/queue")
            async with asyncio.TaskGroup() as group:
                poll = group.create_task(queue.receive(most=1, wait=timedelta(seconds=20)))
                await eventually(lambda: server.requests["ReceiveMessage"] == 1)
                async with asyncio.timeout(2):
                    await queue.depth()
                poll.cancel()


async def test_a_session_has_one_client_a_service() -> None:
    async with (
        serving(hang) as server,
        open_session(settings_for(server.url), credentials=CREDENTIALS) as session,
    ):
        first, second = await asyncio.gather(
            session.queue(f"{server.url}/0/a"), session.queue(f"{server.url}/0/b")
        )

        assert first._client is second._client
        assert first._polls is second._polls
        assert first._client is not first._polls
