"""Pages: each is in the index, no link of one is dead, and the README begins with what it is."""

import re
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
INDEX: Final = DOCS / "README.md"
README: Final = ROOT / "README.md"
PAGES: Final = (
    README,
    ROOT / "CHANGELOG.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "infra").rglob("*.md")),
)
FENCED: Final = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
ELSEWHERE: Final = ("http://", "https://", "mailto:")
ABOVE_THE_FOLD: Final = 5


@cache
def prose(page: Path) -> str:
    """Without what is code."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"^ {4}.*$|`[^`\n]*`", lambda code: "`" * len(code[0]), text, flags=re.MULTILINE)


def linked(page: Path) -> list[tuple[Path, str]]:
    """The files that it leads to, each with the place in it."""
    targets = [link for link in LINK.findall(prose(page)) if not link.startswith(ELSEWHERE)]
    parts = [target.partition("#") for target in targets]
    return [((page.parent / path).resolve() if path else page, at) for path, _, at in parts]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of its headings, as GitHub makes them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return frozenset(re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    dead = [
        f"{target.relative_to(ROOT)}#{at}" if at else str(target)
        for target, at in linked(page)
        if not target.exists() or (at and target.suffix == ".md" and at not in anchors(target))
    ]

    assert [] == dead


def test_every_page_is_in_the_index() -> None:
    told = {target for target, _ in linked(INDEX)}
    there = {*DOCS.glob("*.md"), *(DOCS / "runbooks").glob("*.md"), *DOCS.glob("examples/*/*.md")}
    there |= {DOCS / "decisions" / "README.md", *(ROOT / "infra").glob("*/README.md")}

    assert there - told - {INDEX} == set()


def test_the_index_says_a_sentence_of_each() -> None:
    rows = re.findall(r"^\| \[.+?\]\((.+?)\) \| (.*) \|$", prose(INDEX), re.MULTILINE)

    assert rows
    assert [page for page, said in rows if len(said) < 20] == []


def test_the_readme_says_what_it_is_in_five_lines_and_then_shows_it() -> None:
    title, _, *lines = README.read_text(encoding="utf-8").splitlines()
    first = [*takewhile(lambda line: not line.startswith("!["), lines)]

    assert title == "# imagefleet"
    assert 1 < len([line for line in first if line]) <= ABOVE_THE_FOLD


def test_pictures_of_the_readme_come_before_its_commands_and_are_of_this_repository() -> None:
    text = README.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)

    assert ["flow.svg", "console-now.png", "healed.svg"] == [Path(each).name for each in pictures]
    assert text.index(pictures[-1]) < text.index("\n    make run")
