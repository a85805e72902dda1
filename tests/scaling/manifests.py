"""ScaledObjects and the Deployments that they scale, as rendered; every duration is in seconds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Document: TypeAlias = Mapping[str, Any]

POSTGRES: Final = "postgresql"
SQS: Final = "aws-sqs-queue"
LIMIT: Final = {POSTGRES: "targetQueryValue", SQS: "queueLength"}
ACTIVATION: Final = {POSTGRES: "activationTargetQueryValue", SQS: "activationQueueLength"}
ASKS: Final = {POSTGRES: "query", SQS: "queueURLFromEnv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What is asked, and how much of it one worker is to have."""

    kind: str
    asks: str
    """A query, or the variable of the workers with the queue's address."""
    threshold: float
    activation: float
    """More than this brings the first worker."""
    cached: bool
    """Whether the HPA is told what was heard at the last poll."""
    in_flight: bool
    """Of a queue: whether messages count that somebody has received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """By how much the number of workers may change within a period."""

    kind: Literal["Pods", "Percent"]
    value: int
    period: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How fast it may go into one direction."""

    window: float
    """Of all that was recommended within it, the mildest counts."""
    policies: tuple[Policy, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"


# What an HPA has where nothing is said: autoscaling/v2.
UP: Final = Rules(
    window=0,
    policies=(
        Policy(kind="Pods", value=4, period=15),
        Policy(kind="Percent", value=100, period=15),
    ),
)
DOWN: Final = Rules(window=300, policies=(Policy(kind="Percent", value=100, period=15),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What is assumed of a trigger that answered so often with an error."""

    failures: int
    replicas: int
    behavior: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A ScaledObject, and of its Deployment what the workers are told."""

    name: str
    least: int
    most: int
    polling: float
    cooldown: float
    """From the last active poll to zero."""
    fallback: Fallback | None
    triggers: tuple[Trigger, ...]
    up: Rules
    down: Rules
    environment: Mapping[str, str]
    """Variables of the worker that have their value in the manifest."""
    grace: float
    """From SIGTERM to SIGKILL."""

    @property
    def lane(self) -> str:
        """The one that its workers listen to."""
        return self.environment["WORKER_LANES"]

    @property
    def slots(self) -> int:
        """How many jobs one worker runs at once; a suspect is alone."""
        return int(self.environment.get(f"WORKER_{self.lane.upper()}_SLOTS", 1))


def read_scaled(documents: Iterable[Document]) -> list[Scaled]:
    """Every ScaledObject among these, with its Deployment."""
    given = list(documents)
    workloads = {each["metadata"]["name"]: each for each in given if each["kind"] == "Deployment"}
    return [
        _scaled(each, workloads[each["spec"]["scaleTargetRef"]["name"]])
        for each in given
        if each["kind"] == "ScaledObject"
    ]


def _scaled(document: Document, workload: Document) -> Scaled:
    spec, pod = document["spec"], workload["spec"]["template"]["spec"]
    advanced = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    behavior = advanced.get("behavior", {})
    return Scaled(
        name=document["metadata"]["name"],
        least=spec.get("minReplicaCount", 0),
        most=spec.get("maxReplicaCount", 100),
        polling=spec.get("pollingInterval", 30),
        cooldown=spec.get("cooldownPeriod", 300),
        fallback=_fallback(spec.get("fallback")),
        triggers=tuple(map(_trigger, spec["triggers"])),
        up=_rules(behavior.get("scaleUp", {}), UP),
        down=_rules(behavior.get("scaleDown", {}), DOWN),
        environment={
            variable["name"]: variable["value"]
            for variable in pod["containers"][0]["env"]
            if "value" in variable
        },
        grace=pod.get("terminationGracePeriodSeconds", 30),
    )


def _fallback(given: Mapping[str, Any] | None) -> Fallback | None:
    if given is None:
        return None
    return Fallback(
        failures=given["failureThreshold"],
        replicas=given["replicas"],
        behavior=given.get("behavior", "static"),
    )


def _trigger(given: Mapping[str, Any]) -> Trigger:
    kind, asked = given["type"], given["metadata"]
    assert kind in LIMIT, f"nobody here can play a trigger of the type {kind}"
    assert given.get("metricType", "AverageValue") == "AverageValue", given
    return Trigger(
        kind=kind,
        asks=asked[ASKS[kind]],
        threshold=float(asked[LIMIT[kind]]),
        activation=float(asked.get(ACTIVATION[kind], 0)),
        cached=given.get("useCachedMetrics", False),
        in_flight=asked.get("scaleOnInFlight", "true") == "true",
    )


def _rules(given: Mapping[str, Any], otherwise: Rules) -> Rules:
    policies = tuple(
        Policy(kind=policy["type"], value=policy["value"], period=policy["periodSeconds"])
        for policy in given.get("policies", ())
    )
    return Rules(
        window=given.get("stabilizationWindowSeconds", otherwise.window),
        policies=policies or otherwise.policies,
        select=given.get("selectPolicy", otherwise.select),
    )
