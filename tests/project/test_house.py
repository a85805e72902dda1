"""The counter of the house counts a tree that is small enough to count by hand."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "house.py"

TREE = {
    "__init__.py": '"""Three lines.\n\nNo module.\n"""\n',
    "errors.py": "class FleetError(Exception):\n    pass\n",
    "store/__init__.py": "",
    "store/claims.py": '''"""Says what it is."""

from imagefleet.errors import FleetError

CLAIM = """
SELECT 1  -- three lines of a statement

"""


class Claim:
    """What one holds."""  # and a comment

    job: str
    number: int
    type: str
    lane: str
    tenant: str


def claim(of: str) -> str:
    # why it is so
    if not of:
        raise FleetError

    return of
''',
    "worker/__init__.py": "",
    "worker/main.py": "from imagefleet.worker import attempt, settler\n",
    "worker/attempt.py": """
from imagefleet import store
from imagefleet.errors import FleetError
from imagefleet.store.claims import Claim


def run() -> type: return Claim
""",
    "worker/settler.py": """
import imagefleet.worker.sizes


class Claim:
    job: str
    number: int
    type: str
    lane: str
    colour: str
    size: int


class Size:
    job: str
    number: int
    type: str
    lane: str
""",
    "worker/sizes.py": "SIZE = 1\n",
    "worker/handlers/noop.py": "from imagefleet import errors\n",
}


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["house"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()
house = script.House(TREE)


def test_a_short_init_is_no_module() -> None:
    assert house.figures().modules == len(TREE) - 3


def test_a_module_below_handlers_is_none_of_the_workers_own() -> None:
    assert house.figures().worker_modules == len(("main", "attempt", "settler", "sizes"))


def test_code_is_what_is_neither_comment_nor_docstring() -> None:
    claims = next(source for source in house.sources if source.name.endswith("claims"))

    lines = claims.text.splitlines()
    told = [lines[number - 1] for number in sorted(script.code_lines(claims))]

    assert told == [
        "from imagefleet.errors import FleetError",
        *('CLAIM = """', "SELECT 1  -- three lines of a statement", "", '"""'),
        *("class Claim:", "    job: str", "    number: int"),
        *("    type: str", "    lane: str", "    tenant: str"),
        *("def claim(of: str) -> str:", "    if not of:", "        raise FleetError"),
        "    return of",
    ]


def test_who_imports_a_module_or_something_out_of_it_reads_it() -> None:
    assert house.readers["imagefleet.errors"] == {
        "imagefleet.store.claims",
        "imagefleet.worker.attempt",
        "imagefleet.worker.handlers.noop",
    }
    assert house.with_one_reader() == {
        "imagefleet.store": "imagefleet.worker.attempt",
        "imagefleet.store.claims": "imagefleet.worker.attempt",
        "imagefleet.worker.attempt": "imagefleet.worker.main",
        "imagefleet.worker.settler": "imagefleet.worker.main",
        "imagefleet.worker.sizes": "imagefleet.worker.settler",
    }


def test_what_a_process_is_put_together_from_may_have_one_reader() -> None:
    figures = house.figures()

    assert (figures.one_reader, figures.one_reader_inside) == (5, 3)


def test_a_name_of_two_classes_is_told_with_both_places() -> None:
    assert house.names_twice() == {
        "Claim": ["imagefleet.store.claims", "imagefleet.worker.settler"]
    }


def test_four_of_five_fields_are_nearly_the_same_and_four_alone_are_too_few() -> None:
    assert [tuple(map(str, pair)) for pair in house.pairs()] == [
        ("imagefleet.store.claims.Claim", "imagefleet.worker.settler.Claim")
    ]


def test_a_figure_above_its_share_of_what_there_was_is_too_many() -> None:
    before = script.BEFORE
    kept = script.Figures(**dict.fromkeys(script.Figures.__dataclass_fields__, 0))

    assert script.too_many(kept, before) == {}
    crowded = replace(before, modules=2 * before.modules)
    assert script.too_many(crowded)["modules"] == crowded.modules - int(
        before.modules * 0.77 * script.growth()
    )


def test_a_commit_is_counted_as_the_tree_is() -> None:
    if not (SCRIPT.parents[1] / ".git").exists():
        pytest.skip("not a git checkout")

    assert script.at("HEAD").keys() >= {"__init__.py", "errors.py", "jobs/lifecycle.py"}
