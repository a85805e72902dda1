"""A tenant's flood and another's job behind it: judged by the order of claims, not by a clock.

`make faults ARGS="--only scale"` judges the seconds.
"""

from tests.faults.crowding import FLOOD, another_tenant, claimed_in_between
from tests.support.stack import running_stack

MOST_BETWEEN = 40  # claims of the flood: a window of slow jobs, and what the slots turn over


async def test_a_flood_of_one_tenant_delays_another_s_job_by_a_window_and_not_by_the_flood() -> (
    None
):
    async with running_stack() as stack, stack.producer() as producer:
        await producer.submit_many(FLOOD, {"milliseconds": 1500})
        async with another_tenant(stack) as other:
            answer = await other.submit("noop", {"milliseconds": 1})
            assert answer.status_code == 202, answer.text
            shown = await other.ended(answer.json()["jobId"])

        assert shown["status"] == "completed"
        async with stack.database() as owner:
            between = await claimed_in_between(owner, answer.json()["jobId"])
            waiting = await owner.fetchval("SELECT count(*) FROM rings")
        assert between <= MOST_BETWEEN
        assert waiting > FLOOD / 2, "and the flood was still there"
