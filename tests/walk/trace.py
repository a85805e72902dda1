"""What the processes of a walked stack have told, and what an idle stack does not."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.faults.plugin.walking import PHASE_FILE, REGION

PACKAGE: Final = Path(__file__).parents[2] / "services" / "imagefleet"
NOTHING: Final = 0
STARTING: Final = 1
IDLE: Final = 2
"""Phases: nobody listens; what a start runs; what runs anyway. Then one a walk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A function of the product that is entered first, or a statement, each with its time."""

    phase: int
    at: int
    process: str
    what: Literal["call", "statement"]
    path: str
    """Of a call: the module's file, below services/imagefleet."""
    line: int
    name: str

    @property
    def ran(self) -> tuple[str, str, int, str]:
        """The same wherever and whenever it runs, but for the process."""
        return (self.process, self.path, self.line, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What one thing that was asked for ran through, in order."""

    name: str
    steps: Sequence[Step]

    @property
    def modules(self) -> list[str]:
        """In the order in which they are entered."""
        return list(dict.fromkeys(step.path for step in self.steps if step.what == "call"))

    @property
    def outside_imaging(self) -> list[str]:
        return [module for module in self.modules if not module.startswith("imaging/")]

    @property
    def statements(self) -> list[str]:
        return [step.name for step in self.steps if step.what == "statement"]


def say(folder: Path, phase: int) -> None:
    """Every process tells from now on what belongs to this phase."""
    file = folder / PHASE_FILE
    with file.open("r+b" if file.exists() else "wb") as told:  # in place: it is mapped
        told.write(bytes([phase]))


def read_steps(folder: Path) -> list[Step]:
    """Everything that was told so far, in order of time."""
    return sorted(_steps(folder), key=lambda step: step.at)


def walks(steps: Iterable[Step], names: Sequence[str]) -> list[Walk]:
    """One a phase after the idle one, without what ran in that."""
    listed = [*steps]
    idle = {step.ran for step in listed if _runs_anyway(step)}
    return [
        Walk(
            name=name,
            steps=[step for step in listed if step.phase == phase and step.ran not in idle],
        )
        for phase, name in enumerate(names, IDLE + 1)
    ]


def _runs_anyway(step: Step) -> bool:
    """Of maintenance also what it does at its start: its offices and periods come round slowly."""
    return step.phase == IDLE or (step.phase == STARTING and step.process == "maintenance")


def _steps(folder: Path) -> Iterator[Step]:
    for file in folder.iterdir():
        if file.name == PHASE_FILE:
            continue
        told = file.read_bytes()
        for begin in range(0, len(told), REGION):
            text = told[begin : begin + REGION].partition(b"\0")[0].decode()
            yield from map(_step, text.splitlines())


def _step(line: str) -> Step:
    phase, at, process, what, *words = line.split("\t")
    path, number, name = words if what == "call" else ("", "0", words[0])
    return Step(
        phase=int(phase),
        at=int(at),
        process=process,
        what="call" if what == "call" else "statement",
        path=path,
        line=int(number),
        name=name,
    )
