"""What is said once everything is ready: to people, and to programs in the ready file."""

from collections.abc import Mapping
from pathlib import Path

from imagefleet.embedded.environments import Facts


def ready_document(
    facts: Facts,
    *,
    api_url: str,
    health_urls: Mapping[str, str],
    keys: Mapping[str, str],
    processes: Mapping[str, int],
) -> dict[str, object]:
    """Everything that a program needs to use this stack, secrets included."""
    return {
        "api_url": api_url,
        "console_url": None,
        "public_base_url": facts.public_base_url,
        "metrics_urls": {name: f"{url}/metrics" for name, url in health_urls.items()},
        "api_key": keys["api-key"],
        "operator_key": keys["operator-key"],
        "database_urls": dict(facts.database_urls),
        "aws_endpoint_url": facts.aws["AWS_ENDPOINT_URL"],
        "aws": dict(facts.aws),
        "buckets": _named(facts.topology, "_BUCKET"),
        "queue_urls": _named(facts.topology, "_QUEUE_URL"),
        "distribution_id": facts.topology.get("CLOUDFRONT_DISTRIBUTION_ID"),
        "processes": dict(processes),
    }


def _named(topology: Mapping[str, str], kind: str) -> dict[str, str]:
    """`FAST_QUEUE_URL` is the queue `fast`."""
    return {
        name.removesuffix(kind).lower().replace("_", "-"): value
        for name, value in topology.items()
        if name.endswith(kind)
    }


def what_to_try(
    facts: Facts, *, api_url: str, health_urls: Mapping[str, str], key_file: Path
) -> list[str]:
    """Lines for somebody at the terminal."""
    return [
        f"API          {api_url}",
        f"images       {facts.public_base_url}",
        *(f"{name:<12} {url}/metrics" for name, url in health_urls.items()),
        f"keys         {key_file} (submit, read), operator-key beside it (all scopes)",
        "",
        "In another terminal, with any image you have:",
        "",
        f'  curl -sS -H "Authorization: Bearer $(cat {key_file})" \\',
        f"    -H 'Content-Type: image/jpeg' --data-binary @photo.jpg {api_url}/v1/images",
        "",
        "Ctrl-C ends everything in order and keeps it for next time; a second one ends it now.",
    ]
