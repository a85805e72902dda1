"""What the pods of our manifests may do and have, in the words of a container engine."""

from collections.abc import Iterator
from functools import cache
from typing import Final

import yaml

from tests.infra.kubernetes.rendering import MANIFESTS, Document, Workload

# The file that a process's pod is described in; the cli's is that of migrations.
FILES: Final = {
    "api": "base/api.yaml",
    "worker": "base/workers/lane/deployment.yaml",
    "maintenance": "base/maintenance.yaml",
    "console": "base/console.yaml",
    "cli": "migration/job.yaml",
}
UNITS: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@cache
def pod(process: str) -> Workload:
    """The one of this process, as the manifests have it."""
    documents = yaml.safe_load_all((MANIFESTS / FILES[process]).read_text(encoding="utf-8"))
    (found,) = (each for each in documents if each["kind"] in {"Deployment", "Job"})
    return Workload(found)


def context(process: str) -> list[str]:
    """As strict as the cluster would be, and no stricter: what works here works there."""
    whole: Document = pod(process).spec["securityContext"]
    # Of the runtime; an engine gives its own when nothing is said.
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    words = [f"--user={whole['runAsUser']}:{whole['runAsGroup']}"]
    return [*words, *_of_container(process), f"--memory={memory_bytes(process)}"]


def _of_container(process: str) -> Iterator[str]:
    own: Document = pod(process).container["securityContext"]
    yield from (f"--cap-drop={each}" for each in own["capabilities"]["drop"])
    if own["allowPrivilegeEscalation"] is False:
        yield "--security-opt=no-new-privileges"
    if own["readOnlyRootFilesystem"]:
        yield "--read-only"
    room = in_bytes(pod(process).volume("tmp")["emptyDir"]["sizeLimit"])
    yield f"--tmpfs=/tmp:rw,exec,size={room},mode=1777"


def memory_bytes(process: str) -> int:
    return in_bytes(pod(process).container["resources"]["limits"]["memory"])


def in_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]
