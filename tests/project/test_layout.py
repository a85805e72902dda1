"""What lies where, and that the project says one thing about itself."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.sources import parsed

ROOT = Path(__file__).parents[2]

TOP_LEVEL = {
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "compose.localstack.yml",
    "docs",
    "infra",
    "migrations",
    "pyproject.toml",
    "services",
    "tests",
    "uv.lock",
}
# Names that say nothing, so that everything would end up in them.
EMPTY_NAMES = {"common", "helper", "helpers", "manager", "util", "utils"}


def project_files() -> list[Path]:
    """Every file git tracks or would track, relative to the root."""
    # safe.directory: a container may own the checkout under another user than the one that tests.
    git = ["git", "-c", f"safe.directory={ROOT}"]
    listing = subprocess.run(
        [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [Path(name) for name in listing.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return project_files()


def test_the_top_level_holds_only_known_names(files: list[Path]) -> None:
    names = {file.parts[0] for file in files if not file.parts[0].startswith(".")}

    assert names - TOP_LEVEL == set()


def test_every_module_has_a_name_that_says_something(files: list[Path]) -> None:
    modules = [file for file in files if file.parts[0] == "services" and file.suffix == ".py"]
    empty = [str(m) for m in modules if EMPTY_NAMES & {*m.parent.parts, m.stem}]

    assert empty == []


PACKAGE = ROOT / "services" / "imagefleet"
ROOMS = sorted(file.parent for file in PACKAGE.rglob("__init__.py"))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(PACKAGE)))
def test_a_folder_says_who_lives_in_it(room: Path) -> None:
    """By name; or what each of them is about, where there is one a noun, an agent, a format."""
    said = ast.get_docstring(parsed(room / "__init__.py")) or ""
    packages = {file.parent.name for file in room.glob("*/__init__.py")}
    modules = {file.stem for file in room.glob("*.py") if not file.stem.startswith("__")}
    one_a_thing = re.search(r"\b[Oo]ne (?:module|file|parser) an? [a-z]+", said)

    there = packages if one_a_thing else packages | modules

    assert {name for name in there if re.search(rf"\b{name}\b", said) is None} == set()


def test_the_newest_release_in_the_changelog_is_the_version() -> None:
    """What comes next stands under Unreleased; before the first release nothing else does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    headings = re.findall(
        r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert headings[0] == "Unreleased"
    assert headings[1:2] in ([], [project["version"]])


def test_ci_calls_nothing_but_make_targets() -> None:
    """Whoever runs the same targets at home sees what CI sees."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    commands = re.findall(r"^[\s-]*run:\s*(.*)$", workflow, re.MULTILINE)
    targets = re.findall(
        r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert commands
    assert [c for c in commands if c not in {f"make {target}" for target in targets}] == []


def test_the_harness_of_the_tests_says_what_each_of_its_modules_is_for() -> None:
    folder = ROOT / "tests" / "support"
    guide = (folder / "__init__.py").read_text(encoding="utf-8")
    told = re.findall(r"^    ([a-z_]+)  +\S", guide, re.MULTILINE)
    there = [file.stem for file in folder.iterdir() if not file.name.startswith("__")]

    assert sorted(told) == sorted(there)


PAGES = (
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "runbooks").rglob("*.md"),
    ROOT / ".github" / "CONTRIBUTING.md",
    ROOT / "README.md",
)
NAMED = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_no_module_that_there_is_not(page: Path) -> None:
    """Below services/imagefleet, below the root, or by its name alone, wherever it is."""
    package = ROOT / "services" / "imagefleet"
    places = (package, ROOT, page.parent)
    alone = {file.name for folder in (package, ROOT / "tests") for file in folder.rglob("*.py")}

    named = set(NAMED.findall(page.read_text(encoding="utf-8")))

    missing = {path for path in named if not any((place / path).is_file() for place in places)}
    assert missing - alone == set()
