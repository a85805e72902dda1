"""The table of differences is complete, and people read the same as the tests."""

import re
from pathlib import Path

from tests.aws.differences import DIFFERENCES

ROOT = Path(__file__).parents[2]
ASKED = re.compile(r'differs\("([a-z-]+)"\)')


def test_the_document_lists_every_difference() -> None:
    text = (ROOT / "docs" / "aws-contract.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE))

    assert set(DIFFERENCES) == listed


def test_every_difference_is_asserted_somewhere() -> None:
    tests = Path(__file__).parent.glob("test_*.py")
    asked = {name for test in tests for name in ASKED.findall(test.read_text(encoding="utf-8"))}

    assert set(DIFFERENCES) == asked


def test_every_difference_says_who_has_it() -> None:
    assert all(difference.instead for difference in DIFFERENCES.values())
