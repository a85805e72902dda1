"""What rules and dashboards ask Prometheus for, held against what the product tells it.

Names and labels are read off the product's own registries, so a series that is renamed is missed by
whoever asks for it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client.metrics import MetricWrapperBase

from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.telemetry.metrics import ApiMetrics, ConsoleMetrics, WorkerMetrics
from imagefleet.telemetry.series import SampledSeries, Series
from tests.support.wheels import ROOT

HERE: Final = ROOT / "infra" / "observability"
RULES: Final = tuple(sorted((HERE / "rules").glob("*.yaml")))
UNIT_TESTS: Final = tuple(sorted((HERE / "tests").glob("*.yaml")))
PAGES: Final = tuple(sorted((HERE / "dashboards").glob("*.json")))
RATE: Final = "$__rate_interval"

OF_A_SCRAPE: Final = frozenset({"job", "instance"})
OF_PROMETHEUS: Final = {
    "up": frozenset[str](),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "product"}),
}
SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "Counter": ("_total",),
    "Histogram": ("_bucket", "_count", "_sum"),
    "Gauge": ("",),
}


def told() -> dict[str, frozenset[str]]:
    """Every series of every process, with the labels that it has in any of them."""
    found: dict[str, frozenset[str]] = {}
    processes: tuple[Series, ...] = (
        *(ApiMetrics(), ConsoleMetrics()),
        *(WorkerMetrics(BUILT_IN), MaintenanceMetrics(BUILT_IN)),
    )
    for process in processes:
        for name, labels in _series_of(process):
            found[name] = found.get(name, frozenset()) | labels
    return found


def _series_of(process: Series) -> Iterator[tuple[str, frozenset[str]]]:
    for family in process._registry.collect():
        if family.name.startswith("process_"):
            yield from ((sample.name, frozenset[str]()) for sample in family.samples)
    for one in process._registry._collector_to_names:
        if isinstance(one, SampledSeries):
            yield from ((name, frozenset(labels)) for name, (_, labels) in one._families.items())
        elif isinstance(one, MetricWrapperBase):
            for suffix in SUFFIXES[type(one).__name__]:
                of_it = frozenset({"le"} if suffix == "_bucket" else ())
                yield one._name + suffix, of_it | frozenset(one._labelnames)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and the file that it is of."""

    file: str
    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.document.get("alert") or self.document["record"])

    @property
    def is_alert(self) -> bool:
        return "alert" in self.document

    @property
    def query(self) -> str:
        return str(self.document["expr"])


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(
        Rule(path.stem, rule)
        for path in RULES
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    )


def alerts() -> list[Rule]:
    return [rule for rule in rules() if rule.is_alert]


def panels(path: Path) -> list[tuple[str, str]]:
    """The title and each query of every panel of a page."""
    page = json.loads(path.read_text(encoding="utf-8"))
    return [
        (panel["title"], target["expr"]) for panel in page["panels"] for target in panel["targets"]
    ]


def faults_of(query: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    """Which series and labels it asks for that there are not."""
    return _Reader(query, known).faults


AGGREGATIONS: Final = frozenset({"avg", "count", "max", "min", "sum"})
MATCHINGS: Final = frozenset({"on", "ignoring"})
OPERATORS: Final = frozenset({"and", "or", "unless", "bool", "offset"})
TOKEN: Final = re.compile(r'"[^"]*"|\[[^]]*\]|\d[\d.]*(?:e[-+]?\d+)?|[A-Za-z_:][\w:]*|[(){},]')


class _Reader:
    """A query, read from left to right: as much of PromQL as it takes to know what is asked for.

    Whether it can be evaluated says promtool, or a Prometheus.
    """

    def __init__(self, query: str, known: Mapping[str, frozenset[str]]) -> None:
        self._known = known
        self._tokens = TOKEN.findall(query)
        self.faults: list[str] = []
        self.labels = self._expression()
        """Those that its result may have."""

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _expression(self) -> frozenset[str]:
        """Up to the parenthesis or the comma that ends it."""
        labels: frozenset[str] = frozenset()
        matched_by: list[str] = []
        while self._next() not in {"", ")", ","}:
            token = self._tokens.pop(0)
            if token in MATCHINGS:
                matched_by = self._list()
                self._miss(matched_by, labels, "to match on")
            elif token.startswith("group_"):
                self._list()
            elif token not in OPERATORS and token[0] not in '"[0123456789':
                term = self._term(token)
                self._miss(matched_by, term, "to match on")
                labels, matched_by = labels | term, []
        return labels

    def _term(self, token: str) -> frozenset[str]:
        if token == "(":
            labels = self._expression()
            self._tokens.pop(0)
            return labels
        if token in AGGREGATIONS:
            return self._aggregation()
        if self._next() == "(":
            return self._arguments()
        return self._selected(token)

    def _aggregation(self) -> frozenset[str]:
        """`sum by (lane) (…)`; without anything named, all labels go."""
        modifier = self._tokens.pop(0) if self._next() in {"by", "without"} else ""
        named = self._list() if modifier else []
        labels = self._arguments()
        self._miss(named, labels, "to go by")
        return labels - {*named} if modifier == "without" else frozenset(named)

    def _arguments(self) -> frozenset[str]:
        labels: frozenset[str] = frozenset()
        closed = ""
        self._tokens.pop(0)
        while closed != ")":
            labels |= self._expression()
            closed = self._tokens.pop(0)
        return labels

    def _list(self) -> list[str]:
        """`(lane, state)`, if there is one."""
        if self._next() != "(":
            return []
        end = self._tokens.index(")")
        found = [token for token in self._tokens[1:end] if token != ","]
        del self._tokens[: end + 1]
        return found

    def _selected(self, name: str) -> frozenset[str]:
        wanted: list[str] = []
        if self._next() == "{":
            end = self._tokens.index("}")
            wanted = [token for token in self._tokens[1:end] if token[0] not in ',"']
            del self._tokens[: end + 1]
        if name not in self._known:
            self.faults.append(f"no series {name}")
            return frozenset().union(*self._known.values())  # what else is asked of it says nothing
        labels = self._known[name] | OF_A_SCRAPE
        self.faults += [f"{name} has no label {label}" for label in wanted if label not in labels]
        return labels

    def _miss(self, named: Iterable[str], labels: frozenset[str], what: str) -> None:
        self.faults += [f"no {label} {what}" for label in named if label not in labels]


def series() -> dict[str, frozenset[str]]:
    """What may be asked for: what is told, what Prometheus adds, and what rules make of it."""
    known = {**told(), **OF_PROMETHEUS}
    for rule in rules():
        if not rule.is_alert:
            known[rule.name] = _Reader(rule.query, known).labels - OF_A_SCRAPE
    return known


def matched(query: str, label: str) -> set[str]:
    """The values that a query asks for by this label, of whatever it is compared with."""
    values = re.findall(rf'\b{label}(?:=~|!~|!=|=)"([^"]*)"', query)
    return {value for text in values for value in text.split("|")}
