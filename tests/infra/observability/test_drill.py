"""A drill judges what it is for; one of its faults is played here, `make drill` plays them all."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from tests.infra.observability.asking import alerts
from tests.infra.observability.drill.__main__ import HEAD, table
from tests.infra.observability.drill.cluster import KINDS, Cluster, NotOrderedError, deployments
from tests.infra.observability.drill.faults import FAULTS, Fault, StandsFor, nothing
from tests.infra.observability.drill.playing import Player, Row
from tests.infra.observability.drill.runbooks import Command, NoCommandError, command_of, written_of
from tests.infra.observability.drill.world import Answer, World, a_world
from tests.support.prometheus import needed
from tests.support.stack import Stack
from tests.support.wheels import ROOT

pytestmark = pytest.mark.timeout(240)

IN_A_HURRY = 30.0  # what durations are divided by: five minutes are ten seconds
PATIENCE = 60.0  # seconds
FEW = 0.3  # seconds: a world that is written down answers at once


async def test_a_pause_that_somebody_forgot_is_seen_and_ended_by_what_its_runbooks_say(
    tmp_path: Path,
) -> None:
    needed("prometheus")
    (forgotten,) = [fault for fault in FAULTS if fault.name == "pause forgotten"]
    said: list[str] = []
    async with a_world(tmp_path, IN_A_HURRY) as world:
        played = await Player(world, said.append, patience=PATIENCE).play(forgotten)

    assert [] == played.wrong, "\n".join(said)
    assert all(row.fired is not None and row.resolved is not None for row in played.rows)
    assert [row.command for row in played.rows] == [written_of(name) for name in forgotten.alerts]


@dataclass
class Written:
    """A world that is written down: what each step of a fault does to the alerts."""

    brings: Mapping[str, str] = field(default_factory=lambda: {"Late": "ticket"})
    mends: frozenset[str] = frozenset({"Late"})
    """What the right command ends."""
    others_mend: frozenset[str] = frozenset()
    """What is over without it."""
    code: int = 0
    is_told: bool = True
    acts: int = 0
    obeyed: int = 0
    now: dict[str, str] = field(default_factory=dict)

    @property
    def prometheus(self) -> "Written":
        return self

    @property
    def cluster(self) -> "Written":
        return self

    async def firing(self) -> dict[str, str]:
        return dict(self.now)

    async def gives(self, words: tuple[str, ...]) -> Answer:
        if words[0] == "mend":
            self._end(self.mends)
        self.acts += self.is_told
        return Answer(self.code, "it said so")

    async def asks(self, _query: str) -> int:
        return self.acts

    async def bring(self, _world: World) -> StandsFor:
        self.now |= self.brings
        return {}

    async def mend(self, _world: World) -> None:
        self._end(self.others_mend)

    async def clear(self, _world: World) -> None:
        self._end(frozenset(self.brings) - {"Page"})

    def _end(self, names: frozenset[str]) -> None:
        self.now = {name: how for name, how in self.now.items() if name not in names}


async def wrong_with(world: Written, line: str = "mend") -> list[str]:
    fault = Fault(
        name="trouble",
        alerts=("Late",),
        brought=world.bring,
        mended=world.mend,
        cleared=world.clear,
    )

    def commands(_alert: str, _stands_for: Mapping[str, str]) -> Command:
        return Command(line, tuple(shlex.split(line)))

    player = Player(cast("World", world), lambda _: None, commands=commands, patience=FEW)
    return (await player.play(fault)).wrong


async def test_an_alert_that_fires_and_ends_by_its_command_is_all_right() -> None:
    assert [] == await wrong_with(Written())


@pytest.mark.parametrize(
    ("world", "line", "wrong"),
    [
        (Written(brings={}), "mend", "Late did not fire"),
        (Written(now={"Late": "ticket"}), "mend", "Late fired before"),
        (Written(), "look", "Late still fires"),
        (Written(code=1), "mend", "`mend` ended with 1: it said so"),
        (
            Written(others_mend=frozenset({"Late"})),
            "mend",
            "Late was over before its command was given",
        ),
        (Written(is_told=False), "mend", "`mend` changed nothing"),
        (
            Written(brings={"Late": "ticket", "Page": "page"}),
            "mend",
            "Page was left behind",
        ),
    ],
    ids=["silent", "before", "in vain", "refused", "by itself", "untold", "left behind"],
)
async def test_a_drill_that_did_not_go_as_it_should_says_so(
    world: Written, line: str, wrong: str
) -> None:
    assert [f"trouble: {wrong}"] == await wrong_with(world, line)


async def test_another_alert_for_tomorrow_may_stay() -> None:
    assert [] == await wrong_with(Written(brings={"Late": "page", "Other": "ticket"}))


def test_every_alert_of_a_fault_has_a_rule_and_a_command() -> None:
    wanted = {alert for fault in FAULTS for alert in fault.alerts}

    assert wanted <= {rule.name for rule in alerts()}
    assert all(written_of(alert) for alert in wanted)


def test_an_alert_that_was_renamed_has_no_command() -> None:
    with pytest.raises(NoCommandError, match="0 rules are named so"):
        command_of("NoProgressAnyMore", {})


def test_a_placeholder_that_nobody_knows_is_named() -> None:
    assert "TYPE" in written_of("NoProgress")

    with pytest.raises(NoCommandError, match="what TYPE stands for"):
        command_of("NoProgress", {})
    assert "noop" in command_of("NoProgress", {"TYPE": "noop"}).words


def test_every_process_has_a_deployment_of_the_manifests() -> None:
    assert set(KINDS) == set(deployments().values())
    assert "worker" == deployments()["imagefleet-worker-general"]


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("get pods", "not in the namespace imagefleet"),
        ("--namespace imagefleet rollout restart deployment imagefleet-upkeep", "no deployment"),
        ("--namespace imagefleet scale deployment imagefleet-api --replicas 0", "to nothing"),
        ("--namespace imagefleet destroy everything", "nobody plays"),
    ],
)
def test_an_order_that_a_cluster_would_not_obey_is_refused(
    tmp_path: Path, line: str, refused: str
) -> None:
    cluster = Cluster(cast("Stack", None), tmp_path)

    with pytest.raises(NotOrderedError, match=refused):
        cluster.kubectl(shlex.split(line))


def test_the_page_of_operations_has_a_row_for_each_alert_of_a_fault() -> None:
    """With the command that its runbook has now; the seconds are those of one run."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    expected = table(
        [
            Row(fault.name, alert, fired=1, command=written_of(alert), resolved=1)
            for fault in FAULTS
            for alert in fault.alerts
        ]
    )
    head, rule, *rows = expected
    shown = page.partition(f"{head}\n{rule}\n")[2].partition("\n\n")[0].splitlines()

    assert shown, f"no table {HEAD}"
    assert [without_seconds(row) for row in shown] == [without_seconds(row) for row in rows]


def without_seconds(row: str) -> str:
    return re.sub(r"\| \d+ \|", "| … |", row)


def test_a_fault_needs_nobody_else_unless_it_says_so() -> None:
    assert {"poison", "S3 gone", "Postgres away"} == {
        fault.name for fault in FAULTS if fault.mended is not nothing
    }
