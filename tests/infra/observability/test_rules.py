"""Alerts: each can be acted upon, was seen to fire and to end, and asks for what there is."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import FAILURE_SENTENCES, OUR_FAILURES
from imagefleet.jobs.model import JobState, Lane
from imagefleet.jobs.shapes.rates import PROMISED_SHARE, PROMISED_WITHIN
from imagefleet.telemetry.maintenance import DARK_SECONDS
from imagefleet.telemetry.metrics import PUBLISHED_SECONDS
from tests.infra.observability.asking import (
    HERE,
    UNIT_TESTS,
    Rule,
    alerts,
    faults_of,
    matched,
    rules,
    series,
    told,
)
from tests.infra.observability.check import complaints_of
from tests.support.prometheus import needed
from tests.support.wheels import ROOT

# What an image may fail for though its fleet kept the promise: it was wished, or is its own fault.
OF_THE_INPUT = {
    *("cancelled", "image_deleted", "failed_by_operator", "invalid_payload"),
    *("corrupt", "unsupported", "empty_file", "too_large", "too_many_pixels", "too_many_parts"),
    *("too_many_scans", "too_much_metadata", "output_too_large", "not_found", "source_changed"),
}


def named(rule: Rule) -> str:
    return rule.name


def unit_tests() -> list[dict[str, Any]]:
    return [
        test
        for path in UNIT_TESTS
        for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
    ]


@pytest.mark.parametrize("alert", alerts(), ids=named)
def test_an_alert_says_how_urgent_it_is_what_it_means_and_where_to_read_on(alert: Rule) -> None:
    said = alert.document["annotations"]

    assert alert.document["labels"]["severity"] in {"page", "ticket"}
    assert alert.document["labels"]["product"] == "imagefleet"
    assert set(said) == {"summary", "description", "runbook_url"}
    assert said["summary"].endswith(".")
    assert said["description"].endswith(".")
    assert said["runbook_url"] == f"docs/runbooks/alerts/{alert.name}.md"
    assert (ROOT / said["runbook_url"]).is_file()


@pytest.mark.parametrize("alert", alerts(), ids=named)
def test_a_unit_test_sees_an_alert_fire_with_its_labels_and_end(alert: Rule) -> None:
    asked = f'ALERTS{{alertname="{alert.name}",alertstate="firing"}}'
    tests = [test for test in unit_tests() if test["name"] == alert.name]
    seen = [[step for step in test["promql_expr_test"] if step["expr"] == asked] for test in tests]
    courses = [[bool(step["exp_samples"]) for step in steps] for steps in seen]
    expected = [
        step["exp_samples"][0]["labels"] for steps in seen for step in steps if step["exp_samples"]
    ]

    assert [False, True, False] in courses
    named_in_text = set(re.findall(r"\$labels\.(\w+)", str(alert.document["annotations"])))
    assert named_in_text <= set(re.findall(r"(\w+)=", expected[0])), "what the text says of it"


@pytest.mark.parametrize("rule", rules(), ids=named)
def test_a_rule_asks_for_nothing_that_no_process_tells(rule: Rule) -> None:
    assert faults_of(rule.query, series()) == []


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("job_queue_deepness", "no series job_queue_deepness"),
        ('job_queue_depth{lane="fast"}', "job_queue_depth has no label lane"),
        ("sum by (lane) (job_queue_depth)", "no lane to go by"),
        ("sum without (lane) (job_queue_depth)", "no lane to go by"),
        ("max(job_queue_depth) > on (lane) max by (lane) (ring_window)", "no lane to match on"),
        ("rate(job_processed[$__rate_interval])", "no series job_processed"),
        ('rate(http_requests_total{code="200"}[5m])', "http_requests_total has no label code"),
    ],
)
def test_what_a_query_asks_for_in_vain_is_named(query: str, fault: str) -> None:
    assert faults_of(query, series()) == [fault]


def test_a_series_that_is_renamed_is_missed_by_who_asks_for_it() -> None:
    for name in ("job_queue_depth", "image_published_seconds_bucket", "worker_slots"):
        renamed = {key: labels for key, labels in series().items() if key != name}

        missed = [rule.name for rule in rules() if faults_of(rule.query, renamed)]

        assert missed, name


VALUES: dict[tuple[str, str], set[str]] = {
    ("job_processed_total", "status"): set(JobState),
    ("oldest_job_age_seconds", "state"): set(JobState),
    ("oldest_job_age_seconds", "job_type"): set(BUILT_IN),
    ("job_processed_total", "job_type"): set(BUILT_IN),
    ("jobs_failed_total", "job_type"): set(BUILT_IN),
    ("imagefleet:lane_busy:ratio", "lane"): set(Lane),
}


@pytest.mark.parametrize(("name", "label"), VALUES)
def test_a_rule_compares_a_label_with_values_that_it_has(name: str, label: str) -> None:
    """The queries are small enough that a label of one name is of one series."""
    asked = [
        matched(each, label)
        for rule in rules()
        for each in re.findall(rf"{name}{{[^}}]*}}", rule.query)
    ]

    assert asked
    assert set().union(*asked) <= VALUES[name, label]


def test_every_reason_to_give_an_image_up_is_either_ours_or_the_inputs() -> None:
    (lost,) = [rule for rule in rules() if rule.name == "imagefleet:published_lost:rate5m"]
    ours = matched(lost.query, "why")

    assert ours == OUR_FAILURES, "as `imagefleet status` counts them"
    assert ours.isdisjoint(OF_THE_INPUT)
    assert ours | OF_THE_INPUT == {*FAILURE_SENTENCES, "lock_expired"}


def test_the_limits_of_the_service_levels_are_bounds_of_their_histograms() -> None:
    """Between two bounds nobody knows."""
    limits = {matched(rule.query, "le").pop() for rule in rules() if matched(rule.query, "le")}

    assert limits == {"30.0", "60.0"}
    assert 30 in PUBLISHED_SECONDS
    assert 60 in DARK_SECONDS


def test_alerts_and_the_status_promise_the_same() -> None:
    shares = [re.findall(r"14\.4 \* ([\d.]+)", rule.query) for rule in rules()]

    allowed = {float(share) for found in shares for share in found}

    assert [pytest.approx(1 - PROMISED_SHARE)] == [*allowed]
    assert {30, 60} == {within.seconds for within in PROMISED_WITHIN.values()}


def test_what_an_alert_says_can_be_said(tmp_path: Path) -> None:
    """A text is filled in when its alert fires, and not before: promtool is told to expect none."""
    promtool = needed("promtool")
    told = ""
    for path in UNIT_TESTS:
        course = yaml.safe_load(path.read_text(encoding="utf-8"))
        course["rule_files"] = [
            str((path.parent / name).resolve()) for name in course["rule_files"]
        ]
        for test in course["tests"]:
            test["alert_rule_test"] = [
                {"alertname": test["name"], "eval_time": step["eval_time"], "exp_alerts": []}
                for step in test.pop("promql_expr_test")
                if step["exp_samples"]
            ]
        expecting_none = tmp_path / path.name
        expecting_none.write_text(yaml.safe_dump(course), encoding="utf-8")
        told += complaints_of(promtool, [], [expecting_none])

    said = re.findall(r"Annotations:\{(.*)\}", told)
    assert {alert.name for alert in alerts()} == set(re.findall(r'alertname="(\w+)"', told))
    assert [text for text in said if re.search(r"error|no value|%!|\{\{", text)] == []


def test_no_two_rules_have_one_name() -> None:
    names = [rule.name for rule in rules()]

    assert sorted(names) == sorted(set(names))


def test_promtool_has_nothing_to_complain_of() -> None:
    assert complaints_of(needed("promtool")) == ""


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("queues", "> 500", "> 5000"),
        ("queues", "max(jobs_stuck) > 0", "max(jobs_stuck) >= 0"),
        ("processes", "== 1", "== 0"),
        ("images", "for: 10m", "for: 10h"),
    ],
)
def test_a_rule_that_is_changed_fails_its_unit_test(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    for folder in ("rules", "tests"):
        shutil.copytree(HERE / folder, tmp_path / folder)
    changed = tmp_path / "rules" / f"{file}.yaml"
    text = changed.read_text(encoding="utf-8")
    changed.write_text(text.replace(old, new), encoding="utf-8")

    assert old in text
    assert "FAILED" in complaints_of(
        needed("promtool"), [changed], [tmp_path / "tests" / f"{file}.yaml"]
    )


def test_series_are_told_with_the_names_that_a_scrape_has() -> None:
    names = told()

    assert names["job_processed_total"] == {"job_type", "status"}
    assert names["image_dark_seconds_bucket"] == {"le"}
    assert names["process_cpu_seconds_total"] == frozenset()
