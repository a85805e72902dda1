"""The commands, and what becomes of an error: one sentence and an exit code."""

import inspect
import re
import time
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Final

import typer

from imagefleet.cli import (
    database,
    dlq,
    edge,
    fleet,
    images,
    jobs,
    migrating,
    queue,
    rates,
    settings,
    targets,
    tenants,
)
from imagefleet.cli.capacity import capacity
from imagefleet.cli.output import ExitCode, complain, exit_code_of, say, told
from imagefleet.cli.reaching import choose
from imagefleet.cli.recipes import app as recipes
from imagefleet.cli.status import status
from imagefleet.cli.submit import submit
from imagefleet.cli.verbs import Json, Set, StateDir, StateDirIfAny
from imagefleet.errors import FleetError, Misconfigured

Workers = Annotated[int, typer.Option(min=1, max=32, help="Worker processes.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")]
ConsolePort = Annotated[
    int, typer.Option(min=0, max=65535, help="Of operators' pages. 0: any free one.")
]
Opens = Annotated[bool, typer.Option("--open", help="Show the console in this machine's browser.")]
EdgePort = Annotated[
    int, typer.Option(min=0, max=65535, help="Of published addresses. 0: any free one.")
]
AwsPort = Annotated[int, typer.Option(min=0, max=65535, help="0: the last one, or any free one.")]
ReadyFile = Annotated[
    Path | None,
    typer.Option(help="Write addresses, keys and process ids here, as JSON, once it is ready."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show every line of every process, as it says it.")
]
Demo = Annotated[int, typer.Option(min=0, max=1000, help="Upload so many samples and check them.")]
ExitAfter = Annotated[
    bool, typer.Option("--exit", help="End after the demo: 0 if all of it worked, else 1.")
]


def up(
    state_dir: StateDir = Path(".imagefleet"),
    workers: Workers = 1,
    api_port: Port = 8080,
    console_port: ConsolePort = 8081,
    edge_port: EdgePort = 8082,
    postgres_port: Port = 0,
    aws_port: AwsPort = 0,
    ready_file: ReadyFile = None,
    demo: Demo = 0,
    exit_after: ExitAfter = False,
    opens: Opens = False,
    passed: Set = [],  # noqa: B006 - Typer reads it, nobody writes it
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Run everything on this machine, in this terminal: no Docker, no account.

    Postgres, an AWS emulator, the API, workers, maintenance and the console. A process that dies is
    started again. Ctrl-C ends them in order and loses nothing; a second one ends them at once.

    Shown is what started, each job that failed, and warnings. All that processes say is in `logs`
    of the state folder, a file a process. Every other verb, given in the same folder, finds what
    runs there, whatever its ports; elsewhere `imagefleet --state-dir FOLDER` does. --set passes a
    setting to the processes that know it.

    For example:

        imagefleet up
        imagefleet up --workers 3 --demo 20
        imagefleet up --verbose --set LOG_LEVEL=debug --set MAX_ATTEMPTS=2
        imagefleet up --open
        imagefleet up --api-port 0 --console-port 0 --edge-port 0 --demo 4 --exit
    """
    begun = time.monotonic()
    # Imported here: every other verb would wait for it.
    from imagefleet.embedded import machine  # noqa: PLC0415 - only this verb
    from imagefleet.embedded import up as embedded  # noqa: PLC0415 - only this verb

    wishes = embedded.Wishes(
        state=state_dir,
        ports=machine.Ports(
            api=api_port,
            console=console_port,
            edge=edge_port,
            postgres=postgres_port,
            aws=aws_port,
        ),
        workers=workers,
        ready_file=ready_file,
        demo=demo,
        exit_after=exit_after,
        as_json=as_json,
        opens=opens,
        verbose=verbose,
        settings=passed,
    )
    raise typer.Exit(embedded.up(wishes, begun=begun))


HERE: Final = "On this machine"
PRODUCERS: Final = "For producers (IMAGEFLEET_URL, IMAGEFLEET_KEY)"
OPERATORS: Final = "For operators (IMAGEFLEET_URL, IMAGEFLEET_KEY with the scope operate)"
OPERATIONS: Final = "For operations (DATABASE_URL)"
PROCESSES: Final = "Processes (configured by the environment alone)"

# Handled before the command line is loaded; listed here, so that --help knows them.
STARTED_ELSEWHERE: Final = {
    "api": "Serve HTTP.",
    "worker": "Work on jobs.",
    "maintenance": "Ring again, rescue, look after the fleet.",
    "console": "Serve the operators' web pages.",
}

app = typer.Typer(
    name="imagefleet",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="An image pipeline for a fleet.\n\n"
    "Exit codes: 0 done, 1 something failed (a job, a check), 2 the command or configuration "
    "cannot be used, 3 the API refused, 4 something did not answer, 130 interrupted.",
)


def _tell_version(asked: bool) -> None:  # noqa: FBT001 - Typer calls it
    if asked:
        say(installed_version("imagefleet"))
        raise typer.Exit


@app.callback()
def before_any_verb(
    state_dir: StateDirIfAny = None,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version."),
    ] = False,
) -> None:
    """What all verbs are told."""
    choose(state_dir)


app.command(rich_help_panel=HERE)(up)
app.add_typer(recipes, name="recipes", rich_help_panel=HERE)
app.command(rich_help_panel=HERE)(capacity)
app.command(rich_help_panel=PRODUCERS)(submit)
app.add_typer(jobs.app, name="jobs", rich_help_panel=PRODUCERS)
app.add_typer(images.app, name="images", rich_help_panel=PRODUCERS)
app.add_typer(targets.app, name="targets", rich_help_panel=PRODUCERS)
app.add_typer(settings.app, name="settings", rich_help_panel=OPERATORS)
app.add_typer(dlq.app, name="dlq", rich_help_panel=OPERATORS)
queue.app.command()(rates.rates)
queue.app.command()(rates.costs)
app.add_typer(queue.app, name="queue", rich_help_panel=OPERATORS)
app.add_typer(tenants.app, name="tenants", rich_help_panel=OPERATORS)
app.add_typer(queue.breaker, name="breaker", rich_help_panel=OPERATORS)
app.add_typer(edge.app, name="edge", rich_help_panel=OPERATORS)
app.command(rich_help_panel=OPERATORS)(status)
app.add_typer(fleet.workers, name="workers", rich_help_panel=OPERATORS)
app.command(rich_help_panel=OPERATORS)(fleet.audit)
app.command(rich_help_panel=OPERATORS)(fleet.ledger)
app.command(rich_help_panel=OPERATORS)(fleet.prune)
app.command(rich_help_panel=OPERATORS)(fleet.sweep)
app.command(rich_help_panel=OPERATIONS)(database.doctor)
app.add_typer(migrating.migrate, name="migrate", rich_help_panel=OPERATIONS)
app.add_typer(database.keys, name="keys", rich_help_panel=OPERATIONS)


@app.command(rich_help_panel=HERE)
def version() -> None:
    """Print the version, as --version does.

    For example:

        imagefleet version
    """
    _tell_version(asked=True)


def _started_elsewhere(context: typer.Context) -> None:
    detail = (
        f"imagefleet {context.info_name} takes no options: docs/settings.md lists its variables"
    )
    raise Misconfigured(detail)


for _name, _does in STARTED_ELSEWHERE.items():
    app.command(_name, help=_does, rich_help_panel=PROCESSES)(_started_elsewhere)


_EXAMPLES: Final = re.compile(r"(?<=For example:\n\n)(?: {4}.*\n?)+")


def _fence_examples(command: Any) -> None:  # noqa: ANN401 - Typer's own kind of command
    """Each on a line of its own: Typer takes the indent that says so from most of them."""
    command.help = _EXAMPLES.sub(
        lambda examples: f"```sh\n{dedent(examples[0])}\n```", inspect.cleandoc(command.help or "")
    )
    for inner in getattr(command, "commands", {}).values():
        _fence_examples(inner)


def run(arguments: Sequence[str]) -> int:
    """Run one verb; the exit code."""
    try:
        command = typer.main.get_command(app)
        _fence_examples(command)
        command(list(arguments), prog_name="imagefleet")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except FleetError as error:
        lines = told(error).splitlines() if isinstance(error, Misconfigured) else [told(error)]
        # Of what is misconfigured, one for each variable; of what was asked in vain, where.
        complain(*lines, *getattr(error, "__notes__", ()))
        return exit_code_of(error)
    return ExitCode.DONE
