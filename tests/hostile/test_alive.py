"""The stack that is attacked serves who behaves."""

from tests.support.images import quadrants, saved
from tests.support.stack import Producer


async def test_an_upload_between_attacks_is_made(producer: Producer) -> None:
    answer = await producer.upload(saved(quadrants()))
    assert answer.status_code == 202, answer.text
    assert (await producer.ended(answer.json()["jobId"]))["status"] == "completed"
