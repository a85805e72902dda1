"""The cluster that a stack on one machine has not: `kubectl`, as far as runbooks use it.

Its Deployments have the names that infra/k8s gives them. A process that is held back is killed
and does not come up again, as one whose node is gone, until somebody orders it.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.stack import Stack
from tests.support.wheels import ROOT

K8S: Final = ROOT / "infra" / "k8s"
KINDS: Final = ("api", "console", "maintenance", "worker")


class NotOrderedError(Exception):
    """An order that kubectl would refuse, or that is not played here."""


def documents(path: Path) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def namespace() -> str:
    (document,) = documents(K8S / "namespace" / "namespace.yaml")
    return str(document["metadata"]["name"])


def deployments() -> dict[str, str]:
    """Their names, with the kind of process that each runs."""
    base = K8S / "base"
    lanes = [documents(path)[0] for path in (base / "workers").glob("*/kustomization.yaml")]
    suffixes = {"worker": [each["nameSuffix"] for each in lanes if "nameSuffix" in each]}
    return {
        document["metadata"]["name"] + suffix: kind
        for path in (*base.glob("*.yaml"), base / "workers" / "lane" / "deployment.yaml")
        for document in documents(path)
        if document["kind"] == "Deployment"
        and (kind := document["metadata"]["labels"]["app.kubernetes.io/component"]) in KINDS
        for suffix in suffixes.get(kind, [""])
    }


class Cluster:
    """Who runs, and who is held back."""

    def __init__(self, stack: Stack, gates: Path) -> None:
        self._stack = stack
        self._gates = gates
        self.obeyed = 0
        """How many orders changed something."""

    def lose(self, kind: str) -> None:
        """Kill these processes, and let none of them come up again."""
        (self._gates / kind).touch()
        self._signal(kind, signal.SIGKILL)

    def let_up(self, kind: str) -> None:
        """Whatever is held back starts."""
        (self._gates / kind).unlink(missing_ok=True)

    def restart(self, kind: str) -> None:
        """Others instead of those that run, in order."""
        self._signal(kind, signal.SIGTERM)
        self.let_up(kind)

    def _signal(self, kind: str, number: signal.Signals) -> None:
        for pid in self._stack.pids(kind).values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kubectl(self, words: Sequence[str]) -> str:
        """What it answers; raises where it would refuse."""
        options, verbs = _parted(words)
        if options.pop("--namespace", None) != namespace():
            message = f"not in the namespace {namespace()}"
            raise NotOrderedError(message)
        orders: Mapping[tuple[str, ...], Callable[[str], str]] = {
            ("get", "pods"): lambda _: "\n".join(self._pods()),
            ("describe", "pod"): self._described,
            ("delete", "pod"): self._deleted,
            ("scale", "deployment"): lambda name: self._scaled(name, options),
            ("rollout", "restart", "deployment"): self._restarted,
            ("set", "resources", "deployment"): lambda name: self._given(name, options),
        }
        for order, obey in orders.items():
            if tuple(verbs[: len(order)]) == order and len(verbs) <= len(order) + 1:
                return obey("".join(verbs[len(order) :]))
        message = f"nobody plays {' '.join(words)}"
        raise NotOrderedError(message)

    def _pods(self) -> Iterator[str]:
        processes = self._stack.facts["processes"]
        for name in sorted(processes):
            kind = name.partition("-")[0]
            if kind in KINDS:
                is_held = (self._gates / kind).exists()
                yield f"{name} {'Pending' if is_held else 'Running'}"

    def _described(self, pod: str) -> str:
        said = [line for line in self._pods() if line.partition(" ")[0] == pod]
        if not said:
            message = f"no pod {pod}"
            raise NotOrderedError(message)
        return said[0]

    def _deleted(self, pod: str) -> str:
        """Its deployment makes another."""
        self._described(pod)
        return self._replaced(pod.partition("-")[0], f"{pod} deleted")

    def _restarted(self, deployment: str) -> str:
        return self._replaced(_kind_of(deployment), f"{deployment} restarted")

    def _given(self, deployment: str, options: Mapping[str, str]) -> str:
        """Whatever its pods are to have: it gets other pods for it."""
        if not {"--requests", "--limits"} <= {*options}:
            message = "a limit is set with its request"
            raise NotOrderedError(message)
        return self._replaced(_kind_of(deployment), f"{deployment} resource requirements updated")

    def _scaled(self, deployment: str, options: Mapping[str, str]) -> str:
        kind = _kind_of(deployment)
        if int(options.get("--replicas", "0")) < 1:
            message = "nobody is scaled to nothing here"
            raise NotOrderedError(message)
        self.obeyed += 1
        self.let_up(kind)
        return f"{deployment} scaled"

    def _replaced(self, kind: str, said: str) -> str:
        self.obeyed += 1
        self.restart(kind)
        return said


def _kind_of(deployment: str) -> str:
    kind = deployments().get(deployment)
    if kind is None:
        message = f"no deployment {deployment}, only {sorted(deployments())}"
        raise NotOrderedError(message)
    return kind


def _parted(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options, each with its value, and the rest."""
    options: dict[str, str] = {}
    rest = []
    left = iter(words)
    for word in left:
        name, is_given, value = word.partition("=")
        if word.startswith("--"):
            options[name] = value if is_given else next(left, "")
        else:
            rest.append(word)
    return options, rest
