"""The containers and the compose file agree with the code they run; nothing is started here."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic import BaseModel

from imagefleet.__main__ import PROCESSES
from imagefleet.settings import (
    ApiSettings,
    Aws,
    ConsoleSettings,
    Database,
    MaintenanceSettings,
    Roles,
    WorkerSettings,
    load,
    slices_of,
)
from imagefleet.settings.variables import variables
from imagefleet.telemetry.health import LONGEST_STAY

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = (ROOT / "services" / "Dockerfile").read_text()
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "compose.localstack.yml").read_text())
SERVICES: Final[dict[str, Any]] = COMPOSE["services"]
SETTINGS: Final[dict[str, type[BaseModel]]] = {
    "api": ApiSettings,
    "worker": WorkerSettings,
    "maintenance": MaintenanceSettings,
    "console": ConsoleSettings,
}
OF_THE_SDK: Final = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
# What the bootstrap writes, as it would.
WRITTEN: Final = {"QUEUE_URL": "http://localstack:4566/000000000000/q", "BUCKET": "b", "ID": "E1"}
MARGIN: Final = 5.0  # seconds to hand back and to close, after the last job


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)s", text)
    assert match is not None, text
    return float(match[1])


def given_to(service: str, folder: Path) -> dict[str, str]:
    """The environment of a service, with the files that it names."""
    environment = dict(SERVICES[service]["environment"])
    for name in [name for name in environment if name.endswith("_FILE")]:
        variable = name.removesuffix("_FILE")
        (value,) = (value for end, value in WRITTEN.items() if variable.endswith(end))
        (folder / variable).write_text(value + "\n")
        environment[name] = str(folder / variable)
    return environment


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_can_use_what_compose_gives_it(process: str, tmp_path: Path) -> None:
    given = given_to(process, tmp_path)

    load(SETTINGS[process], given)

    parts = slices_of(SETTINGS[process]).values()
    known = {name for part in parts for variable in variables(part) for name in variable.names}
    told = {name.removesuffix("_FILE") for name in given} - OF_THE_SDK
    assert told - known == set()


def test_the_migration_and_the_edge_can_use_what_compose_gives_them(tmp_path: Path) -> None:
    load(Roles, SERVICES["migrate"]["environment"])
    load(Database, SERVICES["migrate"]["environment"])
    load(Aws, given_to("edge", tmp_path))


def test_compose_gives_a_worker_longer_than_its_drain_can_take(tmp_path: Path) -> None:
    worker = load(WorkerSettings, given_to("worker", tmp_path)).worker

    drain = worker.shutdown_grace + worker.receive_wait + LONGEST_STAY

    assert seconds(SERVICES["worker"]["stop_grace_period"]) >= drain.total_seconds() + MARGIN


@pytest.mark.parametrize("process", ["api", "console"])
def test_compose_gives_what_serves_longer_than_its_requests_may_take(
    process: str, tmp_path: Path
) -> None:
    served = getattr(load(SETTINGS[process], given_to(process, tmp_path)), process)

    grace = seconds(SERVICES[process]["stop_grace_period"])

    assert grace >= (served.shutdown_grace + LONGEST_STAY).total_seconds() + MARGIN


@pytest.mark.parametrize("process", [*PROCESSES, "cli"])
def test_every_process_is_a_target_without_a_shell(process: str) -> None:
    target = re.search(
        rf"^FROM process AS {process}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    )

    assert target is not None
    assert re.search(r'^ENTRYPOINT \["imagefleet"', target[1], re.MULTILINE)


@pytest.mark.parametrize(
    "service", ["api", "worker", "maintenance", "console", "edge", "bootstrap", "migrate"]
)
def test_nothing_of_ours_has_more_rights_than_it_needs(service: str) -> None:
    strict = SERVICES[service]

    assert strict["read_only"] is True
    assert strict["cap_drop"] == ["ALL"]
    assert strict["security_opt"] == ["no-new-privileges:true"]
    assert re.search(r"^USER 65532:65532$", DOCKERFILE, re.MULTILINE)


def test_the_build_names_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert re.findall(r"^ARG VERSION=(\S+)", DOCKERFILE, re.MULTILINE) == [project["version"]]


def test_every_role_of_postgres_has_a_password_of_its_own() -> None:
    text = (ROOT / "compose.localstack.yml").read_text()
    logins = set(re.findall(r"postgresql://(\w+):([^@]+)@", text))

    assert {"postgres", "imagefleet_owner", "imagefleet_admin"} < {role for role, _ in logins}
    assert len(logins) == len({role for role, _ in logins}) == len({word for _, word in logins})
