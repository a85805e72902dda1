"""Stacks of their own: what is done to them here no other test should meet."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A stack is some ten processes: under `--dist loadgroup` there is one at a time."""
    for item in items:
        if "tests/faults/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("stack"))
