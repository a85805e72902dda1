"""An act and its line are one: who acts, from where, and what comes of an act that is not told."""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, Request

from imagefleet.api import operators
from imagefleet.api.http.auth import Operator
from imagefleet.api.http.requests import Tools, tools_of
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act
from tests.support.api import Running, Serve, app_of
from tests.support.rows import audit_rows, newest_audit

OPERATOR = "/v1/operator"
PAUSE_ALL = "INSERT INTO pauses (scope, paused_by, reason) VALUES ('all', 'x', 'y')"


async def test_a_header_does_not_say_where_somebody_is(
    operating: httpx.AsyncClient, superuser: Connection
) -> None:
    headers = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9"}
    last = await newest_audit(superuser)

    answer = await operating.post(f"{OPERATOR}/breakers/s3/open", headers=headers)

    assert answer.is_success
    (line,) = await audit_rows(superuser, last)
    assert "127.0.0.1" == line["address"]


@pytest.mark.parametrize(
    ("said", "address"),
    [
        (["203.0.113.9"], "203.0.113.9"),
        (["198.51.100.1, 203.0.113.9, 10.1.2.3"], "203.0.113.9"),
        (["198.51.100.1", "203.0.113.9,10.1.2.3"], "203.0.113.9"),
        (["203.0.113.9, nobody, 10.1.2.3"], "10.1.2.3"),
        (["10.9.9.9"], "10.9.9.9"),
        (["::ffff:203.0.113.9"], "203.0.113.9"),
        ([], "127.0.0.1"),
    ],
)
async def test_a_proxy_of_ours_says_where_somebody_is(
    serve: Serve, superuser: Connection, said: list[str], address: str
) -> None:
    trusted = (ip_network("127.0.0.0/8"), ip_network("10.0.0.0/8"))
    async with (
        serve(trusted_proxies=trusted) as running,
        running.client("operator") as operating,
    ):
        last = await newest_audit(superuser)
        headers = [("X-Forwarded-For", hops) for hops in said]
        answer = await operating.post(f"{OPERATOR}/breakers/s3/open", headers=headers)

    assert answer.is_success
    (line,) = await audit_rows(superuser, last)
    assert address == line["address"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_route_that_only_looks_can_change_nothing(
    running: Running, operating: httpx.AsyncClient, superuser: Connection, method: str
) -> None:
    app = app_of(running)

    async def smuggles(_key: Operator, tools: Annotated[Tools, Depends(tools_of)]) -> None:
        async with tools.operating("pause", "pauses") as connection:
            await connection.execute(PAUSE_ALL)

    app.add_api_route("/v1/operator/smuggles", smuggles, methods=[method])

    answer = await operating.request(method, "/v1/operator/smuggles")

    assert 503 == answer.status_code  # as if Postgres was a standby
    assert 0 == await superuser.fetchval("SELECT count(*) FROM pauses")


def test_routes_of_operators_reach_postgres_as_operators_alone() -> None:
    routes = list(Path(operators.__file__).parent.glob("*.py"))

    assert len(routes) > 5
    assert [] == [file.name for file in routes if "tools.pool" in file.read_text()]
    rehearsals = [file.name for file in routes if "tools.rehearsing(" in file.read_text()]
    assert ["letters.py"] == rehearsals


async def test_a_route_that_forgets_to_tell_changes_nothing(
    running: Running, operating: httpx.AsyncClient, superuser: Connection
) -> None:
    app = app_of(running)

    async def forgets(
        request: Request, key: Operator, tools: Annotated[Tools, Depends(tools_of)]
    ) -> None:
        async with tools.acting("pause", "pauses", request, key) as acting:
            await acting.connection.execute(PAUSE_ALL)

    app.add_api_route("/v1/operator/forgets", forgets, methods=["POST"])

    answer = await operating.post("/v1/operator/forgets")

    assert 500 == answer.status_code
    assert 0 == await superuser.fetchval("SELECT count(*) FROM pauses")


async def test_what_could_not_be_told_was_not_done(
    running: Running, operating: httpx.AsyncClient, superuser: Connection
) -> None:
    app = app_of(running)

    async def tells_wrong(
        request: Request, key: Operator, tools: Annotated[Tools, Depends(tools_of)]
    ) -> None:
        async with tools.acting("pause", "pauses", request, key) as acting:
            await acting.connection.execute(PAUSE_ALL)
            await acting.record(Act(action="No Word", kind="pause", name="all"))

    app.add_api_route("/v1/operator/wrong", tells_wrong, methods=["POST"])
    last = await newest_audit(superuser)

    answer = await operating.post("/v1/operator/wrong")

    assert 500 == answer.status_code
    assert 0 == await superuser.fetchval("SELECT count(*) FROM pauses")
    assert [] == await audit_rows(superuser, last)
