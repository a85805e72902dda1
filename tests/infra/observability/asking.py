"""What rules and dashboards ask Prometheus for, held against what the product tells it.

Names and labels are read off the product's own registries, so a series that is renamed is missed by
whoever asks for it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import promql_parser
import yaml
from prometheus_client.metrics import MetricWrapperBase

from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.telemetry.metrics import ApiMetrics, WorkerMetrics
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
    for process in (ApiMetrics(), WorkerMetrics(BUILT_IN), MaintenanceMetrics(BUILT_IN)):
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
    found: list[str] = []
    _walk(promql_parser.parse(query.replace(RATE, "1m")), known, found)
    return found


def _walk(node: object, known: Mapping[str, frozenset[str]], found: list[str]) -> frozenset[str]:
    """The labels that its result may have."""
    match node:
        case promql_parser.VectorSelector():
            return _selected(node, known, found)
        case promql_parser.MatrixSelector():
            return _selected(node.vector_selector, known, found)
        case promql_parser.AggregateExpr():
            labels = _walk(node.expr, known, found)
            if node.modifier is None:
                return frozenset()
            named = frozenset(node.modifier.labels)
            found += [f"no {label} to go by" for label in sorted(named - labels)]
            return (
                named if node.modifier.type == promql_parser.AggModifierType.By else labels - named
            )
        case promql_parser.BinaryExpr():
            sides = [_walk(node.lhs, known, found), _walk(node.rhs, known, found)]
            if node.modifier is not None and node.modifier.matching is not None:
                named = frozenset(node.modifier.matching.labels)
                found += [
                    f"no {label} to match on" for side in sides for label in sorted(named - side)
                ]
            return sides[0] | sides[1]
        case promql_parser.Call():
            return frozenset().union(*(_walk(each, known, found) for each in node.args))
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return _walk(node.expr, known, found)
        case _:  # a number, a text
            return frozenset()


def _selected(
    node: promql_parser.VectorSelector, known: Mapping[str, frozenset[str]], found: list[str]
) -> frozenset[str]:
    name = node.name or ""
    if name not in known:
        found.append(f"no series {name}")
        return frozenset().union(*known.values())  # what else is asked of it says nothing
    labels = known[name] | OF_A_SCRAPE
    wanted = {matcher.name for matcher in node.matchers.matchers}
    found += [f"{name} has no label {label}" for label in sorted(wanted - labels)]
    return labels


def series() -> dict[str, frozenset[str]]:
    """What may be asked for: what is told, what Prometheus adds, and what rules make of it."""
    known = {**told(), **OF_PROMETHEUS}
    for rule in rules():
        if not rule.is_alert:
            known[rule.name] = _walk(promql_parser.parse(rule.query), known, [])
    return known


def matched(query: str, label: str) -> set[str]:
    """The values that a query asks for by this label, of whatever it is compared with."""
    values = re.findall(rf'\b{label}(?:=~|!~|!=|=)"([^"]*)"', query)
    return {value for text in values for value in text.split("|")}
