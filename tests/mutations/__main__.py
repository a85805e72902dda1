"""Breaks the store on purpose, one protection at a time, and asks the tests: `make mutations`.

Ends with 1 when a named test stays green, or when a mutation does not fit the code any more.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation
from tests.mutations.trials import Copy, Verdict, a_copy


class _Arguments(argparse.Namespace):
    only: list[str] | None
    list: bool
    why: bool


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mutations", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="part of a name; repeat it")
    parser.add_argument("--list", action="store_true", help="say which there are, and try none")
    parser.add_argument("--why", action="store_true", help="tell what the red tests complain of")
    given = parser.parse_args(namespace=_Arguments())
    chosen = [mutation for mutation in MUTATIONS if _is_wanted(mutation, given.only)]
    if not chosen:
        parser.error("no mutation has such a name; --list tells them")
    if given.list:
        for one in chosen:
            say(f"{one.name} ({one.path})")
            for test in one.tests:
                say(f"    {test}")
        return 0
    with a_copy() as copy:
        return try_all(copy, chosen, tell_why=given.why)


def _is_wanted(mutation: Mutation, only: Sequence[str] | None) -> bool:
    return only is None or any(part in mutation.name for part in only)


def try_all(copy: Copy, mutations: Sequence[Mutation], *, tell_why: bool) -> int:
    """Every named test is green without a mutation, and red with its own."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    say(f"{len(mutations)} mutations, {len(tests)} tests; first the tests as they are")
    told = copy.run(tests)
    if told.exit_code != 0:
        say(f"{told.output}\nBROKEN the tests are not green to begin with")
        return 1
    counts: Counter[Verdict] = Counter()
    for number, mutation in enumerate(mutations, 1):
        begun = time.monotonic()
        trial = copy.try_(mutation)
        counts[trial.verdict] += 1
        took = time.monotonic() - begun
        say(f"[{number:>2}/{len(mutations)}] {trial.verdict:<9} {took:4.1f} s  {mutation.name}")
        if tell_why or trial.verdict is not Verdict.CAUGHT:
            say(f"        {trial.why}")
    say(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 0 if set(counts) == {Verdict.CAUGHT} else 1


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
