"""What the manifests must agree on with the code that they run: a sentence for each fault.

Each check is a function over what was rendered, so a test may break a copy and see the fault named.
What of a setting stands in a manifest is read as the process reads it.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from imagefleet.errors import Misconfigured
from imagefleet.settings import (
    ApiSettings,
    Client,
    ConsoleSettings,
    Database,
    MaintenanceSettings,
    Person,
    Roles,
    WorkerSettings,
    load,
    slices_of,
)
from imagefleet.settings.variables import variables
from tests.infra.kubernetes.rendering import Manifests, Workload
from tests.support.wheels import ROOT

Check: TypeAlias = Callable[[Manifests], Iterator[str]]

SETTINGS: Final[dict[str, tuple[type[BaseModel], ...]]] = {
    "api": (ApiSettings,),
    "worker": (WorkerSettings,),
    "maintenance": (MaintenanceSettings,),
    "console": (ConsoleSettings,),
    "cli": (Database, Roles, Person, Client),
}
# Of the SDK, and of the client that finds LocalStack.
OF_OTHERS: Final = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "LOCALSTACK_HOST"}
COMPONENTS: Final = ("api", "worker", "maintenance", "console")


@cache
def targets() -> frozenset[str]:
    """What the Dockerfile builds."""
    text = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^FROM process AS (\w+)$", text, re.MULTILINE))


def known_to(process: str) -> set[str]:
    """The variables that a process reads."""
    parts = [part for each in SETTINGS[process] for part in slices_of(each).values()]
    return {name for part in parts for variable in variables(part) for name in variable.names}


def settings_of(manifests: Manifests, workload: Workload) -> Any:  # noqa: ANN401 - of its process
    return load(SETTINGS[workload.process][0], manifests.environment(workload))


def span(text: str) -> float:
    """The seconds of `15s`."""
    match = re.fullmatch(r"(\d+)s", text)
    return float(match[1]) if match else float("nan")


def size(text: str) -> int:
    """The bytes of `512Mi`."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    return int(text[:-2]) * units[text[-2:]]


# --- what a process is given


def variables_are_read(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.ours:
        told = set(workload.given)
        for source in workload.container.get("envFrom", ()):
            name = source["configMapRef"]["name"]
            there = manifests.named("ConfigMap", name)
            if not there:
                yield f"{workload.name}: there is no ConfigMap {name}"
            told |= set(there.get("data", {}))
        names = {name.removesuffix("_FILE") for name in told} - OF_OTHERS
        for name in sorted(names - known_to(workload.process)):
            yield f"{workload.name}: {workload.process} reads no {name}"


def settings_can_be_used(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.fleet:
        try:
            settings_of(manifests, workload)
        except Misconfigured as error:
            yield f"{workload.name}: {' '.join((error.detail or '').split())}"


def secrets_are_there(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.ours:
        environment = manifests.environment(workload)
        for name in workload.given:
            variable = name.removesuffix("_FILE")
            if name != variable and not environment[variable]:
                yield f"{workload.name}: no secret has the file of {name}"
    for each in manifests.of("TriggerAuthentication"):
        for wanted in each["spec"].get("secretTargetRef", ()):
            held = manifests.named("Secret", wanted["name"]).get("stringData", {})
            fetched = manifests.named("ExternalSecret", wanted["name"]).get("spec", {})
            if wanted["key"] not in {*held, *(e["secretKey"] for e in fetched.get("data", ()))}:
                yield f"{each['metadata']['name']}: no secret has {wanted['key']}"


def roles_are_the_process_own(manifests: Manifests) -> Iterator[str]:
    others = {"migrations": "owner", "operator": "admin"}
    for workload in manifests.ours:
        url = manifests.environment(workload).get("DATABASE_URL", "")
        role = re.match(r"postgresql://(\w+):", url)
        component = workload.labels["app.kubernetes.io/component"]
        wanted = f"imagefleet_{others.get(component, component)}"
        if role and role[1] not in {wanted, "role"}:
            yield f"{workload.name}: is {role[1]} in Postgres, not {wanted}"
    scaling = manifests.named("Secret", "imagefleet-scaling").get("stringData", {})
    if scaling and scaling["user"] != "imagefleet_scaler":
        yield f"KEDA is {scaling['user']} in Postgres, not imagefleet_scaler"


def secrets_are_by_reference(manifests: Manifests) -> Iterator[str]:
    """But in the overlay of one machine, whose Postgres comes with it."""
    if not manifests.named("StatefulSet", "postgres"):
        yield from (f"Secret {name} is in the manifests" for name in manifests.names("Secret"))
    for workload in manifests.ours:
        for name, value in workload.given.items():
            if "postgresql://" in value or name.endswith("_PASSWORD"):
                yield f"{workload.name}: {name} is no secret here"


def shared_settings_are_the_same(manifests: Manifests) -> Iterator[str]:
    seen: dict[str, tuple[str, object]] = {}
    for workload in manifests.fleet:
        try:
            settings = settings_of(manifests, workload)
        except Misconfigured:
            continue  # it is said elsewhere
        shared = {name: getattr(settings, name, None) for name in ("pictures", "retry", "recipes")}
        shared["aws"] = getattr(settings, "aws", None)
        own = getattr(settings, workload.process)
        shared["ORIGINALS_KEPT_DAYS"] = getattr(own, "originals_kept_days", None)
        shared["PUBLIC_BASE_URL"] = getattr(own, "public_base_url", None)
        for name, value in shared.items():
            if value is None:
                continue
            other, there = seen.setdefault(name, (workload.name, value))
            if there != value:
                yield f"{workload.name}: {name} is not as in {other}"


# --- what a process is


def images_are_built(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.ours:
        image = workload.container["image"]
        if workload.process not in targets():
            yield f"{workload.name}: services/Dockerfile has no target {workload.process}"
        tag = re.search(r"(?<=:)[\w.-]+$|@sha256:[0-9a-f]{64}$", image.rpartition("/")[2])
        if tag is None or tag[0] == "latest":
            yield f"{workload.name}: {image} may be another image tomorrow"
        component = workload.labels.get("app.kubernetes.io/component")
        if workload.process in COMPONENTS and component != workload.process:
            yield f"{workload.name}: runs {workload.process}, and is labelled {component}"


def rights_are_least(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.ours:
        pod, own = workload.spec, workload.container.get("securityContext", {})
        context = pod.get("securityContext", {})
        wanted = {
            "a root that can be written": own.get("readOnlyRootFilesystem") is True,
            "more rights to be had": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "another seccomp profile": context.get("seccompProfile") == {"type": "RuntimeDefault"},
            "root": context.get("runAsNonRoot") is True,
            "another user than the image's": [context.get("runAsUser"), context.get("runAsGroup")]
            == [65532, 65532],
            "a token of Kubernetes": pod.get("automountServiceAccountToken") is False,
            "variables of every Service": pod.get("enableServiceLinks") is False,
            "something of the node": not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
            and not any("hostPath" in volume for volume in pod["volumes"]),
        }
        yield from (f"{workload.name}: has {what}" for what, fine in wanted.items() if not fine)
        for volume in pod["volumes"]:
            # Unset, everybody in the pod may read it.
            if "secret" in volume and volume["secret"].get("defaultMode") != 0o440:
                yield f"{workload.name}: others may read {volume['name']}"
    enforced = manifests.named("Namespace", "imagefleet").get("metadata", {}).get("labels", {})
    level = enforced.get("pod-security.kubernetes.io/enforce", "privileged")
    strictest = "baseline" if manifests.named("Deployment", "localstack") else "restricted"
    if manifests.fleet and level != strictest:
        yield f"the namespace takes pods that are {level}"


def accounts_are_there(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.ours:
        account = workload.spec.get("serviceAccountName")
        component = workload.labels["app.kubernetes.io/component"]
        if component == "topology":  # asks nobody who wants to know who it is
            continue
        if account != f"imagefleet-{component}":
            yield f"{workload.name}: is {account}, whose rights are another's"
        elif account not in manifests.names("ServiceAccount"):
            yield f"{workload.name}: there is no ServiceAccount {account}"


def roles_of_aws_find_their_accounts(manifests: Manifests) -> Iterator[str]:
    """Terraform gives each role to one account by name: KEDA's is not ours."""
    module = ROOT / "infra" / "aws" / "modules" / "identity"
    rights = json.loads((module / "rights.json").read_text(encoding="utf-8"))["rights"]
    given = re.search(
        r'namespace = "([\w-]+)", name = "([\w-]+)\$\{process\}"', (module / "main.tf").read_text()
    )
    assert given is not None, "main.tf of identity names its accounts in another way"
    namespace, prefix = given.groups()
    there = {
        (each["metadata"]["namespace"], each["metadata"]["name"])
        for each in manifests.of("ServiceAccount")
    }
    for process in set(rights) - {"keda"}:
        if manifests.fleet and (namespace, prefix + process) not in there:
            yield f"nobody is {prefix}{process} in {namespace}, to whom AWS gives a role"


CHECKS: Final[tuple[Check, ...]] = (
    variables_are_read,
    settings_can_be_used,
    secrets_are_there,
    roles_are_the_process_own,
    secrets_are_by_reference,
    shared_settings_are_the_same,
    images_are_built,
    rights_are_least,
    accounts_are_there,
    roles_of_aws_find_their_accounts,
)
