"""`imagefleet recipes`, and processes that start with a file of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.imaging.recipes import Recipe
from imagefleet.imaging.recipes.files import SHIPPED, recipes_in_force
from tests.cli.conftest import Cli
from tests.support.api import Serve
from tests.support.images import damaged, quadrants, saved
from tests.support.recipes import RECIPES

DOCS: Final = Path(__file__).parents[2] / "docs"

LESS: Final = SHIPPED.read_text(encoding="utf-8").replace("edge = 640", "edge = 700", 1)
BROKEN: Final = LESS.replace("edge = 1280", "edges = 1280", 1)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RECIPES_FILE", raising=False)
    file = tmp_path / "recipes.toml"
    write(file, LESS)
    return file


def write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


async def test_listed_and_shown_are_the_recipes_that_are_in_force(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = (await cli("recipes", "list", "--json")).json()["recipes"]
    monkeypatch.setenv("RECIPES_FILE", str(file))
    others = (await cli("recipes", "list", "--json")).json()["recipes"]
    shown = (await cli("recipes", "show", "default", "--json")).json()

    assert [(recipe.name, recipe.hash) for recipe in RECIPES.values()] == [
        (told["name"], told["hash"]) for told in shipped
    ]
    assert {"name": "default", "variants": 10, "formats": ["webp", "jpeg"]}.items() <= (
        others[0].items()
    )
    assert others[0]["hash"] != shipped[0]["hash"]
    assert others[1] == shipped[1]
    assert recipes_in_force(file)["default"] == Recipe.of("default", shown)
    table = (await cli("recipes", "show", "default")).out
    assert re.search(r"^small.webp +inside +700x700 +80", table, re.MULTILINE)
    assert re.search(r"^square.jpeg +cover +200x200 +80 +focus attention", table, re.MULTILINE)


async def test_the_api_says_what_is_in_force_there(
    cli: Cli, file: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And both say whose recipes they tell, for the two may differ."""
    async with serve(recipes=file) as running:
        monkeypatch.setenv("IMAGEFLEET_URL", running.url)
        monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["reader"])
        theirs = await cli("recipes", "list", "--server", "--json")
        shown = await cli("recipes", "show", "--server", "default")
        document = (await cli("recipes", "show", "--server", "default", "--json")).json()
        none = await cli("recipes", "show", "--server", "none")
    ours = await cli("recipes", "list", "--json")
    monkeypatch.setenv("RECIPES_FILE", str(file))
    of_file = await cli("recipes", "list", "--json")

    assert theirs.json() == of_file.json() != ours.json()
    assert f"in force in the API: asked was {running.url}" in theirs.err
    assert "in force here: the recipes that are shipped" in ours.err
    assert f"in force here: the recipes of {file}" in of_file.err
    assert re.search(r"^small +.*small.webp.* +inside +700x700 +80", shown.out, re.MULTILINE)
    assert ("default", 700) == (document["name"], document["variants"][2]["width"])
    assert ExitCode.USAGE == none.code
    assert "known are: default" in none.err


async def test_a_recipe_that_there_is_not_is_told_beside_those_there_are(cli: Cli) -> None:
    ended = await cli("recipes", "show", "none")

    assert (ExitCode.USAGE, "") == (ended.code, ended.out)
    assert ended.err == "imagefleet: there is no recipe none; known are: default, avif\n"


async def test_a_file_is_checked_without_being_in_force(cli: Cli, file: Path) -> None:
    ended = await cli("recipes", "check", str(file))

    assert ExitCode.DONE == ended.code
    assert recipes_in_force(file)["default"].hash in ended.out


async def test_every_fault_of_a_file_is_told_by_its_line(cli: Cli, file: Path) -> None:
    write(file, BROKEN)
    line = BROKEN[: BROKEN.index("edges")].count("\n") + 1

    ended = await cli("recipes", "check", str(file))

    assert (ExitCode.USAGE, "") == (ended.code, ended.out)
    where = "recipes.default.variants[2]"
    assert ended.err.splitlines() == [
        f"imagefleet: the recipes of {file} cannot be used:",
        f"  line {line - 2}: {where}: says no size: give edge, width or height",
        f"  line {line}: {where}.edges: there is no such key; did you mean edge?",
    ]


async def test_what_a_file_changes_is_told_key_by_key(cli: Cli, file: Path) -> None:
    ours, theirs = RECIPES["default"], recipes_in_force(file)["default"]

    told = (await cli("recipes", "diff", str(file), "--json")).json()
    back = (await cli("recipes", "diff", str(file), str(SHIPPED))).out

    assert told == {
        "recipes": [{"name": "default", "was": ours.hash, "hash": theirs.hash}],
        "changes": [
            {"recipe": "default", "variant": f"small.{form}", "key": "box",
             "was": "640x640", "now": "700x700"}
            for form in ("webp", "jpeg")
        ],
    }  # fmt: skip
    assert re.search(rf"^default +{theirs.hash} +{ours.hash}", back, re.MULTILINE)
    assert re.search(r"^default +small.webp +box +700x700 +640x640", back, re.MULTILINE)
    same = await cli("recipes", "diff", str(SHIPPED))
    assert (ExitCode.DONE, "They make the same.\n") == (same.code, same.out)


async def test_of_a_recipe_that_comes_or_goes_all_is_told(cli: Cli, file: Path) -> None:
    write(file, LESS[: LESS.index("[recipes.avif]")])

    told = (await cli("recipes", "diff", str(file), "--json")).json()

    assert {"name": "avif", "was": RECIPES["avif"].hash, "hash": None} in told["recipes"]
    gone = [change for change in told["changes"] if change["recipe"] == "avif"]
    assert {"thumb.avif", "small.avif", "medium.avif", "large.avif", ""} == {
        change["variant"] for change in gone
    }
    assert {None} == {change["now"] for change in gone}


async def test_the_published_schema_is_the_one_that_is_printed(cli: Cli) -> None:
    printed = (await cli("recipes", "schema")).out

    published = DOCS / "recipes.schema.json"
    assert printed == published.read_text(encoding="utf-8"), "imagefleet recipes schema >…"


def test_the_example_of_the_page_is_a_file_that_can_be_used(tmp_path: Path) -> None:
    page = (DOCS / "recipes.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    written = tmp_path / "recipes.toml"
    written.write_text(example, encoding="utf-8")

    made = recipes_in_force(written)

    assert set(made) == {"default", "icons"}
    assert "card-2x" in {variant.name for variant in made["default"].variants}


def test_every_key_and_value_is_on_the_page() -> None:
    page = (DOCS / "recipes.md").read_text(encoding="utf-8")
    schema = json.loads((DOCS / "recipes.schema.json").read_text(encoding="utf-8"))

    parts = schema["$defs"].values()
    keys = {key for part in parts for key in part.get("properties", {})}
    values = {value for part in parts for value in part.get("enum", [])}
    assert len(keys) > 20
    assert {word for word in keys | values if f"`{word}`" not in page.replace('"', "")} == set()


def marked(file: Path, mark: bytes) -> None:
    """A file whose variants bear this WebP."""
    (file.parent / "mark.webp").write_bytes(mark)
    write(file, LESS.replace("edge = 700", 'edge = 700\nwatermark = { image = "mark.webp" }', 1))


async def test_a_watermark_that_cannot_be_decoded_is_told_when_its_file_is_checked(
    cli: Cli, file: Path
) -> None:
    mark = saved(quadrants(), "WEBP", lossless=True)
    marked(file, mark)
    assert (await cli("recipes", "check", str(file))).code == ExitCode.DONE
    marked(file, damaged(mark))

    ended = await cli("recipes", "check", str(file))

    assert (ExitCode.USAGE, "") == (ended.code, ended.out)
    assert "a watermark that cannot be read" in ended.err


@pytest.mark.parametrize("process", ["api", "worker"])
def test_a_process_does_not_start_with_a_broken_file(file: Path, process: str) -> None:
    """It says why before it reaches for anything: none of these addresses is anybody's."""
    file.write_text(BROKEN, encoding="utf-8")
    nowhere = "http://127.0.0.1:9"
    queues = (
        "FAST_QUEUE_URL",
        "GENERAL_QUEUE_URL",
        "QUARANTINE_QUEUE_URL",
        "DEAD_LETTER_QUEUE_URL",
    )
    environment = {
        "PATH": os.defpath,
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nothing",
        "AWS_REGION": "us-east-1",
        "ORIGINALS_BUCKET": "originals",
        "OUTPUTS_BUCKET": "outputs",
        "PUBLIC_BASE_URL": nowhere,
        "RECIPES_FILE": str(file),
        **dict.fromkeys(queues, nowhere),
    }

    ended = subprocess.run(
        [sys.executable, "-m", "imagefleet", process],
        env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip

    assert 2 == ended.returncode
    first, size, key = ended.stderr.splitlines()[-3:]
    assert first == (f"imagefleet {process} does not start: the recipes of {file} cannot be used:")
    assert size.endswith("recipes.default.variants[2]: says no size: give edge, width or height")
    assert key.endswith(
        "recipes.default.variants[2].edges: there is no such key; did you mean edge?"
    )
