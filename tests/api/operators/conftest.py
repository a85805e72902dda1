"""The command line beside the routes."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from tests.cli.conftest import Cli, cli
from tests.support.api import Running

__all__ = ["cli"]


@pytest.fixture
def operate(cli: Cli, running: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """The command line in the hands of an operator; the API's log is kept out of its output."""
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["operator"])
    with capture_logs():
        yield cli
