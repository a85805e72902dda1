"""The API as it is deployed; what the fixtures promise is in tests/support/fixtures.py."""

from tests.support.fixtures import *  # noqa: F403 - those of its `__all__`
