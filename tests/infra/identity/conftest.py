"""An API, a worker and maintenance on the same queues, buckets and database."""

import pytest

from imagefleet.embedded.bootstrap import InPlace
from tests.support.fixtures import emulator, place, secrets, serve
from tests.support.fleet import Place
from tests.support.rights import Table

__all__ = ["emulator", "place", "secrets", "serve"]


@pytest.fixture
def applied(place: Place) -> InPlace:
    """Of the API, too."""
    return place.applied


@pytest.fixture(scope="session")
def table() -> Table:
    return Table.read()
