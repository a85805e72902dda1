"""Dashboards: what lies there is what is described, and every panel asks for what there is."""

import json
from pathlib import Path

import pytest
import yaml

from infra.observability.description import Panel
from infra.observability.write import dashboards, drawn, written
from tests.infra.observability.asking import PAGES, RULES, faults_of, panels, series
from tests.support.wheels import ROOT

WANTED = {"fleet", "api", "workers", "queue", "edge", "cost", "tenants"}


def named(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", written(), ids=lambda path: path.name)
def test_what_lies_there_is_what_would_be_written(path: Path) -> None:
    """`make fix` writes it."""
    assert path.read_text(encoding="utf-8") == written()[path]


def test_there_is_a_page_for_each_of_these_and_no_other() -> None:
    assert {each.name for each in dashboards()} == WANTED == {path.stem for path in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_a_panel_asks_for_nothing_that_no_process_tells(path: Path) -> None:
    faults = {title: faults_of(query, series()) for title, query in panels(path)}

    assert {title: wrong for title, wrong in faults.items() if wrong} == {}


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_panels_lie_side_by_side_and_each_has_a_name_of_its_own(path: Path) -> None:
    page = json.loads(path.read_text(encoding="utf-8"))
    places = [panel["gridPos"] for panel in page["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["title"] for panel in page["panels"]}) == len(page["panels"])
    assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"])


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_a_page_takes_whichever_prometheus_is_chosen(path: Path) -> None:
    page = json.loads(path.read_text(encoding="utf-8"))
    sources = {
        target["datasource"]["uid"] for panel in page["panels"] for target in panel["targets"]
    }

    assert sources == {"${datasource}"}
    assert [each["name"] for each in page["templating"]["list"]] == ["datasource"]
    assert page["schemaVersion"] >= 36


def test_a_page_tells_what_its_description_says() -> None:
    (fleet,) = [each for each in dashboards() if each.name == "fleet"]
    added = Panel("One more", {"all": "sum(jobs_open)"}, "short")

    page = json.loads(drawn(type(fleet)("fleet", "A page", "About it.", (added,))))

    (panel,) = page["panels"]
    assert (panel["title"], panel["targets"][0]["expr"]) == ("One more", "sum(jobs_open)")


def test_the_rules_of_kubernetes_are_all_of_them() -> None:
    made = ROOT / "infra" / "k8s" / "monitoring" / "rules.yaml"
    (resource,) = yaml.safe_load_all(made.read_text(encoding="utf-8"))
    groups = [
        group
        for path in RULES
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]

    assert resource["spec"]["groups"] == groups
