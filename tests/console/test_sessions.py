"""Logging in and out: by a key or by a proxy, for a time, and nothing of the key is ever shown."""

from http.cookies import SimpleCookie
from ipaddress import ip_network

import httpx
import pytest
from structlog.testing import capture_logs

from imagefleet.console import sessions as module
from imagefleet.store.database import Connection
from tests.console.conftest import Opened, Opening
from tests.support.api import Running, Serve

HERE = ip_network("127.0.0.0/8")


def cookie_of(answer: httpx.Response) -> tuple[str, dict[str, str]]:
    """Its value, and what a browser is told of it."""
    (morsel,) = SimpleCookie(answer.headers["set-cookie"]).values()
    return morsel.value, {name: str(value) for name, value in morsel.items() if value}


async def test_whoever_has_not_logged_in_sees_the_login_alone(console: Opened) -> None:
    async with console.visitor() as visitor:
        for path in ("/", "/faults?type=noop", "/jobs/x", "/nowhere", "/breakers/s3/reset"):
            answer = await visitor.get(path)
            assert (answer.status_code, answer.text) == (303, "")
            assert answer.headers["location"].startswith("/login")
        followed = await visitor.get("/", headers={"Accept": "text/event-stream"})
        part = await visitor.get("/faults", headers={"HX-Request": "true"})
        login = await visitor.get("/login")

    assert followed.status_code == 204  # a browser asks no more
    assert part.headers["hx-redirect"] == "/login"
    assert login.status_code == 200


async def test_a_key_that_may_operate_opens_a_session_that_says_nothing_of_it(
    console: Opened,
) -> None:
    key = console.api.secrets["operator"]
    async with console.visitor() as visitor:
        with capture_logs() as logs:
            answer = await visitor.post(
                "/login", data={"key": key, "next": "/faults?type=noop"}, headers=console.origin
            )
        page = await visitor.get("/")

    value, about = cookie_of(answer)
    assert answer.headers["location"] == "/faults?type=noop"
    assert about == {"path": "/", "max-age": "43200", "httponly": "True", "samesite": "strict"}
    assert page.status_code == 200
    told = [value, page.text, str(answer.headers), str(logs)]
    assert [text for text in told if key in text or key[:12] in text] == []
    assert f"key …{key[-4:]}" in page.text


async def test_over_https_the_cookie_goes_over_nothing_else(
    opening: Opening, running: Running
) -> None:
    there = "https://console.example"
    async with opening(running, origin=there) as console, console.visitor() as visitor:
        key = {"key": running.secrets["operator"]}
        elsewhere = await visitor.post("/login", data=key, headers=console.origin)
        answer = await visitor.post("/login", data=key, headers={"Origin": there})

    assert elsewhere.status_code == 403
    assert answer.headers["set-cookie"].startswith("__Host-imagefleet-console=")
    assert cookie_of(answer)[1]["secure"] == "True"


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("unknown", "No key in force is like this one"),
        ("revoked", "No key in force is like this one"),
        ("expired", "No key in force is like this one"),
        ("acme", "lacks the scope operate"),
    ],
)
async def test_a_key_that_may_not_operate_opens_none(console: Opened, who: str, said: str) -> None:
    key = console.api.secrets[who]
    async with console.visitor() as visitor:
        answer = await visitor.post("/login", data={"key": key}, headers=console.origin)

    assert answer.status_code == 403
    assert said in answer.text
    assert "set-cookie" not in answer.headers
    assert key not in answer.text


@pytest.mark.parametrize(
    "key", ["", "short", "with space", "line\nbreak", "ключ-от-всего", "x" * 300]
)
async def test_what_is_no_key_is_not_even_asked_about(console: Opened, key: str) -> None:
    async with console.visitor() as visitor:
        answer = await visitor.post("/login", data={"key": key}, headers=console.origin)

    assert answer.status_code == 403


async def test_without_an_api_nobody_is_let_in_and_it_is_said_why(
    opening: Opening, running: Running
) -> None:
    nowhere = "http://127.0.0.1:9"
    async with opening(running, api_url=nowhere) as console, console.visitor() as visitor:
        key = {"key": running.secrets["operator"]}
        answer = await visitor.post("/login", data=key, headers=console.origin)

    assert answer.status_code == 503
    assert "The API does not answer" in answer.text


async def test_an_api_without_operators_says_so(serve: Serve, opening: Opening) -> None:
    async with (
        serve(operating=False) as running,
        opening(running) as console,
        console.visitor() as visitor,
    ):
        key = {"key": running.secrets["operator"]}
        answer = await visitor.post("/login", data=key, headers=console.origin)

    assert answer.status_code == 403
    assert "does not serve operators" in answer.text


async def test_who_tries_too_often_waits(console: Opened) -> None:
    async with console.visitor() as visitor:
        tried = [
            await visitor.post("/login", data={"key": "if_" + "x" * 43}, headers=console.origin)
            for _ in range(module.TRIES_A_MINUTE + 1)
        ]

    assert [answer.status_code for answer in tried[:-1]] == [403] * module.TRIES_A_MINUTE
    assert tried[-1].status_code == 429


async def test_a_login_leads_nowhere_else(console: Opened) -> None:
    key = console.api.secrets["operator"]
    elsewhere = ["https://evil.example", "//evil.example", "/\\evil.example", "/login", "script:x"]
    for there in elsewhere:
        async with console.visitor() as visitor:
            form = {"key": key, "next": there}
            answer = await visitor.post("/login", data=form, headers=console.origin)
        assert answer.headers["location"] == "/", there


async def test_a_logout_forgets_the_key(console: Opened) -> None:
    async with console.logged_in() as visitor:
        token = {"csrf": console.session.csrf}
        answer = await visitor.post("/logout", data=token, headers=console.origin)
        after = await visitor.get("/")

    assert answer.headers["location"] == "/login"
    assert after.headers["location"] == "/login"
    assert len(console.sessions) == 0


@pytest.mark.parametrize("which", ["opened_at", "seen_at"])
async def test_a_session_ends_by_itself(console: Opened, which: str) -> None:
    async with console.logged_in() as visitor:
        past = console.session.opened_at - 43_201
        setattr(console.session, which, past)
        answer = await visitor.get("/faults")
        console.sessions.end_old()

    assert answer.headers["location"].startswith("/login")
    assert len(console.sessions) == 0


async def test_a_key_that_is_revoked_ends_its_session_with_the_next_page(
    console: Opened, admin: Connection, serve: Serve
) -> None:
    async with console.logged_in() as visitor:
        assert (await visitor.get("/faults")).status_code == 200
        console.session.client = console.session.client.bearing("if_" + "y" * 43)
        answer = await visitor.get("/faults")

    assert answer.headers["location"] == "/login"
    assert len(console.sessions) == 0


async def test_a_cookie_that_was_not_given_is_nobodys(console: Opened) -> None:
    async with console.logged_in():
        name, _, signature = console.sessions.cookie_of(console.session).partition(".")
        for made in ("", ".", "x", "x.y", f"{name}.", f"{name}.00", f".{signature}"):
            async with console.visitor(Cookie=f"imagefleet-console={made}") as stranger:
                answer = await stranger.get("/")
            assert answer.headers["location"] == "/login", made


async def test_there_are_never_more_sessions_than_so_many(
    console: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SESSIONS", 2)
    async with (
        console.logged_in() as first,
        console.logged_in() as second,
        console.logged_in() as third,
    ):
        shown = [(await each.get("/faults")).status_code for each in (first, second, third)]

    assert shown == [303, 200, 200]


async def test_whom_a_trusted_proxy_names_acts_with_a_key_of_their_own(
    opening: Opening, running: Running
) -> None:
    key = running.secrets["operator"]
    settings = {"proxy_header": "X-Forwarded-User", "proxy_keys": {"dana": key}}
    async with opening(running, trusted_proxies=(HERE,), **settings) as console:
        async with console.visitor(**{"X-Forwarded-User": "dana"}) as dana:
            shown = await dana.get("/")
            again = await dana.get("/faults")
        async with console.visitor(**{"X-Forwarded-User": "eve"}) as eve:
            unknown = await eve.get("/")
        async with console.visitor() as nobody:
            unnamed = await nobody.get("/")
        assert len(console.sessions) == 1

    assert (shown.status_code, again.status_code) == (200, 200)
    assert "dana" in shown.text
    assert key not in shown.text
    assert unknown.status_code == 403
    assert unnamed.status_code == 303


async def test_whoever_is_no_trusted_proxy_names_nobody(opening: Opening, running: Running) -> None:
    settings = {
        "proxy_header": "X-Forwarded-User",
        "proxy_keys": {"dana": running.secrets["operator"]},
        "trusted_proxies": (ip_network("10.0.0.0/8"),),
    }
    async with (
        opening(running, **settings) as console,
        console.visitor(**{"X-Forwarded-User": "dana"}) as forger,
    ):
        answer = await forger.get("/")

    assert answer.status_code == 303
