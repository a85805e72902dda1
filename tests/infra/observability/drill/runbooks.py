"""What the runbook of an alert says to do: its one command, as somebody would type it."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.infra.observability.asking import alerts
from tests.support.wheels import ROOT

DO: Final = re.compile(r"^\*\*Do:\*\*(.*?)^\*\*It worked when:\*\*", re.DOTALL | re.MULTILINE)
BLOCK: Final = re.compile(r"^    (\S.*)$", re.MULTILINE)
PLACEHOLDER: Final = re.compile(r"[A-Z]{2,}")


class NoCommandError(Exception):
    """A runbook that nobody can follow."""


@dataclass(frozen=True, slots=True)
class Command:
    """As it stands on the page, and as it is given."""

    written: str
    words: tuple[str, ...]


def command_of(alert: str, stands_for: Mapping[str, str]) -> Command:
    """The one command that acts, with what its placeholders stand for."""
    written = written_of(alert)
    words = []
    for word in shlex.split(written):
        if PLACEHOLDER.fullmatch(word) and word not in stands_for:
            message = f"{alert}: nobody knows what {word} stands for in `{written}`"
            raise NoCommandError(message)
        words.append(stands_for.get(word, word))
    return Command(written, tuple(words))


def written_of(alert: str) -> str:
    """What stands under **Do** on the page that the alert itself names."""
    text = page_of(alert)
    done = DO.search(text)
    commands = BLOCK.findall(done[1]) if done else []
    if len(commands) != 1:
        message = f"{alert}: its runbook has {len(commands)} commands that act, not one"
        raise NoCommandError(message)
    return str(commands[0])


def page_of(alert: str) -> str:
    """What the alert's own rule links to."""
    pages = [rule.document["annotations"]["runbook_url"] for rule in alerts() if rule.name == alert]
    if len(pages) != 1:
        message = f"{alert}: {len(pages)} rules are named so"
        raise NoCommandError(message)
    return (ROOT / str(pages[0])).read_text(encoding="utf-8")
