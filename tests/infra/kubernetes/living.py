"""How what runs is asked, found, spared and ended, held against what its code does."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import Lane
from imagefleet.maintenance.main import ANSWERED_WITHIN
from imagefleet.telemetry.health import CHECK_WITHIN, LONGEST_STAY
from imagefleet.worker.main import SETTLE_WITHIN
from tests.infra.kubernetes.agreements import Check, settings_of, span
from tests.infra.kubernetes.rendering import Manifests, selects
from tests.support.wheels import ROOT

MARGIN: Final = timedelta(seconds=5)  # to close, after everything else
MAINTENANCE_ENDS: Final = timedelta(seconds=30)  # what the maintenance process counts on
SERVING: Final = {"api", "console"}
PATHS: Final = {
    "startupProbe": "/healthz",
    "livenessProbe": "/healthz",
    "readinessProbe": "/readyz",
}


# --- how it lives and ends


def graces_are_longer_than_drains(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.fleet:
        try:
            settings = settings_of(manifests, workload)
        except Misconfigured:
            continue
        match workload.process:
            case "worker":
                drain = settings.worker.shutdown_grace + settings.worker.receive_wait
                drain += SETTLE_WITHIN
            case "api" | "console":
                drain = getattr(settings, workload.process).shutdown_grace
            case _:
                drain = max(MAINTENANCE_ENDS, ANSWERED_WITHIN)
        stop = workload.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
        drain += timedelta(seconds=stop.get("seconds", 0)) + LONGEST_STAY + MARGIN
        grace = workload.spec.get("terminationGracePeriodSeconds", 30)
        if grace < drain.total_seconds():
            yield f"{workload.name}: has {grace} s to end, and takes {drain.total_seconds():.0f}"
        if workload.process in SERVING and stop.get("seconds", 0) < 5:
            yield f"{workload.name}: closes its port while requests are still sent to it"


def probes_ask_what_is_answered(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.fleet:
        try:
            settings = settings_of(manifests, workload)
        except Misconfigured:
            continue
        ports = {port["name"]: port["containerPort"] for port in workload.container["ports"]}
        if ports.get("health") != settings.telemetry.health_port:
            yield f"{workload.name}: HEALTH_LISTEN_PORT is {settings.telemetry.health_port}"
        port = getattr(getattr(settings, workload.process), "port", None)
        if ports.get("http") != port:
            yield f"{workload.name}: LISTEN_PORT is {port}"
        for probe, path in PATHS.items():
            asked = workload.container.get(probe, {})
            if asked.get("httpGet") != {"path": path, "port": "health"}:
                yield f"{workload.name}: {probe} does not ask {path} at the port health"
            elif asked.get("timeoutSeconds", 1) <= CHECK_WITHIN.total_seconds():
                yield f"{workload.name}: {probe} goes before a check has said why it fails"


# --- who finds whom


def selectors_find_pods(manifests: Manifests) -> Iterator[str]:
    pods = [workload.labels for workload in manifests.workloads]
    for workload in manifests.workloads:
        if (chosen := workload.document["spec"].get("selector")) is not None:
            mine = [labels for labels in pods if selects(chosen, labels)]
            if mine != [workload.labels]:
                yield f"{workload.name}: selects {len(mine)} kinds of pods, not its own"
    for service in manifests.of("Service"):
        name = service["metadata"]["name"]
        found = [
            workload
            for workload in manifests.workloads
            if selects({"matchLabels": service["spec"]["selector"]}, workload.labels)
        ]
        ports = {p["name"] for each in found for p in each.container.get("ports", ())}
        for port in service["spec"]["ports"]:
            if len(found) != 1 or port["targetPort"] not in ports:
                yield f"Service {name}: nothing listens at {port['targetPort']}"
    for ingress in manifests.of("Ingress"):
        hosts = {host for each in ingress["spec"].get("tls", ()) for host in each["hosts"]}
        for rule in ingress["spec"]["rules"]:
            if rule["host"] not in hosts:
                yield f"Ingress: {rule['host']} is served without TLS"
            for path in rule["http"]["paths"]:
                service = path["backend"]["service"]
                there = manifests.named("Service", service["name"])
                if service["port"]["name"] not in {
                    port["name"] for port in there.get("spec", {}).get("ports", ())
                }:
                    yield f"Ingress: there is no {service['name']}:{service['port']['name']}"
    for scaler in (*manifests.of("HorizontalPodAutoscaler"), *manifests.of("ScaledObject")):
        target = scaler["spec"]["scaleTargetRef"]["name"]
        deployment = manifests.named("Deployment", target)
        if not deployment:
            yield f"{scaler['kind']} {scaler['metadata']['name']}: there is no {target}"
        elif "replicas" in deployment["spec"]:
            yield f"{target}: its replicas are both a number and an autoscaler's"


def disruptions_leave_somebody(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.fleet:
        budgets = [
            each
            for each in manifests.of("PodDisruptionBudget")
            if selects(each["spec"]["selector"], workload.labels)
        ]
        # Of one pod a budget says nothing, or keeps its node from ever being emptied.
        if len(budgets) != (0 if workload.process == "console" else 1):
            yield f"{workload.name}: has {len(budgets)} disruption budgets"
    for workload in manifests.running("console"):
        if workload.document["spec"].get("replicas") != 1:
            yield f"{workload.name}: is several, and each knows who is logged in to itself alone"
    for workload in manifests.running("maintenance"):
        if workload.document["spec"]["replicas"] != 2:
            yield f"{workload.name}: is not two"
    for each in manifests.of("HorizontalPodAutoscaler"):
        if each["spec"]["minReplicas"] < 2:
            yield f"{each['metadata']['name']}: one may be all there is"


def metrics_are_scraped(manifests: Manifests) -> Iterator[str]:
    monitors = (*manifests.of("ServiceMonitor"), *manifests.of("PodMonitor"))
    if not monitors:  # no operator of Prometheus is expected there
        return
    for workload in manifests.fleet:
        if not any(selects(each["spec"]["selector"], workload.labels) for each in monitors):
            yield f"{workload.name}: nobody scrapes it"
    for each in monitors:
        name = each["metadata"]["name"]
        for end in each["spec"].get("endpoints", each["spec"].get("podMetricsEndpoints", ())):
            if (end["port"], end["path"]) != ("health", "/metrics"):
                yield f"{name}: there are no metrics at {end['port']}{end['path']}"
            if 2 * span(end["interval"]) > LONGEST_STAY.total_seconds():
                yield f"{name}: who ends is gone before the next scrape"


def lanes_are_those_of_the_topology(manifests: Manifests) -> Iterator[str]:
    described = json.loads(
        (ROOT / "services" / "imagefleet" / "embedded" / "topology.json").read_text()
    )
    queues = set(described["queues"]) - {"dead-letter"}
    if not manifests.fleet:
        return
    served = [each.given.get("WORKER_LANES", "") for each in manifests.running("worker")]
    if set(served) != queues or len(served) != len(queues) or queues != {*Lane}:
        yield f"workers are of the lanes {sorted(served)}, not one set of each {sorted(queues)}"
    for workload in manifests.running("worker"):
        if workload.labels.get("imagefleet/lane") != workload.given.get("WORKER_LANES"):
            yield f"{workload.name}: its label is of another lane"


CHECKS: Final[tuple[Check, ...]] = (
    graces_are_longer_than_drains,
    probes_ask_what_is_answered,
    selectors_find_pods,
    disruptions_leave_somebody,
    metrics_are_scraped,
    lanes_are_those_of_the_topology,
)
