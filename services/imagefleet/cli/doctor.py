"""`imagefleet doctor`: is everything there that a process needs, and if not, what is to be done."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from imagefleet.cli.output import ExitCode, Json, finish, print_checks, print_json, run_async


class Role(StrEnum):
    """Whose environment this is."""

    API = "api"
    WORKER = "worker"
    MAINTENANCE = "maintenance"
    OPERATOR = "operator"


def doctor(
    role: Annotated[
        Role | None, typer.Option("--as", help="The process whose environment this is.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check everything that a process depends on, one line each.

    Run it in the environment of the process that does not work, in its container for example.
    Exits with 1 when a check fails. It writes one object to each bucket and deletes it again.

    For example:

        imagefleet doctor --as worker
    """
    from imagefleet.cli.checks import examine  # noqa: PLC0415 - with it comes the AWS SDK

    checks = run_async(examine(role=role.value if role else None))
    failed = [check for check in checks if not check.ok]
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        print_checks([(check.ok, check.name, check.found, check.advice) for check in checks])
    finish(ExitCode.FAILED if failed else ExitCode.DONE)
