"""Operators and dead letters over HTTP; what replays are is tested with the store."""

from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobId, JobState, TenantId
from imagefleet.store.database import Connection
from tests.support.api import Running
from tests.support.factories import MadeJob, a_job, a_submission, settle_job
from tests.support.http import is_problem
from tests.support.rows import job_row

LETTERS = "/v1/operator/dead-letters"
BUG = Failed(code="internal_error", message="Something went wrong.", detail="KeyError")


async def failed(
    worker: Connection, superuser: Connection, outcome: Failed = BUG, tenant: str = "acme"
) -> MadeJob:
    submission = a_submission(tenant_id=TenantId(tenant), payload={"milliseconds": 1})
    job = await a_job(worker, superuser, state=JobState.PROCESSING, submission=submission)
    await settle_job(worker, job, outcome)
    return job


@pytest.fixture
async def three(running: Running, worker: Connection, superuser: Connection) -> list[MadeJob]:
    """Two of one fault, and one of another tenant's with another."""
    other = Failed(code="corrupt", message="It is damaged.")
    return [
        await failed(worker, superuser),
        await failed(worker, superuser),
        await failed(worker, superuser, other, tenant="rival"),
    ]


async def listed(client: httpx.AsyncClient, query: str = "") -> list[str]:
    answer = await client.get(f"{LETTERS}?{query}")
    assert answer.status_code == 200, answer.text
    return [letter["jobId"] for letter in answer.json()["letters"]]


async def test_letters_are_listed_by_page_and_filter(
    operating: httpx.AsyncClient, three: list[MadeJob]
) -> None:
    ids = [str(job.job_id) for job in three]

    page = (await operating.get(f"{LETTERS}?limit=2")).json()

    assert ids[:2] == [letter["jobId"] for letter in page["letters"]]
    assert "snapshot" not in page["letters"][0]
    assert ids[2:] == await listed(operating, f"limit=2&cursor={page['nextCursor']}")
    assert ids[2:] == await listed(operating, "reason=corrupt")
    assert ids[2:] == await listed(operating, "tenant=rival&all=true")
    assert ids[:2] == await listed(operating, f"fingerprint={page['letters'][0]['fingerprint']}")
    is_problem(await operating.get(f"{LETTERS}?all=true&reason=corrupt"), 422, "invalid_filter")
    is_problem(await operating.get(f"{LETTERS}?cursor={uuid4()}"), 404, "not_found")


@pytest.mark.parametrize("more", ["", "&all=true", "&tenant=acme&all=true"])
async def test_letters_may_be_of_a_time(
    operating: httpx.AsyncClient, three: list[MadeJob], more: str
) -> None:
    letters = (await operating.get(LETTERS)).json()["letters"]
    first, second = [quote(letter["diedAt"]) for letter in letters[:2]]

    assert [letters[0]["jobId"]] == await listed(operating, f"diedBefore={second}{more}")
    assert [] == await listed(operating, f"diedBefore={first}{more}")
    assert [letters[1]["jobId"]] == (
        await listed(operating, f"diedAfter={first}&tenant=acme{more.replace('&tenant=acme', '')}")
    )


async def test_faults_may_be_of_a_time(operating: httpx.AsyncClient, three: list[MadeJob]) -> None:
    letters = (await operating.get(LETTERS)).json()["letters"]

    groups = await operating.get(f"{LETTERS}/groups?diedBefore={quote(letters[1]['diedAt'])}")

    assert [1] == [group["letters"] for group in groups.json()["groups"]]


async def test_faults_are_grouped_and_a_letter_is_shown_whole(
    operating: httpx.AsyncClient, three: list[MadeJob]
) -> None:
    groups = (await operating.get(f"{LETTERS}/groups")).json()["groups"]

    assert [2, 1] == [group["letters"] for group in groups]
    by_id = (await operating.get(f"{LETTERS}/{groups[0]['example']}")).json()
    by_job = (await operating.get(f"{LETTERS}/{by_id['jobId']}")).json()
    assert by_id == by_job
    assert "KeyError" == by_id["detail"]
    assert {"milliseconds": 1} == by_id["snapshot"]["payload"]


async def test_acknowledging_says_who_and_why(
    operating: httpx.AsyncClient, three: list[MadeJob], superuser: Connection
) -> None:
    letter = (await operating.get(f"{LETTERS}/{three[0].job_id}")).json()
    body = {"ids": [letter["id"]], "note": "known"}

    first = await operating.post(f"{LETTERS}:acknowledge", json=body)
    again = await operating.post(f"{LETTERS}:acknowledge", json=body)

    assert [1, 0] == [answer.json()["acknowledged"] for answer in (first, again)]
    shown = (await operating.get(f"{LETTERS}/{letter['id']}")).json()
    key_id = await superuser.fetchval("SELECT id FROM api_keys WHERE scopes = '{operate}'")
    assert (f"of tests ({key_id})", "known") == (
        shown["acknowledgedBy"],
        shown["acknowledgedNote"],
    )


async def test_a_filter_acknowledges_the_oldest_and_tells_of_more(
    operating: httpx.AsyncClient, three: list[MadeJob]
) -> None:
    body = {"filter": {}, "note": "known", "limit": 2}

    answers = [await operating.post(f"{LETTERS}:acknowledge", json=body) for _ in range(2)]

    assert [{"acknowledged": 2, "more": True}, {"acknowledged": 1, "more": False}] == [
        answer.json() for answer in answers
    ]


@pytest.mark.parametrize("choice", [{}, {"ids": [str(uuid4())], "filter": {}}, {"ids": []}])
@pytest.mark.parametrize("verb", ["acknowledge", "replay"])
async def test_one_choice_has_to_be_made(
    operating: httpx.AsyncClient, verb: str, choice: dict[str, object]
) -> None:
    said = {"note": "x"} if verb == "acknowledge" else {"reason": "x"}

    is_problem(
        await operating.post(f"{LETTERS}:{verb}", json=said | choice), 422, "invalid_request"
    )


async def test_a_dry_run_leaves_no_trace(
    operating: httpx.AsyncClient, three: list[MadeJob], superuser: Connection
) -> None:
    body = {"filter": {"reason": "internal_error"}, "reason": "fixed", "dryRun": True}

    answer = await operating.post(f"{LETTERS}:replay", json=body)

    assert ["replayed"] * 2 == [replay["outcome"] for replay in answer.json()["replays"]]
    assert all("replayedAs" not in replay for replay in answer.json()["replays"])
    assert 3 == await superuser.fetchval("SELECT count(*) FROM jobs")
    assert 3 == len(await listed(operating))


async def test_a_canary_and_then_the_rest_by_cursor(
    operating: httpx.AsyncClient, three: list[MadeJob], superuser: Connection
) -> None:
    body = {"filter": {"reason": "internal_error"}, "reason": "fixed", "limit": 1}

    canary = (await operating.post(f"{LETTERS}:replay", json=body)).json()
    rest = await operating.post(f"{LETTERS}:replay", json=body | {"after": canary["nextCursor"]})
    again = await operating.post(
        f"{LETTERS}:replay", json={"ids": [str(three[0].job_id)], "reason": "once more"}
    )

    (first,), (second,) = canary["replays"], rest.json()["replays"]
    assert [str(job.job_id) for job in three[:2]] == [first["jobId"], second["jobId"]]
    (standing,) = again.json()["replays"]
    assert ("already_replayed", first["replayedAs"]) == (
        standing["outcome"],
        standing["replayedAs"],
    )
    row = await job_row(superuser, JobId(first["replayedAs"]))
    key_id = await superuser.fetchval("SELECT id FROM api_keys WHERE scopes = '{operate}'")
    assert (three[0].job_id, str(key_id), "fixed") == (
        row["replay_of"],
        row["created_by"],
        row["replay_reason"],
    )
    assert [str(three[2].job_id)] == await listed(operating)


async def test_all_that_a_filter_names_is_replayed_by_one_job(
    operating: httpx.AsyncClient, three: list[MadeJob], superuser: Connection
) -> None:
    path = f"{LETTERS}:replay-all"
    order = {"filter": {"reason": "internal_error", "tenant": "acme"}, "reason": "mended"}

    counted = await operating.post(path, json=order | {"dryRun": True})
    ordered = await operating.post(path, json=order)

    assert 200 == counted.status_code, counted.text
    assert {"letters": 2, "lettersIsAtLeast": False} == counted.json()
    assert 202 == ordered.status_code, ordered.text
    job = await job_row(superuser, JobId(UUID(ordered.json()["jobId"])))
    assert ("replay_jobs", "acme", 0) == (job["type"], job["tenant_id"], job["priority"])
    wanted = {"tenant": "acme", "code": "internal_error", "rate": 20, "reason": "mended"}
    assert wanted.items() <= job["payload"].items()
    assert "died_until" in job["payload"]
    line = await superuser.fetchrow("SELECT * FROM audit ORDER BY id DESC LIMIT 1")
    assert line is not None
    assert ("replay", "dead_letter", "acme", "mended") == (
        line["action"],
        line["kind"],
        line["tenant_id"],
        line["reason"],
    )


async def test_a_fault_is_replayed_by_how_its_fingerprint_begins(
    operating: httpx.AsyncClient, three: list[MadeJob], superuser: Connection
) -> None:
    letter = (await operating.get(f"{LETTERS}?reason=corrupt")).json()["letters"][0]
    order = {"filter": {"fingerprint": letter["fingerprint"][:8]}, "reason": "mended"}

    ordered = await operating.post(f"{LETTERS}:replay-all", json=order)

    job = await job_row(superuser, JobId(UUID(ordered.json()["jobId"])))
    assert (letter["fingerprint"], 1) == (job["payload"]["fingerprint"], ordered.json()["letters"])
    unknown = {"filter": {"fingerprint": "0" * 8}, "reason": "mended"}
    nothing = await operating.post(f"{LETTERS}:replay-all", json=unknown)
    assert (202, 0) == (nothing.status_code, nothing.json()["letters"])
    nobodys = {"filter": {"tenant": "nobody"}, "reason": "mended"}
    is_problem(await operating.post(f"{LETTERS}:replay-all", json=nobodys), 404, "not_found")


async def test_producers_neither_submit_nor_stop_such_a_job(
    operating: httpx.AsyncClient, acme: httpx.AsyncClient, three: list[MadeJob]
) -> None:
    asked = {"jobType": "replay_jobs", "payload": {"died_until": "2030-01-01T00:00:00Z"}}
    order = {"filter": {"tenant": "acme"}, "reason": "mended"}
    ordered = (await operating.post(f"{LETTERS}:replay-all", json=order)).json()

    submitted = await acme.post("/v1/jobs", json=asked)
    stopped = await acme.post(f"/v1/jobs/{ordered['jobId']}/cancel")

    is_problem(submitted, 422, "use_another_route")
    is_problem(stopped, 403, "forbidden")


async def test_a_replay_says_why(operating: httpx.AsyncClient, three: list[MadeJob]) -> None:
    answer = await operating.post(f"{LETTERS}:replay", json={"filter": {}})

    is_problem(answer, 422, "invalid_request")
    missing = {"field": "reason", "problem": "missing", "detail": "is required"}
    assert [missing] == answer.json()["errors"]
