"""Ways to break what was rendered, each with the check that sees it and what it says."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tests.infra.kubernetes import agreements, bounds, faults, living, scaling
from tests.infra.kubernetes.agreements import Check
from tests.infra.kubernetes.rendering import Document, Manifests

Change: TypeAlias = Callable[[Manifests], None]

API: Final = ("Deployment", "imagefleet-api")
FAST: Final = ("Deployment", "imagefleet-worker-fast")
CONSOLE: Final = ("Deployment", "imagefleet-console")
MAINTENANCE: Final = ("Deployment", "imagefleet-maintenance")
SCALED: Final = ("ScaledObject", "imagefleet-worker-fast")
QUARANTINE: Final = ("ScaledObject", "imagefleet-worker-quarantine")
INGRESS: Final = ("Ingress", "imagefleet-api")
POD: Final = "spec.template.spec"
CONTAINER: Final = f"{POD}.containers.0"
BEHAVIOR: Final = "spec.advanced.horizontalPodAutoscalerConfig.behavior"


def _place(manifests: Manifests, what: tuple[str, str], path: str) -> tuple[Any, Any]:
    """What holds the end of a path, and what its end is called there."""
    *steps, last = path.split(".")
    place: Any = manifests.named(*what)
    assert place, what
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    return place, int(last) if isinstance(place, list) else last


def put(what: tuple[str, str], path: str, value: object) -> Change:
    def change(manifests: Manifests) -> None:
        place, last = _place(manifests, what, path)
        place[last] = value

    return change


def drop(what: tuple[str, str], path: str) -> Change:
    def change(manifests: Manifests) -> None:
        place, last = _place(manifests, what, path)
        del place[last]

    return change


def without(kind: str, name: str) -> Change:
    def change(manifests: Manifests) -> None:
        documents: list[Document] = manifests.documents  # type: ignore[assignment] # it is a list
        documents.remove(manifests.named(kind, name))

    return change


def given(what: tuple[str, str], name: str, value: str) -> Change:
    """Give a container a variable, or another value of one."""

    def change(manifests: Manifests) -> None:
        place, last = _place(manifests, what, f"{CONTAINER}.env")
        kept = [each for each in place[last] if each["name"] != name]
        place[last] = [*kept, {"name": name, "value": value}]

    return change


def let_out(cidr: str, port: int) -> Change:
    """Let the workers out to somewhere else."""

    def change(manifests: Manifests) -> None:
        place, last = _place(manifests, ("NetworkPolicy", "aws"), "spec.egress")
        rule = {"to": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": port}]}
        place[last] = [*place[last], rule]

    return change


def annotated(key: str, value: str) -> Change:
    def change(manifests: Manifests) -> None:
        manifests.named(*INGRESS)["metadata"]["annotations"][key] = value

    return change


# Which check sees it, what is broken, and a part of what is said then.
BROKEN: Final[list[tuple[Check, Change, str]]] = [
    (
        faults.custom_resources_are_well_formed,
        put(SCALED, "spec.coolDownPeriod", 300),
        "ScaledObject imagefleet-worker-fast: is not as",
    ),
    (
        faults.custom_resources_are_well_formed,
        put(SCALED, "spec.triggers.0.metadata.targetQueryValue", 16),
        "is not as custom.json says",
    ),
    (
        faults.everything_is_in_one_namespace,
        put(FAST, "metadata.namespace", "default"),
        "is in another namespace",
    ),
    (
        agreements.variables_are_read,
        given(API, "WORKER_LANES", "fast"),
        "reads no WORKER_LANES",
    ),
    (agreements.variables_are_read, given(FAST, "RENDER_CHILD", "2"), "reads no RENDER_CHILD"),
    (
        agreements.variables_are_read,
        put(API, f"{CONTAINER}.envFrom.0.configMapRef.name", "imagefleet-was"),
        "there is no ConfigMap imagefleet-was",
    ),
    (
        agreements.settings_can_be_used,
        given(FAST, "RENDER_CHILDREN", "none"),
        "RENDER_CHILDREN: expected a whole number",
    ),
    (
        agreements.secrets_are_there,
        given(API, "DATABASE_URL_FILE", "/etc/imagefleet/secrets/DATABASE"),
        "no secret has the file of DATABASE_URL_FILE",
    ),
    (
        agreements.secrets_are_there,
        put(
            ("TriggerAuthentication", "imagefleet-scaling"), "spec.secretTargetRef.0.key", "address"
        ),
        "no secret has address",
    ),
    (
        agreements.shared_settings_are_the_same,
        given(API, "MAX_UPLOAD_BYTES", "1048576"),
        "pictures is not as in imagefleet-api",
    ),
    (
        agreements.images_are_built,
        put(FAST, f"{CONTAINER}.image", "somewhere/imagefleet-worker:latest"),
        "may be another image tomorrow",
    ),
    (
        agreements.images_are_built,
        put(FAST, f"{CONTAINER}.image", "somewhere/imagefleet-api:1"),
        "runs api, and is labelled worker",
    ),
    (
        agreements.images_are_built,
        put(FAST, f"{CONTAINER}.image", "somewhere/imagefleet-edge:1"),
        "has no target edge",
    ),
    (
        agreements.rights_are_least,
        put(FAST, f"{CONTAINER}.securityContext.capabilities", {"drop": ["NET_RAW"]}),
        "has capabilities",
    ),
    (
        agreements.rights_are_least,
        drop(FAST, f"{CONTAINER}.securityContext.readOnlyRootFilesystem"),
        "a root that can be written",
    ),
    (
        agreements.rights_are_least,
        put(FAST, f"{POD}.securityContext.seccompProfile", {"type": "Unconfined"}),
        "another seccomp profile",
    ),
    (
        agreements.rights_are_least,
        drop(FAST, f"{POD}.automountServiceAccountToken"),
        "a token of Kubernetes",
    ),
    (
        agreements.rights_are_least,
        put(FAST, f"{POD}.securityContext.runAsUser", 0),
        "another user than the image's",
    ),
    (
        agreements.accounts_are_there,
        put(FAST, f"{POD}.serviceAccountName", "imagefleet-api"),
        "whose rights are another's",
    ),
    (
        agreements.accounts_are_there,
        without("ServiceAccount", "imagefleet-worker"),
        "there is no ServiceAccount imagefleet-worker",
    ),
    (
        agreements.roles_of_aws_find_their_accounts,
        put(("ServiceAccount", "imagefleet-maintenance"), "metadata.name", "maintenance"),
        "nobody is imagefleet-maintenance in imagefleet",
    ),
    (
        living.graces_are_longer_than_drains,
        given(FAST, "SHUTDOWN_GRACE_PERIOD_SECONDS", "300"),
        "has 200 s to end, and takes 370",
    ),
    (
        living.graces_are_longer_than_drains,
        put(MAINTENANCE, f"{POD}.terminationGracePeriodSeconds", 60),
        "has 60 s to end, and takes 65",
    ),
    (
        living.graces_are_longer_than_drains,
        drop(API, f"{CONTAINER}.lifecycle"),
        "closes its port while requests are still sent to it",
    ),
    (
        living.probes_ask_what_is_answered,
        put(FAST, f"{CONTAINER}.livenessProbe.httpGet.path", "/readyz"),
        "livenessProbe does not ask /healthz",
    ),
    (
        living.probes_ask_what_is_answered,
        put(FAST, f"{CONTAINER}.readinessProbe.timeoutSeconds", 1),
        "readinessProbe goes before a check has said why it fails",
    ),
    (
        living.probes_ask_what_is_answered,
        given(FAST, "HEALTH_LISTEN_PORT", "9091"),
        "HEALTH_LISTEN_PORT is 9091",
    ),
    (
        living.probes_ask_what_is_answered,
        put(API, f"{CONTAINER}.ports.0.containerPort", 80),
        "LISTEN_PORT is 8080",
    ),
    (
        living.selectors_find_pods,
        drop(FAST, "spec.selector.matchLabels.imagefleet/lane"),
        "not its own",
    ),
    (
        living.selectors_find_pods,
        put(("Service", "imagefleet-api"), "spec.ports.0.targetPort", "https"),
        "nothing listens at https",
    ),
    (
        living.selectors_find_pods,
        put(SCALED, "spec.scaleTargetRef.name", "imagefleet-worker"),
        "there is no imagefleet-worker",
    ),
    (
        living.selectors_find_pods,
        put(FAST, "spec.replicas", 3),
        "its replicas are both a number and an autoscaler's",
    ),
    (
        living.selectors_find_pods,
        put(INGRESS, "spec.tls.0.hosts", ["other.example.com"]),
        "is served without TLS",
    ),
    (
        living.disruptions_leave_somebody,
        without("PodDisruptionBudget", "imagefleet-worker-fast"),
        "has 0 disruption budgets",
    ),
    (living.disruptions_leave_somebody, put(MAINTENANCE, "spec.replicas", 1), "is not two"),
    (
        living.disruptions_leave_somebody,
        put(("HorizontalPodAutoscaler", "imagefleet-api"), "spec.minReplicas", 1),
        "one may be all there is",
    ),
    (
        living.metrics_are_scraped,
        put(("PodMonitor", "imagefleet-worker"), "spec.podMetricsEndpoints.0.interval", "30s"),
        "who ends is gone before the next scrape",
    ),
    (
        living.metrics_are_scraped,
        without("PodMonitor", "imagefleet-maintenance"),
        "imagefleet-maintenance: nobody scrapes it",
    ),
    (
        living.lanes_are_those_of_the_topology,
        given(FAST, "WORKER_LANES", "general"),
        "not one set of each",
    ),
    (
        bounds.memory_is_enough,
        put(FAST, f"{CONTAINER}.resources.limits.memory", "1Gi"),
        "some pictures that are taken find no room in it",
    ),
    (
        bounds.memory_is_enough,
        given(FAST, "RENDER_MEMORY_BYTES", str(2 * 2**30)),
        "children, the worker and /tmp take more than its memory",
    ),
    (
        bounds.memory_is_enough,
        given(FAST, "RENDER_CHILDREN", "4"),
        "has no room for 5 originals",
    ),
    (
        bounds.memory_is_enough,
        put(API, f"{POD}.volumes.0.emptyDir", {"medium": "Memory", "sizeLimit": "64Mi"}),
        "has no room for a part of 64 uploads",
    ),
    (
        bounds.memory_is_enough,
        put(API, f"{POD}.volumes.0.emptyDir", {}),
        "is no tmpfs of a size",
    ),
    (
        bounds.memory_is_enough,
        put(API, f"{CONTAINER}.resources.limits", {"memory": "512Mi", "cpu": "1"}),
        "uploads and JSON at once take more than its memory",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated(f"{bounds.ALB}load-balancer-attributes", "idle_timeout.timeout_seconds=20"),
        "gives up after 20 s",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated(f"{bounds.ALB}load-balancer-attributes", "idle_timeout.timeout_seconds=300"),
        "sends requests into connections that the API is just closing",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated(f"{bounds.ALB}ssl-redirect", "80"),
        "lets somebody through without TLS",
    ),
    (
        bounds.nothing_else_is_reached,
        without("NetworkPolicy", "default-deny"),
        "what no policy names is not denied",
    ),
    (
        bounds.nothing_else_is_reached,
        let_out("169.254.0.0/16", 80),
        "reaches the metadata service at 169.254.169.254",
    ),
    (bounds.nothing_else_is_reached, let_out("0.0.0.0/0", 80), "reaches anybody in clear text"),
    (bounds.nothing_else_is_reached, without("NetworkPolicy", "dns"), "finds no name"),
    (bounds.nothing_else_is_reached, without("NetworkPolicy", "database"), "not reach Postgres"),
    (
        bounds.processes_reach_what_they_need,
        without("NetworkPolicy", "aws"),
        "does not reach 169.254.170.23:80",
    ),
    (
        bounds.doors_are_open_to_whom_they_should,
        put(("NetworkPolicy", "api"), "spec.ingress.0.from.0.ipBlock.cidr", "0.0.0.0/0"),
        "is open to every address",
    ),
    (
        bounds.doors_are_open_to_whom_they_should,
        without("NetworkPolicy", "metrics"),
        "worker: is open at [], not [9090]",
    ),
    (
        scaling.every_set_is_scaled_by_its_own_lane,
        put(SCALED, "spec.triggers.0.metadata.query", "SELECT work_in_lane('general')"),
        "and its lane is fast",
    ),
    (
        scaling.every_set_is_scaled_by_its_own_lane,
        put(SCALED, "spec.triggers.0.metadata.targetQueryValue", "17"),
        "17 jobs a pod, and it has 16 slots",
    ),
    (
        scaling.every_set_is_scaled_by_its_own_lane,
        put(QUARANTINE, "spec.triggers.0.metadata.targetQueryValue", "2"),
        "2 jobs a pod, and it has 1 slots",
    ),
    (
        scaling.every_set_is_scaled_by_its_own_lane,
        put(SCALED, "spec.triggers.1.metadata.queueURLFromEnv", "GENERAL_QUEUE_URL"),
        "looks at the queue of GENERAL_QUEUE_URL",
    ),
    (
        scaling.every_set_is_scaled_by_its_own_lane,
        put(SCALED, "spec.triggers.1.metadata.awsRegion", "us-east-1"),
        "looks for its queue in us-east-1",
    ),
    (
        scaling.every_set_is_scaled_by_its_own_lane,
        without("ScaledObject", "imagefleet-worker-general"),
        "imagefleet-worker-general: nobody scales it",
    ),
    (
        scaling.nobody_is_taken_away_from_work,
        put(SCALED, "spec.cooldownPeriod", 60),
        "goes to zero while others of it may drain",
    ),
    (
        scaling.nobody_is_taken_away_from_work,
        put(SCALED, f"{BEHAVIOR}.scaleDown.stabilizationWindowSeconds", 60),
        "takes more away while those before may drain",
    ),
    (
        scaling.nobody_is_taken_away_from_work,
        put(SCALED, "spec.triggers.1.metadata.scaleOnInFlight", "false"),
        "does not count the messages of what runs",
    ),
    (
        scaling.zero_is_left_for_the_first_job,
        put(SCALED, "spec.triggers.0.metadata.activationTargetQueryValue", "5"),
        "leaves some job waiting for others",
    ),
    (
        scaling.a_missing_trigger_takes_nobody_away,
        drop(SCALED, "spec.fallback"),
        "has fewer workers when a trigger is away",
    ),
    (
        scaling.a_missing_trigger_takes_nobody_away,
        put(SCALED, "spec.triggers.0.metricType", "Value"),
        "its threshold of postgresql is not that of a pod",
    ),
    (
        scaling.triggers_ask_under_rights_of_their_own,
        drop(("TriggerAuthentication", "imagefleet-scaling"), "spec.secretTargetRef.0"),
        "of the connection",
    ),
    (
        scaling.triggers_ask_under_rights_of_their_own,
        put(("TriggerAuthentication", "imagefleet-queues"), "spec", {}),
        "is nobody in AWS",
    ),
]
# The same of what only the overlay of one machine has.
BROKEN_LOCALLY: Final[list[tuple[Check, Change, str]]] = [
    (
        agreements.roles_are_the_process_own,
        put(
            ("Secret", "imagefleet-worker"),
            "stringData.DATABASE_URL",
            "postgresql://imagefleet_api:local-api@postgres:5432/imagefleet",
        ),
        "is imagefleet_api in Postgres, not imagefleet_worker",
    ),
    (
        agreements.secrets_are_by_reference,
        without("StatefulSet", "postgres"),
        "Secret imagefleet-api is in the manifests",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated(f"{bounds.NGINX}client-max-body-size", "10m"),
        "refuses bodies beyond 10m",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated(f"{bounds.NGINX}proxy-read-timeout", "20s"),
        "gives up after 20 s",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated(f"{bounds.NGINX}proxy-buffering", "True"),
        "keeps events back until there are many",
    ),
]
