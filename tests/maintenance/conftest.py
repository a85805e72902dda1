"""A place for a fleet; what the fixtures promise is in tests/support/place_fixtures.py."""

from tests.support.place_fixtures import emulator, place

__all__ = ["emulator", "place"]
