"""`imagefleet settings`: variables of the environment, and what operators turn while it runs."""

import json
from typing import Annotated, Final
from urllib.parse import quote

import typer

from imagefleet.cli.operating import Reason, ask, moment
from imagefleet.cli.output import Json, complain, print_json, print_table, say
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
    found = ask("GET", PATH)
    wanted = [one for one in found["settings"] if one["turned"] or not turned]
    if as_json:
        print_json({"settings": wanted})
        return
    columns = ("name", "value", "default", "by", "when", "why")
    print_table(columns, [_row(one) for one in wanted], whole=3)
    for one in wanted:
        _warn(one)


@live.command("set")
def turn(
    name: Name,
    value: Annotated[str, typer.Argument(help="A number, true or false.")],
    reason: Reason,
    as_json: Json = False,
) -> None:
    """Let another value hold, in every process within five seconds; `reset` undoes it.

    For example:

        imagefleet settings live set slots.lane.general 2 --reason "spare the database"
    """
    _changed(
        ask("PUT", _path(name), document={"value": _read(value), "reason": reason}), as_json=as_json
    )


@live.command("reset")
def turn_back(name: Name, reason: Reason, as_json: Json = False) -> None:
    """Let the default hold again.

    For example:

        imagefleet settings live reset slots.lane.general --reason "the database is well"
    """
    _changed(ask("DELETE", _path(name), {"reason": reason}), as_json=as_json)


def _path(name: str) -> str:
    return f"{PATH}/{quote(name, safe='')}"


def _read(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:  # the API says what it may be
        return value


def _row(one: Document) -> tuple[object, ...]:
    at = moment(one.get("setAt"))
    return (
        one["name"],
        _shown(one.get("value")),
        _shown(one.get("default")),
        (one.get("setBy") or "").partition(" (")[0],  # the key's name, without its id
        at and at[5:16],
        one.get("reason"),
    )


def _shown(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, int | float) else None


def _warn(one: Document) -> None:
    if one.get("ignored"):
        complain(f"{one['name']} is ignored: {one['ignored']}")
    elif one["turned"] and one.get("known") is False:
        complain(f"the API knows nothing that {one['name']} is about")


def _changed(one: Document, *, as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    value, default = _shown(one.get("value")), _shown(one.get("default"))
    by_default = "" if default is None else f" (by default {default})"
    holds = f"{one['name']} is {value}{by_default}" if one["turned"] else None
    say(holds or f"{one['name']} is as by default{'' if not default else f', {default}'}")
    _warn(one)
