"""Settings that `up` is told to pass on: judged before anything starts, given to who knows them."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagefleet.embedded.processes import (
    DECIDED,
    SETTINGS,
    Facts,
    Processes,
    environment_of,
    not_passed_on,
    settings_of,
)
from imagefleet.errors import Misconfigured
from imagefleet.settings.variables import names_of

FACTS = Facts(
    database_urls=dict.fromkeys((*SETTINGS, "operator"), "postgresql://a@b/c"),
    aws={"AWS_REGION": "eu-central-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
    topology={
        name: "http://127.0.0.1:1/q"
        for name in DECIDED
        if name.endswith(("QUEUE_URL", "_BUCKET", "DISTRIBUTION_ID"))
    },
    public_base_url="http://127.0.0.1:2",
)


def environments(told: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    processes = Processes(workers=2, api_port=1, console_port=2, settings=told, log_format="json")
    stages = processes.programs(FACTS)
    return {program.name: program.environment for stage in stages for program in stage}


def test_a_setting_is_passed_to_those_that_know_it() -> None:
    told = settings_of(
        ["WORKER_FAST_SLOTS=3", "LOG_LEVEL=debug", "MAX_ATTEMPTS=2", "LOG_LEVEL=error"]
    )

    given = environments(told)

    assert {*given} == {"console", "api", "worker-1", "worker-2", "maintenance"}
    assert {name for name in given if "WORKER_FAST_SLOTS" in given[name]} == {
        "worker-1",
        "worker-2",
    }
    assert {"error"} == {environment["LOG_LEVEL"] for environment in given.values()}
    assert "MAX_ATTEMPTS" not in given["console"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("MAX_PIXEL=1", "no process has a setting of this name; the nearest is MAX_PIXELS"),
        ("worker_fast_slot=1", "the nearest is WORKER_FAST_SLOTS"),
        ("XYZ=1", "no process has a setting of this name (docs/settings.md has all)"),
        ("IMAGEFLEET_KEY=if_1", "no process has a setting of this name"),
        ("MAX_PIXELS=many", "expected a whole number, from 1 to 2147483648; given 'many'"),
        ("MAX_PIXELS", "expected NAME=VALUE"),
        ("LISTEN_PORT=1", "--api-port"),
        ("DATABASE_URL=postgresql://a:geheim@b/c", "`up` makes a Postgres of its own"),
        ("DATABASE_URL_FILE=/etc/url", "`up` makes a Postgres of its own"),
        ("AWS_ENDPOINT_URL=http://a", "an AWS emulator of its own"),
        ("LOG_FORMAT=json", "--verbose"),
        ('CONSOLE_PROXY_KEYS=["geheim"]', "given a secret of 10 characters"),
    ],
)
def test_what_cannot_be_passed_on_is_refused_in_a_line_that_says_why(told: str, why: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        settings_of(["LOG_LEVEL=info", told])

    detail = refused.value.detail or ""
    assert detail.startswith(f"--set {told.partition('=')[0]}")
    assert why in detail
    assert "\n" not in detail
    assert "geheim" not in detail


def test_every_fault_is_told_once_and_also_of_settings_that_do_not_fit_together() -> None:
    with pytest.raises(Misconfigured) as refused:
        settings_of(["LOG_LEVEL=loud", "DATABASE_POOL_MIN=9", "DATABASE_POOL_MAX=2"])

    assert (refused.value.detail or "").splitlines() == [
        "--set LOG_LEVEL: expected debug, info, warning or error; given 'loud'",
        "--set DATABASE_POOL_MIN is larger than DATABASE_POOL_MAX",
    ]


@pytest.mark.parametrize("process", SETTINGS)
def test_whatever_up_says_itself_it_lets_nobody_else_say(process: str) -> None:
    given = environment_of(process, FACTS, health_port=1, port=2, api_url="http://127.0.0.1:3")

    assert {*given} & names_of(SETTINGS[process]) <= {*DECIDED}


def test_settings_around_that_are_passed_to_nobody_are_named_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for process in SETTINGS.values():
        for name in names_of(process):
            monkeypatch.delenv(name, raising=False)
    assert not_passed_on({}) is None

    monkeypatch.setenv("RECIPES_FILE", "ours.toml")
    monkeypatch.setenv("IMAGEFLEET_URL", "http://elsewhere")
    monkeypatch.setenv("LOG_LEVEL", "debug")
    assert not_passed_on({"LOG_LEVEL": "debug"}) is None

    monkeypatch.setenv("DATABASE_URL", "postgresql://a:geheim@b/c")
    assert not_passed_on({"LOG_LEVEL": "debug"}) == "not passed on: DATABASE_URL; `up` has its own"
    assert not_passed_on({}) == (
        "not passed on: DATABASE_URL, LOG_LEVEL; --set NAME=VALUE passes a setting on"
    )


async def test_an_unknown_setting_is_a_line_and_the_code_of_usage_before_anything_starts(
    tmp_path: Path,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "imagefleet", "up", "--state-dir", "state", "--set", "MAX_PIXEL=1",
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()

    assert process.returncode == 2
    (line,) = said.decode().splitlines()
    assert line.startswith("imagefleet: --set MAX_PIXEL: no process has a setting of this name; ")
    assert line.endswith("the nearest is MAX_PIXELS (docs/settings.md has all)")
    assert not (tmp_path / "state").exists()
