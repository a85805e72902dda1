"""What has to be there, and lead somewhere: nothing of it says anything when it is missing."""

import math
import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.store.schema.roles import OWNER, ROLE_LIMITS
from tests.infra.kubernetes.agreements import Check, settings_of
from tests.infra.kubernetes.bounds import ALB
from tests.infra.kubernetes.rendering import Document, Labels, Manifests, Workload, selects

OURS: Final = 65532  # the group that reads what is mounted
AUTHORITY: Final = "/etc/imagefleet/database-ca"  # as infra/k8s/README.md says
ZONES_AND_NODES: Final = {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
# Of an installation, what runs, by component.
RUNS: Final = {"api", "worker", "maintenance", "console", "operator", "migrations"}
ASKING: Final = ("operator", "console")  # the API
MOST_DISRUPTED: Final = 25  # per cent of many; of two it is one
PROTOCOLS: Final = {("UDP", 53), ("TCP", 53)}


def component_of(workload: Workload) -> str:
    return workload.labels["app.kubernetes.io/component"]


# --- what runs, and what it finds in its container


def everything_runs(manifests: Manifests) -> Iterator[str]:
    there = {component_of(each) for each in manifests.ours}
    if manifests.fleet:
        yield from (f"nothing is {component}" for component in sorted(RUNS - there))
    scaled = {
        each["spec"]["scaleTargetRef"]["name"]
        for kind in ("HorizontalPodAutoscaler", "ScaledObject")
        for each in manifests.of(kind)
    }
    for workload in manifests.fleet:
        if "replicas" not in workload.document["spec"] and workload.name not in scaled:
            yield f"{workload.name}: is one pod for ever, as nobody scales it"


def migrations_have_their_time(manifests: Manifests) -> Iterator[str]:
    """As long as a statement of the owner's may take: an index may be long in the making."""
    (hours,) = re.findall(r"^(\d+)h$", ROLE_LIMITS[OWNER][0])
    for workload in manifests.running("cli"):
        if component_of(workload) != "migrations":
            continue
        if workload.container.get("args", ["--help"])[0] != "migrate":
            yield f"{workload.name}: migrates nothing"
        seconds = workload.document["spec"].get("activeDeadlineSeconds", math.inf)
        if seconds <= int(hours) * 3600:
            yield f"{workload.name}: is ended after {seconds} s amid a statement"


def what_is_mounted_can_be_used(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.ours:
        mounts = {each["mountPath"]: each for each in workload.container["volumeMounts"]}
        volumes = {each["name"]: each for each in workload.spec["volumes"]}
        for name in sorted(set(volumes) ^ {each["name"] for each in mounts.values()}):
            yield f"{workload.name}: {name} is a volume or a mount, and not both"
        if mounts.get("/tmp", {"readOnly": True}).get("readOnly"):  # noqa: S108 - theirs
            yield f"{workload.name}: writes nowhere"
        secret = any("secret" in volume for volume in volumes.values())
        if secret and workload.spec["securityContext"].get("fsGroup") != OURS:
            yield f"{workload.name}: may not read its secrets, which are another group's"
        if secret:
            name = mounts.get(AUTHORITY, {}).get("name", "")
            told = volumes.get(name, {}).get("configMap")
            if told != {"name": "imagefleet-database-ca", "optional": True}:
                yield f"{workload.name}: finds nobody's certificates in {AUTHORITY}"


def every_secret_has_its_reader(manifests: Manifests) -> Iterator[str]:
    held = [(each, {*each.get("stringData", {})}) for each in manifests.of("Secret")]
    held += [
        (each, {entry["secretKey"] for entry in each["spec"]["data"]})
        for each in manifests.of("ExternalSecret")
    ]
    read = {
        (wanted["name"], wanted["key"])
        for each in manifests.of("TriggerAuthentication")
        for wanted in each["spec"].get("secretTargetRef", ())
    }
    for workload in manifests.ours:
        for name, path in workload.given.items():
            if name.endswith("_FILE"):
                folder, _, key = path.rpartition("/")
                read |= {(secret, key) for secret in _secrets_at(workload, folder)}
    for document, keys in held:
        name = document["metadata"]["name"]
        for key in sorted(keys):
            if (name, key) not in read:
                yield f"Secret {name}: nobody reads {key}"


def _secrets_at(workload: Workload, folder: str) -> Iterator[str]:
    for mount in workload.container["volumeMounts"]:
        if mount["mountPath"] == folder:
            yield workload.volume(mount["name"]).get("secret", {}).get("secretName", "")


# --- what is left where something goes


def everybody_is_spread(manifests: Manifests) -> Iterator[str]:
    pods = [workload.labels for workload in manifests.workloads]
    for workload in manifests.fleet:
        if workload.process == "console":
            continue  # one pod is where it is
        spreads = workload.spec.get("topologySpreadConstraints", ())
        if {each["topologyKey"] for each in spreads} != ZONES_AND_NODES:
            yield f"{workload.name}: may be in one zone, or on one node"
        for each in spreads:
            if [labels for labels in pods if selects(each["labelSelector"], labels)] != [
                workload.labels
            ]:
                yield f"{workload.name}: is spread by other pods than its own"


def disruptions_take_few(manifests: Manifests) -> Iterator[str]:
    for each in manifests.of("PodDisruptionBudget"):
        most = str(each["spec"].get("maxUnavailable", "100%"))
        few = int(most.rstrip("%")) <= (MOST_DISRUPTED if most.endswith("%") else 1)
        if not few:
            yield f"{each['metadata']['name']}: {most} of them may go at once"


# --- who finds the API and the metrics


def requests_lead_to_the_api(manifests: Manifests) -> Iterator[str]:
    if not manifests.running("api"):
        return
    for name in sorted({"imagefleet-api", *manifests.names("Ingress")}):
        ingress = manifests.named("Ingress", name)
        backends = [
            (path["path"], path["pathType"], path["backend"]["service"]["name"])
            for rule in ingress.get("spec", {}).get("rules", ())
            for path in rule["http"]["paths"]
        ]
        if backends != [("/", "Prefix", name)]:
            yield f"requests are led to {backends}, and not all of them to {name}"
    for workload in manifests.ours:
        asked = workload.given.get("IMAGEFLEET_URL")
        if component_of(workload) in ASKING and (
            asked is None or asked.removeprefix("http://") not in manifests.names("Service")
        ):
            yield f"{workload.name}: asks {asked}, which is no Service"


def proxies_are_believed(manifests: Manifests) -> Iterator[str]:
    """Who asked is what the balancer says; the balancer's networks are told twice."""
    for workload in (*manifests.running("api"), *manifests.running("console")):
        try:
            trusted = getattr(settings_of(manifests, workload), workload.process).trusted_proxies
        except Misconfigured:
            continue  # it is said elsewhere
        for address in _addresses_let_in(manifests, workload.labels):
            if not any(ip_network(address).subnet_of(each) for each in trusted):
                yield f"{workload.name}: takes every request for one of {address}"


def _addresses_let_in(manifests: Manifests, labels: Labels) -> set[str]:
    return {
        each["ipBlock"]["cidr"]
        for rule in _rules(manifests, labels, "ingress")
        for each in rule.get("from", ())
        if "ipBlock" in each
    }


def monitors_find_their_port(manifests: Manifests) -> Iterator[str]:
    monitors = (*manifests.of("ServiceMonitor"), *manifests.of("PodMonitor"))
    for workload in manifests.fleet if monitors else ():
        mine = [each for each in monitors if selects(each["spec"]["selector"], workload.labels)]
        if len(mine) != 1:
            yield f"{workload.name}: is scraped by {len(mine)}"
    for each in manifests.of("ServiceMonitor"):
        ports = {
            port["name"]
            for service in manifests.of("Service")
            if selects(each["spec"]["selector"], service["metadata"].get("labels", {}))
            for port in service["spec"]["ports"]
        }
        for end in each["spec"]["endpoints"]:
            if end["port"] not in ports:
                yield f"{each['metadata']['name']}: no Service has a port {end['port']}"


# --- who is let in, and where to


def _rules(manifests: Manifests, labels: Labels, way: str) -> Iterator[Document]:
    for policy in manifests.of("NetworkPolicy"):
        spec = policy["spec"]
        if way.capitalize() in spec["policyTypes"] and selects(spec["podSelector"], labels):
            yield from spec.get(way, ())


def _who(peer: Document) -> str:
    """One side of a rule, in a word."""
    if "ipBlock" in peer:
        return "addresses"
    wanted = {**peer.get("namespaceSelector", {}).get("matchLabels", {})}
    wanted |= peer.get("podSelector", {}).get("matchLabels", {})
    known = ("app.kubernetes.io/component", "k8s-app", "kubernetes.io/metadata.name")
    return next((wanted[name] for name in known if name in wanted), "anybody")


def _doors(rules: Iterator[Document], side: str) -> set[tuple[str, int]]:
    return {
        (_who(peer), int(port["port"]))
        for rule in rules
        for peer in rule.get(side, ({},))
        for port in rule.get("ports", ({"port": 0},))
    }


def each_door_is_somebodys(manifests: Manifests) -> Iterator[str]:
    """Of the API its proxy's, the scrapes' and of those who ask it; of others the scrapes' alone.

    And of the console its proxy's, where it has one.
    """
    for workload in manifests.fleet:
        found = _doors(_rules(manifests, workload.labels, "ingress"), "from")
        wanted = {("monitoring", 9090)}
        wanted |= _proxy(manifests.named("Ingress", f"imagefleet-{workload.process}"), workload)
        if workload.process == "api":
            wanted |= {(each, 8080) for each in ASKING}
        if found != wanted:
            yield f"{workload.name}: is open to {sorted(found ^ wanted)} or not, unlike others"
    for workload in manifests.ours:
        reached = _doors(_rules(manifests, workload.labels, "egress"), "to")
        if (("api", 8080) in reached) != (component_of(workload) in ASKING):
            yield f"{workload.name}: reaches the API, or should"
        if workload.process == "console" and reached != {("api", 8080), ("kube-dns", 53)}:
            yield f"{workload.name}: reaches {sorted(reached)}, and asks the API alone"


def _proxy(ingress: Document, workload: Workload) -> set[tuple[str, int]]:
    """Whom an Ingress lets in, if there is one."""
    if not ingress:
        return set()
    port = next(each["containerPort"] for each in workload.container["ports"])
    if ingress["spec"].get("ingressClassName") != "alb":
        return {("nginx-ingress", port)}
    asked = ingress["metadata"]["annotations"].get(f"{ALB}healthcheck-port", port)
    return {("addresses", port), ("addresses", int(asked))}


def the_console_is_where_it_says(manifests: Manifests) -> Iterator[str]:
    """A form is taken from the origin that it is told; without one, by `kubectl port-forward`."""
    ingress = manifests.named("Ingress", "imagefleet-console")
    hosts = [rule["host"] for rule in ingress.get("spec", {}).get("rules", ())]
    for workload in manifests.running("console"):
        told = manifests.environment(workload).get("CONSOLE_ORIGIN")
        if [told] * bool(told) != [f"https://{host}" for host in hosts]:
            yield f"{workload.name}: takes forms from {told}, and is at {hosts}"
    scheme = ingress.get("metadata", {}).get("annotations", {}).get(f"{ALB}scheme", "internal")
    if scheme != "internal":
        yield f"imagefleet-console: is {scheme}"


def names_are_asked_of_the_cluster(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.ours:
        asked: set[tuple[str, int]] = set()
        for rule in _rules(manifests, workload.labels, "egress"):
            ports = {(each.get("protocol", "TCP"), each["port"]) for each in rule.get("ports", ())}
            to = rule.get("to", ({},))
            spaces = [each.get("namespaceSelector", {}).get("matchLabels") for each in to]
            if [_who(each) for each in to] == ["kube-dns"] and spaces == [
                {"kubernetes.io/metadata.name": "kube-system"}
            ]:
                asked |= ports
            elif ports & PROTOCOLS:
                yield f"{workload.name}: may carry anything away in questions for names"
        if asked != PROTOCOLS:
            yield f"{workload.name}: asks the cluster for names by {sorted(asked)} alone"


CHECKS: Final[tuple[Check, ...]] = (
    everything_runs,
    migrations_have_their_time,
    what_is_mounted_can_be_used,
    every_secret_has_its_reader,
    everybody_is_spread,
    disruptions_take_few,
    requests_lead_to_the_api,
    proxies_are_believed,
    monitors_find_their_port,
    each_door_is_somebodys,
    the_console_is_where_it_says,
    names_are_asked_of_the_cluster,
)
