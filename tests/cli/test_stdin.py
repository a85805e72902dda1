"""What is named `-` comes through the standard input."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

import pytest

from imagefleet.cli import submit
from imagefleet.cli.output import ExitCode
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, document
from tests.support.http import a_jpeg, a_png
from tests.support.rows import job_row

Pipe: TypeAlias = Callable[[bytes], None]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    def into(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return into


async def test_an_image_is_uploaded_beside_a_file(
    produce: Cli, pipe: Pipe, superuser: Connection, tmp_path: Path
) -> None:
    """With what its bytes are: no name says it."""
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(a_jpeg())
    pipe(a_png())

    accepted = document(await produce("submit", "--json", str(photo), "-"))

    assert [str(photo), "-"] == [told["file"] for told in accepted]
    find = "SELECT content_type FROM image_sources WHERE image_id = $1"
    seen = [await superuser.fetchval(find, UUID(told["imageId"])) for told in accepted]
    assert ["image/jpeg", "image/png"] == seen


async def test_an_image_is_replaced(produce: Cli, pipe: Pipe, superuser: Connection) -> None:
    pipe(a_jpeg())
    (accepted,) = document(await produce("submit", "--json", "-"))
    pipe(a_png())

    ended = await produce("images", "replace", accepted["imageId"], "-")

    assert ended.code == ExitCode.DONE, ended.err
    find = "SELECT content_type FROM image_sources ORDER BY source_seq"
    assert ["image/jpeg", "image/png"] == [row[0] for row in await superuser.fetch(find)]


@pytest.mark.parametrize("named", ["-", "@-"])
async def test_a_payload_is_read(
    produce: Cli, pipe: Pipe, superuser: Connection, named: str
) -> None:
    pipe(b'{"note": "piped"}')

    job = document(await produce("jobs", "submit", "noop", "--payload", named, "--json"))

    row = await job_row(superuser, JobId(UUID(job["jobId"])))
    assert {"note": "piped"} == row["payload"]


@pytest.mark.parametrize("words", [("-", "-"), ("-", "--keep-path")])
async def test_it_is_named_once_and_has_no_name(
    produce: Cli, pipe: Pipe, words: tuple[str, ...]
) -> None:
    pipe(a_jpeg())

    ended = await produce("submit", *words)

    assert ended.code == ExitCode.USAGE
    assert "name it once, and without --keep-path" in ended.err


async def test_what_never_ends_is_not_kept(
    produce: Cli, pipe: Pipe, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "MOST_READ", 1000)
    pipe(bytes(1001))

    ended = await produce("submit", "-")

    assert ended.code == ExitCode.USAGE
    assert "more than 1,000 bytes" in ended.err
    assert 0 == await superuser.fetchval("SELECT count(*) FROM images")
