"""What KEDA is told, held against lanes, slots, drains and what its scalers can read."""

import re
from collections.abc import Iterator
from typing import Any, Final

from imagefleet.errors import Misconfigured
from imagefleet.settings import WorkerSettings
from imagefleet.worker.slots import QUARANTINE_SLOTS
from tests.infra.kubernetes.agreements import settings_of
from tests.infra.kubernetes.rendering import Document, Manifests, Workload

WORK: Final = "postgresql"
MESSAGES: Final = "aws-sqs-queue"
ASKED: Final = re.compile(r"SELECT work_in_lane\('(\w+)'\)")
# Not in one string: pools of KEDA are told apart by these.
OF_A_CONNECTION: Final = {"host", "port", "dbName", "userName", "password", "sslmode"}
LONGEST_BLINDNESS: Final = 60  # seconds without a trigger until the fallback


def triggers_of(scaled: Document) -> dict[str, Document]:
    return {each["type"]: each for each in scaled["spec"]["triggers"]}


def _sets(manifests: Manifests) -> Iterator[tuple[str, Document, Workload, WorkerSettings]]:
    """Every set of workers with what scales it, as far as its settings can be used."""
    for workload in manifests.running("worker"):
        for scaled in manifests.of("ScaledObject"):
            if scaled["spec"]["scaleTargetRef"]["name"] == workload.name:
                try:
                    settings = settings_of(manifests, workload)
                except Misconfigured:
                    continue  # it is said elsewhere
                yield scaled["metadata"]["name"], scaled, workload, settings


def slots(settings: WorkerSettings, lane: str) -> int:
    """How many jobs of a lane one worker runs at once."""
    of = {
        "fast": settings.worker.fast_slots,
        "general": settings.worker.general_slots,
        "quarantine": QUARANTINE_SLOTS,
    }
    return of[lane]


def every_set_is_scaled_by_its_own_lane(manifests: Manifests) -> Iterator[str]:
    scaled_sets = {workload.name for _, _, workload, _ in _sets(manifests)}
    for workload in manifests.running("worker"):
        if workload.name not in scaled_sets:
            yield f"{workload.name}: nobody scales it"
    for name, scaled, workload, settings in _sets(manifests):
        lane = workload.given["WORKER_LANES"]
        if [each["type"] for each in scaled["spec"]["triggers"]] != [WORK, MESSAGES]:
            yield f"{name}: is not scaled by Postgres first, and by SQS"
            continue
        work, messages = (triggers_of(scaled)[kind]["metadata"] for kind in (WORK, MESSAGES))
        asked = ASKED.fullmatch(work["query"])
        if asked is None or asked[1] != lane:
            yield f"{name}: asks {work['query']!r}, and its lane is {lane}"
        url = messages.get("queueURLFromEnv")
        there = manifests.environment(workload)
        if url != f"{lane.upper()}_QUEUE_URL" or not there.get(url):
            yield f"{name}: looks at the queue of {url}"
        if messages["awsRegion"] != there.get("AWS_REGION"):
            yield f"{name}: looks for its queue in {messages['awsRegion']}"
        for threshold in (work["targetQueryValue"], messages["queueLength"]):
            if not 0 < float(threshold) <= slots(settings, lane):
                yield f"{name}: {threshold} jobs a pod, and it has {slots(settings, lane)} slots"


def nobody_is_taken_away_from_work(manifests: Manifests) -> Iterator[str]:
    for name, scaled, _, settings in _sets(manifests):
        spec: dict[str, Any] = scaled["spec"]
        drain = settings.worker.shutdown_grace.total_seconds()
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        if spec["cooldownPeriod"] < drain:
            yield f"{name}: goes to zero while others of it may drain"
        if behavior["scaleDown"]["stabilizationWindowSeconds"] < drain:
            yield f"{name}: takes more away while those before may drain"
        if not all(each["value"] < 100 for each in behavior["scaleDown"]["policies"]):
            yield f"{name}: may take everybody at once"
        if behavior["scaleUp"]["stabilizationWindowSeconds"] != 0:
            yield f"{name}: hesitates where work waits"
        messages = triggers_of(scaled)[MESSAGES]["metadata"]
        if messages.get("scaleOnInFlight") != "true":
            yield f"{name}: does not count the messages of what runs"


def zero_is_left_for_the_first_job(manifests: Manifests) -> Iterator[str]:
    for name, scaled, _, _ in _sets(manifests):
        triggers = triggers_of(scaled)
        activation = {
            "activationTargetQueryValue": triggers[WORK]["metadata"],
            "activationQueueLength": triggers[MESSAGES]["metadata"],
        }
        for what, told in activation.items():
            if float(told.get(what, "0")) != 0:
                yield f"{name}: {what} leaves some job waiting for others"
        least, most = (scaled["spec"][each] for each in ("minReplicaCount", "maxReplicaCount"))
        if not 0 <= least < most:
            yield f"{name}: has from {least} to {most} workers"


def a_missing_trigger_takes_nobody_away(manifests: Manifests) -> Iterator[str]:
    for name, scaled, _, _ in _sets(manifests):
        spec = scaled["spec"]
        fallback = spec.get("fallback", {})
        if fallback.get("behavior") != "currentReplicasIfHigher":
            yield f"{name}: has fewer workers when a trigger is away"
        if not 0 < fallback.get("replicas", 0) <= spec["maxReplicaCount"]:
            yield f"{name}: falls back to {fallback.get('replicas', 0)} workers"
        blind = fallback.get("failureThreshold", 0) * spec["pollingInterval"]
        if not 0 < blind <= LONGEST_BLINDNESS:
            yield f"{name}: falls back after {blind} s"
        for trigger in spec["triggers"]:
            if trigger.get("metricType", "AverageValue") != "AverageValue":
                yield f"{name}: its threshold of {trigger['type']} is not that of a pod"


def triggers_ask_under_rights_of_their_own(manifests: Manifests) -> Iterator[str]:
    for name, scaled, _, _ in _sets(manifests):
        for kind, trigger in triggers_of(scaled).items():
            asked = trigger.get("authenticationRef", {}).get("name", "")
            told = manifests.named("TriggerAuthentication", asked).get("spec")
            if told is None:
                yield f"{name}: there is no TriggerAuthentication {asked!r}"
                continue
            parameters = {each["parameter"] for each in told.get("secretTargetRef", ())}
            if kind == WORK and parameters != OF_A_CONNECTION:
                yield f"{asked}: names {sorted(parameters)} of the connection"
            if kind == MESSAGES and not (
                told.get("podIdentity", {}).get("provider") == "aws"
                or parameters == {"awsAccessKeyID", "awsSecretAccessKey"}
            ):
                yield f"{asked}: is nobody in AWS"
            if {"identityOwner", "connectionFromEnv", "passwordFromEnv"} & set(trigger["metadata"]):
                yield f"{name}: takes rights from the workers"


CHECKS: Final = (
    every_set_is_scaled_by_its_own_lane,
    nobody_is_taken_away_from_work,
    zero_is_left_for_the_first_job,
    a_missing_trigger_takes_nobody_away,
    triggers_ask_under_rights_of_their_own,
)
