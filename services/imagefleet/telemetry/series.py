"""How series are made and shown; which ones there are is said in `metrics.py`."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from imagefleet.errors import ClaimLost, FleetError, RequestRejected

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Values: TypeAlias = Mapping[tuple[str, ...], float]
Family: TypeAlias = GaugeMetricFamily | CounterMetricFamily


class Series:
    """The series of one process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry: Final = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Return what a scrape gets, in the form that CONTENT_TYPE names."""
        return generate_latest(_WithoutBirthdays(self._registry))

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self._registry)

    def _histogram(
        self, name: str, meaning: str, buckets: Iterable[float], *labels: str
    ) -> Histogram:
        return Histogram(name, meaning, labels, registry=self._registry, buckets=tuple(buckets))

    def _sampled(self, *families: tuple[str, ...]) -> "SampledSeries":
        sampled = SampledSeries(families)
        self._registry.register(sampled)
        return sampled


class _WithoutBirthdays(Collector):
    """When a series began is of use to nobody here, and would be a third of all that is scraped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Give everything else."""
        for family in self._registry.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


class Timed:
    """One use of something, from `with` to its end: how long, and which error it ended with."""

    __slots__ = ("_begun", "_ended", "_failed")

    def __init__(self, ended: Callable[[float], None], failed: Callable[[str], None]) -> None:
        self._ended = ended
        self._failed = failed
        self._begun = 0.0

    def __enter__(self) -> None:
        """Begin to count."""
        self._begun = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Tell the time, and the error unless it is a refusal, which is an answer."""
        self._ended(time.perf_counter() - self._begun)
        code = error_code(error)
        if code is not None:
            self._failed(code)


class SampledSeries(Collector):
    """Series that one elected process reads for the whole fleet; `forget` when another one is.

    A gauge that kept its value would go on telling what the fleet looked like when this process was
    elected last, beside the truth that its successor tells. What was not looked at is not shown.
    """

    def __init__(self, families: Iterable[tuple[str, ...]]) -> None:
        """Take name, meaning and labels of each; `_total` at its end makes it a counter."""
        self._families: Final = {name: (meaning, labels) for name, meaning, *labels in families}
        self._values: dict[str, Mapping[tuple[str, ...], float]] = {}

    def show(self, name: str, values: Values | float) -> None:
        """Take one look at a series; those of its labels that the look did not find are gone."""
        if name not in self._families:
            raise KeyError(name)
        self._values[name] = values if isinstance(values, Mapping) else {(): values}

    def add(self, name: str, values: Values) -> None:
        """Take one look at some labels of a series; its others stay as they were seen."""
        self.show(name, {**self._values.get(name, {}), **values})

    def forget(self, *names: str) -> None:
        """Show nothing of these series, or of any, until the next look."""
        for name in names or tuple(self._values):
            self._values.pop(name, None)

    def collect(self) -> Iterator[Family]:
        """Give what a scrape asks for."""
        for name, values in self._values.items():
            meaning, labels = self._families[name]
            family: type[Family] = GaugeMetricFamily
            if name.endswith("_total"):
                family = CounterMetricFamily
            shown = family(name, meaning, labels=labels)
            for told, value in values.items():
                shown.add_metric(told, value)
            yield shown


def error_code(error: BaseException | None) -> str | None:
    """What an error is counted as; None for none, and for refusals, which are answers."""
    match error:
        case None | RequestRejected() | ClaimLost():
            return None
        case FleetError():
            return error.code
        case asyncio.CancelledError():
            return "cancelled"
        case _:
            return "bug"
