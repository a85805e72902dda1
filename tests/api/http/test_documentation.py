"""docs/api.md says what is true: its examples run as they are, and its table is complete."""

import asyncio
import os
import re
from pathlib import Path

from imagefleet.api.http.errors import STATUSES
from imagefleet.store.database import Connection
from tests.support.api import (
    ANY_KEYS_ROUTES,
    OPERATOR_ROUTES,
    PUBLIC_ROUTES,
    ROUTES,
    Running,
    Serve,
)
from tests.support.factories import a_worker
from tests.support.http import a_jpeg

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "api.md"


async def test_the_examples_work_when_pasted(
    serve: Serve, worker: Connection, tmp_path: Path
) -> None:
    await a_worker(worker)
    async with serve(max_upload_bytes=50 * 2**20) as running:
        await paste_all(running, tmp_path)


async def paste_all(running: Running, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(a_jpeg())
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    process = await asyncio.create_subprocess_exec(
        "bash",
        "-eux",
        "-o",
        "pipefail",
        "-c",
        "\n".join(blocks),
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],  # noqa: TID251 - where curl is
            "IMAGEFLEET_URL": running.url,
            "IMAGEFLEET_KEY": running.secrets["acme"],
            "IMAGEFLEET_OPERATOR_KEY": running.secrets["operator"],
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()

    assert process.returncode == 0, output.decode()


def test_every_route_is_spoken_of() -> None:
    text = PAGE.read_text(encoding="utf-8")

    for route in (*ROUTES, *ANY_KEYS_ROUTES, *OPERATOR_ROUTES, *PUBLIC_ROUTES):
        path = route.path.partition("?")[0].replace("/s3/", "/{service}/")
        path = path.replace("{job}", "{jobId}").replace("{image}", "{imageId}")
        path = path.replace("{letter}", "{letterId}").replace("{worker}", "{workerId}")
        path = path.replace("{invalidation}", "{invalidationId}")
        assert f"### {route.method} {path}\n" in text


def test_every_code_has_its_section_with_its_status_and_every_section_a_code() -> None:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")

    sections = re.findall(r"^## `(\w+)`\n\n(\d+)\. \S", text, re.MULTILINE)

    assert len(sections) == text.count("\n## ")
    assert sections == [(code, str(status)) for code, status in STATUSES.items()]
