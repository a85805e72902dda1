"""docs/integration.md works as it is written, in each of its languages, on a whole stack."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.http import a_jpeg
from tests.support.stack import Producer, Stack

PAGE: Final = Path(__file__).parents[2] / "docs" / "integration.md"
NODE: Final = shutil.which("node")


def program(language: str) -> str:
    """All blocks of a language, which go on from one to the next."""
    text = PAGE.read_text(encoding="utf-8")
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


async def run(stack: Stack, folder: Path, *command: str) -> str:
    """What it says; it has to end well."""
    (folder / "photo.jpg").write_bytes(a_jpeg())
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],  # noqa: TID251 - where curl and node are
            "IMAGEFLEET_URL": stack.facts["api_url"],
            "IMAGEFLEET_KEY": stack.facts["api_key"],
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def it_was_shown_and_is_gone(producer: Producer, folder: Path, reference: str) -> None:
    """A repeat of its upload, which the run's judge hears of, too, gets the same answer."""
    page = (folder / "page.html").read_text(encoding="utf-8")
    repeat = await producer.post(
        f"/v1/images?reference={reference}", f"{reference}-front", reference,
        {"Content-Type": "image/jpeg"}, content=a_jpeg(),
    )  # fmt: skip
    (image,) = (await producer.http.get(f"/v1/images?reference={reference}")).json()["images"]

    assert image["imageId"] == repeat.json()["imageId"]
    assert image["status"] == "deleted"
    assert "<picture" in page
    assert image["imageId"] in page


async def test_with_curl(stack: Stack, producer: Producer, tmp_path: Path) -> None:
    await run(stack, tmp_path, "bash", "-euo", "pipefail", "-c", program("sh"))

    await it_was_shown_and_is_gone(producer, tmp_path, "order-7")


async def test_with_python(stack: Stack, producer: Producer, tmp_path: Path) -> None:
    (tmp_path / "integration.py").write_text(program("python"), encoding="utf-8")

    await run(stack, tmp_path, sys.executable, "integration.py")

    await it_was_shown_and_is_gone(producer, tmp_path, "order-8")


@pytest.mark.skipif(NODE is None, reason="there is no Node.js here")
async def test_with_javascript(stack: Stack, producer: Producer, tmp_path: Path) -> None:
    (tmp_path / "integration.mjs").write_text(program("js"), encoding="utf-8")

    await run(stack, tmp_path, str(NODE), "integration.mjs")

    await it_was_shown_and_is_gone(producer, tmp_path, "order-9")


def test_the_page_has_no_block_that_is_not_run() -> None:
    said = re.findall(r"^```(\S*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(filter(None, said)) == {"sh", "python", "js"}
