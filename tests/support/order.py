"""A plugin: the longest modules begin first, in every test process.

What asks for more than the usual time is long: most start fleets of their own, and wait for what
happens there. Whichever of them came last would end alone, while the other processes are idle. The
others keep the order that pytest-randomly gave them, and every module stays together.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, TypeVar

import pytest

USUAL: Final = 60.0  # seconds; `timeout` in pyproject.toml

T = TypeVar("T")


@pytest.hookimpl(tryfirst=True)  # before tests/hostile counts waiting for others as their time
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    told: dict[str, object] = getattr(config, "workerinput", {})
    processes = told.get("workercount", 1)
    assert isinstance(processes, int)
    modules = [list(group) for _, group in groupby(items, lambda item: item.path)]
    items[:] = dealt(modules, lambda module: max(map(seconds, module)), processes)


def seconds(item: pytest.Item) -> float:
    """How long this test may take."""
    asked = item.get_closest_marker("timeout")
    return float(asked.args[0]) if asked is not None and asked.args else USUAL


def dealt(
    modules: Iterable[Sequence[T]], length: Callable[[Sequence[T]], float], processes: int
) -> list[T]:
    """All items, so that each of these many equal parts begins with its share of long modules.

    `--dist worksteal` gives each process one such part, and who is done takes from others' ends.
    """
    modules = sorted(modules, key=length, reverse=True)
    long = [module for module in modules if length(module) > USUAL]
    short = [item for module in modules[len(long) :] for item in module]
    count = sum(map(len, modules))
    items: list[T] = []
    for number in range(processes):
        mine = [item for module in long[number::processes] for item in module]
        most = (count - len(items)) // (processes - number)
        space = max(most - len(mine), 0)
        items += [*mine, *short[:space]]
        short = short[space:]
    return items + short
