"""`imagefleet up`: its options; what it does is told in `imagefleet.embedded`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from imagefleet.cli.verbs import Json, StateDir

Workers = Annotated[int, typer.Option(min=1, max=32, help="Worker processes.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")]
EdgePort = Annotated[
    int, typer.Option(min=0, max=65535, help="Of published addresses. 0: any free one.")
]
AwsPort = Annotated[int, typer.Option(min=0, max=65535, help="0: the last one, or any free one.")]
ReadyFile = Annotated[
    Path | None,
    typer.Option(help="Write addresses, keys and process ids here, as JSON, once it is ready."),
]
Demo = Annotated[int, typer.Option(min=0, max=1000, help="Upload so many samples and check them.")]
ExitAfter = Annotated[
    bool, typer.Option("--exit", help="End after the demo: 0 if all of it worked, else 1.")
]


def up(
    state_dir: StateDir = Path(".imagefleet"),
    workers: Workers = 1,
    api_port: Port = 8080,
    edge_port: EdgePort = 8082,
    postgres_port: Port = 0,
    aws_port: AwsPort = 0,
    ready_file: ReadyFile = None,
    demo: Demo = 0,
    exit_after: ExitAfter = False,
    as_json: Json = False,
) -> None:
    """Run everything on this machine, in this terminal: no Docker, no account.

    Postgres, an AWS emulator, the API, workers and maintenance. A process that dies is started
    again. Ctrl-C ends them in order and loses nothing; a second one ends them at once.

    For example:

        imagefleet up
        imagefleet up --workers 3 --demo 20
        imagefleet up --api-port 0 --edge-port 0 --demo 4 --exit --json
    """
    begun = time.monotonic()
    # Imported here: every other verb would wait for it.
    from imagefleet.embedded import machine  # noqa: PLC0415 - only this verb
    from imagefleet.embedded import up as embedded  # noqa: PLC0415 - only this verb

    wishes = embedded.Wishes(
        state=state_dir,
        ports=machine.Ports(api=api_port, edge=edge_port, postgres=postgres_port, aws=aws_port),
        workers=workers,
        ready_file=ready_file,
        demo=demo,
        exit_after=exit_after,
        as_json=as_json,
    )
    raise typer.Exit(embedded.up(wishes, begun=begun))
