"""What tenants and keys may take of a process."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from imagefleet.api.http import limiting, turns
from imagefleet.api.http.bodies import Bodies
from imagefleet.api.http.intake import REFUSED_HEAD
from imagefleet.api.http.limiting import Bucket, Limiting
from imagefleet.api.http.turns import Turn, Turns
from imagefleet.errors import LimitReached, RequestRejected, Unavailable
from imagefleet.jobs.limits import LIMITS
from imagefleet.jobs.model import TenantId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import ApiKey, create_key, find_key
from imagefleet.store.jobs.admissions import ROOM_FOR_JOBS
from tests.support.api import ACME, JPEG, Running, a_key, app_of
from tests.support.database import driver_of
from tests.support.eventually import eventually
from tests.support.http import a_jpeg, is_problem

KEY = {"Idempotency-Key": "req-1"}
JOB = {"jobType": "noop"}
DOCS = Path(__file__).parents[3] / "docs" / "api.md"


def limited(**limits: int) -> Limiting:
    """For acme alone."""
    return Limiting(lambda tenant, name: limits.get(name) if tenant == "acme" else None)


def limit(running: Running, **limits: int) -> None:
    """The same in a running API."""
    app_of(running).state.limiting._override = limited(**limits)._override


def test_the_documentation_has_every_limit_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d,]+) \| ([^|]+) \| (\w+) \|", DOCS.read_text(), re.MULTILINE
    )

    assert [
        (limit.name, f"{limit.default:,}", limit.unit, limit.counted) for limit in LIMITS.values()
    ] == rows


def test_no_limit_is_more_than_a_process_has_places_for() -> None:
    assert {
        "uploads": turns.PLACES,
        "key_uploads": turns.PLACES,
        "uploads_waiting": turns.MOST_WAITING,
        "streams": limiting.MOST_STREAMS,
        "key_streams": limiting.MOST_STREAMS,
    } == {
        name: limit.highest for name, limit in LIMITS.items() if "uploads" in name or "str" in name
    }


def test_a_row_that_was_written_past_the_api_is_held_to_the_bounds_too() -> None:
    counts = limited(operator_requests=0, forms=10**15, uploads=0)
    acme = TenantId("acme")

    assert (10, 100_000, 0) == tuple(
        counts.of(acme, name) for name in ("operator_requests", "forms", "uploads")
    )


def test_a_bucket_fills_at_its_rate_and_may_be_in_debt() -> None:
    bucket = Bucket()
    assert bucket.wait(10, 20, now=100) == 0
    bucket.take(25)

    assert bucket.wait(10, 20, now=100) == pytest.approx(0.6)
    assert bucket.wait(10, 20, now=100.5) > 0
    assert bucket.wait(10, 20, now=100.6) == 0
    assert bucket.wait(10, 20, now=200) == 0
    assert bucket.level == 20
    bucket.take(20)
    assert bucket.wait(0, 0, now=300) > 1_000_000


async def test_a_tenant_over_its_requests_is_told_which_limit_it_is(
    running: Running, acme: httpx.AsyncClient, rival: httpx.AsyncClient
) -> None:
    limit(running, requests=1, operator_requests=100)

    told = [await acme.get("/v1/jobs") for _ in range(6)]
    async with running.client("reader") as other_key, running.client("operator") as operating:
        also = await other_key.get("/v1/jobs")
        operated = await operating.get("/v1/operator/pauses")

    refused = next(answer for answer in told if answer.status_code == 429)
    is_problem(refused, 429, "limit_reached")
    assert refused.json()["limit"] == "requests"
    assert int(refused.headers["retry-after"]) >= 1
    assert told[0].status_code == 200
    assert also.status_code == 429
    assert operated.status_code == 200
    assert (await rival.get("/v1/jobs")).status_code == 200


async def test_a_tenant_over_its_bytes_waits_before_it_sends_more(
    running: Running, acme: httpx.AsyncClient
) -> None:
    limit(running, bytes=20)

    first = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)
    second = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)

    assert first.status_code == 202
    is_problem(second, 429, "limit_reached")
    assert second.json()["limit"] == "bytes"
    assert (await acme.get("/v1/jobs")).status_code == 200


async def test_a_picture_that_its_head_gives_away_costs_as_much_as_many_requests(
    running: Running,
    acme: httpx.AsyncClient,
    rival: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(running, requests=REFUSED_HEAD // 2)  # twice as many at once
    monkeypatch.setattr(limiting, "monotonic", lambda: 0.0)

    told = [await acme.post("/v1/images", content=b"no picture", headers=JPEG) for _ in range(2)]

    is_problem(told[0], 415, "unsupported")
    is_problem(told[1], 429, "limit_reached")
    assert told[1].json()["limit"] == "requests"
    taken = [await rival.post("/v1/images", content=a_jpeg(), headers=JPEG) for _ in range(3)]
    assert [202, 202, 202] == [answer.status_code for answer in taken]


async def test_what_operators_send_is_no_bytes_of_their_tenant(
    running: Running, acme: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    counts = app_of(running).state.limiting
    monkeypatch.setattr(counts, "sent", lambda key, _size: sent.append(key.tenant_id))
    pause = {"scope": "type", "name": "sleep", "reason": "x"}

    async with running.client("operator") as operating:
        assert 200 == (await operating.put("/v1/operator/pauses", json=pause)).status_code
    assert [] == sent
    assert 202 == (await acme.post("/v1/jobs", json={"jobType": "noop"})).status_code

    assert {"acme"} == set(sent)


async def test_forms_are_as_many_and_as_large_as_they_may_be(
    running: Running, acme: httpx.AsyncClient
) -> None:
    asked = {"contentType": "image/jpeg", "maxBytes": 1000}
    limit(running, forms=2, form_bytes=1500)

    told = [await acme.post("/v1/uploads", json=asked) for _ in range(2)]
    limit(running, forms=1)
    told.append(await acme.post("/v1/uploads", json=asked))

    assert [201, 429, 429] == [answer.status_code for answer in told]
    assert [None, "form_bytes", "forms"] == [answer.json().get("limit") for answer in told]


@pytest.fixture
async def other(running: Running, admin: Connection) -> AsyncIterator[httpx.AsyncClient]:
    """Another key of acme."""
    scopes = ("submit", "read")
    running.secrets["other"] = await create_key(admin, ACME, name="other", scopes=scopes)
    async with running.client("other") as client:
        yield client


async def test_a_key_has_so_many_jobs_open_while_another_of_its_tenant_goes_on(
    running: Running, acme: httpx.AsyncClient, other: httpx.AsyncClient
) -> None:
    limit(running, key_open_jobs=2)
    first = await acme.post("/v1/jobs", json=JOB, headers=KEY)
    stored = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)
    image, cancel = f"/v1/images/{stored.json()['imageId']}", first.json()["links"]["cancel"]
    set_of_all = {"jobType": "reprocess_images", "payload": {"all_images": True}}

    told = [
        await acme.post("/v1/jobs", json=JOB),
        await acme.post("/v1/jobs", json=set_of_all),
        await acme.post("/v1/images", content=a_jpeg(), headers=JPEG),
        await acme.put(image, content=a_jpeg(), headers=JPEG),
        await acme.post(f"{image}/reprocess"),
        await acme.post("/v1/uploads", json={"contentType": "image/jpeg"}),
    ]
    batch = {"jobs": [JOB, JOB | {"idempotencyKey": KEY["Idempotency-Key"]}]}
    refused, repeated = (await acme.post("/v1/jobs:batch", json=batch)).json()["answers"]

    for answer in told:
        is_problem(answer, 429, "too_many_open_jobs")
        assert answer.json()["limit"] == "key_open_jobs"
        assert int(answer.headers["retry-after"]) > 0
    assert (429, "key_open_jobs") == (refused["status"], refused["problem"]["limit"])
    assert (202, first.json()["jobId"]) == (repeated["status"], repeated["job"]["jobId"])
    assert first.content == (await acme.post("/v1/jobs", json=JOB, headers=KEY)).content
    assert 202 == (await other.post("/v1/jobs", json=JOB)).status_code
    # What is open may be cancelled, once; and what is the other's is not this one's to count.
    assert [202, 202] == [(await acme.post(cancel)).status_code for _ in range(2)]
    assert 202 == (await other.post("/v1/jobs", json=JOB)).status_code


async def test_a_tenants_quota_holds_for_all_its_keys_whatever_one_of_them_may(
    running: Running,
    acme: httpx.AsyncClient,
    other: httpx.AsyncClient,
    superuser: Connection,
) -> None:
    await superuser.execute("UPDATE tenants SET max_open_jobs = 2 WHERE id = 'acme'")
    limit(running, key_open_jobs=3)
    for client in (acme, other):
        assert 202 == (await client.post("/v1/jobs", json=JOB)).status_code

    for client in (acme, other):
        full = await client.post("/v1/jobs", json=JOB)
        assert (429, "open_jobs") == (full.status_code, full.json()["limit"])


async def test_open_jobs_are_counted_by_few_statements(api: Connection, admin: Connection) -> None:
    keys = []
    for name in ("one", "other"):
        secret = await create_key(admin, ACME, name=name, scopes=("submit",))
        keys.append(await find_key(admin, secret))
    statements: list[str] = []

    async def asked_for(counts: Limiting) -> int:
        statements.clear()
        for key in [*keys, *keys] * 5:
            assert key is not None
            assert (await counts.open_jobs(api, key, 1)).take() is None
        await asyncio.sleep(0)  # the last of them is told in the loop's next turn
        return statements.count(ROOM_FOR_JOBS)

    with driver_of(api).query_logger(lambda record: statements.append(record.query)):
        for_both, for_each = await asked_for(limited()), await asked_for(limited(key_open_jobs=100))

    assert (for_both, for_each) == (1, 2)


def test_streams_are_counted_a_key_and_a_tenant() -> None:
    counts = limited(key_streams=2, streams=3)
    mine, other = a_key(), a_key()

    with counts.stream(mine), counts.stream(mine):
        with pytest.raises(LimitReached, match="This API key"):
            counts.stream(mine).__enter__()
        with counts.stream(other), pytest.raises(LimitReached):
            counts.stream(other).__enter__()
        with counts.stream(a_key("rival")):
            assert counts.streams == 3

    assert counts.streams == 0


def test_who_has_something_under_way_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiting, "MOST_REMEMBERED", 3)
    counts = limited(key_streams=1)
    waiting = a_key()

    with counts.stream(waiting):
        for _ in range(50):
            counts.request(a_key(), sends=False, operates=False)
        assert len(counts.keys._counts) <= 4
        with pytest.raises(LimitReached):
            counts.stream(waiting).__enter__()


async def drops(every: float, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        await asyncio.sleep(every)
        yield b"x"


async def test_a_slow_body_passes_and_a_slower_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.5)

    async def read(least_rate: int) -> int:
        async with asyncio.timeout(30) as deadline:
            turn = Turn(a_key(), deadline, limited(), least_rate)
            return sum([len(chunk) async for chunk in turn.paced(drops(0.01, 100))])

    assert await read(least_rate=2) == 100
    assert await read(least_rate=0) == 100
    with pytest.raises(RequestRejected, match="too slowly"):
        await read(least_rate=10_000)


async def test_what_stalled_before_may_stay_where_no_rate_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "EXPENDABLE_AFTER", 0.2)
    ended: list[None] = []
    reading = Turns(limited(), stalled=lambda: ended.append(None), places=2)
    greedy, go = a_key("greedy"), asyncio.Event()

    async def upload(body: AsyncIterator[bytes]) -> int:
        async with (
            asyncio.timeout(30) as deadline,
            reading.turn(greedy, deadline, least_rate=0) as turn,
        ):
            came = sum([len(chunk) async for chunk in turn.paced(body)])
            await go.wait()  # for S3, as it were
            return came

    async def waits() -> None:
        async with asyncio.timeout(30) as deadline:
            async with reading.turn(a_key("modest"), deadline, least_rate=0):
                pass

    async with asyncio.TaskGroup() as group:
        both = [group.create_task(upload(drops(0.1, 4))) for _ in range(2)]
        await eventually(lambda: len(reading._running) == 2)
        waiter = group.create_task(waits())
        await asyncio.wait([waiter], timeout=2 * turns.LOOK_EVERY)
        assert ended == []
        go.set()

    assert [4, 4] == [task.result() for task in both]


async def test_an_upload_whose_time_is_over_is_not_ended_for_others() -> None:
    ended: list[None] = []
    reading = Turns(limited(), stalled=lambda: ended.append(None), places=1)
    never = asyncio.Event()

    async def upload(least_rate: int = 0) -> None:
        async with (
            asyncio.timeout(30) as deadline,
            reading.turn(a_key("greedy"), deadline, least_rate=least_rate) as turn,
        ):
            turn._credit = 0  # it stalls most
            deadline.reschedule(asyncio.get_running_loop().time() + 0.05)
            try:
                await never.wait()
            finally:
                # Its time is over, it has not left, and somebody looks.
                reading._make_room(a_key("modest"))
                turn.end()

    with pytest.raises(TimeoutError):
        await upload()

    assert (0, []) == (reading._taken, ended)


async def test_places_go_to_those_who_have_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LOOK_EVERY", 60)
    reading = Turns(limited(), stalled=list, places=2)
    greedy, modest, order = a_key("greedy"), a_key("modest"), []
    go = asyncio.Event()

    async def upload(key: ApiKey) -> None:
        async with asyncio.timeout(30) as deadline, reading.turn(key, deadline, least_rate=0):
            order.append(key.tenant_id)
            await go.wait()

    async with asyncio.TaskGroup() as group:
        for key in (greedy, greedy, greedy, greedy, modest):
            group.create_task(upload(key))
            await asyncio.sleep(0)
        assert order == ["greedy", "greedy"]
        go.set()

    assert order[2] == "modest"
    assert reading._taken == 0


async def test_who_leaves_the_queue_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_WITHIN", 0.05)
    counts = limited(uploads=1, uploads_waiting=1)
    reading = Turns(counts, stalled=list)
    key = a_key()
    async with asyncio.timeout(30) as deadline, reading.turn(key, deadline, least_rate=0):
        told = await asyncio.gather(
            *(reading.turn(key, deadline, least_rate=0).__aenter__() for _ in range(2)),
            return_exceptions=True,
        )

    assert ["uploads", "uploads_waiting"] == [
        getattr(outcome, "limit", outcome) for outcome in told
    ]

    assert (0, 0) == (reading._taken, counts.tenants.of(key.tenant_id).waiting)


def test_what_is_held_of_bodies_is_bounded_a_key_a_tenant_and_the_process() -> None:
    key, sister, other = a_key(), a_key(), a_key("other")
    held = Bodies(limited(bodies=100), most_bytes=150)

    with held.body(key) as mine, held.body(sister) as hers, held.body(other) as theirs:
        mine(75)
        with pytest.raises(LimitReached) as refused:
            mine(1)
        assert refused.value.limit == "bodies"
        hers(25)
        with pytest.raises(LimitReached):
            hers(1)
        theirs(50)
        with pytest.raises(Unavailable) as busy:
            theirs(1)
        assert busy.value.code == "busy"
        assert held.bytes == 150

    assert held.bytes == 0
    with held.body(key) as mine:
        mine(75)


def test_so_many_bodies_are_read_at_once_of_a_key_and_of_a_tenant() -> None:
    counts = limited()
    held = Bodies(counts)
    key, sister, other = a_key(), a_key(), a_key("other")

    with ExitStack() as reading:
        for whose, most in ((key, 192), (sister, 64), (other, 192)):
            for _ in range(most):
                reading.enter_context(held.body(whose))
            with pytest.raises(LimitReached) as refused:
                reading.enter_context(held.body(whose))
            assert refused.value.limit == "bodies"
        assert not counts.tenants.of(key.tenant_id).is_idle
        with held.body(None):
            pass  # operators' count for nobody

    with held.body(key):
        assert counts.keys.of(key.id).bodies == 1
    assert counts.tenants.of(key.tenant_id).is_idle


async def test_json_that_comes_too_slowly_is_not_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.2)

    address = urlsplit(running.url)
    head = "POST {} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n"
    body = "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"

    for path in ("/v1/jobs", "/v1/jobs:batch"):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write((head.format(path, running.secrets["acme"]) + body).encode())
        async with asyncio.timeout(8):
            answer = await reader.readuntil(b'"}')
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"too slowly" in answer
    assert app_of(running).state.bodies.bytes == 0


async def test_who_may_not_operate_has_no_second_bucket(running: Running) -> None:
    limit(running, key_requests=1, requests=1)

    async with running.client("acme") as acme:
        met = [(await acme.get("/v1/operator/jobs")).status_code for _ in range(4)]

    assert met[0] == 403
    assert met[-1] == 429
