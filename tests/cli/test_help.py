"""What `--help` teaches: examples that can be pasted, options that mean one thing everywhere."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from imagefleet.cli.main import STARTED_ELSEWHERE, app
from imagefleet.cli.output import ExitCode
from tests.cli.conftest import Cli

ROOT: Final = typer.main.get_command(app)
NARROWEST: Final = 80  # columns
AN_ID: Final = r"\b0199a5c2-7d41\b(?!-)"  # as examples have it: how it begins
WHOLE: Final = "0199a5c2-7d41-7000-8000-000000000001"
ENDS: Final = frozenset({"|", ">", "<", ";", "&&"})


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - of Typer
    """Each command of the tree with what is typed for it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}".strip())


VERBS: Final = {
    path: command
    for path, command in commands(ROOT)
    if path not in STARTED_ELSEWHERE and (not hasattr(command, "commands") or path == "migrate")
}


def examples(command: Any) -> list[str]:  # noqa: ANN401 - of Typer
    _, _, below = (command.help or "").partition("For example:")
    return [line.strip() for line in below.splitlines() if line.strip()]


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_teaches_by_examples_that_are_whole_on_eighty_columns(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(NARROWEST))

    ended = await cli(*verb.split(), "--help")

    lines = [line.strip() for line in ended.out.splitlines()]
    told = examples(VERBS[verb])
    assert ExitCode.DONE == ended.code
    assert told, "no example"
    assert [] == [line for line in told if line not in lines]
    assert any(f"imagefleet {verb}".strip() in line for line in told)
    assert "…" not in ended.out, "an option's name is cut"


@pytest.mark.parametrize("verb", VERBS)
def test_every_example_is_a_command_that_can_be_pasted(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is parsed as if it was typed, down to its options and their types, and not run.

    With whole ids: those are not looked up.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("photo.jpg", "a.png", "recipes.toml"):
        Path(name).touch()
    for line in examples(VERBS[verb]):
        inside = re.search(r"\$\((imagefleet [^)]*)\)", line)  # curl "$(imagefleet ...)"
        typed = re.sub(AN_ID, WHOLE, inside[1] if inside else line)
        lexer = shlex.shlex(typed, posix=True, punctuation_chars="|<>;&")
        lexer.whitespace_split = True
        words = list(lexer)
        while "=" in words[0]:  # RECIPES_FILE=recipes.toml imagefleet ...
            words.pop(0)
        assert "imagefleet" == words.pop(0), line
        ends = [words.index(end) for end in ENDS if end in words]
        parsed(words[: min(ends, default=None)], line)
        assert "..." not in line
        assert "…" not in line


def parsed(words: list[str], line: str) -> None:
    command, path = ROOT, "imagefleet"
    context = None
    while True:
        words = [word for word in words if word != "*.png"] + ["a.png"] * ("*.png" in words)
        context = command.make_context(path, list(words), parent=context)
        inside = getattr(command, "commands", {})
        rest = [*context._protected_args, *context.args]
        if not inside or not rest:
            return
        path, *words = rest
        assert path in inside, line
        command = inside[path]


def test_an_option_has_one_meaning_wherever_it_is_taken() -> None:
    meanings: dict[str, dict[tuple[object, ...], list[str]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for path, command in commands(ROOT):
        for option in command.params:
            if option.param_type_name != "option":
                continue
            means = (
                option.help, str(option.type_descriptor.annotation), option.min, option.max,
                option.metavar, option.multiple, option.is_flag,
            )  # fmt: skip
            for name in (*option.opts, *option.secondary_opts):
                meanings[name][means].append(path or "imagefleet")

    assert len(meanings) > 50
    assert {} == {name: dict(known) for name, known in meanings.items() if len(known) > 1}
    assert [] == [name for name, known in meanings.items() for help_, *_ in known if not help_]


@pytest.mark.parametrize("how", ["version", "--version"])
async def test_the_version_is_the_installed_one(cli: Cli, how: str) -> None:
    ended = await cli(how)

    assert (ExitCode.DONE, version("imagefleet")) == (ended.code, ended.out.strip())
