"""`imagefleet up` as anybody starts it: images go through, and everything goes on next time."""

import asyncio
import json
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from imagefleet.imaging.samples import decode
from tests.support.browsers import NONE_THERE, chromium, program, watched
from tests.support.children import alive
from tests.support.database import roomy_memory
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved

PATIENCE: Final = 50.0  # seconds; two cores, and other tests use them as well
ROOT: Final = Path(__file__).parents[2]
LONG: Final = 150  # seconds for a test that starts the stack twice

OFFSPRING = ("console", "api", "worker-1", "maintenance")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account reaches, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="imagefleet-up-", dir=roomy_memory()) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@dataclass
class Command:
    """A running `imagefleet`, and what it says."""

    process: asyncio.subprocess.Process
    out: bytes = b""
    said: list[str] = field(default_factory=list)

    async def listen(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.said.append(line.decode().rstrip())

    async def hear(self, words: str) -> str:
        def heard() -> str | None:
            return next((line for line in self.said if words in line), None)

        return await eventually(heard, within=PATIENCE)

    async def ends(self) -> int:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            self.out = await self.process.stdout.read()
            return await self.process.wait()

    @property
    def story(self) -> str:
        return "\n".join(self.said[-60:])


# As if this version had a setting wrong.
UNUSABLE = """
import sys
from imagefleet.embedded import processes
right = processes.environment_of
processes.environment_of = lambda *a, **more: {**right(*a, **more), "LOG_LEVEL": "loud"}
from imagefleet.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@asynccontextmanager
async def imagefleet(
    *arguments: str | Path,
    program: tuple[str, ...] = ("-m", "imagefleet"),
    environment: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, *map(str, arguments),
        cwd=folder,
        env={**os.environ, **environment},  # noqa: TID251 - as from a terminal
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
    )  # fmt: skip
    command = Command(process)
    async with asyncio.TaskGroup() as group:
        group.create_task(command.listen())
        try:
            yield command
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def up(place: Path, *more: str | Path) -> tuple[str | Path, ...]:
    return (
        "up",
        "--state-dir",
        place / "state",
        "--api-port",
        "0",
        "--console-port",
        "0",
        "--edge-port",
        "0",
        *more,
    )


async def ready(command: Command, path: Path) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        assert command.process.returncode is None, command.story
        return json.loads(path.read_text()) if path.exists() else None

    return await eventually(found, within=PATIENCE)


async def old_and_new_images_are_there(facts: dict[str, Any], old: str, place: Path) -> None:
    picture = place / "picture.jpg"
    picture.write_bytes(saved(quadrants()))
    key = {"IMAGEFLEET_URL": facts["api_url"], "IMAGEFLEET_KEY": facts["api_key"]}

    assert (await said(("images", "show", "--json", old), key))["status"] == "ready"
    (made,) = await said(("submit", "--json", "--wait", picture), key)
    assert made["status"] == "completed"
    kept = ("images", "download", "--json", "--into", place / "kept", made["imageId"])
    files = [Path(file["file"]).name for file in await said(kept, key)]
    assert len(files) == 10
    whole = [(place / "kept" / file).read_bytes() for file in files]
    assert all(decode(content).width for content in whole)


@pytest.mark.timeout(LONG)
async def test_images_go_through_and_the_next_start_goes_on(place: Path) -> None:
    own_account = {"AWS_PROFILE": "of-somebody", "DATABASE_URL": "postgresql://else@where/db"}
    demo = up(place, "--demo", "4", "--exit", "--json", "--verbose")
    async with imagefleet(*demo, environment=own_account) as first:
        code = await first.ends()

    assert code == 0, first.story
    result = json.loads(first.out)
    assert (True, 4, 4, 0) == tuple(
        result[name] for name in ("ok", "submitted", "completed", "restarts")
    )
    assert result["variants"] == 40
    ends = [line.split()[0] for line in first.said if "process.draining" in line]
    assert list(OFFSPRING) == ends

    shutil.rmtree(place / "state" / "aws")
    ready_file = place / "ready.json"
    async with imagefleet(*up(place, "--ready-file", ready_file)) as second:
        facts = await ready(second, ready_file)
        assert 0o600 == stat.S_IMODE(ready_file.stat().st_mode)
        assert {*OFFSPRING, "postgres", "aws"} == set(facts["processes"])
        assert {"fast", "general", "quarantine", "dead-letter"} == set(facts["queue_urls"])
        assert facts["api_key"] == (place / "state" / "api-key").read_text()
        assert facts == json.loads((place / "state" / "ready.json").read_text())
        of_the_folder = ("--state-dir", place / "state", "queue", "stats", "--json")
        assert (await said(of_the_folder, {}))["lanes"]

        await old_and_new_images_are_there(facts, result["images"][0]["image_id"], place)
        await second.hear("/gallery shows what the demo made")
        await the_gallery_is_still_there(facts)
        await the_walk_in_the_readme_works(facts, place)
        await the_doctors_find_nothing(facts)
        await a_killed_worker_comes_back(second, facts, ready_file)

        async with imagefleet(*up(place)) as third:
            assert await third.ends() == 2
        assert f"process {second.process.pid}" in third.story

        second.process.send_signal(signal.SIGTERM)
        assert await second.ends() == 0, second.story
        assert not ready_file.exists()
        assert not (place / "state" / "ready.json").exists()


async def said(arguments: tuple[str | Path, ...], environment: dict[str, str]) -> Any:  # noqa: ANN401
    async with imagefleet(*arguments, environment=environment) as command:
        assert await command.ends() == 0, command.story
    return json.loads(command.out)


async def the_walk_in_the_readme_works(facts: dict[str, Any], place: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    walk = "".join(re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL))
    here = {
        ".venv/bin/": f"{Path(sys.executable).parent}/",
        "http://127.0.0.1:8080": facts["api_url"],
        ".imagefleet/": f"{place / 'state'}/",
        "/tmp/": f"{place}/",  # noqa: S108 - where the README puts things
    }
    assert all(there in walk for there in here)
    # All at once: what one replacement brings in is not for the next one.
    places = re.compile("|".join(map(re.escape, here)))
    walk = places.sub(lambda match: here[match.group()], walk)
    bash = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", walk,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await bash.communicate()

    assert bash.returncode == 0, said.decode()
    assert b'"status":"completed"' in said
    assert b"200 OK" in said
    assert (place / "variant").read_bytes().startswith(b"\xff\xd8")


async def the_doctors_find_nothing(facts: dict[str, Any]) -> None:
    queues = {
        f"{name.upper().replace('-', '_')}_QUEUE_URL": url
        for name, url in facts["queue_urls"].items()
    }
    buckets = {f"{name.upper()}_BUCKET": bucket for name, bucket in facts["buckets"].items()}
    urls = facts["database_urls"]
    environment = {
        "CLOUDFRONT_DISTRIBUTION_ID": facts["distribution_id"],
        "PUBLIC_BASE_URL": facts["public_base_url"],
        "OPERATOR_DATABASE_URL": urls["operator"],
        **facts["aws"],
        **queues,
        **buckets,
    }
    for process in ("api", "worker", "maintenance"):
        words = ("doctor", "--for", process, "--json")
        document = await said(words, {**environment, "DATABASE_URL": urls[process]})

        names = [check["name"] for check in document["checks"]]
        assert [check for check in document["checks"] if not check["ok"]] == []
        assert ("cloudfront" in names) == (process == "maintenance")
        assert ("sandbox" in names) == (process == "worker")


async def a_killed_worker_comes_back(
    command: Command, facts: dict[str, Any], ready_file: Path
) -> None:
    before = facts["processes"]["worker-1"]
    os.kill(before, signal.SIGKILL)
    await command.hear("worker-1 was ended by SIGKILL")

    def replaced() -> bool:
        return bool(json.loads(ready_file.read_text())["processes"]["worker-1"] != before)

    await eventually(replaced, within=PATIENCE)


@pytest.mark.timeout(LONG)
async def test_a_second_signal_ends_everything_at_once(place: Path) -> None:
    ready_file = place / "ready.json"
    async with imagefleet(*up(place, "--ready-file", ready_file)) as command:
        facts = await ready(command, ready_file)
        os.kill(facts["processes"]["api"], signal.SIGSTOP)  # it would use its whole grace
        command.process.send_signal(signal.SIGINT)
        await command.hear("a second Ctrl-C")
        command.process.send_signal(signal.SIGINT)
        code = await command.ends()

    assert code == 128 + signal.SIGINT
    assert [name for name, pid in facts["processes"].items() if alive(pid)] == []


@pytest.mark.timeout(LONG)
async def test_a_process_that_cannot_start_is_the_end_of_it(place: Path) -> None:
    async with imagefleet(*up(place), program=("-c", UNUSABLE)) as command:
        code = await command.ends()

    assert code == 2
    assert "its own words are above" in command.said[-1]
    assert any("LOG_LEVEL: expected" in line for line in command.said)
    assert "Traceback" not in command.story


@pytest.mark.timeout(LONG)
async def test_a_signal_while_it_starts_ends_it(place: Path) -> None:
    async with imagefleet(*up(place)) as command:
        await eventually((place / "state" / "passwords.json").exists, within=PATIENCE)
        command.process.send_signal(signal.SIGINT)
        code = await command.ends()

    assert code == 0, command.story
    assert "kept" in command.said[-1]


UNTIL_READY: Final = 12  # lines at most; on the first day `make setup` has three before them


@pytest.mark.timeout(LONG)
async def test_a_newcomer_sees_what_started_what_failed_and_what_the_demo_made(place: Path) -> None:
    in_a_browser = program() is not None
    around = {"MAX_PIXELS": "4000000"}
    anywhere = ("--api-port", "0", "--console-port", "0", "--edge-port", "0")
    told = ("up", *anywhere, "--demo", "2", "--set", "WORKER_FAST_SLOTS=8")
    async with imagefleet(*told, environment=around, folder=place) as command:
        facts = await ready(command, place / ".imagefleet" / "ready.json")
        await command.hear("Ctrl-C ends")
        ready_at = next(at for at, line in enumerate(command.said) if "ready after" in line)
        assert ready_at <= UNTIL_READY, command.story
        assert re.match(r"up +│ not passed on: (\w+, )*MAX_PIXELS\b", command.said[0])
        assert command.said[0].endswith("; --set NAME=VALUE passes a setting on")
        for name in OFFSPRING:
            line = f"{name:<11} │ started; metrics at {facts['metrics_urls'][name]}"
            assert line in command.said
        at = str(Path(sys.executable).parent)  # of this checkout, wherever that is
        assert max(len(line.replace(at, ".venv/bin")) for line in command.said) <= 100

        await the_gallery_shows_all_of_it(facts, command, place, in_a_browser=in_a_browser)
        await the_other_verbs_find_it(facts, place)
        await the_emulator_is_reached_as_it_is_told(command, place)
        await a_job_that_fails_is_a_line(facts, command)
        await a_postgres_that_comes_back_is_a_line(facts, command, place)

    if not in_a_browser:
        pytest.skip(NONE_THERE)


DECODED: Final = """() => Promise.all([...document.images].map(async (image) => {
    image.loading = "eager";
    await image.decode();
    return image.naturalWidth;
}))"""


async def the_gallery_shows_all_of_it(
    facts: dict[str, Any], command: Command, place: Path, *, in_a_browser: bool
) -> None:
    address = next(line for line in command.said if "│ gallery" in line).split()[3]
    assert address == f"{facts['public_base_url']}/gallery"
    pictures, links = await the_pictures_and_links_of(address)
    assert 2 == len(pictures)
    jobs = [link for link in links if link.startswith(f"{facts['console_url']}/jobs/")]
    assert (2, 20) == (len(jobs), len(links) - len(jobs))
    if not in_a_browser:
        return
    async with chromium(place) as browser:
        page = await browser.new_page()
        seen = watched(page)
        await page.goto(address)
        widths = await page.evaluate(DECODED)
        assert 2 == len(widths)
        assert all(widths)
        assert seen.complaints == []
        assert seen.hosts == {urlsplit(address).netloc}
        assert 0 == await page.locator("script").count()


async def the_pictures_and_links_of(address: str) -> tuple[list[str], list[str]]:
    """Of the gallery; whatever one leads to is there."""
    async with httpx.AsyncClient(follow_redirects=True) as viewer:
        page = (await viewer.get(address)).text
        pictures = re.findall(r'<img src="([^"]+)"', page)
        sizes = [
            each.split()[0]
            for told in re.findall(r'srcset="([^"]+)"', page)
            for each in told.split(", ")
        ]
        links = re.findall(r'<a href="([^"]+)"', page)
        for link in {*pictures, *sizes, *links}:
            answer = await viewer.get(urljoin(address, link))
            assert answer.status_code == 200, link
    return pictures, links


async def the_gallery_is_still_there(facts: dict[str, Any]) -> None:
    """Though its pictures went with the emulator's folder."""
    async with httpx.AsyncClient() as viewer:
        page = (await viewer.get(f"{facts['public_base_url']}/gallery")).text
    assert 4 == page.count(f'<a href="{facts["console_url"]}/jobs/')
    assert 4 == page.count('<img src="/i/')


async def the_other_verbs_find_it(facts: dict[str, Any], place: Path) -> None:
    around = dict.fromkeys(("IMAGEFLEET_URL", "IMAGEFLEET_KEY"), "")
    async with imagefleet("jobs", "list", "--json", environment=around, folder=place) as listed:
        assert await listed.ends() == 0, listed.story
    assert 2 == len(json.loads(listed.out)["jobs"])
    state = place / ".imagefleet"
    elsewhere = ("--state-dir", state, "queue", "stats", "--json")
    async with imagefleet(*elsewhere, environment=around) as asked:
        assert await asked.ends() == 0, asked.story


ASKS = """
import os, boto3
print(*boto3.client("sqs", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).list_queues()["QueueUrls"])
"""


async def the_emulator_is_reached_as_it_is_told(command: Command, place: Path) -> None:
    line = next(line for line in command.said if "sqs list-queues" in line)
    told = line.partition("│")[2].strip().removeprefix("(").removesuffix(")")
    assert told.endswith("; aws --endpoint-url $AWS_ENDPOINT_URL sqs list-queues")
    shell = await asyncio.create_subprocess_exec(
        "bash", "-c", f"{told.partition(';')[0]}; exec {sys.executable} -c '{ASKS}'",
        cwd=place,
        env={"PATH": os.environ["PATH"], "AWS_PROFILE": "of-somebody"},  # noqa: TID251
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await shell.communicate()
    assert shell.returncode == 0, said.decode()
    assert said.count(b"http://127.0.0.1:") == 4


async def a_job_that_fails_is_a_line(facts: dict[str, Any], command: Command) -> None:
    async with producer(facts) as client:
        noop = {"jobType": "noop", "payload": {"milliseconds": 60_000}}
        job = (await client.post("/v1/jobs", json=noop)).json()["jobId"]
        await client.post(f"/v1/jobs/{job}/cancel", json={})
    line = await command.hear(job)
    assert line.endswith(f"job {job} (noop) failed: cancelled: The job was cancelled.")
    assert 1 == sum(job in line for line in command.said)


async def a_postgres_that_comes_back_is_a_line(
    facts: dict[str, Any], command: Command, place: Path
) -> None:
    since, before = len(command.said), facts["processes"]["postgres"]
    os.kill(before, signal.SIGKILL)

    async def is_ready() -> bool:
        async with httpx.AsyncClient() as anybody:
            urls = [url.replace("/metrics", "/readyz") for url in facts["metrics_urls"].values()]
            return all([(await anybody.get(url)).is_success for url in urls])

    async def works_again() -> bool:
        async with producer(facts) as client:
            answer = await client.post("/v1/jobs", json={"jobType": "noop", "payload": {}})
            job = await client.get(f"/v1/jobs/{answer.json().get('jobId')}?wait=5")
        return bool(job.json().get("status") == "completed")

    await command.hear("postgres ended")
    await eventually(is_ready, within=PATIENCE)
    await eventually(works_again, within=PATIENCE)
    command.process.send_signal(signal.SIGTERM)
    assert await command.ends() == 0, command.story

    lines = [line.partition("│ ")[2] for line in command.said[since:]]
    assert lines[0] == "postgres ended, starts again (restart 1)"
    assert ["ending the", "stopping a", "stopped; e"] == [line[:10] for line in lines[1:]], lines
    for name in OFFSPRING:
        kept = (place / ".imagefleet" / "logs" / f"{name}.log").read_text()
        assert "Traceback" not in kept
        assert len(re.findall(r"^\S+ \[(?:warning|error) ", kept, re.MULTILINE)) <= 1, kept


@asynccontextmanager
async def producer(facts: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    key = {"Authorization": f"Bearer {facts['api_key']}"}
    async with httpx.AsyncClient(base_url=facts["api_url"], headers=key, timeout=20) as client:
        yield client
