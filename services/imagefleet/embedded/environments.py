"""The environment of each process: exactly what it reads, and nothing of ours."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from imagefleet.embedded.ports import HOST

API_GRACE: Final = 10  # seconds; the longest poll of a job's state ends at once
WORKER_GRACE: Final = 20  # an image takes less; what is left is given back and goes on next time
RECEIVE_WAIT: Final = 1  # seconds that a drain waits for the receive on its way

# No terminal's, user's or cloud account's settings reach a process: what works here then works
# because of what is written here.
PASSED_ON: Final = ("LANG", "LC_ALL", "TMPDIR", "TZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the stack is, once it is there."""

    database_urls: Mapping[str, str]
    """By role, without its prefix."""
    aws: Mapping[str, str]
    """How to reach the emulator."""
    topology: Mapping[str, str]
    """Queues, buckets and the distribution, as the processes read them."""
    public_base_url: str


# The AWS SDK would look for a user's profiles and for a cloud machine's credentials.
NO_CLOUD: Final = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def forget_cloud_account() -> None:
    """Let the SDK in this process see nothing of the user's own AWS account."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(NO_CLOUD)


def base_environment() -> dict[str, str]:
    """What every process has."""
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {
        "PATH": os.defpath,
        "PYTHONUNBUFFERED": "1",  # the last words of a process that dies are the ones that matter
        "LOG_FORMAT": "console",
        **NO_CLOUD,
        **passed_on,
    }


def environment_of(
    process: str, facts: Facts, *, health_port: int, port: int = 0
) -> dict[str, str]:
    """The variables of the api, a worker or maintenance."""
    own: dict[str, str]
    match process:
        case "api":
            own = {
                "OPERATOR_DATABASE_URL": facts.database_urls["operator"],
                "PUBLIC_BASE_URL": facts.public_base_url,
                "LISTEN_HOST": HOST,
                "LISTEN_PORT": str(port),
                "SHUTDOWN_GRACE_PERIOD_SECONDS": str(API_GRACE),
            }
        case "worker":
            own = {
                "SHUTDOWN_GRACE_PERIOD_SECONDS": str(WORKER_GRACE),
                "RECEIVE_WAIT_SECONDS": str(RECEIVE_WAIT),
            }
        case _:
            own = {}
    return {
        **base_environment(),
        **facts.aws,
        **facts.topology,
        "DATABASE_URL": facts.database_urls[process],
        "HEALTH_LISTEN_HOST": HOST,
        "HEALTH_LISTEN_PORT": str(health_port),
        **own,
    }
