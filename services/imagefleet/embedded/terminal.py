"""What `up` shows of what its processes say, and the files where all of it is.

Shown is that a process started, each job that failed, and warnings: a line each, of the fields that
say what to do. All else is in a file a process, tracebacks too; `verbose` shows it as it is said.
All of it goes to the standard error, so that the standard output holds results alone. Lines of
processes repeat what strangers sent them: nothing of that steers the terminal.
"""

import asyncio
import io
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from rich.console import Console
from rich.text import Text

from imagefleet.embedded.processes import Facts, Processes
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import JobState
from imagefleet.settings import Client
from imagefleet.settings.variables import is_named
from imagefleet.telemetry.logs import for_a_person, read_line
from imagefleet.telemetry.plain import plain

COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")
NAME_WIDTH: Final = 11  # of `maintenance`
NARROWEST: Final = 40  # columns beside the name: in less, lines are left to the terminal

LARGEST: Final = 5 * 2**20  # bytes of a file; the one before it is kept as well
WARNS: Final[Mapping[object, str]] = {"warning": "yellow", "error": "red", "critical": "red"}
AGAIN_AFTER: Final = 10.0  # seconds, until the same warning of a process is shown again
NOTICED_WITHIN: Final = 1.5  # seconds; by then it is known of a server that it ended
LONGEST_VALUE: Final = 100  # characters of a field that is shown
# They tell one line from others in a collector, and say nothing at a terminal.
UNSHOWN: Final = frozenset(
    {
        *("timestamp", "level", "event", "process", "exception", "stack", "logger"),
        *("correlation_id", "request_id", "trace_id", "span_id", "worker_id"),
    }
)
TRACEBACK: Final = "Traceback (most recent call last):"
SERVERS: Final = {"database": "postgres", "s3": "aws", "sqs": "aws", "cloudfront": "aws"}
"""Which server is away, by how the code of an error begins."""


class Terminal:
    """Prefixes every line with who says it."""

    def __init__(
        self,
        folder: Path,
        *,
        verbose: bool = False,
        started: Callable[[str], str] = lambda _: "started",
        ended: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`started` says what there is to say of a process that does.

        Of a server that `ended` a moment ago it was said: that others miss it is no news.
        """
        self.results = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        # Lines of processes are not folded when nobody looks at them in a terminal.
        self.messages = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.files = LogFiles(folder)
        self._verbose = verbose
        self._started = started
        self._ended = ended
        self._colours: dict[str, str] = {}
        self._shown: dict[tuple[object, ...], float] = {}
        self._in_traceback: set[str] = set()

    def say(self, text: str) -> None:
        """Speak for the stack itself."""
        self._line("up", "bold", text)

    def hear(self, process: str, line: str) -> None:
        """Keep what a process says, and show what somebody should see."""
        told = None if self._verbose else read_line(line)
        text = line if told is None else for_a_person(told)
        fault = self.files.write(process, text)
        if fault is not None:
            self.say(f"the log of {process} is not kept: {fault}")
        if told is not None:
            self._show_of_log(process, told)
        elif self._verbose or self._is_last_word(process, line):
            self._show(process, line)

    def _show_of_log(self, process: str, told: Mapping[str, object]) -> None:
        event, code = str(told["event"]), str(told.get("code") or "")
        server = SERVERS.get(code.partition("_")[0])
        if event == "process.started":
            self._show(process, self._started(process))
        elif event.startswith("job.") and told.get("state") == JobState.FAILED:
            self._show(process, failure(told))
        elif told.get("level") in WARNS and server is None:
            self._warn(process, told, code)
        elif told.get("level") in WARNS and server is not None and not self._ended(server):
            loop = asyncio.get_running_loop()
            loop.call_later(NOTICED_WITHIN, self._warn_unless_ended, server, process, told, code)

    def _warn_unless_ended(
        self, server: str, process: str, told: Mapping[str, object], code: str
    ) -> None:
        if not self._ended(server):
            self._warn(process, told, code)

    def _warn(self, process: str, told: Mapping[str, object], code: str) -> None:
        kind, now = (process, told["event"], told.get("step"), code), time.monotonic()
        if now - self._shown.get(kind, -AGAIN_AFTER) < AGAIN_AFTER:
            return
        self._shown[kind] = now
        level = str(told["level"])
        shown = Text(f"{level}: ", style=WARNS[level])
        shown.append(plain(warning(told, self.files.path(process))), style="default")
        self._show(process, shown)

    def _is_last_word(self, process: str, line: str) -> bool:
        """Whether it is said beside the log: why something does not start, what it died of.

        A traceback ends with the first line that is not indented, and that one says it.
        """
        if line.lstrip(" +").endswith(TRACEBACK):
            self._in_traceback.add(process)
            return False
        if process in self._in_traceback and (not line or line.startswith(" ")):
            return False
        self._in_traceback.discard(process)
        return bool(line.strip())

    def _show(self, process: str, line: str | Text) -> None:
        colour = self._colours.setdefault(process, COLOURS[len(self._colours) % len(COLOURS)])
        self._line(process, colour, line)

    def _line(self, name: str, style: str, text: str | Text) -> None:
        prefix = Text(f"{name:<{NAME_WIDTH}} │ ", style=style)
        said = Text(plain(text.expandtabs()), "default") if isinstance(text, str) else text
        for line in self._folded(said, len(prefix)):
            self.messages.print(prefix + line)

    def _folded(self, said: Text, before: int) -> list[Text]:
        """Between words, where a terminal would break them; what is to be copied has no blanks."""
        room = self.messages.width - before
        if self._verbose or not self.messages.is_terminal or not NARROWEST <= room < len(said):
            return [said]
        begins = len(said.plain) - len(said.plain.lstrip())
        lines = textwrap.wrap(
            said.plain,
            room,
            subsequent_indent=" " * (begins + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        first = said[: len(lines[0])]
        return [first, *(Text(line, "default") for line in lines[1:])]


def failure(told: Mapping[str, object]) -> str:
    """A job that failed: which, of what type, why."""
    why = str(told.get("why") or "internal_error")
    named = f"job {told.get('job_id')} ({told.get('job_type')})"
    return f"{named} failed: {why}: {failure_sentence(why)}"


def warning(told: Mapping[str, object], file: Path) -> str:
    """What is warned of, and what there is to know about it; a trace is in that file."""
    shown = {name: value for name, value in told.items() if name not in UNSHOWN}
    words = [f"{name}={_clipped(value)}" for name, value in shown.items() if value is not None]
    trace = str(told.get("exception") or "").strip()
    if trace:
        last = trace.splitlines()[-1]
        words.append(f"{_clipped(last)} (traceback in {_as_typed(file)})")
    return " ".join([str(told["event"]), *words])


def _clipped(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


class LogFiles:
    """What each process said, in a file of its own and at most one before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._failing = False

    def path(self, process: str) -> Path:
        """Where its lines are."""
        return self.folder / f"{process}.log"

    def write(self, process: str, text: str) -> str | None:
        """Add it. Why nothing is kept any more, the first time that it cannot be."""
        try:
            file = self._open(process)
            file.write(f"{text}\n".encode(errors="backslashreplace"))
            if file.tell() >= LARGEST:
                self._files.pop(process).close()
                self.path(process).replace(self.folder / f"{process}.log.1")
        except OSError as error:  # a full disk ends no stack
            told, self._failing = self._failing, True
            return None if told else str(error)
        self._failing = False
        return None

    def close(self) -> None:
        """Nothing more is kept."""
        while self._files:
            with suppress(OSError):
                self._files.popitem()[1].close()

    def _open(self, process: str) -> BinaryIO:
        if process not in self._files:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            path = self.path(process)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._files[process] = os.fdopen(descriptor, "ab", buffering=0)
        return self._files[process]


class Heard(io.StringIO):
    """A stream whose lines a terminal hears, as those of a process."""

    def __init__(self, terminal: Terminal, process: str) -> None:
        super().__init__()
        self._terminal = terminal
        self._process = process

    def write(self, text: str) -> int:
        """Whole lines, as a log writes them."""
        for line in text.splitlines():
            self._terminal.hear(self._process, line)
        return len(text)


def for_a_shell(facts: Facts) -> str:
    """The emulator's variables, for a shell to read; none of an account stays beside them."""
    # Older clients look for the second name alone.
    told = {**facts.aws, "AWS_DEFAULT_REGION": facts.aws["AWS_REGION"]}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in told.items()]
    return "\n".join(["unset AWS_PROFILE AWS_SESSION_TOKEN", *lines, ""])


def what_to_try(facts: Facts, processes: Processes, state: Path, *, gallery: bool) -> Iterator[str]:
    """Lines for somebody at the terminal."""
    folder = _as_typed(state)
    key, secret = facts.aws["AWS_ACCESS_KEY_ID"], facts.aws["AWS_SECRET_ACCESS_KEY"]
    if gallery:
        yield f"gallery  {facts.public_base_url}/gallery shows what the demo made"
    yield f"console  {processes.console_url}, log in with the key in {folder}/operator-key"
    yield f"API      {processes.api_url}, its routes at /docs, a key in {folder}/api-key"
    yield f"AWS      {facts.aws['AWS_ENDPOINT_URL']} key {key} secret {secret}"
    yield f"logs     {folder}/logs has all that processes say; --verbose shows it"
    yield ""
    yield "In another terminal, in this folder, with any image you have:"
    yield ""
    own = f"{_command()} "
    if is_named(Client) or state != Path.cwd() / ".imagefleet":
        own += f"--state-dir {folder} "
    yield f"  {own}submit --wait photo.jpg"
    yield f"  {own}jobs list"
    yield f"  (. {folder}/aws.env; aws --endpoint-url $AWS_ENDPOINT_URL sqs list-queues)"
    yield ""
    yield "Ctrl-C ends all of it in order and keeps it for next time; a second one ends it now."


def _as_typed(path: Path) -> str:
    """As short as it may be, where this command was given."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _command() -> str:
    """How this program is called here."""
    if shutil.which("imagefleet"):
        return "imagefleet"
    return _as_typed(Path(sys.executable).parent / "imagefleet")
