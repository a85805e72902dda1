"""What the processes of a stack say is shown, and steers nothing."""

import pytest

from imagefleet.embedded.up import Terminal


def test_what_a_process_repeats_of_strangers_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Terminal().hear(
        "postgres", "\tSTATEMENT: \x1b[2J\x1b]52;c;cm0=\x07\x9b31m\u202e\u061c[red]é\u0301"
    )

    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.startswith("postgres    │         STATEMENT: ")
    assert shown.endswith(r"\x1b[2J\x1b]52;c;cm0=\x07\x9b31m\u202e\u061c[red]é" + "\u0301")


def test_a_line_of_a_process_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().hear("worker-1", "a\r\nup          │ all is well\u2028\x85b")

    assert capsys.readouterr().err.count("\n") == 1
