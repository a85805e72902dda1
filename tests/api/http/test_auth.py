"""Who may do what: every route with every kind of key, and what another tenant gets to see."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import cast
from uuid import UUID, uuid4

import httpx
import pytest
from structlog.testing import capture_logs

from imagefleet.api.http import auth
from imagefleet.api.http.auth import Keys, Refusals
from imagefleet.api.http.requests import Tools
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import create_key, digest_of, revoke_key
from imagefleet.telemetry.metrics import ApiMetrics
from tests.support.api import (
    ACME,
    ANY_KEYS_ROUTES,
    JPEG,
    OPERATOR_ROUTES,
    ROUTES,
    Running,
    Serve,
    app_of,
)
from tests.support.eventually import eventually
from tests.support.http import a_jpeg, but_for_its_id, is_problem, submitted

OF_ONE_THING = [route for route in ROUTES if "{" in route.path]


@pytest.fixture
async def thing(acme: httpx.AsyncClient) -> tuple[object, object]:
    """A job and an image of acme's."""
    job_id = await submitted(acme)
    image = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)
    return job_id, image.json()["imageId"]


@pytest.mark.parametrize("who", [None, "expired", "revoked", "unknown"])
async def test_without_a_key_in_force_nothing_is_answered(
    running: Running, thing: tuple[object, object], who: str | None
) -> None:
    bodies = set()
    async with running.client(who) as nobody:
        for route in (*ROUTES, *ANY_KEYS_ROUTES, *OPERATOR_ROUTES):
            answer = await route.ask(nobody, *thing)
            is_problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            bodies.add(but_for_its_id(answer))

    assert len(bodies) == 1


async def test_a_key_without_the_scope_is_told_so(
    running: Running, thing: tuple[object, object]
) -> None:
    wrong = {"read": "submitter", "submit": "reader", "originals": "reader"}
    for route in ROUTES:
        for who in (wrong[route.scope], "operator"):
            async with running.client(who) as client:
                answer = await route.ask(client, *thing)
            is_problem(answer, 403, "forbidden")
            assert f"`{route.scope}`" in answer.json()["detail"]


async def test_only_operators_operate(running: Running, thing: tuple[object, object]) -> None:
    for route in OPERATOR_ROUTES:
        for who in ("acme", "rival", "reader", "submitter"):
            async with running.client(who) as client:
                of_somebody = await route.ask(client, *thing)
                of_nobody = await route.ask(client, uuid4(), uuid4())
            is_problem(of_somebody, 403, "forbidden")
            assert "`operate`" in of_somebody.json()["detail"]
            assert but_for_its_id(of_somebody) == but_for_its_id(of_nobody)


async def test_an_operator_may_all_of_it(running: Running, thing: tuple[object, object]) -> None:
    async with running.client("operator") as operating:
        for route in OPERATOR_ROUTES:
            answer = await route.ask(operating, *thing)
            not_made = route.method == "GET" and route.path.endswith("/preview")
            unknown = ("{letter}", "{worker}", "/edge/invalidations")
            if any(part in route.path for part in unknown) or not_made:
                is_problem(answer, 404, "not_found")  # there is none
            else:
                assert answer.is_success, (route.path, answer.text)


async def test_without_the_operators_database_there_are_no_such_routes(
    serve: Serve, thing: tuple[object, object]
) -> None:
    async with (
        serve(operating=False) as running,
        running.client("operator") as operating,
    ):
        for route in OPERATOR_ROUTES:
            is_problem(await route.ask(operating, *thing), 404, "not_found")


async def test_another_tenants_thing_does_not_exist(
    rival: httpx.AsyncClient, thing: tuple[object, object]
) -> None:
    for route in OF_ONE_THING:
        of_other = await route.ask(rival, *thing)
        of_nobody = await route.ask(rival, uuid4(), uuid4())

        is_problem(of_other, 404, "not_found")
        assert but_for_its_id(of_other) == but_for_its_id(of_nobody)
        assert set(of_other.headers) == set(of_nobody.headers)


async def test_lists_end_at_the_tenant(
    rival: httpx.AsyncClient, thing: tuple[object, object]
) -> None:
    job_id, image_id = thing

    assert (await rival.get("/v1/jobs")).json() == {"jobs": []}
    assert (await rival.get("/v1/images")).json() == {"images": []}
    assert (await rival.get(f"/v1/jobs?imageId={image_id}")).json() == {"jobs": []}
    assert (await rival.get(f"/v1/jobs?parentJobId={job_id}")).json() == {"jobs": []}


async def test_what_is_no_key_is_refused(running: Running) -> None:
    for authorization in (
        "",
        "Bearer",
        "Basic aWY6eA==",
        "Bearer if_" + "x" * 10_000,
        "Bearer if_short",
        "Bearer ' OR true --",
        "if_" + "x" * 43,
    ):
        async with running.client(None, Authorization=authorization) as client:
            is_problem(await client.get("/v1/jobs"), 401, "unauthorized")


async def test_a_revoked_key_dies_once_it_is_looked_at_again(
    running: Running, admin: Connection
) -> None:
    app = app_of(running)
    keys = Keys(app.state.tools, trust=timedelta(0))
    header = f"Bearer {running.secrets['acme']}"
    key = await keys.find(header)
    assert key is not None

    await revoke_key(admin, key.id)

    assert await keys.find(header) is None


async def test_a_key_is_believed_for_a_while(running: Running, admin: Connection) -> None:
    keys = Keys(app_of(running).state.tools, trust=timedelta(seconds=20))
    header = f"Bearer {running.secrets['acme']}"
    key = await keys.find(header)
    assert key is not None
    await revoke_key(admin, key.id)

    assert await keys.find(header) == key


async def test_the_last_use_of_a_key_is_remembered(
    running: Running, acme: httpx.AsyncClient, operator: Connection
) -> None:
    async def last_use() -> object:
        return await operator.fetchval(
            "SELECT last_used_at FROM api_keys WHERE secret_sha256 = $1",
            digest_of(running.secrets["acme"]),
        )

    assert await last_use() is None
    await acme.get("/v1/jobs")

    assert await eventually(last_use)


async def test_a_job_knows_which_key_made_it(
    acme: httpx.AsyncClient, running: Running, operator: Connection
) -> None:
    job_id = await submitted(acme)

    made_by = await operator.fetchval("SELECT created_by FROM jobs WHERE id = $1", job_id)

    assert UUID(made_by) == await operator.fetchval(
        "SELECT id FROM api_keys WHERE secret_sha256 = $1", digest_of(running.secrets["acme"])
    )


# What is told of keys that are refused.


async def test_a_refused_key_is_a_line_with_why_whose_and_where_from(running: Running) -> None:
    with capture_logs() as logs:
        for who in (None, "expired", "revoked", "unknown"):
            async with running.client(who) as client:
                await client.get("/v1/jobs")
        async with running.client(None, Authorization="Basic c2VjcmV0") as client:
            await client.get("/v1/jobs")

    told = [line for line in logs if line["event"] == "key.refused"]
    assert ["missing", "expired", "revoked", "unknown", "malformed"] == [
        line["reason"] for line in told
    ]
    assert {"127.0.0.1"} == {line["address"] for line in told}
    assert [False, True, True, False, False] == [line["key_id"] is not None for line in told]
    unknown = digest_of(running.secrets["unknown"]).hex()[:12]
    assert [None, None, None, unknown, None] == [line["digest"] for line in told]
    for secret in (*running.secrets.values(), "c2VjcmV0"):
        assert secret not in str(told)
    shown = app_of(running).state.tools.metrics.exposition().decode()
    for reason in ("missing", "expired", "revoked", "unknown", "malformed"):
        assert f'auth_failures_total{{reason="{reason}"}} 1.0' in shown


async def test_a_key_that_asks_for_what_it_may_not_do_is_a_line_too(running: Running) -> None:
    with capture_logs() as logs:
        async with running.client("reader") as client:
            await client.get("/v1/operator/tenants")
            await client.get("/v1/jobs")

    (line,) = [line for line in logs if line["event"] == "key.refused"]
    key = await Keys(app_of(running).state.tools).find(f"Bearer {running.secrets['reader']}")
    assert key is not None
    assert ("forbidden", str(key.id), "operate", "127.0.0.1") == tuple(
        line[name] for name in ("reason", "key_id", "scope", "address")
    )
    shown = app_of(running).state.tools.metrics.exposition().decode()
    assert 'auth_failures_total{reason="forbidden"} 1.0' in shown


async def test_a_key_that_expires_while_it_is_believed_is_refused_by_its_name(
    running: Running, admin: Connection
) -> None:
    keys = Keys(app_of(running).state.tools)
    secret = await create_key(
        admin, ACME, name="short", scopes=["read"], expires_in=timedelta(seconds=1)
    )
    key = await keys.find(f"Bearer {secret}")
    assert key is not None

    with capture_logs() as logs:
        await eventually(_is_refused(keys, secret), within=5)

    (line,) = [line for line in logs if line["event"] == "key.refused"]
    assert ("expired", str(key.id)) == (line["reason"], line["key_id"])


def _is_refused(keys: Keys, secret: str) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return await keys.find(f"Bearer {secret}") is None

    return asked


def test_a_flood_of_guesses_is_counted_and_is_no_flood_of_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(auth, "monotonic", lambda: now)
    metrics = ApiMetrics()
    refused = Refusals(cast("Tools", SimpleNamespace(metrics=metrics)))

    with capture_logs() as logs:
        for _ in range(10_000):
            refused.refused("unknown", digest="01" * 6, address="192.0.2.7")
        flood = len(logs)
        now += 1
        for _ in range(10_000):
            refused.refused("unknown", digest="01" * 6, address="192.0.2.7")
        told = len(logs)
        stolen = str(uuid4())
        refused.refused("revoked", key_id=stolen, address="192.0.2.7")

    assert ("revoked", stolen, 0) == tuple(
        logs[-1][name] for name in ("reason", "key_id", "untold")
    )
    assert told + 1 == len(logs)
    assert auth.MOST_AT_ONCE == flood
    assert auth.LINES_A_SECOND == told - flood
    assert 10_000 - flood == logs[flood]["untold"]
    assert b'auth_failures_total{reason="unknown"} 20000.0' in metrics.exposition()
