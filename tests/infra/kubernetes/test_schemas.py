"""What is rendered is what Kubernetes, KEDA and the operator of Prometheus take.

Models of what External Secrets takes now are nowhere to be had: its part of custom.json is all.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.infra.kubernetes.faults import OF_CUSTOM
from tests.infra.kubernetes.rendering import CACHE, HERE, STEPS, WITHIN, Document, rendered
from tests.support.wheels import NoPrograms, pinned_environment, pinned_modules

pytestmark = pytest.mark.timeout(300)  # the first one fetches what the others find

# The oldest that the README names, and the newest whose schemas there are.
VERSIONS: Final = ("1.30", "1.37")
# Given what was rendered, says what Kubernetes would not take, and of which there is no schema.
STRICTLY: Final = """
import json, sys, warnings
import kubernetes_validate
warnings.simplefilter("ignore")
refused = []
for document in json.load(sys.stdin):
    try:
        kubernetes_validate.validate(document, sys.argv[1], strict=True)
    except Exception as error:
        refused.append(f"{document['kind']} {document['metadata']['name']}: {error}")
print(json.dumps(refused))
"""


@pytest.fixture(scope="session")
def python() -> Path:
    return pinned_environment(HERE / "requirements.txt", CACHE)


@pytest.fixture(scope="session")
def modules() -> Path:
    try:
        return pinned_modules(HERE, CACHE)
    except NoPrograms as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def documents(modules: Path) -> list[Document]:
    return [each for installation in STEPS for each in rendered(installation).documents]


def said(command: Sequence[object], documents: Sequence[Document]) -> list[str]:
    done = subprocess.run(
        [str(word) for word in command],
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused: list[str] = json.loads(done.stdout)
    return refused


def is_custom(document: Document) -> bool:
    return str(document["apiVersion"]).startswith(OF_CUSTOM)


def refused_by_kubernetes(python: Path, version: str, documents: Sequence[Document]) -> list[str]:
    return said([python, "-c", STRICTLY, version], documents)


def refused_by_models(modules: Path, documents: Sequence[Document]) -> list[str]:
    node = shutil.which("node")
    return said([node, HERE / "models.cjs", modules], documents)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_what_is_its_own(
    python: Path, documents: list[Document], version: str
) -> None:
    own = [each for each in documents if not is_custom(each)]

    assert refused_by_kubernetes(python, version, own) == []


def test_the_models_take_what_they_are_of(modules: Path, documents: list[Document]) -> None:
    modelled = [each for each in documents if is_custom(each) and each["kind"] != "ExternalSecret"]

    assert refused_by_models(modules, modelled) == []


def test_a_field_that_there_is_not_is_refused(python: Path, documents: list[Document]) -> None:
    deployment = next(each for each in documents if each["kind"] == "Deployment")
    broken: dict[str, Any] = json.loads(json.dumps(deployment))
    broken["spec"]["template"]["spec"]["containers"][0]["readyProbe"] = {}

    (refused,) = refused_by_kubernetes(python, VERSIONS[-1], [broken])

    assert "readyProbe" in refused


@pytest.mark.parametrize("kind", ["ScaledObject", "ServiceMonitor", "PodMonitor", "PrometheusRule"])
def test_a_value_of_another_type_is_refused(
    modules: Path, documents: list[Document], kind: str
) -> None:
    broken: dict[str, Any] = json.loads(
        json.dumps(next(each for each in documents if each["kind"] == kind))
    )
    first = next(iter(broken["spec"]))
    broken["spec"][first] = 7.5

    (refused,) = refused_by_models(modules, [broken])

    assert first in refused
