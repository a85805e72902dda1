"""The API as it is deployed; what the fixtures promise is in tests/support/fixtures.py."""

from tests.support.fixtures import (
    acme,
    applied,
    aws_credentials,
    emulator,
    operating,
    originals,
    rival,
    running,
    secrets,
    serve,
)

__all__ = [
    "acme",
    "applied",
    "aws_credentials",
    "emulator",
    "operating",
    "originals",
    "rival",
    "running",
    "secrets",
    "serve",
]
