"""The one terminal: what the stack says, what each process says, what there is to try.

All of it goes to the standard error, so that the standard output holds results alone. Processes
repeat what strangers sent them, and not all are ours: nothing of that steers the terminal.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from imagefleet.embedded.processes import Processes
from imagefleet.embedded.topology import Facts
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


def ready_document(
    facts: Facts, processes: Processes, *, keys: Mapping[str, str], pids: Mapping[str, int]
) -> dict[str, object]:
    """Everything that a program needs to use this stack, secrets included."""
    return {
        "api_url": processes.api_url,
        "console_url": None,
        "public_base_url": facts.public_base_url,
        "metrics_urls": {name: f"{url}/metrics" for name, url in processes.health_urls.items()},
        "api_key": keys["api-key"],
        "operator_key": keys["operator-key"],
        "database_urls": dict(facts.database_urls),
        "aws_endpoint_url": facts.aws["AWS_ENDPOINT_URL"],
        "aws": dict(facts.aws),
        "buckets": _named(facts.topology, "_BUCKET"),
        "queue_urls": _named(facts.topology, "_QUEUE_URL"),
        "distribution_id": facts.topology.get("CLOUDFRONT_DISTRIBUTION_ID"),
        "processes": dict(pids),
    }


def _named(topology: Mapping[str, str], kind: str) -> dict[str, str]:
    """`FAST_QUEUE_URL` is the queue `fast`."""
    return {
        name.removesuffix(kind).lower().replace("_", "-"): value
        for name, value in topology.items()
        if name.endswith(kind)
    }


def what_to_try(facts: Facts, processes: Processes, key_file: Path) -> list[str]:
    """Lines for somebody at the terminal."""
    return [
        f"API          {processes.api_url}",
        f"images       {facts.public_base_url}",
        *(f"{name:<12} {url}/metrics" for name, url in processes.health_urls.items()),
        f"keys         {key_file} (submit, read), operator-key beside it (all scopes)",
        "",
        "In another terminal, with any image you have:",
        "",
        f'  curl -sS -H "Authorization: Bearer $(cat {key_file})" \\',
        f"    -H 'Content-Type: image/jpeg' --data-binary @photo.jpg {processes.api_url}/v1/images",
        "",
        "Ctrl-C ends everything in order and keeps it for next time; a second one ends it now.",
    ]
