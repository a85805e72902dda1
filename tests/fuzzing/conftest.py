"""An API as it is deployed, for requests of every kind."""

from tests.support.fixtures import (
    applied,
    aws_credentials,
    emulator,
    running,
    secrets,
    serve,
)

__all__ = ["applied", "aws_credentials", "emulator", "running", "secrets", "serve"]
