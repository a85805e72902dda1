"""All that is looked at in rendered manifests, in one place; but for Kubernetes' own schemas."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import jsonschema_rs

from tests.infra.kubernetes import agreements, bounds, living, scaling, wholeness
from tests.infra.kubernetes.agreements import Check
from tests.infra.kubernetes.rendering import Manifests

CUSTOM: Final = Path(__file__).with_name("custom.json")
OF_CUSTOM: Final = ("keda.sh/", "monitoring.coreos.com/", "external-secrets.io/")


@cache
def _custom() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(json.loads(CUSTOM.read_text(encoding="utf-8")))


def custom_resources_are_well_formed(manifests: Manifests) -> Iterator[str]:
    """By a strict part of their schemas: servers would drop what is misspelt, and say nothing."""
    for document in manifests.documents:
        if document["apiVersion"].startswith(OF_CUSTOM) and not _custom().is_valid(document):
            yield f"{document['kind']} {document['metadata']['name']}: is not as custom.json says"


def everything_is_in_one_namespace(manifests: Manifests) -> Iterator[str]:
    for document in manifests.documents:
        kind, metadata = document["kind"], document["metadata"]
        if kind != "Namespace" and metadata.get("namespace") != "imagefleet":
            yield f"{kind} {metadata['name']}: is in another namespace"


CHECKS: Final[tuple[Check, ...]] = (
    custom_resources_are_well_formed,
    everything_is_in_one_namespace,
    *agreements.CHECKS,
    *living.CHECKS,
    *bounds.CHECKS,
    *scaling.CHECKS,
    *wholeness.CHECKS,
)


def faults_of(manifests: Manifests) -> list[str]:
    return [fault for check in CHECKS for fault in check(manifests)]
