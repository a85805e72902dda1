"""What is seen from outside stays as it is: the API's documents, series, and words of the log.

The files in `golden/` hold it; a change that is meant is made with `make golden`, and is read in
the diff. What verbs print with `--json` is beside them (tests/cli/test_golden_answers.py).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson
import pytest
from prometheus_client.metrics import MetricWrapperBase

from imagefleet.telemetry.maintenance import MaintenanceMetrics
from imagefleet.telemetry.metrics import ApiMetrics, ConsoleMetrics, WorkerMetrics
from imagefleet.telemetry.series import SampledSeries, Series
from tests.support.api import documents_of, of_nobody
from tests.support.golden import Golden
from tests.support.sources import parsed

SERVICES: Final = Path(__file__).parents[2] / "services" / "imagefleet"
# Two words or more with dots between them: events, settings that are turned, attributes of spans.
DOTTED: Final = re.compile(r"(?!imagefleet)[a-z][a-z_]*(\.[a-z][a-z_]*)+")


@pytest.mark.parametrize(
    ("address", "name"),
    [("/v1/openapi.json", "openapi.json"), ("/v1/operator/openapi.json", "operators.json")],
)
def test_the_documents_of_the_api(golden: Golden, address: str, name: str) -> None:
    described = documents_of(of_nobody())[address]

    golden.holds(name, orjson.dumps(described, option=orjson.OPT_INDENT_2))


def test_every_series_of_every_process(golden: Golden) -> None:
    processes = {
        "api": ApiMetrics(),
        "console": ConsoleMetrics(),
        "maintenance": MaintenanceMetrics(()),
        "worker": WorkerMetrics(()),
    }
    told = {process: dict(sorted(series_of(made))) for process, made in processes.items()}

    golden.holds("series.json", orjson.dumps(told, option=orjson.OPT_INDENT_2))


def series_of(made: Series) -> Iterator[tuple[str, object]]:
    for one in made._registry._collector_to_names:
        if isinstance(one, SampledSeries):
            yield from ((name, list(labels)) for name, (_, labels) in one._families.items())
        elif isinstance(one, MetricWrapperBase):
            yield one._name, [type(one).__name__, *one._labelnames]


def test_every_dotted_word_that_the_source_says(golden: Golden) -> None:
    """Names of events above all, wherever the line that tells them is written by now."""
    words = {
        node.value
        for module in SERVICES.rglob("*.py")
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and DOTTED.fullmatch(node.value)
    }

    golden.holds("words.txt", "\n".join(sorted(words)).encode())
