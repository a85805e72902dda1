"""A tenant's jobs are cancelled by one job whose worker dies amid a page; others go on."""

import asyncio
from dataclasses import replace
from typing import Final, Literal

import httpx
import pytest

from imagefleet.store.jobs.cancelling import PAGE
from tests.faults.crowding import another_tenant
from tests.faults.director import ALWAYS, Reached
from tests.support.eventually import eventually
from tests.support.stack import Producer, running_stack

JOBS: Final = 2 * PAGE + 10
SETTINGS: Final = {
    "all": {"BACKOFF_BASE_SECONDS": "1"},
    "maintenance": {"RESCUE_AFTER": "5"},
}
ENDS: Final = """
SELECT state, failure_code, count(*) AS jobs FROM jobs WHERE type = 'noop' AND tenant_id = $1
 GROUP BY 1, 2
"""
ATTEMPTS: Final = "SELECT outcome, charged FROM attempts WHERE job_id = $1::uuid ORDER BY claim_no"
FLAGGED: Final = "SELECT (result ->> 'flagged')::integer FROM jobs WHERE id = $1::uuid"

pytestmark = [pytest.mark.timeout(150)]


async def test_a_worker_killed_amid_a_page_leaves_it_to_the_next_attempt_and_others_go_on() -> None:
    """Of the tenant that is paused nothing else would run; its jobs end all the same."""
    async with (
        running_stack(workers=1, settings=SETTINGS, points=(*ALWAYS, "page flagged")) as stack,
        stack.producer() as producer,
        another_tenant(stack) as other,
        httpx.AsyncClient(
            base_url=stack.facts["api_url"],
            headers={"Authorization": f"Bearer {stack.facts['operator_key']}"},
            timeout=20,
        ) as operator,
        stack.database() as owner,
    ):
        tenant = await owner.fetchval("SELECT tenant_id FROM api_keys ORDER BY created_at LIMIT 1")
        pause = {"scope": "tenant", "tenant": tenant, "reason": "a flood"}
        (await operator.put("/v1/operator/pauses", json=pause)).raise_for_status()
        await producer.submit_many(JOBS, {"milliseconds": 10})
        before_the_kill: list[int] = []

        def decide(reached: Reached) -> Literal["go", "kill"]:
            if reached.point != "page flagged":
                return "go"
            before_the_kill.append(1)
            return "kill" if len(before_the_kill) == 3 else "go"

        stack.director.decide = decide
        path = f"/v1/operator/tenants/{tenant}/cancel"
        asking = Producer(operator, stack.journal)
        ordered = await asking.post(path, None, "cancel", json={"reason": "a flood"})
        assert ordered.status_code == 202, ordered.text
        walk = ordered.json()["jobId"]
        answer = await other.submit("noop", {"milliseconds": 1})
        stack.journal.posts[-1] = replace(stack.journal.posts[-1], tenant="another")
        shown, others = await asyncio.gather(
            producer.ended(walk, within=90), other.ended(answer.json()["jobId"], within=60)
        )

        async def all_are_cancelled() -> bool:
            rows = [tuple(row) for row in await owner.fetch(ENDS, tenant)]
            assert rows == [("failed", "cancelled", JOBS)]
            return True

        await eventually(all_are_cancelled, within=60)
        assert ["page flagged"] == [kill.phase for kill in stack.journal.kills]
        assert ("completed", "completed") == (shown["status"], others["status"])
        rows = await owner.fetch(ATTEMPTS, walk)
        assert [("rescued", True), ("completed", True)] == [tuple(row) for row in rows]
        # One page for those that submit others; of the rest the second twice: it was rolled back.
        # Then a second look, for what was committed meanwhile, at as many as are open by then.
        assert 5 <= len(before_the_kill) <= 9
        assert JOBS == await owner.fetchval(FLAGGED, walk)
        assert await owner.fetchval("SELECT count(*) FROM dead_letters") == 0
        assert [] == await stack.breaches(backoff_base=1)
