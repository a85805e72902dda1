"""Stacks of their own: what is done to them here no other test should meet."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under `--dist loadgroup` the tests of a file share one stack, in one test process."""
    for item in items:
        if "tests/faults/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group(Path(item.path).stem))
