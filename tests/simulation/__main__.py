"""`make simulation`: each run for longer, and with the seed of your choice."""

import argparse
import asyncio
import secrets
import sys

from tests.simulation.runs import RUNS, Told
from tests.support.database import copied_database, migrated_template, own_server


class _Arguments(argparse.Namespace):
    seed: int
    seconds: float
    only: str | None


async def play(name: str, seed: int, seconds: float) -> Told:
    with own_server() as server:
        async with (
            migrated_template(server) as template,
            copied_database(server, template) as database,
        ):
            return await RUNS[name](database, seed, seconds=seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--seconds", type=float, default=60, help="for which jobs are submitted")
    parser.add_argument("--only", choices=RUNS, help="one of the runs instead of all")
    given = parser.parse_args(namespace=_Arguments())
    broken = 0
    for name in RUNS:
        if given.only in {None, name}:
            say(f"{name}, seed {given.seed}: {(RUNS[name].__doc__ or '').strip()}")
            told = asyncio.run(play(name, given.seed, given.seconds))
            for what, value in told.figures.items():
                say(f"  {what:<34}{value}")
            for what in told.wrong:
                say(f"BROKEN {what}")
            broken += bool(told.wrong)
    return 1 if broken else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
