"""What SQS bills are requests: ten messages share one, from sending to deleting."""

from datetime import timedelta

from imagefleet.aws.queue import Message, Received
from imagefleet.aws.session import AwsSession, open_session
from tests.aws.conftest import MakeQueue
from tests.support.aws import Heard, forwarding, settings_for
from tests.support.emulators import CREDENTIALS, Emulator

MESSAGES = 200
BUDGET = 0.3  # requests a message: a tenth each for sending, receiving and deleting
SMALL = 6  # the last receives are not full


async def test_a_message_costs_three_tenths_of_a_request(
    emulator: Emulator, make_queue: MakeQueue
) -> None:
    path = (await make_queue()).url.partition("://")[2].partition("/")[2]
    heard = Heard()
    async with forwarding(emulator.url) as proxy:
        settings = settings_for(proxy.url)
        async with open_session(settings, calls=heard, credentials=CREDENTIALS) as session:
            await send_receive_delete(session, f"{proxy.url}/{path}")

    assert proxy.requests.total() <= BUDGET * MESSAGES + SMALL
    assert heard.sent_requests.total() == proxy.requests.total()
    assert {operation for _, operation in heard.sent_requests} == {
        "SendMessageBatch",
        "ReceiveMessage",
        "DeleteMessageBatch",
    }


async def send_receive_delete(session: AwsSession, url: str) -> None:
    queue = await session.queue(url)
    await queue.send([Message(body=str(number), group="a") for number in range(MESSAGES)])
    messages: list[Received] = []
    while len(messages) < MESSAGES:
        messages += await queue.receive(most=10, wait=timedelta(seconds=1))
    failures = await queue.delete([message.receipt for message in messages])

    assert {message.body for message in messages} == {str(number) for number in range(MESSAGES)}
    assert set(failures) == {None}
