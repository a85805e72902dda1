"""Ways to break what there is of the console, and of the way to it that may be chosen."""

from typing import Final

from tests.infra.kubernetes import agreements, bounds, living, wholeness
from tests.infra.kubernetes.agreements import Check
from tests.infra.kubernetes.breaking import (
    CONSOLE,
    CONTAINER,
    POD,
    Change,
    drop,
    given,
    put,
    without,
)
from tests.infra.kubernetes.rendering import Manifests

WAY: Final = ("Ingress", "imagefleet-console")
SERVICE: Final = ("Service", "imagefleet-console")
OUT: Final = ("NetworkPolicy", "console")
DOOR: Final = ("NetworkPolicy", "console-door")


def told_by_the_door(name: str, value: str) -> Change:
    """Say something else in the variables that come with the way to it."""

    def change(manifests: Manifests) -> None:
        (told,) = (
            each["data"]
            for each in manifests.of("ConfigMap")
            if name in each["data"] and "imagefleet-console-door" in each["metadata"]["name"]
        )
        told[name] = value

    return change


def annotated(key: str, value: str) -> Change:
    def change(manifests: Manifests) -> None:
        manifests.named(*WAY)["metadata"]["annotations"][bounds.ALB + key] = value

    return change


# Which check sees it, what is broken, and a part of what is said then.
BROKEN: Final[list[tuple[Check, Change, str]]] = [
    (wholeness.everything_runs, without(*CONSOLE), "nothing is console"),
    (
        agreements.variables_are_read,
        given(CONSOLE, "DATABASE_URL", "somewhere"),
        "imagefleet-console: console reads no DATABASE_URL",
    ),
    (
        agreements.settings_can_be_used,
        given(CONSOLE, "CONSOLE_IDLE_SECONDS", "long"),
        "imagefleet-console: these settings cannot be used: CONSOLE_IDLE_SECONDS",
    ),
    (
        agreements.shared_settings_are_the_same,
        given(CONSOLE, "PUBLIC_BASE_URL", "https://pictures.example.com"),
        "imagefleet-console: PUBLIC_BASE_URL is not as in imagefleet-api",
    ),
    (
        agreements.images_are_built,
        put(CONSOLE, f"{CONTAINER}.image", "somewhere/imagefleet-api:1"),
        "imagefleet-console: runs api, and is labelled console",
    ),
    (
        agreements.accounts_are_there,
        put(CONSOLE, f"{POD}.serviceAccountName", "imagefleet-api"),
        "imagefleet-console: is imagefleet-api, whose rights are another's",
    ),
    (
        living.graces_are_longer_than_drains,
        given(CONSOLE, "SHUTDOWN_GRACE_PERIOD_SECONDS", "30"),
        "imagefleet-console: has 60 s to end, and takes 80",
    ),
    (
        living.graces_are_longer_than_drains,
        drop(CONSOLE, f"{CONTAINER}.lifecycle"),
        "imagefleet-console: closes its port while requests are still sent to it",
    ),
    (
        living.probes_ask_what_is_answered,
        given(CONSOLE, "LISTEN_PORT", "8080"),
        "imagefleet-console: LISTEN_PORT is 8080",
    ),
    (
        living.probes_ask_what_is_answered,
        put(CONSOLE, f"{CONTAINER}.readinessProbe.httpGet.port", "http"),
        "imagefleet-console: readinessProbe does not ask /readyz at the port health",
    ),
    (
        living.selectors_find_pods,
        put(SERVICE, "spec.ports.0.targetPort", "https"),
        "imagefleet-console: nothing listens at https",
    ),
    (
        living.disruptions_leave_somebody,
        put(CONSOLE, "spec.replicas", 2),
        "imagefleet-console: is several, and each knows who is logged in to itself alone",
    ),
    (
        living.metrics_are_scraped,
        without("ServiceMonitor", "imagefleet-console"),
        "imagefleet-console: nobody scrapes it",
    ),
    (
        bounds.nothing_else_is_reached,
        drop(("NetworkPolicy", "database"), "spec.podSelector.matchExpressions"),
        "imagefleet-console: reaches Postgres",
    ),
    (
        bounds.processes_reach_what_they_need,
        drop(("NetworkPolicy", "aws"), "spec.podSelector.matchExpressions"),
        "imagefleet-console: could be somebody in AWS",
    ),
    (
        bounds.doors_are_open_to_whom_they_should,
        put(("NetworkPolicy", "api"), "spec.podSelector.matchLabels", {}),
        "console: is open at [8080, 9090], not [9090]",
    ),
    (
        wholeness.requests_lead_to_the_api,
        given(CONSOLE, "IMAGEFLEET_URL", "http://imagefleet"),
        "imagefleet-console: asks http://imagefleet, which is no Service",
    ),
    (
        wholeness.each_door_is_somebodys,
        drop(("NetworkPolicy", "api"), "spec.ingress.1.from.1"),
        "imagefleet-api: is open to [('console', 8080)] or not, unlike others",
    ),
    (
        wholeness.each_door_is_somebodys,
        without(*OUT),
        "imagefleet-console: reaches the API, or should",
    ),
    (
        wholeness.each_door_is_somebodys,
        drop(OUT, "spec.egress.0.ports"),
        "imagefleet-console: reaches [('api', 0), ('kube-dns', 53)], and asks the API alone",
    ),
    (
        wholeness.the_console_is_where_it_says,
        given(CONSOLE, "CONSOLE_ORIGIN", "https://console.example.com"),
        "takes forms from https://console.example.com, and is at []",
    ),
]
# The same of what is there only where its load balancer was chosen.
BROKEN_CHOSEN: Final[list[tuple[Check, Change, str]]] = [
    (
        wholeness.the_console_is_where_it_says,
        told_by_the_door("CONSOLE_ORIGIN", "http://console.example.com"),
        "takes forms from http://console.example.com, and is at ['console.example.com']",
    ),
    (
        wholeness.the_console_is_where_it_says,
        annotated("scheme", "internet-facing"),
        "imagefleet-console: is internet-facing",
    ),
    (
        wholeness.proxies_are_believed,
        told_by_the_door("TRUSTED_PROXIES", "10.9.0.0/16"),
        "imagefleet-console: takes every request for one of 10.0.16.0/20",
    ),
    (
        wholeness.requests_lead_to_the_api,
        put(WAY, "spec.rules.0.http.paths.0.backend.service.name", "imagefleet-api"),
        "not all of them to imagefleet-console",
    ),
    (
        wholeness.each_door_is_somebodys,
        without(*DOOR),
        "imagefleet-console: is open to [('addresses', 8081), ('addresses', 9090)] or not",
    ),
    (
        bounds.doors_are_open_to_whom_they_should,
        without(*DOOR),
        "console: is open at [9090], not [8081, 9090]",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated("load-balancer-attributes", "idle_timeout.timeout_seconds=20"),
        "gives up after 20 s",
    ),
    (
        bounds.proxies_let_through_what_is_promised,
        annotated("ssl-redirect", "80"),
        "lets somebody through without TLS",
    ),
    (
        living.selectors_find_pods,
        put(WAY, "spec.tls.0.hosts", ["other.example.com"]),
        "is served without TLS",
    ),
]
