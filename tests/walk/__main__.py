"""Walks through the product: `make walk`."""

import argparse
import asyncio
import itertools
import sys
from collections.abc import Iterator

from tests.walk.trace import PACKAGE, Walk
from tests.walk.walking import WALKS, walked


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.walk", description=__doc__)
    parser.add_argument("--only", action="append", choices=[*WALKS], help="repeat it")
    given = parser.parse_args()
    for walk in asyncio.run(walked()):
        if given.only is None or walk.name in given.only:
            sys.stdout.write("\n".join(told(walk)) + "\n\n")
    return 0


def told(walk: Walk) -> Iterator[str]:
    """Process by process and module by module, as they are entered."""
    lengths = {module: _length(module) for module in walk.modules}
    yield (
        f"{walk.name}: {len(walk.modules)} modules of {sum(lengths.values()):,} lines, "
        f"{len(walk.outside_imaging)} outside imaging; {len(walk.statements)} statements"
    )
    for process, steps in itertools.groupby(walk.steps, lambda step: step.process):
        yield f"  {process}"
        for path, inner in itertools.groupby(steps, lambda step: step.path):
            if path:
                calls = [f"{step.name}:{step.line}" for step in inner if "<" not in step.name]
                yield f"    {path} ({lengths[path]}): {', '.join(calls)}"
            else:
                yield from (f"      SQL {step.name}" for step in inner)


def _length(module: str) -> int:
    return (PACKAGE / module).read_text(encoding="utf-8").count("\n")


if __name__ == "__main__":
    sys.exit(main())
