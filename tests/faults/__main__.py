"""The full run: `make faults`. Prints its figures, and ends with 1 when anything was broken."""

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.faults.facts import dumped
from tests.faults.killing import PHASES, Plan, Run, run

LEAST_OF_A_PHASE: Final = 10
FULL: Final = Plan(
    jobs=500,
    each_phase=30,
    anywhere=50,
    of_the_api=10,
    workers=3,
    rescue_after=30,
    patient=True,
    ends_within=900,
)


class _Arguments(argparse.Namespace):
    seed: int


def judge(ran: Run) -> list[str]:
    """Everything that is wrong with a run, in words."""
    landed = ran.journal.by_phase()
    wrong = [str(breach) for breach in ran.breaches]
    wrong += [f"{count} kills {phase} did not happen" for phase, count in ran.missed.items()]
    wrong += [
        f"only {landed.get(phase, 0)} kills landed {phase}"
        for phase in PHASES
        if landed.get(phase, 0) < LEAST_OF_A_PHASE
    ]
    if ran.deaths != len(ran.journal.kills):
        wrong.append(f"{len(ran.journal.kills)} kills, and {ran.deaths} processes died of one")
    lost = sum(job.state != "completed" for job in ran.facts.jobs)
    if lost or len(ran.facts.jobs) != ran.plan.jobs:
        wrong.append(f"{len(ran.facts.jobs)} jobs, {lost} of them not completed")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    given = parser.parse_args(namespace=_Arguments())
    say(f"{FULL.jobs} jobs, {FULL.kills} kills of workers, seed {given.seed}; some minutes")
    ran = asyncio.run(run(FULL, seed=given.seed))
    for name, value in ran.figures():
        say(f"{name:<28}{value:>8}")
    wrong = judge(ran)
    for what in wrong:
        say(f"BROKEN {what}")
    if wrong:
        kept = Path(tempfile.mkdtemp(prefix="imagefleet-faults-")) / "facts.json"
        kept.write_text(dumped(ran.facts))
        say(f"the facts are kept: python -m tests.support.checker {kept}")
    return 1 if wrong else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
