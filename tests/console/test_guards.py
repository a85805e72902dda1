"""What is refused before any page is asked, and what is said of every answer."""

from collections.abc import Mapping
from typing import Final

import pytest
from fastapi.routing import APIRoute

from imagefleet.console import visits
from imagefleet.console.app import PAGES
from imagefleet.store.database import Connection
from tests.console.conftest import Opened, Opening
from tests.support.api import Running
from tests.support.factories import open_breaker

AN_ID: Final = "01a1f71c-279a-74f8-864c-aa333dbc0291"
EVIL: Final = {"Origin": "https://evil.example"}
POSTS: Final = sorted(
    route.path
    for page in PAGES
    for route in page.router.routes
    if isinstance(route, APIRoute) and "POST" in (route.methods or ())
)
OF_ANYBODY: Final = {"/login", "/logout"}  # by whoever only reads, too


def filled(path: str) -> str:
    """An address of this form."""
    return path.format_map(_Anything())


class _Anything(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return (
            "01a1f71c-279a-74f8-864c-aa333dbc0291" if name.endswith("_id") else "0123456789abcdef"
        )


FAULTS: Final[Mapping[str, tuple[dict[str, str], dict[str, str]]]] = {
    "no token": ({"csrf": ""}, {}),
    "another token": ({"csrf": "x" * 43}, {}),
    "no origin": ({}, {"Origin": ""}),
    "another origin": ({}, EVIL),
    "another site": ({}, {"Sec-Fetch-Site": "cross-site"}),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_changed_but_by_a_form_of_this_session_from_here(
    console: Opened, fault: str
) -> None:
    fields, headers = FAULTS[fault]
    async with console.logged_in() as visitor:
        form = {"csrf": console.session.csrf} | fields
        answers = [
            await visitor.post(filled(path), data=form, headers=console.origin | headers)
            for path in POSTS
        ]

    assert [answer.status_code for answer in answers] == [403] * len(POSTS)
    assert all("Nothing was changed" in answer.text for answer in answers)


@pytest.mark.parametrize("how", ["session", "setting"])
async def test_who_only_reads_changes_nothing(opening: Opening, running: Running, how: str) -> None:
    only_look = {"only_look": "yes"} if how == "session" else {}
    async with (
        opening(running, read_only=how == "setting") as console,
        console.logged_in(**only_look) as visitor,
    ):
        token = {"X-CSRF-Token": console.session.csrf}
        answers = [
            await visitor.post(filled(path), data={"a": "b"}, headers=console.origin | token)
            for path in POSTS
            if path not in OF_ANYBODY
        ]

    assert {answer.status_code for answer in answers} == {403}
    assert all("only reads" in answer.text for answer in answers)


async def test_who_only_reads_is_shown_nothing_to_press(
    console: Opened, worker: Connection
) -> None:
    await open_breaker(worker)
    async with console.logged_in() as acts, console.logged_in(only_look="yes") as looks:
        shown, hidden = await acts.get("/"), await looks.get("/")

    assert "/breakers/s3/reset" in shown.text
    assert "/breakers/s3/reset" not in hidden.text
    assert "only looking" in hidden.text


async def test_a_reset_is_done_in_the_name_of_the_key(console: Opened, worker: Connection) -> None:
    await open_breaker(worker)
    async with console.logged_in() as visitor:
        form = {"csrf": console.session.csrf, "reason": "mended", "back": "/"}
        answer = await visitor.post("/breakers/s3/reset", data=form, headers=console.origin)
        page = await visitor.get("/")
    async with console.api.client("operator") as operator:
        (breaker,) = (await operator.get("/v1/operator/breakers")).json()["breakers"]
        lines = (await operator.get("/v1/operator/audit")).json()["lines"]

    assert answer.headers["location"] == "/"
    assert "The breaker of s3 is closed" in page.text
    assert breaker["state"] == "closed"
    assert (lines[0]["action"], lines[0]["reason"], lines[0]["actor"]) == (
        "reset",
        "mended",
        "of tests",
    )


async def test_what_the_api_refuses_is_told_where_it_was_asked(console: Opened) -> None:
    async with console.logged_in() as visitor:
        form = {"csrf": console.session.csrf, "back": "/faults", "scope": "all"}
        answer = await visitor.post("/pauses/resume", data=form, headers=console.origin)
        page = await visitor.get(answer.headers["location"])

    assert answer.headers["location"] == "/faults"
    assert 'class="notice refused"' in page.text
    assert "No such pause." in page.text


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"csrf=" + b"x" * 70_000, "application/x-www-form-urlencoded", 413),
        (b"&".join(b"a=1" for _ in range(600)), "application/x-www-form-urlencoded", 400),
        (b"csrf=%ff", "application/x-www-form-urlencoded", 400),
        (b"{}", "application/json", 415),
        (b"--x--", "multipart/form-data; boundary=x", 415),
    ],
)
async def test_a_form_is_bounded(console: Opened, content: bytes, kind: str, status: int) -> None:
    async with console.logged_in() as visitor:
        headers = console.origin | {"Content-Type": kind}
        answer = await visitor.post("/pauses/resume", content=content, headers=headers)

    assert answer.status_code == status


async def test_other_methods_and_long_addresses_are_refused(console: Opened) -> None:
    async with console.logged_in() as visitor:
        refused = [
            (await visitor.request(method, "/")).status_code
            for method in ("PUT", "DELETE", "TRACE")
        ]
        long = await visitor.get("/faults", params={"tenant": "x" * 9000})

    assert refused == [405, 405, 405]
    assert long.status_code == 414


@pytest.mark.parametrize(
    "path", ["/", "/login", "/nowhere", "/jobs/01a1f71c-279a-74f8-864c-aa333dbc0291"]
)
async def test_a_page_runs_nothing_that_stands_in_it_and_is_kept_by_nobody(
    console: Opened, path: str
) -> None:
    async with console.logged_in() as visitor:
        answer = await visitor.get(path)

    policy = dict(
        part.partition(" ")[::2] for part in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "style=" not in answer.text
    assert "<script>" not in answer.text
    assert " onclick" not in answer.text


async def test_pictures_come_from_where_images_are_published_and_from_nowhere_else(
    opening: Opening, running: Running
) -> None:
    pictures = "https://images.example/x"
    async with opening(running, public_base_url=pictures) as console, console.visitor() as visitor:
        answer = await visitor.get("/login")

    assert (
        "img-src 'self' data: https://images.example;" in answer.headers["content-security-policy"]
    )


async def test_a_file_is_kept_for_ever_under_an_address_that_is_never_another(
    console: Opened,
) -> None:
    async with console.visitor() as visitor:
        login = await visitor.get("/login")
        (address,) = {
            word.split('"')[1] for word in login.text.split("href=") if "console.css" in word
        }
        there = await visitor.get(address)
        gone = await visitor.get(address.replace("/static/", "/static/0"))
        licence = await visitor.get("/static/x/htmx/LICENSE")

    assert there.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert there.headers["content-type"].startswith("text/css")
    assert (gone.status_code, licence.status_code) == (404, 404)


async def test_a_page_is_followed_until_the_session_is_over(console: Opened) -> None:
    events: list[str] = []
    async with console.logged_in() as visitor:
        follow = {"Accept": "text/event-stream"}
        async with visitor.stream("GET", "/faults", headers=follow) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event:"):
                    events.append(line.removeprefix("event: "))
                if events[-1:] == ["live_groups"] and console.session_or_none is not None:
                    console.sessions.end(console.session, "asked")

    assert (events[:2], events[-1]) == (["trouble", "live_groups"], "over")


async def test_one_session_follows_so_many_pages_at_once(
    console: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visits, "MOST_STREAMS", 1)
    follow = {"Accept": "text/event-stream"}
    async with (
        console.logged_in() as visitor,
        visitor.stream("GET", "/faults", headers=follow) as first,
    ):
        lines = first.aiter_lines()  # once it is let go of, the stream is closed
        await anext(lines)
        second = await visitor.get("/", headers=follow)

    assert second.status_code == 204


async def test_an_api_that_went_away_is_a_state_of_the_page(
    opening: Opening, running: Running
) -> None:
    async with opening(running, api_url="http://127.0.0.1:9") as console:
        session = console.sessions.open(running.secrets["operator"], reads_only=False)
        cookie = f"imagefleet-console={console.sessions.cookie_of(session)}"
        async with console.visitor(Cookie=cookie) as visitor:
            answer = await visitor.get("/")

    assert answer.status_code == 503
    assert "The API does not answer" in answer.text
    assert "Traceback" not in answer.text
