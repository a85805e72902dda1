"""The full runs: `make faults`. Prints their figures, and ends with 1 when anything was broken."""

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.facts import Facts, dumped
from tests.faults.failing import Ordeal, endure
from tests.faults.killing import PHASES, Plan, Run, run
from tests.faults.recovering import Waves, measure
from tests.faults.scaling import FULL, scale
from tests.faults.wishes import Mixture

LEAST_OF_A_PHASE: Final = 10
KILLS: Final = Plan(
    jobs=500,
    each_phase=30,
    anywhere=50,
    of_the_api=10,
    workers=3,
    rescue_after=30,
    patient=True,
    ends_within=900,
)
FAILURES: Final = Ordeal(
    kills=Plan(
        jobs=1000,
        each_phase=2,
        anywhere=10,
        of_the_api=0,
        workers=5,
        rescue_after=30,
        patient=True,
        ends_within=600,
    ),
    mixture=Mixture(
        permanent=100,
        transient=200,
        hopeless=15,
        cancelled=30,
        pictures=60,
        broken=10,
        milliseconds=(500, 3500),
    ),
    backoff=(1.0, 4.0),
    grace=1,
    visibility=60,
    lock_timeout=60,
    stop_postgres=signal.SIGINT,
    open_at_most=150,
)
RECOVERY: Final = Waves(stacks=2, waves=4, workers=3, killed=2, seconds=15.0)


class _Arguments(argparse.Namespace):
    seed: int
    only: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a run has to say."""

    figures: Sequence[tuple[str, str]]
    wrong: Sequence[str]
    facts: Facts | None = None


def kills(seed: int) -> Told:
    say(f"{KILLS.jobs} jobs, {KILLS.kills} kills of workers, seed {seed}; some minutes")
    ran = asyncio.run(run(KILLS, seed=seed))
    return Told(figures=ran.figures(), wrong=judge(ran), facts=ran.facts)


def failures(seed: int) -> Told:
    plan = FAILURES.kills
    say(f"{plan.jobs} jobs that fail in every way, {plan.kills} kills, seed {seed}; some minutes")
    trial = asyncio.run(endure(FAILURES, seed=seed))
    return Told(figures=trial.figures(), wrong=trial.wrong(), facts=trial.facts)


def recovery(seed: int) -> Told:
    say(f"{RECOVERY.expected} jobs whose worker is killed, seed {seed}; some minutes")
    measured = asyncio.run(measure(RECOVERY, seed=seed))
    return Told(figures=measured.figures(), wrong=measured.wrong())


def crowd(_seed: int) -> Told:
    rows = FULL.announced + FULL.paused + FULL.waiting + 10 * FULL.tenants
    say(f"{rows:,} jobs in the way, a flood, a purge; some minutes")
    scaled = asyncio.run(scale())
    return Told(figures=scaled.figures(), wrong=scaled.wrong())


PARTS: Final[Mapping[str, Callable[[int], Told]]] = {
    "kills": kills,
    "failures": failures,
    "recovery": recovery,
    "scale": crowd,
}


def judge(ran: Run) -> list[str]:
    """Everything that is wrong with a run of kills, in words."""
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


def tell(part: str, told: Told) -> None:
    """Print what came of it; after a broken run the facts are kept."""
    for name, value in told.figures:
        say(f"  {name:<32}{value:>10}")
    for what in told.wrong:
        say(f"BROKEN {what}")
    if told.wrong and told.facts is not None:
        kept = Path(tempfile.mkdtemp(prefix="imagefleet-faults-")) / f"{part}.json"
        kept.write_text(dumped(told.facts))
        say(f"the facts are kept: python -m tests.support.checker {kept}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--only", choices=PARTS, help="one of the runs instead of all")
    given = parser.parse_args(namespace=_Arguments())
    broken = 0
    for part, begin in PARTS.items():
        if given.only in {None, part}:
            told = begin(given.seed)
            tell(part, told)
            broken += bool(told.wrong)
    return 1 if broken else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
