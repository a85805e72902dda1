"""The list fits the code and the tests of today; that its runner tells red from green."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import ROOT, Mutation
from tests.mutations.trials import Copy, Verdict, a_copy

HARMLESS = Mutation(
    "a comment",
    "fleet/elections.py",
    "# The row stays, so that its term does",
    "# The row goes, and so does its term",
    "fleet/test_elections.py",
    ("test_offices_are_held_apart",),
)
CAUGHT = next(
    mutation for mutation in MUTATIONS if mutation.name == "an office is taken from its holder"
)


def test_the_text_of_every_mutation_stands_exactly_once_in_its_file() -> None:
    times = {mutation.name: mutation.occurrences() for mutation in MUTATIONS}

    assert {name: count for name, count in times.items() if count != 1} == {}


def test_every_mutation_has_a_name_of_its_own_and_changes_something() -> None:
    names = Counter(mutation.name for mutation in MUTATIONS)

    assert [name for name, count in names.items() if count > 1] == []
    assert [
        mutation.name
        for mutation in MUTATIONS
        if mutation.old == mutation.new or not mutation.caught_by
    ] == []


def test_every_test_that_is_named_exists() -> None:
    named = sorted({test for mutation in MUTATIONS for test in mutation.tests})

    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert collected.returncode == 0, collected.stdout


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    with a_copy() as copy:
        yield copy


def test_what_is_green_here_is_green_in_the_copy(copy: Copy) -> None:
    told = copy.run(HARMLESS.tests)

    assert told.exit_code == 0, told.output


def test_a_mutation_whose_test_goes_red_is_caught_and_undone(copy: Copy) -> None:
    file = copy.root / CAUGHT.path
    before = file.read_text()

    trial = copy.try_(CAUGHT)

    assert trial.verdict is Verdict.CAUGHT, trial.why
    assert file.read_text() == before == (ROOT / CAUGHT.path).read_text()


def test_a_mutation_whose_test_stays_green_survives(copy: Copy) -> None:
    trial = copy.try_(HARMLESS)

    assert trial.verdict is Verdict.SURVIVED, trial.why
    assert "test_offices_are_held_apart" in trial.why


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("WHERE held.holder =", "WHERE nobody.holder =", id="SQL"),
        pytest.param("def hold_election", "def hold-election", id="Python"),
    ],
)
def test_a_mutation_that_nothing_can_read_is_no_catch(copy: Copy, old: str, new: str) -> None:
    trial = copy.try_(replace(HARMLESS, old=old, new=new))

    assert trial.verdict is Verdict.NONSENSE, trial.why


@pytest.mark.parametrize("old", ["there is no such text", "SELECT"], ids=["never", "often"])
def test_a_mutation_whose_text_is_not_there_exactly_once_is_lost(copy: Copy, old: str) -> None:
    trial = copy.try_(replace(HARMLESS, file="claims.py", old=old))

    assert trial.verdict is Verdict.LOST


PROMISED = {
    "fence": ("a settlement is written whatever became of its claim", "a lost claim works on"),
    "order of locks": (
        "who ends claims locks none of their targets",
        "targets are locked in the wrong order",
        "claims are locked in the wrong order",
    ),
    "skip of a tombstone": (
        "a deleted image is shown again",
        "a job about a deleted image is accepted",
    ),
    "monotone flip": ("an older version is shown after a newer one",),
    "ring of the next": ("a freed target rings nobody",),
    "rescue without watching": ("silence counts while nobody watched",),
    "delete before settle": ("a message is deleted before its job is settled",),
    "charge on drain": ("a release is charged", "a drain costs the job an attempt"),
}


@pytest.mark.parametrize("protection", PROMISED)
def test_what_must_never_break_is_broken_on_purpose(protection: str) -> None:
    names = {mutation.name for mutation in MUTATIONS}

    assert set(PROMISED[protection]) <= names
