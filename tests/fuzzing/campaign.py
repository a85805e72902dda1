"""One run of Schemathesis over one document, in a process of its own, and what it came to."""

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.wheels import ROOT

CONFIGURATION: Final = Path(__file__).with_name("schemathesis.toml")
EVERY_PHASE: Final = ("examples", "coverage", "fuzzing", "stateful")
NOT_PROMISED: Final = (
    "positive_data_acceptance",  # rules between fields are in words
    "use_after_free",  # what is deleted shows its receipt
    # Who comes next is another tenant; what is shown to whom, our own check says.
    "ensure_resource_availability",
    "object_level_authorization",
)
WITHOUT_A_KEY: Final = "ignored_auth"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was answered, and what was wrong with it."""

    answers: Counter[str] = field(default_factory=Counter)
    """By status."""
    faults: Sequence[str] = ()
    """What Schemathesis said of each run that found some."""

    @property
    def requests(self) -> int:
        return self.answers.total()

    def __add__(self, other: "Verdict") -> "Verdict":
        return Verdict(self.answers + other.answers, [*self.faults, *other.faults])


async def fuzz(
    document: str,
    keys: Sequence[str],
    *,
    seed: int,
    examples: int,
    phases: Sequence[str] = EVERY_PHASE,
    without_a_key: bool = True,
) -> Verdict:
    """Send requests made from the document at this address, so many of a kind to an operation.

    Each that succeeds is sent `without_a_key`, too, unless that was tried enough: the API lets who
    has none wait, beyond a few a second.
    """
    excluded = NOT_PROMISED if without_a_key else (*NOT_PROMISED, WITHOUT_A_KEY)
    with tempfile.TemporaryDirectory() as folder:
        counted = Path(folder) / "counted.json"
        told = {"keys": [*keys], "counted": str(counted), "seed": seed}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION)),
            *("run", document, "--no-color", "--no-shrink", "--continue-on-failure"),
            *("--seed", str(seed), "--max-examples", str(examples), "--phases", ",".join(phases)),
            *("--exclude-checks", ",".join(excluded)),
            *("--generation-with-security-parameters", str(without_a_key)),
            env={**_environment(), "PYTHONPATH": str(ROOT), "FUZZING": json.dumps(told)},
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        answers = json.loads(counted.read_text(encoding="utf-8")) if counted.exists() else {}
    return Verdict(Counter(answers), [said.decode()] if process.returncode else [])


def _environment() -> dict[str, str]:
    return dict(os.environ)  # noqa: TID251 - of a program that is not ours
