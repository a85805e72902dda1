"""The verbs that speak HTTP, against a server that says what the test wants."""

import asyncio
import json
from pathlib import Path
from uuid import uuid4

import pytest
from aiohttp import web

from imagefleet.cli.output import ExitCode
from imagefleet.client import api
from imagefleet.embedded.machine import free_port
from tests.cli.conftest import Cli
from tests.cli.scripted import Script, events, ok, problem, serving

JOB = "0199a5c2-0000-7000-8000-000000000001"
IMAGE = "0199a5c2-0000-7000-8000-000000000002"

LINKS = {"self": f"/v1/jobs/{JOB}", "events": "/events", "cancel": "/cancel"}


def a_job(status: str, **more: object) -> dict[str, object]:
    moment = f"2026-01-01T00:00:0{len(status) % 10}Z"
    return {
        "jobId": JOB,
        "jobType": "process_image",
        "status": status,
        "imageId": IMAGE,
        "createdAt": "2026-01-01T00:00:00Z",
        "updatedAt": moment,
        "links": LINKS,
        **more,
    }


FAILED = a_job("failed", failure={"code": "corrupt", "message": "The image is damaged."})


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(b"not really")
    return path


ACCEPTED = ok({"jobId": JOB, "imageId": IMAGE, "status": "queued", "links": LINKS}, 202)


async def test_submit_uploads_the_file_and_prints_ids(
    cli: Cli, script: Script, picture: Path
) -> None:
    script.on("POST /v1/images", ACCEPTED)

    ended = await cli("submit", "--json", "--recipe", "avif", "--keep-path", str(picture))

    assert ExitCode.DONE == ended.code
    document = {"file": str(picture), "jobId": JOB, "imageId": IMAGE, "status": "queued"}
    assert [document | {"error": None}] == ended.json()
    url, headers, body = script.asked[0]
    assert "recipe=avif" in url
    assert f"reference={picture}".replace("/", "%2F") in url.replace("/", "%2F")
    assert (b"not really", "image/png") == (body, headers["Content-Type"])
    assert headers["Authorization"] == "Bearer if_secret"
    assert headers["Idempotency-Key"]


async def test_submit_waits_and_tells_a_failure(cli: Cli, script: Script, picture: Path) -> None:
    script.on("POST /v1/images", ACCEPTED)
    script.on(f"GET /v1/jobs/{JOB}", ok(a_job("processing")), ok(FAILED))

    ended = await cli("submit", "--wait", str(picture))

    assert ExitCode.FAILED == ended.code
    assert "failed" in ended.out
    assert f"{picture}: The image is damaged." in ended.err


async def test_a_repeat_after_503_has_the_same_idempotency_key(
    cli: Cli, script: Script, picture: Path
) -> None:
    away = problem(503, "unavailable", "Later.", **{"Retry-After": "0"})
    script.on("POST /v1/images", away, away, ACCEPTED)

    ended = await cli("submit", str(picture))

    assert ExitCode.DONE == ended.code
    assert len({headers["Idempotency-Key"] for _, headers, _ in script.asked}) == 1
    assert [b"not really"] * 3 == [body for _, _, body in script.asked]


async def test_one_refused_file_does_not_hide_the_others(
    cli: Cli, script: Script, picture: Path
) -> None:
    other = picture.with_name("other.png")
    other.write_bytes(b"also not")
    script.on("POST /v1/images", ACCEPTED, problem(415, "unsupported", "Not an image."))

    ended = await cli("submit", "--json", str(picture), str(other))

    assert ExitCode.REFUSED == ended.code
    results = ended.json()
    assert isinstance(results, list)
    assert [None, "queued"] == sorted((result["status"] for result in results), key=str)
    assert "Not an image." in ended.err


async def test_a_missing_file_is_told_before_anything_is_sent(cli: Cli, script: Script) -> None:
    ended = await cli("submit", "nowhere.jpg")

    assert ExitCode.USAGE == ended.code
    assert script.asked == []


async def test_show_prints_a_job_and_its_failure_is_the_exit_code(cli: Cli, script: Script) -> None:
    script.on(f"GET /v1/jobs/{JOB}", ok(FAILED))

    ended = await cli("jobs", "show", JOB)
    as_json = await cli("jobs", "show", "--json", JOB)

    assert ExitCode.FAILED == ended.code == as_json.code
    assert "corrupt: The image is damaged." in ended.out
    assert FAILED == as_json.json()


async def test_show_can_wait(cli: Cli, script: Script) -> None:
    script.on(f"GET /v1/jobs/{JOB}", ok(a_job("completed")))

    await cli("jobs", "show", "--wait", JOB)

    assert script.asked[0][0].endswith("wait=20")


async def test_list_filters_and_says_how_to_go_on(cli: Cli, script: Script) -> None:
    script.on("GET /v1/jobs", ok({"jobs": [a_job("queued")], "nextCursor": str(uuid4())}))

    ended = await cli("jobs", "list", "--status", "queued", "--limit", "1")

    assert ExitCode.DONE == ended.code
    assert JOB in ended.out
    assert "--cursor" in ended.err
    assert "status=queued" in script.asked[0][0]
    assert "limit=1" in script.asked[0][0]


async def test_watch_follows_events_until_the_end(cli: Cli, script: Script) -> None:
    script.on(f"GET /v1/jobs/{JOB}/events", events(a_job("queued"), a_job("processing"), FAILED))

    ended = await cli("jobs", "watch", "--json", JOB)

    assert ExitCode.FAILED == ended.code
    states = [json.loads(line)["status"] for line in ended.out.splitlines()]
    assert states == ["queued", "processing", "failed"]


async def test_watch_asks_where_events_do_not_get_through(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.cli.jobs.POLL", 0.001)
    script.on(f"GET /v1/jobs/{JOB}/events", lambda: web.Response(status=502))
    script.on(f"GET /v1/jobs/{JOB}", ok(a_job("queued")), ok(a_job("completed")))

    ended = await cli("jobs", "watch", JOB)

    assert ExitCode.DONE == ended.code
    assert ["queued", "completed"] == [line.split()[1] for line in ended.out.splitlines()]


async def test_watching_what_does_not_exist_ends_at_once(cli: Cli, script: Script) -> None:
    ended = await cli("jobs", "watch", JOB)

    assert ExitCode.REFUSED == ended.code
    assert "No such thing." in ended.err


async def test_an_image_is_shown_with_its_addresses(cli: Cli, script: Script) -> None:
    url = "http://127.0.0.1:8082/i/a/1.1/thumb.webp"
    variant = {
        "name": "thumb", "format": "webp", "width": 200, "height": 150, "bytes": 1234,
        "url": url, "stableUrl": url, "warnings": [],
    }  # fmt: skip
    image = {
        "imageId": IMAGE,
        "status": "ready",
        "revision": 1,
        "variants": [variant],
        "srcset": {},
        "sources": [],
    }
    script.on(f"GET /v1/images/{IMAGE}", ok(image))
    script.on("GET /v1/images", ok({"images": [image]}))

    shown = await cli("images", "show", IMAGE)
    as_json = await cli("images", "show", "--json", IMAGE)
    listed = await cli("images", "list", "--reference", "a b")

    assert url in shown.out
    assert image == as_json.json()
    assert IMAGE in listed.out
    assert "reference=a+b" in script.asked[-1][0]


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "IMAGEFLEET_KEY"), (403, "scope"), (404, "tenant")],
)
async def test_a_refusal_says_what_to_do(
    cli: Cli, script: Script, status: int, advice: str
) -> None:
    script.on(f"GET /v1/jobs/{JOB}", problem(status, "x", "The reason."))

    ended = await cli("jobs", "show", JOB)

    assert ExitCode.REFUSED == ended.code
    assert "The reason." in ended.err
    assert advice in ended.err


async def test_nobody_there_is_told_with_where_and_what_to_do(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("IMAGEFLEET_URL", url)

    ended = await cli("jobs", "show", JOB)

    assert ExitCode.UNAVAILABLE == ended.code
    assert url in ended.err
    assert "IMAGEFLEET_URL" in ended.err


async def test_an_api_that_stays_away_is_given_up(cli: Cli, script: Script) -> None:
    script.on(f"GET /v1/jobs/{JOB}", problem(503, "unavailable", "The database is away."))

    ended = await cli("jobs", "show", JOB)

    assert ExitCode.UNAVAILABLE == ended.code
    assert "The database is away." in ended.err
    assert api.TRIES == len(script.asked)


async def test_something_that_is_not_our_api_is_recognised(cli: Cli, script: Script) -> None:
    script.on(f"GET /v1/jobs/{JOB}", lambda: web.Response(text="<html>"))

    ended = await cli("jobs", "show", JOB)

    assert ExitCode.UNAVAILABLE == ended.code
    assert "IMAGEFLEET_URL" in ended.err


async def test_without_a_key_nothing_is_asked(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IMAGEFLEET_KEY")

    ended = await cli("jobs", "list")

    assert ExitCode.USAGE == ended.code
    assert "IMAGEFLEET_KEY" in ended.err
    assert script.asked == []


async def test_uploads_go_side_by_side(cli: Cli, script: Script, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.gif" for number in range(6)]
    for file in files:
        file.write_bytes(b"x")
    at_once, most = 0, 0

    async def slow(_request: web.Request) -> web.StreamResponse:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        return ACCEPTED()

    async with serving(slow) as url:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("IMAGEFLEET_URL", url)
            ended = await cli("submit", *map(str, files))

    assert ExitCode.DONE == ended.code
    assert 1 < most <= 4


async def test_progress_is_shown_where_jobs_are(cli: Cli, script: Script) -> None:
    steps = a_job("processing", progress={"done": 25, "total": 60})
    unbounded = a_job("completed", progress={"done": 26})
    script.on(f"GET /v1/jobs/{JOB}", ok(steps))
    script.on("GET /v1/jobs", ok({"jobs": [steps]}))
    script.on(f"GET /v1/jobs/{JOB}/events", events(steps, unbounded))

    shown = await cli("jobs", "show", JOB)
    listed = await cli("jobs", "list")
    watched = await cli("jobs", "watch", JOB)

    assert "25/60" in shown.out
    assert "25/60" in listed.out
    assert ["25/60", "26"] == [line.split()[2] for line in watched.out.splitlines()]


async def test_images_are_rendered_again_each_by_a_job(cli: Cli, script: Script) -> None:
    path = f"/v1/images/{IMAGE}/reprocess"
    script.on(f"POST {path}", ACCEPTED)
    script.on(f"GET /v1/jobs/{JOB}", ok(FAILED))

    ended = await cli("images", "reprocess", "--json", "--recipe", "avif", "--wait", IMAGE)
    gone = await cli("images", "reprocess", "no-such-image", IMAGE)

    assert ExitCode.FAILED == ended.code
    error = "The image is damaged."
    assert [{"imageId": IMAGE, "jobId": JOB, "status": "failed", "error": error}] == ended.json()
    url, headers, body = script.asked[0]
    assert (path, {"recipe": "avif"}) == (url, json.loads(body))
    assert headers["Idempotency-Key"]
    assert ExitCode.REFUSED == gone.code
    assert JOB in gone.out


@pytest.mark.parametrize(
    ("options", "payload"),
    [
        (("--all",), {"all_images": True}),
        (("--reference", "r"), {"reference": "r"}),
        (("--recipe-was", "default", "--recipe", "avif"),
         {"recipe_was": "default", "recipe": "avif"}),
        (("--all", "--rate", "0.5"), {"all_images": True, "rate": 0.5}),
    ],
)  # fmt: skip
async def test_a_set_is_rendered_again_by_one_job(
    cli: Cli, script: Script, options: tuple[str, ...], payload: dict[str, object]
) -> None:
    script.on(
        "POST /v1/jobs",
        ok({"jobId": JOB, "status": "queued", "links": LINKS, "jobType": "noop"}, 202),
    )
    script.on(f"GET /v1/jobs/{JOB}", ok(a_job("completed", progress={"done": 60, "total": 60})))

    ended = await cli("images", "reprocess", *options, "--wait")

    assert ExitCode.DONE == ended.code
    assert "60/60" in ended.out
    asked = json.loads(script.asked[0][2])
    assert {"jobType": "reprocess_images", "payload": payload} == asked


async def test_images_that_are_named_have_no_rate(cli: Cli) -> None:
    ended = await cli("images", "reprocess", "--rate", "5", IMAGE)

    assert ExitCode.USAGE == ended.code
    assert "a rate is of a set" in ended.err


@pytest.mark.parametrize("options", [(), ("--all", IMAGE), ("--all", "--reference", "r")])
async def test_what_is_rendered_again_is_named_once(
    cli: Cli, script: Script, options: tuple[str, ...]
) -> None:
    ended = await cli("images", "reprocess", *options)

    assert ExitCode.USAGE == ended.code
    assert script.asked == []
