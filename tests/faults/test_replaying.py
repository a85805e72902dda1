"""What failed is replayed by one job whose worker dies amid a page: nothing twice, nothing left."""

from typing import Final, Literal

import httpx
import pytest

from imagefleet.store.letters.walks import PAGE
from tests.faults.director import ALWAYS, Reached
from tests.support.eventually import eventually
from tests.support.stack import Producer, running_stack

JOBS: Final = 2 * PAGE + 10
SETTINGS: Final = {
    "all": {"BACKOFF_BASE_SECONDS": "1"},
    "maintenance": {"RESCUE_AFTER": "5"},
}
ATTEMPTS: Final = "SELECT outcome, charged FROM attempts WHERE job_id = $1::uuid ORDER BY claim_no"
REPLAYS: Final = """
SELECT count(*) AS replays, count(DISTINCT replay_of) AS failures,
       count(*) FILTER (WHERE state = 'completed') AS completed
  FROM jobs WHERE replay_of IS NOT NULL
"""

pytestmark = [pytest.mark.timeout(150)]


async def test_a_worker_killed_amid_a_page_leaves_it_to_the_next_attempt() -> None:
    async with (
        running_stack(workers=1, settings=SETTINGS, points=(*ALWAYS, "page replayed")) as stack,
        stack.producer() as producer,
        httpx.AsyncClient(
            base_url=stack.facts["api_url"],
            headers={"Authorization": f"Bearer {stack.facts['operator_key']}"},
            timeout=20,
        ) as operator,
        stack.database() as owner,
    ):
        asking = Producer(operator, stack.journal)
        pause = {"scope": "type", "name": "noop", "reason": "to be failed"}
        (await operator.put("/v1/operator/pauses", json=pause)).raise_for_status()
        for job_id in await producer.submit_many(JOBS, {"milliseconds": 10}):
            path = f"/v1/operator/jobs/{job_id}/fail"
            await asking.post(path, None, f"fail {job_id}", json={"reason": "an outage"})

        async def all_have_failed() -> bool:
            return bool(await owner.fetchval("SELECT count(*) FROM dead_letters") == JOBS)

        await eventually(all_have_failed, within=60)
        await operator.delete("/v1/operator/pauses", params={"scope": "type", "name": "noop"})
        before_the_kill: list[int] = []

        def decide(reached: Reached) -> Literal["go", "kill"]:
            if reached.point != "page replayed":
                return "go"
            before_the_kill.append(1)
            return "kill" if len(before_the_kill) == 2 else "go"

        stack.director.decide = decide
        order = {"filter": {"reason": "failed_by_operator"}, "reason": "over", "rate": 1000}
        path = "/v1/operator/dead-letters:replay-all"
        counted = await operator.post(path, json=order | {"dryRun": True})
        ordered = await asking.post(path, None, "replay all", json=order)
        assert (200, JOBS) == (counted.status_code, counted.json()["letters"])
        assert ordered.status_code == 202, ordered.text
        walk = ordered.json()["jobId"]
        shown = await producer.ended(walk, within=90)

        async def all_are_replayed() -> bool:
            row = await owner.fetchrow(REPLAYS)
            assert row is not None
            assert (JOBS, JOBS, JOBS) == tuple(row)
            return True

        await eventually(all_are_replayed, within=60)
        assert ["page replayed"] == [kill.phase for kill in stack.journal.kills]
        rows = await owner.fetch(ATTEMPTS, walk)
        assert [("rescued", True), ("completed", True)] == [tuple(row) for row in rows]
        assert "completed" == shown["status"]
        # The second page twice: what was done of it was rolled back.
        assert 4 == len(before_the_kill)
        whole = (await operator.get(f"/v1/operator/jobs/{walk}")).json()
        assert ({"replayed": JOBS}, JOBS) == (whole["result"], whole["progressDone"])

        async def letters_are_closed() -> bool:
            # Once in five minutes; none of them has been swept.
            await owner.execute("DELETE FROM periods WHERE name = 'sweep_dead_letters'")
            open_ = "SELECT count(*) FROM dead_letters WHERE acknowledged_at IS NULL"
            return bool(await owner.fetchval(open_) == 0)

        await eventually(letters_are_closed, within=90)
        assert [] == await stack.breaches(backoff_base=1)
