"""`imagefleet images download`: whole files under the names of their variants, or none."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from imagefleet.cli import published
from imagefleet.cli.output import ExitCode
from tests.cli.conftest import Cli
from tests.cli.scripted import Script, ok, problem

IMAGE = "0199a5c2-0000-7000-8000-000000000002"
SHOWN = f"GET /v1/images/{IMAGE}"
CONTENTS = {"thumb.webp": b"tiny", "thumb.jpg": b"tiny too", "large.webp": b"large" * 1000}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_variant(file: str, host: str, content: bytes) -> dict[str, object]:
    name, _, extension = file.partition(".")
    return {
        "name": name,
        "format": {"jpg": "jpeg"}.get(extension, extension),
        "width": 200,
        "height": 100,
        "bytes": len(content),
        "url": f"{host}/i/{file}",
        "stableUrl": f"{host}/current/{file}",
        "warnings": [],
    }


def an_image(status: str, *variants: dict[str, object]) -> dict[str, object]:
    told = {"imageId": IMAGE, "status": status, "createdAt": "2026-01-01T00:00:00Z"}
    return told | {"variants": [*variants], "srcset": {}}


@pytest.fixture
def host(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """An API, and at the same address what it publishes; the folder that somebody stands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published, "PAUSE", 0)
    variants = [a_variant(file, script.url, content) for file, content in CONTENTS.items()]
    script.on(SHOWN, ok(an_image("ready", *variants)))
    for file, content in CONTENTS.items():
        script.on(f"GET /i/{file}", picture(content))
    return script


def picture(content: bytes) -> Callable[[], web.Response]:
    return lambda: web.Response(body=content)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*")]


@pytest.mark.usefixtures("host")
async def test_every_variant_becomes_a_file_in_a_folder_named_by_the_image(
    cli: Cli, tmp_path: Path
) -> None:
    ended = await cli("images", "download", IMAGE, "--json")

    assert ended.code == ExitCode.DONE, ended.err
    assert files(tmp_path / IMAGE) == CONTENTS
    assert [f"{IMAGE}/{file}" for file in CONTENTS] == [told["file"] for told in ended.json()]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("--variant", "thumb"), {"thumb.webp", "thumb.jpg"}),
        (("--format", "webp"), {"thumb.webp", "large.webp"}),
        (("--format", "webp", "--format", "jpeg", "--variant", "thumb"),
         {"thumb.webp", "thumb.jpg"}),
        (("--variant", "large", "--variant", "thumb", "--format", "webp"),
         {"thumb.webp", "large.webp"}),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("host")
async def test_only_what_was_asked_for_is_downloaded(
    cli: Cli, tmp_path: Path, asked: tuple[str, ...], expected: set[str]
) -> None:
    ended = await cli("images", "download", IMAGE, "--into", "kept", *asked)

    assert ended.code == ExitCode.DONE, ended.err
    assert expected == set(files(tmp_path / "kept"))


@pytest.mark.usefixtures("host")
async def test_what_there_is_not_is_told_beside_what_there_is(cli: Cli) -> None:
    for asked in (("--variant", "poster"), ("--variant", "large", "--format", "jpeg")):
        ended = await cli("images", "download", IMAGE, *asked)

        assert ended.code == ExitCode.USAGE
        assert "there are thumb.webp, thumb.jpg, large.webp" in ended.err


async def test_one_variant_goes_to_the_standard_output(
    cli: Cli, host: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)

    ended = await cli(
        *("images", "download", IMAGE, "--into", "-", "--variant", "large"),
    )

    assert ended.code == ExitCode.DONE, ended.err
    assert out.buffer.getvalue() == CONTENTS["large.webp"]
    assert 2 == len(host.asked)


@pytest.mark.usefixtures("host")
async def test_several_variants_or_a_terminal_take_no_bytes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = await cli("images", "download", IMAGE, "--into", "-")
    monkeypatch.setattr(sys, "stdout", Terminal())
    terminal = await cli("images", "download", IMAGE, "--into", "-", "--variant", "large")

    assert (ExitCode.USAGE, "") == (many.code, many.out)
    assert ExitCode.USAGE == terminal.code
    assert "to a file or a pipe" in terminal.err


async def test_the_key_stays_with_the_api(cli: Cli, host: Script) -> None:
    await cli("images", "download", IMAGE)

    bearing = ["Authorization" in headers for path, headers, _ in host.asked]
    assert bearing == [True, False, False, False]


@pytest.mark.parametrize("wrong", [b"tin", b"tiny and more", b""])
async def test_what_is_not_whole_leaves_what_was_there(
    cli: Cli, host: Script, tmp_path: Path, wrong: bytes
) -> None:
    (tmp_path / "thumb.webp").write_bytes(b"of before")
    host.on("GET /i/thumb.webp", picture(wrong))

    ended = await cli(
        *("images", "download", IMAGE, "--into", ".", "--variant", "thumb", "--format", "webp")
    )

    assert ended.code == ExitCode.UNAVAILABLE
    assert "has not the 4 bytes" in ended.err
    assert files(tmp_path) == {"thumb.webp": b"of before"}


async def test_a_host_that_is_merely_away_is_asked_again(
    cli: Cli, host: Script, tmp_path: Path
) -> None:
    host.on("GET /i/thumb.webp", problem(503, "x", "x"), picture(CONTENTS["thumb.webp"]))

    ended = await cli("images", "download", IMAGE, "--variant", "thumb", "--format", "webp")

    assert ended.code == ExitCode.DONE, ended.err
    assert files(tmp_path / IMAGE) == {"thumb.webp": b"tiny"}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("pending", ExitCode.UNAVAILABLE),
        ("failed", ExitCode.FAILED),
        ("deleted", ExitCode.REFUSED),
    ],
)
async def test_an_image_of_which_nothing_is_published_is_told(
    cli: Cli, host: Script, tmp_path: Path, status: str, code: ExitCode
) -> None:
    host.on(SHOWN, ok(an_image(status)))

    ended = await cli("images", "download", IMAGE)

    assert ended.code == code
    assert f"Nothing is published of image {IMAGE}: it is {status}." in ended.err
    assert files(tmp_path) == {}


async def test_no_name_leads_out_of_the_folder(cli: Cli, host: Script, tmp_path: Path) -> None:
    evil = a_variant("x.webp", host.url, b"tiny") | {"name": "../evil"}
    host.on(SHOWN, ok(an_image("ready", evil)))
    host.on("GET /i/x.webp", picture(b"tiny"))

    ended = await cli("images", "download", IMAGE)

    assert ended.code == ExitCode.UNAVAILABLE
    assert [IMAGE] == names(tmp_path)


@pytest.mark.usefixtures("host")
async def test_a_folder_that_cannot_be_written_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "thumb.webp").mkdir(parents=True)

    for folder in ("file", "taken"):
        ended = await cli("images", "download", IMAGE, "--into", folder)

        assert ended.code == ExitCode.USAGE
        assert f"imagefleet: {folder}" in ended.err
