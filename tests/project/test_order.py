"""The longest modules begin first, and nothing is lost by that."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.support.order import USUAL, dealt

LONG = USUAL + 1

Item = tuple[int, int, float]  # module, number, seconds
MODULES = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from([USUAL, LONG, 2 * LONG])), max_size=12
).map(
    lambda sizes: [
        [(module, number, seconds) for number in range(count)]
        for module, (count, seconds) in enumerate(sizes)
    ]
)


def length(module: Sequence[Item]) -> float:
    return max(seconds for _, _, seconds in module)


@given(MODULES, st.integers(1, 5))
def test_every_test_runs_once(modules: list[list[Item]], processes: int) -> None:
    items = dealt(modules, length, processes)

    assert sorted(items) == sorted(item for module in modules for item in module)


@given(MODULES)
def test_alone_a_process_begins_with_the_longest_and_shuffles_the_rest_no_more(
    modules: list[list[Item]],
) -> None:
    items = dealt(modules, length, 1)

    assert items == [
        item for module in sorted(modules, key=length, reverse=True) for item in module
    ]


def test_each_process_begins_with_a_long_module_of_its_own() -> None:
    usual = [[(module, number, USUAL) for number in range(10)] for module in range(4)]
    long = [[(module, number, LONG) for number in range(2)] for module in (4, 5, 6)]

    items = dealt([*usual, *long], length, 3)  # 46 of them: 15, 15 and 16

    assert [items[0:2], items[15:17], items[30:32]] == long
    assert sorted({module for module, _, _ in items[2:15]}) == [0, 1]
