"""One surface: routes, verbs, and the pages that tell of them, each compared with the others."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

import pytest
import typer

from imagefleet.cli import main as command_line
from tests.support.api import described_whole, of_nobody

ROOT: Final = Path(__file__).parents[2]
API_PAGE: Final = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
CLI_PAGE: Final = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")

METHODS: Final = frozenset({"get", "put", "post", "delete", "patch"})
ROUTE: Final = r"(?:GET|PUT|POST|DELETE|PATCH) /(?:v1|i)/[^\s`]+"
# Started by their own names, and spoken of in a sentence.
PROCESSES: Final = frozenset(command_line.STARTED_ELSEWHERE)


def camel(path: str) -> str:
    """`{job_id}` as the pages write it."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), path)


@pytest.fixture(scope="module")
def routes() -> set[str]:
    paths, _ = described_whole(of_nobody())
    return {
        f"{method.upper()} {camel(path)}"
        for path, methods in paths.items()
        for method in METHODS & set(methods)
    }


def verbs_of(app: typer.Typer, group: str = "") -> Iterator[str]:
    """What may be typed; a group that does something by itself is a verb too."""
    by_itself = (app.info, app.registered_callback)
    if any(one is not None and one.invoke_without_command is True for one in by_itself):
        yield group
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{group} {command.name or command.callback.__name__.replace('_', '-')}".strip()
    for inner in app.registered_groups:
        assert inner.typer_instance is not None
        yield from verbs_of(inner.typer_instance, f"{group} {inner.name}".strip())


VERBS: Final = frozenset(verbs_of(command_line.app)) - PROCESSES
FIRST_WORDS: Final = frozenset(verb.partition(" ")[0] for verb in VERBS)


def told_verbs() -> dict[str, set[str]]:
    """The verbs of the command line's page, each with the routes that its row names."""
    found: dict[str, set[str]] = {}
    for line in CLI_PAGE.splitlines():
        row = re.match(r"\| (`.*?) \|", line)
        for words in re.findall(r"`([^`]+)`", row[1] if row else ""):
            if (verb := verb_in(words)) is not None:
                found.setdefault(verb, set()).update(re.findall(ROUTE, line))
    for words in re.findall(r"^`imagefleet ([^`]+)`", CLI_PAGE, re.MULTILINE):
        if (verb := verb_in(words)) is not None:
            found.setdefault(verb, set())
    return found


def verb_in(words: str) -> str | None:
    """`jobs show JOB [--wait S]` is `jobs show`; what begins like no verb is none."""
    plain = [*takewhile(lambda word: re.fullmatch(r"[a-z][a-z-]*", word), words.split())][:3]
    if not plain or plain[0] not in FIRST_WORDS:
        return None
    known = [verb for verb in (" ".join(plain[:most]) for most in (3, 2, 1)) if verb in VERBS]
    return known[0] if known else " ".join(plain[:2])


def test_every_route_is_a_heading_of_its_page_and_every_heading_is_a_route(
    routes: set[str],
) -> None:
    assert routes == set(re.findall(rf"^### ({ROUTE})$", API_PAGE, re.MULTILINE))


def test_every_verb_is_in_the_page_and_the_page_has_no_other() -> None:
    assert VERBS == set(told_verbs())


def test_every_route_of_operators_has_a_verb_and_no_verb_names_another(routes: set[str]) -> None:
    of_operators = {route for route in routes if "/v1/operator/" in route}

    assert of_operators == {route for named in told_verbs().values() for route in named}


def test_a_page_names_no_route_that_there_is_not(routes: set[str]) -> None:
    mentioned = set(re.findall(rf"`({ROUTE})`", API_PAGE + CLI_PAGE))

    assert {address.partition("?")[0] for address in mentioned} - routes == set()
