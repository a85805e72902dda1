"""`make scale-test`: a burst, put through real workers by what the manifests say of KEDA.

KEDA and the HPA are played: the same triggers of the rendered ScaledObjects, the same arithmetic.
Workers, Postgres and SQS are real; each is told what its Deployment says. All durations of the
manifests, and that of a job, are divided by one factor; times are told as they would be there.
"""

import argparse
import asyncio
import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml

from tests.infra.kubernetes.rendering import rendered
from tests.scaling.course import Course, Load, Player, Sample
from tests.scaling.manifests import POSTGRES, Scaled, read_scaled
from tests.scaling.playing import Machine, machine
from tests.support.wheels import NoPrograms

LINE: Final = "{:>8} {:>8} {:>9} {:>11} {:>8} {:>7}"
TOLD_EVERY: Final = 60.0  # seconds of the manifest


class _Arguments(argparse.Namespace):
    installation: str
    rendered: Path | None
    lane: str
    jobs: int
    factor: float
    threshold: float | None


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.scaling", description=__doc__)
    parser.add_argument("--installation", default="production", help="the overlay of infra/k8s")
    parser.add_argument("--rendered", type=Path, help="a file of rendered manifests instead")
    parser.add_argument("--lane", default="general", choices=("fast", "general"))
    parser.add_argument("--jobs", type=int, default=3_000, help="of the burst, a second each")
    parser.add_argument("--factor", type=float, default=10, help="what durations are divided by")
    parser.add_argument("--threshold", type=float, help="a wrong one, to see it noticed")
    given = parser.parse_args(namespace=_Arguments())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it: nothing is left
    try:
        scaled = chosen(given)
    except NoPrograms as missing:
        say(f"NOT PLAYED: {missing}")
        return 1
    begun = time.monotonic()
    try:
        faults = asyncio.run(played(given, scaled))
    except KeyboardInterrupt:
        say("ended before its time")
        return 130
    for fault in faults:
        say(f"BROKEN {fault}")
    if not faults:
        say(f"all held, in {time.monotonic() - begun:.0f} s")
    return 1 if faults else 0


def chosen(given: _Arguments) -> list[Scaled]:
    """All of the manifests, that of the lane first."""
    if given.rendered is not None:
        documents = [*yaml.safe_load_all(given.rendered.read_text(encoding="utf-8"))]
    else:
        documents = [*rendered(given.installation).documents]
    every = sorted(read_scaled(documents), key=lambda each: each.lane != given.lane)
    if given.threshold is not None:
        triggers = [replace(each, threshold=given.threshold) for each in every[0].triggers]
        every[0] = replace(every[0], triggers=tuple(triggers))
    return every


async def played(given: _Arguments, every: Sequence[Scaled]) -> list[str]:
    """Everything that is wrong with it."""
    scaled, *others = every
    load = Load(burst=given.jobs, seconds=given.factor)
    say(f"{scaled.name}: {scaled.least} to {scaled.most} workers of {scaled.slots} slots, a worker")
    for trigger in scaled.triggers:
        say(f"  for every {trigger.threshold:g} of {trigger.asks}")
    say(f"every duration is divided by {given.factor:g}; a job takes 1 s here\n")
    async with machine(scaled, others, load, factor=given.factor) as world:
        course = Course(scaled=scaled, load=load)
        say(LINE.format("there", "here", "to do", "in SQS", "wanted", "work"))
        told = _Told(world, course)
        world.begun = time.monotonic()
        await Player(course, world, told.tell).play()
        if math.isinf(course.absorbed_at):  # what is left is nobody's fault then
            return course.faults()
        await world.settle()
        await tell(course, world)
        return [*course.faults(), *await world.faults()]


class _Told:
    """A line where the number of workers changes, and now and then."""

    def __init__(self, world: Machine, course: Course) -> None:
        self._world, self._course = world, course
        self._last: Sample | None = None

    def tell(self, sample: Sample) -> None:
        last = self._last
        if last and last.replicas == sample.replicas and sample.at - last.at < TOLD_EVERY:
            return
        self._last = sample
        by_kind = {
            trigger.kind: value
            for trigger, value in zip(self._course.scaled.triggers, sample.values, strict=True)
        }
        work = by_kind.pop(POSTGRES)
        messages = sum(value or 0 for value in by_kind.values())
        here = sample.at / self._world.factor
        cells = (f"{sample.at:.0f} s", f"{here:.0f} s", f"{work:.0f}", f"{messages:.0f}")
        say(LINE.format(*cells, sample.replicas, self._world.alive))


async def tell(course: Course, world: Machine) -> None:
    """The figures."""
    factor = world.factor
    taken = [worker for worker in world.gone if worker.held]
    outcomes = ", ".join(f"{count} {what}" for what, count in (await world.outcomes()).items())
    took = course.absorbed_at - course.begun_at
    say(f"\n{'absorbed':<36}{took:.0f} s there, {took / factor:.1f} s here")
    say(f"{'workers at most':<36}{course.peak}")
    say(f"{'from the last work to zero':<36}{course.zero_at - course.idle_at:.0f} s there")
    say(f"{'jobs':<36}{world.submitted}")
    say(f"{'attempts':<36}{outcomes}")
    held = sum(worker.held for worker in taken)
    say(f"{'workers told to go':<36}{len(world.gone)}, {len(taken)} amid {held} jobs")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
