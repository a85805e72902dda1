"""Write what others read: pages for Grafana, and the rules as the operator of Prometheus has them.

    python -m infra.observability.write

It is part of `make fix`; a test compares what lies there with what this would write.
"""

import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DashboardLinkType, DataSourceRef

from infra.observability.description import (
    API,
    EDGE,
    FLEET,
    PRICES,
    QUEUE,
    TENANTS,
    WORKERS,
    Dashboard,
    Panel,
    cost,
)

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
RULES: Final = HERE / "rules"
OF_THE_OPERATOR: Final = ROOT / "infra" / "k8s" / "monitoring" / "rules.yaml"
SOURCE: Final = DataSourceRef("prometheus", "${datasource}")
WIDTH: Final = 24  # columns of Grafana's grid
ACROSS: Final = 3  # drawings in a row
HEAD: Final = """\
# Written by `make fix` from infra/observability/rules, which is what to change.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: imagefleet
  labels: {app.kubernetes.io/name: imagefleet}
spec:
  groups:
"""


def dashboards() -> list[Dashboard]:
    """All of them, in the order in which somebody goes through them."""
    prices = tomllib.loads((ROOT / PRICES).read_text(encoding="utf-8"))
    return [FLEET, API, WORKERS, QUEUE, EDGE, cost(prices), TENANTS]


def drawn(described: Dashboard) -> str:
    """The file that Grafana imports."""
    page = (
        dashboard.Dashboard(described.title)
        .uid(f"imagefleet-{described.name}")
        .description(described.about)
        .tags(["imagefleet"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("source").type("prometheus")
        )
        .link(
            dashboard.DashboardLink("imagefleet")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["imagefleet"])
            .as_dropdown(True)  # noqa: FBT003 - of the library
            .keep_time(True)  # noqa: FBT003
        )
    )
    number = 0
    for is_number, panels in groupby(described.panels, key=lambda panel: panel.is_number):
        across = list(panels)
        for panel in across:
            number += 1
            width = WIDTH // (len(across) if is_number else ACROSS)
            page = page.with_panel(
                _number(panel, number, width) if is_number else _lines(panel, number, width)
            )
    return JSONEncoder(sort_keys=True, indent=2).encode(page.build()) + "\n"


def _number(panel: Panel, number: int, width: int) -> stat.Panel:
    made = (
        stat.Panel()
        .id(number)
        .title(panel.title)
        .description(panel.about)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(width)
        .height(4)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    for query in _queries(panel):
        made = made.with_target(query)
    return made


def _lines(panel: Panel, number: int, width: int) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .id(number)
        .title(panel.title)
        .description(panel.about)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(width)
        .height(8)
        .axis_soft_min(0)
        .fill_opacity(10)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)  # noqa: FBT003 - of the library
        )
    )
    for query in _queries(panel):
        made = made.with_target(query)
    return made


def _queries(panel: Panel) -> Iterator[prometheus.Dataquery]:
    for place, (legend, query) in enumerate(panel.queries.items()):
        made = prometheus.Dataquery().ref_id(chr(ord("A") + place)).datasource(SOURCE)
        yield made.expr(query).legend_format(legend or panel.title)


def of_the_operator() -> str:
    """Every group of every file, with its comments, as one resource."""
    groups = []
    for path in sorted(RULES.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        groups.append(text.partition("\ngroups:\n")[2])
    lines = "".join(groups).splitlines()
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


def written() -> dict[Path, str]:
    """What is to lie where."""
    pages = {HERE / "dashboards" / f"{each.name}.json": drawn(each) for each in dashboards()}
    return {**pages, OF_THE_OPERATOR: of_the_operator()}


def main() -> None:
    """Write what is not as it should be."""
    for path, text in written().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
