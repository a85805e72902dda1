"""The rules as they are shipped, with every duration divided, and nothing else.

A drill has no hour to wait for what is to last for an hour. Durations are `for`, `interval` and
what is like it, and in a query whatever is written with a unit: ranges, resolutions, offsets. A
number without one is none: `> 300` compares, and stays.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

SECOND: Final = 1_000  # milliseconds
DAY: Final = 86_400 * SECOND
MILLISECONDS: Final = {
    "ms": 1,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3_600 * SECOND,
    "d": DAY,
    "w": 7 * DAY,
    "y": 365 * DAY,
}
OF_A_GROUP: Final = ("interval", "query_offset")
OF_A_RULE: Final = ("for", "keep_firing_for")
PART: Final = re.compile(r"(\d+)(ms|[smhdwy])")
DURATION: Final = r"(?:\d+(?:ms|[smhdwy]))+"
# What is no duration is read as well: the digits of a name, a text or a number are none.
TOKEN: Final = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`|\#[^\n]*)"""
    r"|(?P<name>[A-Za-z_][\w:]*)"
    rf"|(?P<duration>{DURATION}(?!\w))"
    r"|(?P<number>0[xX][0-9a-fA-F]+|(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<sign>\S)"
)


class NotDividedError(Exception):
    """What may be a duration, and cannot be read as one."""


def divide_rules(document: Mapping[str, Any], divisor: float) -> dict[str, Any]:
    """A file of rules, all of whose durations are so many times shorter."""
    divided = deepcopy(dict(document))
    for group in divided["groups"]:
        _divide_fields(group, OF_A_GROUP, divisor)
        for rule in group["rules"]:
            _divide_fields(rule, OF_A_RULE, divisor)
            rule["expr"] = divide_query(rule["expr"], divisor)
    return divided


def _divide_fields(fields: dict[str, Any], names: tuple[str, ...], divisor: float) -> None:
    for name in names:
        if name in fields:
            fields[name] = divide_duration(str(fields[name]), divisor)


def divide_query(query: str, divisor: float) -> str:
    """The query as it is written, but for its durations."""
    written, end = "", 0
    for token in _tokens(query):
        written += query[end : token.start()]
        is_duration = token.lastgroup == "duration"
        written += divide_duration(token.group(), divisor) if is_duration else token.group()
        end = token.end()
    return written + query[end:]


def durations_of(query: str) -> list[int]:
    """Every duration of a query, in milliseconds."""
    return [milliseconds(t.group()) for t in _tokens(query) if t.lastgroup == "duration"]


def _tokens(query: str) -> Iterator[re.Match[str]]:
    """Whatever stands there. Seconds without a unit would stay what they are, and are refused."""
    in_a_range, before = False, ""
    for token in TOKEN.finditer(query):
        text = token.group()
        if token.lastgroup == "number" and (in_a_range or before == "offset"):
            message = f"a duration without a unit, {text}, in {query}"
            raise NotDividedError(message)
        if token.lastgroup == "sign" and text in "[]":
            in_a_range = text == "["
        if text != "-":  # of an offset that looks ahead
            before = text
        yield token


def divide_duration(text: str, divisor: float) -> str:
    """To the millisecond, which is as short as Prometheus knows it; nothing becomes none."""
    whole = milliseconds(text)
    return f"{max(1, round(whole / divisor)) if whole else 0}ms"


def milliseconds(text: str) -> int:
    """What a duration of Prometheus says, such as 1h30m."""
    if text != "0" and not re.fullmatch(DURATION, text):
        message = f"no duration: {text}"
        raise NotDividedError(message)
    return sum(int(count) * MILLISECONDS[unit] for count, unit in PART.findall(text))


def divide_files(
    paths: Iterable[Path], divisor: float, into: Path, *, without: str | None = None
) -> tuple[Path, ...]:
    """Files of these names, which are YAML as JSON is; `without` the alert of this name."""
    into.mkdir()
    divided = []
    for path in paths:
        document = divide_rules(yaml.safe_load(path.read_text(encoding="utf-8")), divisor)
        for group in document["groups"]:
            group["rules"] = [rule for rule in group["rules"] if rule.get("alert", "") != without]
        divided.append(into / path.name)
        divided[-1].write_text(json.dumps(document, indent=1), encoding="utf-8")
    return tuple(divided)
