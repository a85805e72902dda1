"""One word a thing: what docs/architecture.md says is never said names nothing in services/."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.sources import parsed

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "services" / "imagefleet"
PAGE: Final = ROOT / "docs" / "architecture.md"

# Names that somebody else gave, each with the reason.
EXCEPTIONS: Final = {
    "heartbeat": "what the specification of server-sent events calls its empty comments",
}


def table() -> dict[str, tuple[str, ...]]:
    """By word, what is never said instead."""
    chapter = PAGE.read_text(encoding="utf-8").partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z -]+) \| .+ \| (.+?) \|$", chapter, re.MULTILINE)
    return {
        word: tuple(re.findall(r"`([a-z_]+)`", never)) for word, never in rows if word != "word"
    }


WORDS: Final = table()


def parts(name: str) -> str:
    """`LeaseTable`, `lease_table` and `_LEASE_TABLE` are `_lease_table_`."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return f"_{snake}_"


def names(tree: ast.AST) -> Iterator[str]:
    """Whatever a module gives a name to."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


@pytest.fixture(scope="module")
def given() -> dict[str, set[str]]:
    """Every name of the product, with the files that give it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        where = str(path.relative_to(PACKAGE))
        for name in (path.stem, *names(parsed(path))):
            found[parts(name)].add(where)
    return found


def test_there_is_a_table_and_no_word_of_it_is_forbidden_by_another_row() -> None:
    never = {word for row in WORDS.values() for word in row}

    assert len(WORDS) >= 20
    assert never & {word.replace(" ", "_").replace("-", "_") for word in WORDS} == set()


@pytest.mark.parametrize("word", WORDS)
def test_nothing_is_called_by_another_word_for_it(word: str, given: dict[str, set[str]]) -> None:
    said = {
        name.strip("_"): sorted(where)
        for never in WORDS[word]
        for name, where in given.items()
        if f"_{never}_" in name and name.strip("_") not in EXCEPTIONS
    }

    assert said == {}
