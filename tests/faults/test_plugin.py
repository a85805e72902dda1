"""What the fault plugin replaces is there: a name that was changed would never be patched."""

import importlib
from types import ModuleType

import pytest

from tests.faults.plugin import sitecustomize
from tests.faults.plugin.sitecustomize import TARGETS, Target, nowhere


def test_every_module_that_is_patched_is_there() -> None:
    assert [] == nowhere()


@pytest.mark.parametrize("module", TARGETS)
def test_everything_that_is_replaced_is_there(module: str) -> None:
    target = TARGETS[module]

    assert target.names
    assert [] == target.missing(importlib.import_module(module))


def test_what_is_missing_ends_the_process() -> None:
    """By SystemExit: Python passes over every other exception of a `sitecustomize`."""
    target = Target(("gone", "ModuleType.gone"), lambda _: None)

    with pytest.raises(SystemExit, match=r"\['gone', 'ModuleType.gone'\]"):
        target.replace(ModuleType("somewhere"))


def test_a_module_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sitecustomize.TARGETS, "imagefleet.gone.too", Target((), lambda _: None))

    assert ["imagefleet.gone.too"] == nowhere()
