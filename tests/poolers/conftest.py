"""A fleet's place, for a PgBouncer to stand before."""

from tests.support.fixtures import emulator, place

__all__ = ["emulator", "place"]
