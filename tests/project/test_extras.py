"""Each process starts with its own extra alone, so its container holds nothing else."""

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.wheels import ROOT, Environment, build_wheel, fresh_environment

# By process: its extra, the module it starts from, and what must not be there.
PROCESSES: Final = {
    "api": ("api", "imagefleet.api.main", {"PIL", "typer", "httpx"}),
    "worker": ("worker", "imagefleet.worker.main", {"fastapi", "uvicorn", "typer"}),
    "maintenance": ("maintenance", "imagefleet.maintenance.main", {"PIL", "fastapi", "typer"}),
    "console": ("console", "imagefleet.console.main", {"PIL", "boto3", "typer", "multipart"}),
    "cli": ("operator", "imagefleet.cli.main", {"PIL", "fastapi"}),
    "bootstrap": ("operator", "imagefleet.embedded.localstack", {"PIL", "fastapi"}),
    "edge": ("operator", "imagefleet.embedded.edge.server", {"PIL", "fastapi"}),
}
IMPORT: Final = """
import importlib, importlib.util, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([name for name in sys.argv[2:] if importlib.util.find_spec(name)]))
"""

pytestmark = pytest.mark.timeout(120)  # whichever comes first builds the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environments() -> dict[str, Environment]:
    return {}


@pytest.fixture
def environment(
    process: str,
    wheel: Path,
    environments: dict[str, Environment],
    tmp_path_factory: pytest.TempPathFactory,
) -> Environment:
    """What the container of this process holds."""
    extra = PROCESSES[process][0]
    if extra not in environments:
        made = fresh_environment(tmp_path_factory.mktemp(extra) / "environment", extra)
        made.install(wheel)
        environments[extra] = made
    return environments[extra]


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_starts_with_its_own_extra_and_nothing_more(
    process: str, environment: Environment
) -> None:
    _, module, unwanted = PROCESSES[process]

    done = subprocess.run(
        [environment.python, "-I", "-c", IMPORT, module, *sorted(unwanted)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("process", ["api", "worker", "maintenance"])
def test_a_process_can_be_examined_where_it_runs(process: str, environment: Environment) -> None:
    """Nothing is set: each setting that it lacks is told, and what needs none is tried."""
    done = subprocess.run(
        [environment.python, "-I", "-m", "imagefleet", "doctor", "--for", process],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )

    assert (done.returncode, done.stderr) == (1, "")
    lines = [line.split("  ")[:2] for line in done.stdout.splitlines()]
    assert ["failed", "settings: database"] in lines
    assert (["ok", "disk"] in lines) == (process != "maintenance")
    assert (["ok", "sandbox"] in lines) == (process == "worker")


@pytest.mark.parametrize("process", ["console"])
def test_what_reaches_the_api_alone_is_examined_as_well(
    process: str, environment: Environment
) -> None:
    done = subprocess.run(
        [environment.python, "-I", "-m", "imagefleet", "doctor", "--for", process],
        capture_output=True,
        text=True,
        check=False,
        env={"IMAGEFLEET_URL": "http://127.0.0.1:9"},
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert "ok  settings: console" in done.stdout
    assert "failed  api  Nothing answers at" in done.stdout


@pytest.mark.parametrize("process", ["api", "worker", "cli"])
def test_the_shipped_recipes_are_in_the_wheel(environment: Environment) -> None:
    read = "from imagefleet.imaging.recipes.files import recipes_in_force as r; print(*r(None))"

    said = subprocess.check_output([environment.python, "-I", "-c", read], text=True)

    assert said.split() == ["default", "avif"]
