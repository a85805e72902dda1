"""The command line as a whole: what it lists, how it ends."""

from importlib.metadata import version

import pytest

from imagefleet.cli.main import STARTED_ELSEWHERE
from imagefleet.cli.output import ExitCode
from tests.cli.conftest import Cli

VERBS = (
    "up", "submit", "jobs", "images", "dlq", "queue", "breaker", "workers", "ledger", "prune",
    "sweep", "doctor", "migrate", "keys", "recipes", "settings", "version",
)  # fmt: skip


async def test_help_lists_every_verb_and_process(cli: Cli) -> None:
    ended = await cli("--help")

    assert ExitCode.DONE == ended.code
    for name in (*VERBS, *STARTED_ELSEWHERE):
        assert f" {name} " in ended.out
    assert "Exit codes" in ended.out


@pytest.mark.parametrize(
    "verb",
    ["up", "submit", "jobs submit", "jobs show", "jobs list", "jobs types", "jobs watch",
     "images show", "images list", "images focal", "images download", "images original",
     "jobs explain", "jobs attempts", "jobs cancel", "jobs fail", "jobs retry-now", "dlq list",
     "dlq show", "dlq groups", "dlq ack", "dlq replay", "queue stats", "queue pauses",
     "queue rates", "queue costs",
     "queue pause", "queue resume", "breaker list", "breaker open", "breaker reset",
     "workers list", "workers drain", "ledger", "prune", "sweep", "keys create", "keys list",
     "keys revoke", "migrate", "doctor", "settings", "recipes list", "recipes show",
     "recipes check", "recipes diff", "recipes schema"],
)  # fmt: skip
async def test_every_verb_teaches_by_example(cli: Cli, verb: str) -> None:
    ended = await cli(*verb.split(), "--help")

    assert ExitCode.DONE == ended.code
    assert "For example:" in ended.out
    assert f"imagefleet {verb}" in ended.out


async def test_version_is_the_installed_one(cli: Cli) -> None:
    assert version("imagefleet") == (await cli("version")).out.strip()


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("submit",), ("jobs", "list", "--limit", "x")]
)
async def test_a_command_that_cannot_be_used_is_told_so(
    cli: Cli, arguments: tuple[str, ...]
) -> None:
    ended = await cli(*arguments)

    assert ExitCode.USAGE == ended.code
    assert ended.out == ""
    assert ended.err


@pytest.mark.parametrize("process", STARTED_ELSEWHERE)
async def test_a_process_takes_no_options(cli: Cli, process: str) -> None:
    ended = await cli(process)

    assert ExitCode.USAGE == ended.code
    assert "docs/settings.md" in ended.err


async def test_completion_can_be_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_IMAGEFLEET_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "imagefleet mig")
    monkeypatch.setenv("COMP_CWORD", "1")

    assert (await cli()).out.split() == ["migrate"]
