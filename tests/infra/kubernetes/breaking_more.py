"""More ways to break what was rendered: what is taken away, and every sentence not said before."""

from typing import Final

from tests.infra.kubernetes import agreements, bounds, living, scaling, wholeness
from tests.infra.kubernetes.agreements import Check
from tests.infra.kubernetes.breaking import (
    API,
    BEHAVIOR,
    CONTAINER,
    FAST,
    INGRESS,
    MAINTENANCE,
    POD,
    QUARANTINE,
    SCALED,
    Change,
    annotated,
    drop,
    given,
    put,
    without,
)
from tests.infra.kubernetes.rendering import Manifests

OPERATOR: Final = ("Deployment", "imagefleet-operator")
MIGRATIONS: Final = ("Job", "imagefleet-migrations")
SERVICE: Final = ("Service", "imagefleet-api")
BUDGET: Final = ("PodDisruptionBudget", "imagefleet-worker-fast")
DOORS: Final = ("NetworkPolicy", "api")


def both(*changes: Change) -> Change:
    def change(manifests: Manifests) -> None:
        for each in changes:
            each(manifests)

    return change


# Which check sees it, what is broken, and a part of what is said then.
BROKEN: Final[list[tuple[Check, Change, str]]] = [
    (
        agreements.rights_are_least,
        put(("Namespace", "imagefleet"), "metadata.labels", {}),
        "the namespace takes pods that are privileged",
    ),
    (
        agreements.rights_are_least,
        drop(FAST, f"{POD}.volumes.1.secret.defaultMode"),
        "others may read secrets",
    ),
    (
        agreements.secrets_are_by_reference,
        given(API, "DATABASE_URL", "postgresql://imagefleet_api:word@host/imagefleet"),
        "DATABASE_URL is no secret here",
    ),
    (
        living.selectors_find_pods,
        put(INGRESS, "spec.rules.0.http.paths.0.backend.service.port.name", "https"),
        "there is no imagefleet-api:https",
    ),
    (
        living.metrics_are_scraped,
        put(("PodMonitor", "imagefleet-worker"), "spec.podMetricsEndpoints.0.path", "/"),
        "there are no metrics at health/",
    ),
    (
        bounds.memory_is_enough,
        drop(OPERATOR, f"{CONTAINER}.resources"),
        "takes whatever memory the node has",
    ),
    (
        bounds.memory_is_enough,
        drop(MAINTENANCE, f"{CONTAINER}.resources.requests.cpu"),
        "asks for no processor",
    ),
    (
        bounds.memory_is_enough,
        put(FAST, f"{CONTAINER}.resources.limits.cpu", "1"),
        "its beat stands still",
    ),
    (
        bounds.memory_is_enough,
        put(FAST, f"{CONTAINER}.resources.requests.memory", "1Gi"),
        "counts on memory that the node has not promised",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated(f"{bounds.ALB}healthcheck-path", "/"),
        "asks ('9090', '/') who is ready",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated(f"{bounds.ALB}target-type", "instance"),
        "does not know which pod ends",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        put(INGRESS, "spec.ingressClassName", "traefik"),
        "nobody said what traefik lets through",
    ),
    (
        bounds.nothing_else_is_reached,
        drop(("NetworkPolicy", "database"), "spec.egress.0.to"),
        "reaches anybody in clear text, or as a database",
    ),
    (
        bounds.processes_reach_what_they_need,
        put(("NetworkPolicy", "aws"), "spec.podSelector", {}),
        "could be somebody in AWS, and needs nothing there",
    ),
    (
        bounds.doors_are_open_to_whom_they_should,
        drop(("NetworkPolicy", "metrics"), "spec.ingress.0.from"),
        "is open to everybody",
    ),
    (
        scaling.every_set_is_scaled_by_its_own_lane,
        drop(SCALED, "spec.triggers.0"),
        "is not scaled by Postgres first, and by SQS",
    ),
    (
        scaling.nobody_is_taken_away_from_work,
        put(SCALED, f"{BEHAVIOR}.scaleDown.policies.0.value", 100),
        "may take everybody at once",
    ),
    (
        scaling.nobody_is_taken_away_from_work,
        put(SCALED, f"{BEHAVIOR}.scaleUp.stabilizationWindowSeconds", 60),
        "hesitates where work waits",
    ),
    (
        scaling.zero_is_left_for_the_first_job,
        put(SCALED, "spec.minReplicaCount", 20),
        "has from 20 to 20 workers",
    ),
    (
        scaling.a_missing_trigger_takes_nobody_away,
        put(SCALED, "spec.fallback.replicas", 0),
        "falls back to 0 workers",
    ),
    (
        scaling.a_missing_trigger_takes_nobody_away,
        put(SCALED, "spec.fallback.failureThreshold", 30),
        "falls back after 150 s",
    ),
    (
        scaling.triggers_ask_under_rights_of_their_own,
        without("TriggerAuthentication", "imagefleet-queues"),
        "there is no TriggerAuthentication 'imagefleet-queues'",
    ),
    (
        scaling.triggers_ask_under_rights_of_their_own,
        put(SCALED, "spec.triggers.1.metadata.identityOwner", "operator"),
        "takes rights from the workers",
    ),
    (wholeness.everything_runs, without(*MAINTENANCE), "nothing is maintenance"),
    (wholeness.everything_runs, without(*MIGRATIONS), "nothing is migrations"),
    (
        wholeness.everything_runs,
        without("HorizontalPodAutoscaler", "imagefleet-api"),
        "imagefleet-api: is one pod for ever, as nobody scales it",
    ),
    (
        wholeness.migrations_have_their_time,
        drop(MIGRATIONS, f"{CONTAINER}.args"),
        "imagefleet-migrations: migrates nothing",
    ),
    (
        wholeness.migrations_have_their_time,
        put(MIGRATIONS, "spec.activeDeadlineSeconds", 3600),
        "imagefleet-migrations: is ended after 3600 s amid a statement",
    ),
    (
        wholeness.what_is_mounted_can_be_used,
        drop(FAST, f"{CONTAINER}.volumeMounts.0"),
        "imagefleet-worker-fast: writes nowhere",
    ),
    (
        wholeness.what_is_mounted_can_be_used,
        put(API, f"{CONTAINER}.volumeMounts.1.name", "secret"),
        "secret is a volume or a mount, and not both",
    ),
    (
        wholeness.what_is_mounted_can_be_used,
        drop(FAST, f"{POD}.securityContext.fsGroup"),
        "may not read its secrets, which are another group's",
    ),
    (
        wholeness.what_is_mounted_can_be_used,
        both(drop(API, f"{CONTAINER}.volumeMounts.2"), drop(API, f"{POD}.volumes.2")),
        "finds nobody's certificates in /etc/imagefleet/database-ca",
    ),
    (
        wholeness.every_secret_has_its_reader,
        drop(API, f"{CONTAINER}.env.1"),
        "Secret imagefleet-api: nobody reads OPERATOR_DATABASE_URL",
    ),
    (
        wholeness.everybody_is_spread,
        drop(FAST, f"{POD}.topologySpreadConstraints.0"),
        "may be in one zone, or on one node",
    ),
    (
        wholeness.everybody_is_spread,
        drop(
            FAST,
            f"{POD}.topologySpreadConstraints.0.labelSelector.matchLabels.imagefleet/lane",
        ),
        "is spread by other pods than its own",
    ),
    (
        wholeness.disruptions_take_few,
        drop(BUDGET, "spec.maxUnavailable"),
        "imagefleet-worker-fast: 100% of them may go at once",
    ),
    (
        wholeness.requests_lead_to_the_api,
        without(*INGRESS),
        "requests are led to [], and not all of them to imagefleet-api",
    ),
    (
        wholeness.requests_lead_to_the_api,
        given(OPERATOR, "IMAGEFLEET_URL", "http://imagefleet"),
        "asks http://imagefleet, which is no Service",
    ),
    (
        wholeness.proxies_are_believed,
        given(API, "TRUSTED_PROXIES", "10.9.0.0/16"),
        "takes every request for one of 10.0.0.0/20",
    ),
    (
        wholeness.monitors_find_their_port,
        put(("PodMonitor", "imagefleet-maintenance"), "spec.selector.matchLabels", {}),
        "imagefleet-worker-fast: is scraped by 2",
    ),
    (
        wholeness.monitors_find_their_port,
        drop(SERVICE, "spec.ports.1"),
        "no Service has a port health",
    ),
    (
        wholeness.each_door_is_somebodys,
        drop(DOORS, "spec.ingress.0"),
        "is open to [('addresses', 8080), ('addresses', 9090)] or not, unlike others",
    ),
    (
        wholeness.each_door_is_somebodys,
        without("NetworkPolicy", "operator"),
        "imagefleet-operator: reaches the API, or should",
    ),
    (
        wholeness.names_are_asked_of_the_cluster,
        drop(("NetworkPolicy", "dns"), "spec.egress.0.to"),
        "may carry anything away in questions for names",
    ),
    (
        wholeness.names_are_asked_of_the_cluster,
        put(("NetworkPolicy", "dns"), "spec.egress.0.ports.0.protocol", "TCP"),
        "asks the cluster for names by [('TCP', 53)] alone",
    ),
    (
        scaling.every_set_is_scaled_by_its_own_lane,
        put(QUARANTINE, "spec.triggers.1.metadata.queueLength", "0"),
        "0 jobs a pod, and it has 1 slots",
    ),
]
# The same of what only the overlay of one machine has.
BROKEN_LOCALLY: Final[list[tuple[Check, Change, str]]] = [
    (
        agreements.roles_are_the_process_own,
        put(("Secret", "imagefleet-scaling"), "stringData.user", "imagefleet_api"),
        "KEDA is imagefleet_api in Postgres, not imagefleet_scaler",
    ),
]
