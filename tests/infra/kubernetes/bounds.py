"""Memory, proxies and networks, held against what the code needs of them."""

import json
import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from imagefleet.api.http.bodies import MOST_HELD
from imagefleet.api.http.turns import PLACES
from imagefleet.api.producers.events import HEARTBEAT
from imagefleet.api.producers.jobs import LONGEST_WAIT
from imagefleet.aws.transfers import PART_BYTES
from imagefleet.errors import Misconfigured
from imagefleet.listening import IDLE_WITHIN
from imagefleet.worker.handling import BESIDE_CHILDREN
from tests.infra.kubernetes.agreements import settings_of, size, span
from tests.infra.kubernetes.rendering import Document, Labels, Manifests, Workload, selects
from tests.support.wheels import ROOT

# docs/performance.md: "worker idle, PSS of all its processes", "API, peak RSS, 50 uploads".
IDLE_WORKER: Final = 91 * 10**6
BUSY_API: Final = 137 * 10**6
FRAME: Final = 2**16  # bytes of a form around a file
METADATA: Final = ("169.254.169.254", "169.254.170.2", "169.254.1.1")
WITHOUT_POSTGRES: Final = {"topology", "console"}
POD_IDENTITY: Final = "169.254.170.23"
OF_AWS: Final = "52.95.36.1"  # any address that is not ours
ALB: Final = "alb.ingress.kubernetes.io/"
NGINX: Final = "nginx.org/"


# --- memory


def memory_is_enough(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.ours:
        resources = workload.container.get("resources", {})
        resources = {"requests": {}, "limits": {}} | resources
        if "memory" not in resources["limits"]:
            yield f"{workload.name}: takes whatever memory the node has"
            continue
        limit = size(resources["limits"]["memory"])
        if resources["requests"].get("memory") != resources["limits"]["memory"]:
            yield f"{workload.name}: counts on memory that the node has not promised"
        if "cpu" not in resources["requests"]:
            yield f"{workload.name}: asks for no processor"
        if "cpu" in resources["limits"]:
            yield f"{workload.name}: its beat stands still when its processor time is used up"
        yield from _tmp_is_enough(manifests, workload, limit)


def _tmp_is_enough(manifests: Manifests, workload: Workload, limit: int) -> Iterator[str]:
    volume = workload.volume("tmp").get("emptyDir", {})
    room = size(volume.get("sizeLimit", "0Mi"))
    if volume.get("medium") != "Memory" or not room:
        yield f"{workload.name}: /tmp is no tmpfs of a size: where it is full the pod is evicted"
    try:
        settings = settings_of(manifests, workload)
    except Misconfigured:
        return  # it is said elsewhere
    if workload.process == "api":
        if room < PLACES * PART_BYTES:
            yield f"{workload.name}: /tmp has no room for a part of {PLACES} uploads"
        if limit < BUSY_API + room + 2 * MOST_HELD:
            yield f"{workload.name}: uploads and JSON at once take more than its memory"
    if workload.process == "worker":
        pictures = settings.worker.render_children + 1
        if room < pictures * settings.pictures.max_bytes:
            yield f"{workload.name}: /tmp has no room for {pictures} originals"
        children = settings.worker.render_memory or limit - BESIDE_CHILDREN
        if children + IDLE_WORKER + room > limit:
            yield f"{workload.name}: children, the worker and /tmp take more than its memory"
        if children < memory_for_everything() - BESIDE_CHILDREN:
            yield f"{workload.name}: some pictures that are taken find no room in it"


def memory_for_everything() -> int:
    """The container that makes every picture, as docs/containers.md has it."""
    text = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| ([\d.]+) GiB \| [\d.]+ GiB \| everything \|$", text, re.MULTILINE)
    return int(float(row) * 2**30)


def connections(manifests: Manifests) -> int:
    """How many all of them open to Postgres at once, when each is as many as it may be."""
    most = {
        each["spec"]["scaleTargetRef"]["name"]: int(
            each["spec"].get("maxReplicaCount", each["spec"].get("maxReplicas"))
        )
        for kind in ("HorizontalPodAutoscaler", "ScaledObject")
        for each in manifests.of(kind)
    }
    total = 0
    for workload in manifests.fleet:
        pods = most.get(workload.name) or int(workload.document["spec"]["replicas"])
        if workload.process == "console":
            continue  # it has none
        pool = settings_of(manifests, workload).database.pool_of(workload.process)
        # Beside its pool an API has one for operators, a worker its beat, maintenance its rescuer.
        total += pods * (2 * pool if workload.process == "api" else pool + 1)
    return total


# --- proxies


def proxies_let_through_what_is_promised(manifests: Manifests) -> Iterator[str]:
    longest = max(float(LONGEST_WAIT), HEARTBEAT.total_seconds())
    (api,) = manifests.running("api") or (None,)
    if api is None:
        return
    try:
        largest = settings_of(manifests, api).pictures.max_bytes + FRAME
    except Misconfigured:
        return
    for ingress in manifests.of("Ingress"):
        told = ingress["metadata"].get("annotations", {})
        match ingress["spec"].get("ingressClassName"):
            case "alb":
                yield from _balancer(told, longest)
            case "nginx":
                yield from _nginx(told, longest, largest)
            case other:
                yield f"Ingress: nobody said what {other} lets through"


def _balancer(told: Mapping[str, str], longest: float) -> Iterator[str]:
    attributes = told.get(f"{ALB}load-balancer-attributes", "")
    idle = re.search(r"idle_timeout\.timeout_seconds=(\d+)", attributes)
    seconds = float(idle[1]) if idle else 60.0  # its default
    if seconds <= 2 * longest:
        yield f"Ingress: gives up after {seconds:.0f} s, and a silence may be {longest:.0f} s long"
    if seconds >= IDLE_WITHIN.total_seconds():
        yield "Ingress: sends requests into connections that the API is just closing"
    if {"HTTPS": 443} not in json.loads(told.get(f"{ALB}listen-ports", "[]")) or not (
        told.get(f"{ALB}certificate-arn", "").startswith("arn:aws:acm:")
        and told.get(f"{ALB}ssl-redirect") == "443"
        and "TLS13" in told.get(f"{ALB}ssl-policy", "")
    ):
        yield "Ingress: lets somebody through without TLS"
    asked = (told.get(f"{ALB}healthcheck-port"), told.get(f"{ALB}healthcheck-path"))
    if asked != ("9090", "/readyz"):
        yield f"Ingress: asks {asked} who is ready"
    if told.get(f"{ALB}target-type") != "ip":
        yield "Ingress: does not know which pod ends"


def _nginx(told: Mapping[str, str], longest: float, largest: int) -> Iterator[str]:
    body = told.get(f"{NGINX}client-max-body-size", "1m")
    if int(body.removesuffix("m")) * 2**20 < largest:
        yield f"Ingress: refuses bodies beyond {body}, and the API takes {largest}"
    for name in ("proxy-read-timeout", "proxy-send-timeout"):
        seconds = span(told.get(NGINX + name, "60s"))
        if not seconds > 2 * longest:
            yield f"Ingress: gives up after {seconds:.0f} s, and a silence may be {longest:.0f} s"
    if told.get(f"{NGINX}proxy-buffering") != "False":
        yield "Ingress: keeps events back until there are many"


# --- networks


def reaches(manifests: Manifests, labels: Labels, address: str, port: int) -> bool:
    """Whether a pod like this may open a connection to an address outside of the cluster."""
    policies = [each["spec"] for each in manifests.of("NetworkPolicy")]
    mine = [
        each
        for each in policies
        if selects(each["podSelector"], labels) and "Egress" in each["policyTypes"]
    ]
    if not mine:
        return True
    rules = [rule for each in mine for rule in each.get("egress", ())]
    return any(_allows(rule, ip_address(address), port) for rule in rules)


def _allows(rule: Document, address: IPv4Address | IPv6Address, port: int) -> bool:
    ports = [each["port"] for each in rule.get("ports", ())]
    if ports and port not in ports:
        return False
    if "to" not in rule:
        return True
    blocks = [each["ipBlock"] for each in rule["to"] if "ipBlock" in each]
    return any(
        address in ip_network(block["cidr"])
        and not any(address in ip_network(out) for out in block.get("except", ()))
        for block in blocks
    )


def nothing_else_is_reached(manifests: Manifests) -> Iterator[str]:
    denied = manifests.named("NetworkPolicy", "default-deny").get("spec", {})
    if denied != {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}:
        yield "what no policy names is not denied"
    for workload in manifests.ours:
        for address in METADATA:
            if any(reaches(manifests, workload.labels, address, port) for port in (80, 443)):
                yield f"{workload.name}: reaches the metadata service at {address}"
        if any(reaches(manifests, workload.labels, OF_AWS, port) for port in (80, 5432)):
            yield f"{workload.name}: reaches anybody in clear text, or as a database"
        at_database = _is_let_out(manifests, workload.labels, 5432)
        if at_database == (workload.labels["app.kubernetes.io/component"] in WITHOUT_POSTGRES):
            yield f"{workload.name}: {'reaches' if at_database else 'does not reach'} Postgres"
        if not _is_let_out(manifests, workload.labels, 53):
            yield f"{workload.name}: finds no name"


def _is_let_out(manifests: Manifests, labels: Labels, port: int) -> bool:
    """Whether any rule of its lets it out at this port, wherever that is."""
    return any(
        port in [each["port"] for each in rule.get("ports", ())]
        for policy in manifests.of("NetworkPolicy")
        if policy["metadata"]["name"] != "default-deny"
        and selects(policy["spec"]["podSelector"], labels)
        for rule in policy["spec"].get("egress", ())
    )


def processes_reach_what_they_need(manifests: Manifests) -> Iterator[str]:
    on_aws = not manifests.named("Deployment", "localstack")
    for workload in manifests.fleet:
        if workload.process == "console":
            continue
        for address, port in ((OF_AWS, 443), (POD_IDENTITY, 80)):
            if on_aws and not reaches(manifests, workload.labels, address, port):
                yield f"{workload.name}: does not reach {address}:{port}"
    for workload in (*manifests.running("cli"), *manifests.running("console")):
        if reaches(manifests, workload.labels, POD_IDENTITY, 80):
            yield f"{workload.name}: could be somebody in AWS, and needs nothing there"


def doors_are_open_to_whom_they_should(manifests: Manifests) -> Iterator[str]:
    open_to: dict[str, set[int]] = {}
    for workload in manifests.ours:
        for policy in manifests.of("NetworkPolicy"):
            if "Ingress" not in policy["spec"]["policyTypes"] or not selects(
                policy["spec"]["podSelector"], workload.labels
            ):
                continue
            for rule in policy["spec"].get("ingress", ()):
                if not rule.get("from"):
                    yield f"{workload.name}: is open to everybody"
                if any(
                    ip_network(each["ipBlock"]["cidr"]).prefixlen == 0
                    for each in rule.get("from", ())
                    if "ipBlock" in each
                ):
                    yield f"{workload.name}: is open to every address"
                ports = {int(each["port"]) for each in rule.get("ports", ())}
                open_to.setdefault(workload.process, set()).update(ports)
    wanted = {"api": {8080, 9090}, "worker": {9090}, "maintenance": {9090}, "console": {9090}}
    if "imagefleet-console" in manifests.names("Ingress"):
        wanted["console"].add(8081)
    for process, ports in wanted.items():
        if manifests.running(process) and open_to.get(process) != ports:
            yield f"{process}: is open at {sorted(open_to.get(process, ()))}, not {sorted(ports)}"


CHECKS: Final = (
    memory_is_enough,
    proxies_let_through_what_is_promised,
    nothing_else_is_reached,
    processes_reach_what_they_need,
    doors_are_open_to_whom_they_should,
)
