"""The one door: `imagefleet api`, `imagefleet worker`, `imagefleet maintenance`, ..., or a verb.

A process imports only what it runs, so that each container carries only that: processes are started
from `starting`, everything else goes on to the command line in `cli`.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

PROCESSES: Final = ("api", "worker", "maintenance", "console")
# What structlog and the AWS SDK load wherever it is installed, and no process of ours needs; but
# the console speaks to the API by the first.
UNUSED: Final = ("httpx", "rich")
NEEDS_CLI: Final = "This needs the command line: pip install 'imagefleet[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a process or a verb; the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments[1:]) == [] and arguments and arguments[0] in PROCESSES:
        _load(process=arguments[0])
        from imagefleet.starting import start  # noqa: PLC0415 - after that

        return start(arguments[0])
    try:
        from imagefleet.cli.main import run  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich", "httpx"}:
            raise
        if arguments[:1] == ["doctor"]:
            from imagefleet.doctor import run as examine  # noqa: PLC0415 - the one verb there

            return examine(arguments[1:])
        sys.stderr.write(NEEDS_CLI + "\n")
        return 2
    return run(list(arguments))


def _load(process: str) -> None:
    """Import it as if what it does not use were not there, as in its container.

    Afterwards it is there again: somebody's handler may want it.
    """
    modules = vars(sys)["modules"]
    unused = UNUSED[1:] if process == "console" else UNUSED
    modules.update(dict.fromkeys(unused))  # None is not found
    from imagefleet.runtime import INIT, end_at_once  # noqa: PLC0415 - it has structlog

    if os.getpid() == INIT:  # until the process listens to signals, the kernel would drop them
        signal.signal(signal.SIGTERM, end_at_once)
    gc.disable()  # nearly all that an import makes is there to stay
    import_module(f"imagefleet.{process}.main")
    gc.enable()
    for name in unused:
        del modules[name]


if __name__ == "__main__":
    sys.exit(main())
