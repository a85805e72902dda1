"""The one terminal: what the stack says, what each process says, and bars between them.

All of it goes to the standard error, so that the standard output holds results alone. Processes
repeat what strangers sent them, and not all are ours: nothing of that steers the terminal.
"""

import sys
from typing import Final

from rich.console import Console
from rich.text import Text

from imagefleet.telemetry.plain import plain

COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")
NAME_WIDTH: Final = 11  # of `maintenance`


class Terminal:
    """Prefixes every line with who says it."""

    def __init__(self) -> None:
        self.results = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        # Lines of processes are not folded when nobody looks at them in a terminal.
        self.messages = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._colours: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Speak for the stack itself."""
        self._line("up", "bold", text)

    def hear(self, process: str, line: str) -> None:
        """Speak for a process."""
        colour = self._colours.setdefault(process, COLOURS[len(self._colours) % len(COLOURS)])
        self._line(process, colour, line)

    def _line(self, name: str, style: str, text: str) -> None:
        line = Text(f"{name:<{NAME_WIDTH}} │ ", style=style)
        line.append(plain(text.expandtabs()), style="default")
        self.messages.print(line)
