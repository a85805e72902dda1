"""Where a second apply to the emulator would change something that AWS leaves alone.

By resource, with the attributes that the emulator forgets. Each has a name, which the page of
infra/aws has too; one that goes away is noticed as well as one that comes.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Difference(NamedTuple):
    """What never converges."""

    name: str
    attributes: tuple[str, ...]


_ALARM: Final = Difference(
    "alarms-are-told-in-part",
    (
        "actions_enabled",
        "alarm_description",
        "dimensions",
        "period",
        "statistic",
        "treat_missing_data",
    ),
)
DIFFERENCES: Final[Mapping[str, Difference]] = {
    **{
        f"module.alarms.aws_cloudwatch_metric_alarm.{alarm}": _ALARM
        for alarm in ("database", "dead_letters", "edge_errors", "oldest_message")
    },
    "module.database.aws_db_instance.postgres": Difference(
        "exports-of-logs-are-forgotten", ("enabled_cloudwatch_logs_exports",)
    ),
    "module.network.aws_vpc_endpoint.s3": Difference(
        "endpoints-have-no-policy",
        ("policy",),
    ),
    "module.network.aws_vpc_endpoint.sqs": Difference(
        "endpoints-have-no-policy", ("policy", "private_dns_enabled", "security_group_ids")
    ),
}


def of(address: str) -> str:
    """The resource in its module, whichever of several it is."""
    return address.partition("[")[0]
