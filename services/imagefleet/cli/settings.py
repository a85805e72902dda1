"""`imagefleet settings`: variables of the environment, and what operators turn while it runs."""

import json
from typing import Annotated, Final

import typer

from imagefleet.cli.output import Columns, GivesWay, Table, complain, moment, say, show
from imagefleet.cli.verbs import Json, Reason, ask, below
from imagefleet.client.api import Document
from imagefleet.settings import reference

PATH: Final = "/v1/operator/settings"

app = typer.Typer(rich_markup_mode="markdown", invoke_without_command=True)
live = typer.Typer(help="What is turned while everything runs.", no_args_is_help=True)
app.add_typer(live, name="live")

Name = Annotated[str, typer.Argument(help="Such as slots.lane.fast; `list` knows them all.")]
Turned = Annotated[bool, typer.Option("--turned", help="Only what is not as by default.")]


@app.callback()
def settings(context: typer.Context) -> None:
    """Print every variable of the environment, or turn (`live`) what may be turned while it runs.

    For example:

        imagefleet settings > docs/settings.md
        imagefleet settings live list
    """
    if context.invoked_subcommand is None:
        say(*reference().splitlines())


@live.command("list")
def list_settings(turned: Turned = False, as_json: Json = False) -> None:
    """List live settings: what is in force, beside what is while nobody turned it.

    For example:

        imagefleet settings live list --turned
    """
    page = ask("GET", PATH)
    wanted = [setting for setting in page["settings"] if setting["turned"] or not turned]
    show({"settings": wanted}, lambda _: Table(wanted, COLUMNS, GIVES_WAY), as_json=as_json)
    if not as_json:
        _warn(*wanted)


@live.command("set")
def turn(
    name: Name,
    value: Annotated[str, typer.Argument(help="A number, true or false.")],
    reason: Reason,
    as_json: Json = False,
) -> None:
    """Let another value hold, in every process within five seconds; `reset` undoes it.

    For example:

        imagefleet settings live set slots.lane.general 2 --reason "spare it"
    """
    body = {"value": _read(value), "reason": reason}
    _tell(ask("PUT", below(PATH, name), document=body), as_json=as_json)


@live.command("reset")
def turn_back(name: Name, reason: Reason, as_json: Json = False) -> None:
    """Let the default hold again.

    For example:

        imagefleet settings live reset slots.lane.general --reason "it is well"
    """
    _tell(ask("DELETE", below(PATH, name), {"reason": reason}), as_json=as_json)


def _read(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:  # the API says what it may be
        return value


def _when(setting: Document) -> str | None:
    at = moment(setting.get("setAt"))
    return at and at[5:16]


def _value(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, int | float) else None


COLUMNS: Final[Columns] = {
    "name": "name",
    "value": lambda setting: _value(setting.get("value")),
    "default": lambda setting: _value(setting.get("default")),
    # The key's name, without its id.
    "by": lambda setting: (setting.get("setBy") or "").partition(" (")[0],
    "when": _when,
    "why": "reason",
}
GIVES_WAY: Final[GivesWay] = {
    "wraps": ("by", "why"),
    "drops": ("when", "by", "default"),
    "none": "nothing is turned: all is as by default",
}


def _warn(*settings: Document) -> None:
    for setting in settings:
        if setting.get("ignored"):
            complain(f"{setting['name']} is ignored: {setting['ignored']}")
        elif setting["turned"] and setting.get("known") is False:
            complain(f"the API knows nothing that {setting['name']} is about")


def _tell(setting: Document, *, as_json: bool) -> None:
    show(setting, _holds, as_json=as_json)
    if not as_json:
        _warn(setting)


def _holds(setting: Document) -> str:
    value, default = _value(setting.get("value")), _value(setting.get("default"))
    if setting["turned"]:
        by_default = "" if default is None else f" (by default {default})"
        return f"{setting['name']} is {value}{by_default}"
    return f"{setting['name']} is as by default{f', {default}' if default else ''}"
