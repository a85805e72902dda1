"""What processes say: kept, shown where somebody should see it, and steering nothing."""

import asyncio
import io
import json
import logging
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
import structlog
from rich.console import Console

from imagefleet.embedded import terminal as shown_by
from imagefleet.embedded.processes import Facts, Processes
from imagefleet.embedded.terminal import Heard, Terminal, for_a_shell, what_to_try
from imagefleet.telemetry.logs import configure
from tests.support.eventually import eventually

JOB = "0199a5c2-7d41-7000-8000-000000000001"
FAILED = {
    "timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": "job.failed",
    "job_id": JOB, "job_type": "process_image",
    "state": "failed", "why": "corrupt", "tenant_id": "demo", "worker_id": "w",
}  # fmt: skip
TRACE = "Traceback (most recent call last):\n  File x, line 1\nValueError: it is odd"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


class Opening(Protocol):
    """Makes a terminal, with the options of its class."""

    def __call__(self, **told: Any) -> Terminal: ...  # noqa: ANN401


@pytest.fixture
def opened(logs: Path) -> Iterator[Opening]:
    with ExitStack() as stack:

        def open_terminal(**told: Any) -> Terminal:  # noqa: ANN401
            terminal = Terminal(logs, **told)
            stack.callback(terminal.files.close)
            return terminal

        yield open_terminal


def line(event: str, level: str = "warning", **told: object) -> str:
    return json.dumps({"timestamp": "2026-01-01T00:00:00Z", "level": level, "event": event, **told})


@pytest.mark.parametrize("told", [{}, {"verbose": True}])
def test_what_a_process_repeats_of_strangers_steers_no_terminal(
    capsys: pytest.CaptureFixture[str], opened: Opening, told: dict[str, bool]
) -> None:
    opened(**told).hear(
        "postgres", "\tSTATEMENT: \x1b[2J\x1b]52;c;cm0=\x07\x9b31m\u202e\u061c[red]é\u0301"
    )

    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.startswith("postgres    │         STATEMENT: ")
    assert shown.endswith(r"\x1b[2J\x1b]52;c;cm0=\x07\x9b31m\u202e\u061c[red]é" + "\u0301")


def test_what_a_warning_repeats_of_strangers_steers_no_terminal(
    capsys: pytest.CaptureFixture[str], logs: Path, opened: Opening
) -> None:
    opened().hear("api", line("key.refused", reason="\x1b[2Ja\r\nup │ is well\u202e[red]"))

    (shown,) = capsys.readouterr().err.splitlines()
    assert shown == r"api         │ warning: key.refused reason=\x1b[2Ja up │ is well\u202e[red]"
    assert "\x1b" not in (logs / "api.log").read_text()


def test_a_line_of_a_process_stays_one(capsys: pytest.CaptureFixture[str], opened: Opening) -> None:
    opened().hear("worker-1", "a\r\nup          │ all is well\u2028\x85b")

    assert capsys.readouterr().err.count("\n") == 1


def test_what_nobody_has_to_see_is_in_a_file(
    capsys: pytest.CaptureFixture[str], logs: Path, opened: Opening
) -> None:
    terminal = opened()

    terminal.hear("api", line("request.answered", "info", status=200))

    assert capsys.readouterr().err == ""
    kept = logs / "api.log"
    assert "[info     ] request.answered               status=200" in kept.read_text()
    assert 0o600 == stat.S_IMODE(kept.stat().st_mode)
    assert 0o700 == stat.S_IMODE(logs.stat().st_mode)


def test_who_wants_to_sees_all_of_it_as_it_is_said(
    capsys: pytest.CaptureFixture[str], logs: Path, opened: Opening
) -> None:
    said = line("request.answered", "info", status=200)

    opened(verbose=True).hear("api", said)

    assert f"api         │ {said}\n" == capsys.readouterr().err
    assert f"{said}\n" == (logs / "api.log").read_text()


def test_a_process_that_starts_and_a_job_that_fails_are_a_line_each(
    capsys: pytest.CaptureFixture[str], opened: Opening
) -> None:
    terminal = opened(started=lambda name: f"started as {name}")

    terminal.hear("worker-1", line("process.started", "info", settings={"LOG_LEVEL": "info"}))
    terminal.hear("worker-1", json.dumps(FAILED))
    terminal.hear("worker-1", json.dumps({**FAILED, "event": "job.retried", "state": "queued"}))

    started, failed = capsys.readouterr().err.splitlines()
    assert started == "worker-1    │ started as worker-1"
    assert failed.startswith(f"worker-1    │ job {JOB} (process_image) failed: corrupt: ")
    assert failed.endswith("The image is damaged and cannot be read.")


def test_a_warning_is_a_line_and_its_traceback_is_in_the_file(
    capsys: pytest.CaptureFixture[str], logs: Path, opened: Opening
) -> None:
    opened().hear("maintenance", line("step.failed", step="sweeper", exception=TRACE))

    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.startswith("maintenance │ warning: step.failed step=sweeper ValueError: it is odd")
    assert shown.endswith(f" (traceback in {logs}/maintenance.log)")
    assert "      File x, line 1\n" in (logs / "maintenance.log").read_text()


def test_the_same_warning_is_shown_once_in_a_while(
    capsys: pytest.CaptureFixture[str], logs: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = opened()

    for code in ("slow", "slow", "odd", "slow"):
        terminal.hear("api", line("request.failed", code=code))
    monkeypatch.setattr(shown_by, "AGAIN_AFTER", 0.0)
    terminal.hear("api", line("request.failed", code="slow"))

    shown = [each.rpartition("=")[2] for each in capsys.readouterr().err.splitlines()]
    assert shown == ["slow", "odd", "slow"]
    assert 5 == len((logs / "api.log").read_text().splitlines())


@pytest.mark.parametrize("ended", [["postgres"], []])
async def test_that_a_server_is_missed_which_ended_is_no_news(
    capsys: pytest.CaptureFixture[str],
    opened: Opening,
    monkeypatch: pytest.MonkeyPatch,
    ended: list[str],
) -> None:
    """Who looks after it may know it a moment later than who speaks with it."""
    monkeypatch.setattr(shown_by, "NOTICED_WITHIN", 0.01)
    asked: list[str] = []

    def has_ended(server: str) -> bool:
        asked.append(server)
        return len(asked) > 1 and server in ended

    opened(ended=has_ended).hear("api", line("settings.unread", code="database_unavailable"))
    assert capsys.readouterr().err == ""
    await eventually(lambda: asked == ["postgres", "postgres"])

    assert ("settings.unread" in capsys.readouterr().err) is (ended == [])


def test_why_a_process_does_not_start_is_shown_and_of_a_trace_its_end(
    capsys: pytest.CaptureFixture[str], opened: Opening
) -> None:
    terminal = opened()
    refusal = ("imagefleet api does not start:", "  LOG_LEVEL: expected")

    for said in (*refusal, *TRACE.splitlines(), ""):
        terminal.hear("api", said)

    shown = [each.partition("│ ")[2] for each in capsys.readouterr().err.splitlines()]
    assert shown == [*refusal, "ValueError: it is odd"]


def test_a_file_does_not_grow_without_end(
    logs: Path, opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_by, "LARGEST", 1_000)
    terminal = opened()

    for number in range(200):
        terminal.hear("api", line("request.answered", "info", number=number))

    files = sorted(logs.iterdir())
    assert [file.name for file in files] == ["api.log", "api.log.1"]
    assert all(file.stat().st_size < 1_200 for file in files)
    assert "number=199" in "".join(file.read_text() for file in files)


def test_a_file_that_cannot_be_written_is_told_once_and_ends_nothing(
    capsys: pytest.CaptureFixture[str], logs: Path, opened: Opening
) -> None:
    logs.write_text("in the way")
    terminal = opened()

    for _ in range(2):
        terminal.hear("api", line("request.failed", code="slow"))

    told, shown = capsys.readouterr().err.splitlines()
    assert told.startswith("up          │ the log of api is not kept: ")
    assert "request.failed" in shown


def test_in_a_narrow_terminal_lines_break_between_words(opened: Opening) -> None:
    terminal, seen = opened(), io.StringIO()
    terminal.messages = Console(
        file=seen, force_terminal=True, color_system=None, width=100, soft_wrap=True
    )

    terminal.hear("worker-1", json.dumps(FAILED))

    assert seen.getvalue().splitlines() == [
        f"worker-1    │ job {JOB} (process_image) failed: corrupt: The image is",
        "worker-1    │   damaged and cannot be read.",
    ]


def test_what_the_stack_itself_logs_is_heard_like_a_process(
    capsys: pytest.CaptureFixture[str], logs: Path, opened: Opening
) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure("json", "warning", process="up", stream=Heard(opened(), "up"))
        structlog.get_logger().error("part.broke", exc_info=ValueError("it is odd"))
    finally:
        root.handlers[:], root.level = handlers, level
        logging.captureWarnings(capture=False)
        structlog.reset_defaults()

    assert "error: part.broke ValueError: it is odd (traceback in" in capsys.readouterr().err
    assert "ValueError: it is odd" in (logs / "up.log").read_text()


FACTS = Facts(
    database_urls={},
    aws={
        "AWS_ENDPOINT_URL": "http://127.0.0.1:21234",
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "imagefleet",
        "AWS_SECRET_ACCESS_KEY": "imagefleet-on-this-machine-only",
    },
    topology={},
    public_base_url="http://127.0.0.1:8082",
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """What there is to try, for who stands in this folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("IMAGEFLEET_URL", "IMAGEFLEET_KEY"):
        monkeypatch.delenv(name, raising=False)
    processes = Processes(workers=1, api_port=8080, console_port=8081)
    return lambda folder: [*what_to_try(FACTS, processes, tmp_path / folder, gallery=True)]


def test_what_to_try_is_short_and_fits_into_a_hundred_columns(
    told: Callable[[str], list[str]],
) -> None:
    lines = told(".imagefleet")

    assert len(lines) <= 14
    assert max(map(len, lines)) + len("maintenance │ ") <= 100
    assert not any("--state-dir" in each for each in lines)
    assert any("  (. .imagefleet/aws.env; aws " in each for each in lines)


def test_what_to_try_names_the_folder_where_no_verb_would_find_it(
    told: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(each.endswith(" --state-dir other jobs list") for each in told("other"))

    monkeypatch.setenv("IMAGEFLEET_URL", "http://elsewhere")
    assert any(each.endswith(" --state-dir .imagefleet jobs list") for each in told(".imagefleet"))


async def test_the_variables_of_the_emulator_are_read_by_any_shell() -> None:
    script = f"{for_a_shell(FACTS)}env"
    shell = await asyncio.create_subprocess_exec(
        "sh", "-euc", script,
        env={"AWS_PROFILE": "own", "AWS_SESSION_TOKEN": "own", "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await shell.communicate()

    assert {f"{name}={value}" for name, value in FACTS.aws.items()} <= {*said.decode().splitlines()}
    assert b"own" not in said
