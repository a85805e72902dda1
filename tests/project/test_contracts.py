"""The import contracts of pyproject.toml are kept, and each one breaks when it is violated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "aws", "api", "cli", "client", "console", "embedded", "imaging", "jobs", "maintenance", "store",
    "telemetry", "worker", "worker/isolation",
)  # fmt: skip
MODULES = ("__main__", "errors", "runtime", "settings", "worker/isolation/zygote")

KEPT = {
    "aws/queue.py": "import aioboto3",
    "api/main.py": "import imagefleet.store.jobs.claims\nimport imagefleet.imaging.sniff",
    "console/now.py": "import imagefleet.client.api",
    "embedded/stack.py": "import boto3\nimport imagefleet.api.main",
    "imaging/render.py": "from PIL import Image",
    "imaging/sniff.py": "import imagefleet.jobs",
    "store/jobs/claims.py": "import asyncpg\nimport imagefleet.telemetry",
    "worker/attempt.py": "import imagefleet.imaging.render\nimport imagefleet.aws.queue",
    "worker/consumer.py": "import imagefleet.worker.lease\nimport imagefleet.worker.messages",
    "worker/lease.py": "import imagefleet.worker.attempt",
    "worker/messages.py": "import imagefleet.aws.queue",
    "worker/isolation/child.py": "import imagefleet.imaging.render",
    "worker/isolation/report.py": "import pydantic\nimport imagefleet.worker.isolation.child",
}

# One violation each: file, the import planted there, the contract that has to break.
VIOLATIONS = [
    ("jobs/model.py", "import imagefleet.store.jobs.claims", "Layers"),
    ("api/main.py", "import imagefleet.worker.attempt", "Layers"),
    ("runtime.py", "import imagefleet.telemetry", "Layers"),
    ("utils.py", "import math", "Layers"),
    ("jobs/model.py", "import asyncio", "The core is pure"),
    ("jobs/policies.py", "import botocore.exceptions", "The core is pure"),
    ("worker/attempt.py", "import asyncpg", "SQL only in store"),
    ("worker/attempt.py", "import botocore.exceptions", "AWS calls only in aws"),
    ("store/jobs/claims.py", "import boto3", "AWS calls only in aws"),
    ("worker/attempt.py", "import PIL.Image", "Pillow only in imaging"),
    ("api/producers/images.py", "import imagefleet.imaging.render", "Only the worker loads Pillow"),
    ("maintenance/sweeper.py", "import imagefleet.imaging.render", "Only the worker loads Pillow"),
    ("console/now.py", "import imagefleet.store.database", "The console knows the API alone"),
    ("console/now.py", "import imagefleet.api.main", "The console knows the API alone"),
    ("worker/attempt.py", "import imagefleet.worker.lease", "The worker reads downwards"),
    ("worker/messages.py", "import imagefleet.worker.attempt", "The worker reads downwards"),
    ("worker/messages.py", "import imagefleet.worker.lease", "The worker reads downwards"),
    ("worker/helpers.py", "import math", "The worker reads downwards"),
    (
        "worker/isolation/child.py",
        "import imagefleet.worker.isolation.report",
        "The border of the decoder",
    ),
    ("worker/isolation/zygote.py", "import structlog", "Children carry nothing heavy"),
    (
        "worker/isolation/zygote.py",
        "import imagefleet.worker.isolation.report",
        "Children carry nothing heavy",
    ),
    (
        "api/producers/jobs.py",
        "import imagefleet.api.main\nimport imagefleet.api.cycle",
        "No cycles",
    ),
]


def plant(folder: Path, files: dict[str, str]) -> None:
    """Write a tree of the product's shape and copy the contracts next to it."""
    package = folder / "imagefleet"
    for name in (".", *PACKAGES):
        (package / name).mkdir(parents=True, exist_ok=True)
        (package / name / "__init__.py").touch()
    for name in MODULES:
        (package / f"{name}.py").touch()
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text + "\n", encoding="utf-8")
    configuration = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(configuration, encoding="utf-8")


def broken_contracts(folder: Path) -> set[str]:
    """Names of the contracts that lint-imports reports as broken in this tree."""
    # lint-imports looks in its working folder first, so this tree hides the installed imagefleet.
    result = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts: " in result.stdout, result.stdout + result.stderr
    return {name for name, broken, _ in map(split_verdict, result.stdout.splitlines()) if broken}


def split_verdict(line: str) -> tuple[str, str, str]:
    """`SQL only in store BROKEN (1 ignored import)` into its three parts."""
    return line.partition(" BROKEN")


def test_a_tree_as_designed_keeps_every_contract(tmp_path: Path) -> None:
    plant(tmp_path, KEPT)

    assert broken_contracts(tmp_path) == set()


@pytest.mark.parametrize(("file", "text", "contract"), VIOLATIONS)
def test_a_violation_breaks_its_contract(
    tmp_path: Path, file: str, text: str, contract: str
) -> None:
    cycle = {"api/cycle.py": "import imagefleet.api.producers.jobs"}
    plant(tmp_path, KEPT | cycle | {file: f"{KEPT.get(file, '')}\n{text}"})

    assert contract in broken_contracts(tmp_path)


@pytest.mark.parametrize("process", ["api", "console", "maintenance"])
def test_no_process_but_the_worker_reaches_pillow(process: str) -> None:
    """Also through its __init__, which the contract's wildcard leaves out."""
    graph = grimp.build_graph("imagefleet", include_external_packages=True, cache_dir=None)
    if not {f"imagefleet.{process}", "PIL"} <= graph.modules:
        return  # not built yet: nothing there to import Pillow

    chain = graph.find_shortest_chain(f"imagefleet.{process}", "PIL", as_packages=True)

    assert chain is None
