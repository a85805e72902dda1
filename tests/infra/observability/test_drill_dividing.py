"""What a drill divides: every duration of every shipped rule, and nothing else."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.observability.asking import RULES, UNIT_TESTS
from tests.infra.observability.check import complaints_of
from tests.infra.observability.drill.dividing import (
    NotDividedError,
    divide_duration,
    divide_files,
    divide_query,
    divide_rules,
    milliseconds,
)
from tests.support.prometheus import needed

FIELDS = ("for", "keep_firing_for", "interval", "query_offset")


@pytest.mark.parametrize(
    ("query", "divided"),
    [
        ("rate(x_total[5m])", "rate(x_total[30000ms])"),
        ("increase(x_total[1h30m])", "increase(x_total[540000ms])"),
        ("max_over_time(x[1d:5m])", "max_over_time(x[8640000ms:30000ms])"),
        ("delta(vector(time())[5m:])", "delta(vector(time())[30000ms:])"),
        ("x offset 1w", "x offset 60480000ms"),
        ("x offset -10s > 300", "x offset -1000ms > 300"),
        ("a:rate5m[5m] / b_5m{d5m='5m'}", "a:rate5m[30000ms] / b_5m{d5m='5m'}"),
        ('x{le="30s"} > 14.4 * 1e3', 'x{le="30s"} > 14.4 * 1e3'),
        ("x > 0x5d # of 5m", "x > 0x5d # of 5m"),
        ('x{a="\\"5m"} + y{b=`5m`}[5m]', 'x{a="\\"5m"} + y{b=`5m`}[30000ms]'),
        ("x @ 1609746000 > .5", "x @ 1609746000 > .5"),
    ],
)
def test_durations_of_a_query_are_divided_and_names_texts_and_numbers_are_not(
    query: str, divided: str
) -> None:
    assert divided == divide_query(query, 10)


@pytest.mark.parametrize("query", ["rate(x_total[300])", "x offset 300", "x offset -300"])
def test_seconds_without_a_unit_are_refused(query: str) -> None:
    with pytest.raises(NotDividedError, match="without a unit, 300"):
        divide_query(query, 10)


@pytest.mark.parametrize("text", ["300", "5 m", "", "m", "-5m", "5min"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(NotDividedError, match="no duration"):
        divide_duration(text, 10)


def test_a_duration_stays_one_however_often_it_is_divided() -> None:
    assert ["1ms", "0ms", "0ms"] == [divide_duration(text, 1e6) for text in ("5m", "0s", "0")]


def values_of(
    document: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a file of rules, with the way to it."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            yield from values_of(value, (*path, str(name)))
    elif isinstance(document, list):
        for place, value in enumerate(document):
            yield from values_of(value, (*path, str(place)))
    else:
        yield path, document


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_of_a_shipped_file_everything_else_is_as_it_was(file: Path) -> None:
    shipped = yaml.safe_load(file.read_text(encoding="utf-8"))

    before, after = dict(values_of(shipped)), dict(values_of(divide_rules(shipped, 10)))

    assert [*before] == [*after]
    touched = {path for path in before if before[path] != after[path]}
    assert {path[-1] for path in touched} <= {"expr", *FIELDS}
    assert {path for path in before if path[-1] in FIELDS} <= touched
    for path in touched - {path for path in touched if path[-1] == "expr"}:
        assert milliseconds(before[path]) == 10 * milliseconds(after[path])


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_of_a_shipped_file_no_range_and_no_offset_stayed_as_it_was(file: Path) -> None:
    """Found in another way than they are divided: by splitting at what begins one."""
    shipped = yaml.safe_load(file.read_text(encoding="utf-8"))
    divided = divide_rules(shipped, 10)

    before, after = ranges_of(shipped), ranges_of(divided)

    assert before or file.stem == "images"
    assert [milliseconds(text) for text in before] == [10 * milliseconds(text) for text in after]


def ranges_of(document: Mapping[str, Any]) -> list[str]:
    return [
        text
        for group in document["groups"]
        for rule in group["rules"]
        for part in rule["expr"].split("[")[1:]
        for text in part.partition("]")[0].split(":")
        if text
    ]


def test_promtool_plays_the_divided_courses_on_the_divided_rules(tmp_path: Path) -> None:
    """A rule that counts in seconds what it means in its own durations says something else then."""
    rules = divide_files(RULES, 10, tmp_path / "rules")
    courses = []
    for path in UNIT_TESTS:
        course = yaml.safe_load(path.read_text(encoding="utf-8"))
        course["rule_files"] = [
            str(tmp_path / "rules" / Path(f).name) for f in course["rule_files"]
        ]
        course["evaluation_interval"] = divide_duration(course["evaluation_interval"], 10)
        for test in course["tests"]:
            test["interval"] = divide_duration(test["interval"], 10)
            for step in test["promql_expr_test"]:
                step["eval_time"] = divide_duration(str(step["eval_time"]), 10)
                step["expr"] = divide_query(step["expr"], 10)
        courses.append(tmp_path / path.name)
        courses[-1].write_text(json.dumps(course), encoding="utf-8")

    assert "" == complaints_of(needed("promtool"), rules, courses)
