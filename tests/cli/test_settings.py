"""`imagefleet settings` against a real API and a real Postgres."""

from collections.abc import Callable

import pytest

from imagefleet.cli.output import ExitCode
from tests.cli.conftest import Cli, Ended, document


async def test_what_is_turned_fits_a_terminal_of_eighty_columns(
    operate: Cli, terminal: Callable[[int], None]
) -> None:
    terminal(80)
    why = "Postgres is slow while its disk is being replaced, which takes until noon"
    await operate("settings", "live", "set", "retention.superseded_seconds", "0", "--reason", why)

    ended = await operate("settings", "live", "list")

    assert ended.code == ExitCode.DONE, ended.err
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["name", "value", "default", "why"] == lines[0].split()
    (turned,) = [line for line in lines if line.startswith("retention.superseded_seconds")]
    assert "0" == turned.split()[1]
    assert any(line.startswith("breaker.<service>.window_seconds") for line in lines)


async def test_a_setting_is_turned_and_undone_by_one_verb_each(operate: Cli) -> None:
    name = "retry.*.max_attempts"
    turn = ("settings", "live", "set", name, "8", "--reason", "a bad day")
    back = ("settings", "live", "reset", name, "--reason", "over")

    assert (ExitCode.DONE, f"{name} is 8 (by default 5)\n") == _said(await operate(*turn))
    (listed,) = document(await operate("settings", "live", "list", "--turned", "--json"))[
        "settings"
    ]
    assert (8, 5, "a bad day") == (listed["value"], listed["default"], listed["reason"])
    assert (ExitCode.DONE, f"{name} is as by default, 5\n") == _said(await operate(*back))
    assert {"settings": []} == document(
        await operate("settings", "live", "list", "--turned", "--json")
    )
    assert ExitCode.REFUSED == (await operate(*back)).code


def _said(ended: Ended) -> tuple[int, str]:
    return ended.code, ended.out


@pytest.mark.parametrize("value", ["many", "0", "1.5", "true", "[]"])
async def test_a_value_that_may_not_be_is_refused_by_what_is_allowed(
    operate: Cli, value: str
) -> None:
    name = "retry.*.max_attempts"

    ended = await operate("settings", "live", "set", name, value, "--reason", "why")

    assert ended.code == ExitCode.REFUSED
    if value != "[]":
        assert f"{name} is a whole number from 1 to 100." in ended.err


async def test_a_slip_in_a_name_is_told(operate: Cli) -> None:
    slip = await operate("settings", "live", "set", "timeout.type.nop", "5", "--reason", "why")
    switch = await operate(
        "settings", "live", "set", "retention.sweep_deletes", "false", "--reason", "why"
    )

    assert "the API knows nothing that timeout.type.nop is about" in slip.err
    assert "retention.sweep_deletes is false\n" == switch.out


async def test_the_page_of_settings_is_printed_as_before(cli: Cli) -> None:
    ended = await cli("settings")

    assert ended.code == ExitCode.DONE
    assert ended.out.startswith("# Settings")
    assert "| `slots.lane.<lane>` |" in ended.out
