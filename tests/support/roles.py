"""The roles of a test, by the short name of the process that uses them."""

from typing import Literal

Role = Literal["owner", "api", "worker", "maintenance", "operator", "admin", "superuser"]

# Throw-away servers on 127.0.0.1. Fixed, so that parallel test processes on one given server agree.
PASSWORDS = {
    f"imagefleet_{name}": f"{name}-of-tests"
    for name in ("owner", "api", "worker", "maintenance", "operator", "admin")
}


def login(role: Role) -> str:
    return "postgres" if role == "superuser" else f"imagefleet_{role}"
