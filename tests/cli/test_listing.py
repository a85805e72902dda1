"""`--all`: a list to its end, page after page, of which never more than one is kept."""

import json
from typing import Final

import pytest

from imagefleet.cli.listing import instant
from imagefleet.cli.output import ExitCode
from imagefleet.client import api
from tests.cli.conftest import Cli, document
from tests.cli.scripted import Script, ok, problem
from tests.support.api import Running

MANY: Final = 205  # two full pages and some more


@pytest.fixture
async def many(running: Running) -> list[str]:
    """Jobs, the newest first."""
    async with running.client() as client:
        for count in (100, 100, 5):
            jobs = [{"jobType": "noop", "correlationId": "many"}] * count
            answer = await client.post("/v1/jobs:batch", json={"jobs": jobs})
            assert answer.status_code == 200, answer.text
        ids: list[str] = []
        while len(ids) < MANY:
            after = {"cursor": ids[-1]} if ids else {}
            page = (await client.get("/v1/jobs", params={"limit": 100, **after})).json()
            ids += [job["jobId"] for job in page["jobs"]]
    return ids


@pytest.mark.parametrize("who", ["producer", "operator"])
async def test_every_job_is_listed_once_as_one_document(
    cli: Cli, running: Running, many: list[str], monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["acme" if who == "producer" else who])
    theirs = ("--correlation-id", "many") if who == "producer" else ("--every-tenant",)

    ended = await cli("jobs", "list", "--all", "--json", *theirs)

    assert len(many) == MANY
    assert many == [job["jobId"] for job in document(ended)["jobs"]]


async def test_in_a_pipe_the_heads_stand_once_and_a_job_on_each_line(
    produce: Cli, many: list[str]
) -> None:
    ended = await produce("jobs", "list", "--all")

    heads, *lines = ended.out.splitlines()
    assert heads.startswith("job ")
    assert many == [line.split()[0] for line in lines]
    assert ended.err == ""


async def test_it_begins_behind_a_cursor(produce: Cli, many: list[str]) -> None:
    ended = await produce("jobs", "list", "--all", "--json", "--cursor", many[99])

    assert many[100:] == [job["jobId"] for job in document(ended)["jobs"]]


@pytest.mark.parametrize("words", [(), ("--json",)])
async def test_of_nothing_it_says_so(produce: Cli, words: tuple[str, ...]) -> None:
    ended = await produce("jobs", "list", "--all", *words)

    assert ended.code == ExitCode.DONE
    assert {"jobs": []} == ended.json() if words else "no such jobs" in ended.out


LISTS: Final[dict[tuple[str, ...], tuple[str, str, dict[str, object]]]] = {
    ("images", "list"): ("/v1/images", "images", {"imageId": "", "status": "ready",
                                                  "variants": [], "srcset": {},
                                                  "createdAt": "2026-01-01T00:00:00Z"}),
    ("dlq", "list"): ("/v1/operator/dead-letters", "letters",
                      {"tenant": "acme", "jobType": "noop", "reason": "x", "message": "x",
                       "diedAt": "2026-01-01T00:00:00Z", "fingerprint": "f" * 32}),
    ("tenants", "list"): ("/v1/operator/tenants", "tenants",
                          {"openJobs": 1, "openJobsIsAtLeast": False, "maxOpenJobs": 9,
                           "weight": 1, "paused": False, "pausedTypes": [],
                           "createdAt": "2026-01-01T00:00:00Z"}),
    ("audit",): ("/v1/operator/audit", "lines",
                 {"at": "2026-01-01T00:00:00Z", "actor": "x", "action": "x", "kind": "x"}),
}  # fmt: skip
IDS: Final = {"images": "imageId", "letters": "id", "tenants": "tenant", "lines": "name"}


@pytest.mark.parametrize("verb", LISTS)
async def test_every_list_goes_on_to_its_end(
    cli: Cli, script: Script, verb: tuple[str, ...]
) -> None:
    path, name, thing = LISTS[verb]
    ids = [f"0199a5c2-0000-7000-8000-{number:012}" for number in range(4)]
    first, second = ([thing | {IDS[name]: each} for each in part] for part in (ids[:2], ids[2:]))
    cursor = 7 if name == "lines" else ids[1]
    script.on(
        f"GET {path}",
        ok({name: first, "nextCursor": cursor}),
        ok({name: [], "nextCursor": cursor}),
        ok({name: second}),
        ok({name: first, "nextCursor": cursor}),
        ok({name: second}),
    )

    as_json = await cli(*verb, "--all", "--json")
    table = await cli(*verb, "--all")

    assert ids == [told[IDS[name]] for told in document(as_json)[name]]
    assert all(table.out.count(each) == 1 for each in ids), table.out + table.err
    assert len(table.out.splitlines()) == 5
    assert all("limit=100" in asked or "limit=500" in asked for asked, _, _ in script.asked)
    assert [False, True, True] * 1 == [f"cursor={cursor}" in asked for asked, *_ in script.asked][
        :3
    ]


async def test_a_page_is_told_before_the_next_is_asked_for(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes of it in the end: an error, and no document that looks whole."""
    monkeypatch.setattr(api, "TRIES", 1)
    tenant = LISTS["tenants", "list"][2] | {"tenant": "first"}
    script.on(
        "GET /v1/operator/tenants",
        ok({"tenants": [tenant], "nextCursor": "first"}),
        problem(503, "unavailable", "Away."),
    )

    ended = await cli("tenants", "list", "--all", "--json")

    assert ended.code == ExitCode.UNAVAILABLE
    assert '"first"' in ended.out
    with pytest.raises(json.JSONDecodeError):
        ended.json()


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00+00:00"),
        ("2026-03-01T12:00:00+02:00", "2026-03-01T12:00:00+02:00"),
        ("2026-03-01 12:00:00", "2026-03-01T12:00:00+00:00"),
        ("2026-03-01", "2026-03-01T00:00:00+00:00"),
    ],
)
def test_a_time_is_as_tables_print_it(typed: str, asked: str) -> None:
    """Which is in UTC, without saying so in each row."""
    assert asked == instant(typed)
