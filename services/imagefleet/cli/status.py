"""`imagefleet status`: whether the fleet keeps what producers rely on, in five lines.

It asks what the console's first page asks. The rates tell whether a promise was kept for what is
over, the other routes what still waits, of which no rate tells, and what stands in its way.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from imagefleet.cli.output import ExitCode, Fields, Part, finish, show
from imagefleet.cli.progress import keep_showing
from imagefleet.cli.rates import RATES
from imagefleet.cli.verbs import Every, Json, Watch, call
from imagefleet.client.api import ApiClient, Document
from imagefleet.errors import RequestRejected
from imagefleet.jobs.shapes.fleet import SILENT_AFTER
from imagefleet.jobs.shapes.rates import (
    DELETES_IMAGES,
    MAKES_IMAGES,
    PROMISED_SHARE,
    PROMISED_WITHIN,
    Span,
)

FEW: Final = 3  # failures; fewer are no trend, and wake nobody
NOT_COUNTED_FOR: Final = timedelta(minutes=5)
DARK_IS_LATE_AFTER: Final = 300  # seconds, as the alert DarkLate has it
FIRST_WAITS_FOR: Final = 3600  # seconds, as the alert OldestJobWaits has it
PARTS_TOLD: Final = 3


class Keeping(StrEnum):
    """Whether a promise is kept; the later, the worse."""

    KEPT = "kept"
    AT_RISK = "at risk"
    BROKEN = "broken"


def status(watch: Watch = False, every: Every = 2, as_json: Json = False) -> None:
    """Say in five lines whether the fleet keeps what producers rely on, now.

    Each line begins with how it stands: *kept*; *at risk*, if it will be broken should this go on,
    or somebody has to look at it today; *broken*. The first two are the service levels, over the
    last hour and the last day. Exits with 1 when a line is broken.

    For example:

        imagefleet status
        imagefleet status --watch
        imagefleet status --json | jq -r '.lines[] | select(.status != "kept").told'
    """
    if watch:
        keep_showing(_standing, _lines, every=every, as_json=as_json)
        return
    seen = call(_standing)
    show(seen, _lines, as_json=as_json)
    finish(ExitCode.FAILED if seen["status"] == Keeping.BROKEN else ExitCode.DONE)


def _lines(seen: Document) -> Part:
    return Fields({f"{line['status']:<7}  {line['line']}": line["told"] for line in seen["lines"]})


async def _standing(client: ApiClient) -> Document:
    """All that is asked for it, and what is made of that."""
    try:
        hour = await client.ask("GET", RATES, {"span": Span.HOUR})
    except RequestRejected as error:
        if error.code == "forbidden":
            error.add_note("with a producer's key, `imagefleet jobs list` shows its own jobs")
        raise
    parts = ("queues", "breakers", "pauses", "ledger", "edge", "workers")
    day, *rest = await asyncio.gather(
        client.ask("GET", RATES, {"span": Span.DAY}),
        *(client.ask("GET", f"/v1/operator/{part}") for part in parts),
    )
    queues, breakers, pauses, ledger, edge, workers = rest
    lines = [
        _promise("published", MAKES_IMAGES, hour, day, queues),
        _dark(_promise("dark", DELETES_IMAGES, hour, day, queues), edge, queues),
        _waiting(queues),
        _trouble(breakers, pauses, ledger, queues),
        _workers(workers, edge),
    ]
    return {"status": _worst(line["status"] for line in lines), "lines": lines}


def _worst(stands: Iterable[Keeping]) -> Keeping:
    return max(stands, key=[*Keeping].index, default=Keeping.KEPT)


def _line(name: str, told: Iterable[tuple[Keeping, str]], **figures: object) -> Document:
    """One of the five: as bad as the worst that is told."""
    parts = [*told]
    stands = _worst(stands for stands, _ in parts)
    return {"line": name, "status": stands, "told": "; ".join(part for _, part in parts), **figures}


def _promise(name: str, job_type: str, hour: Document, day: Document, queues: Document) -> Document:
    spans = {"hour": _counted(hour, job_type), "day": _counted(day, job_type)}
    within = PROMISED_WITHIN[job_type].seconds

    def told() -> Iterator[tuple[Keeping, str]]:
        if not spans["day"]["promised"] and not spans["hour"]["promised"]:
            yield Keeping.KEPT, "nothing in the last day"
            return
        if spans["hour"]["promised"]:
            this_hour = f"{_share(spans['hour'])} within {within} s"
            yield _stands(spans["hour"], Keeping.BROKEN), this_hour
        else:
            yield Keeping.KEPT, "nothing in the last hour"
        yield _stands(spans["day"], Keeping.AT_RISK), f"last day {_share(spans['day'])}"
        until = datetime.fromisoformat(hour["countedUntil"])
        if datetime.fromisoformat(queues["takenAt"]) - until > NOT_COUNTED_FOR:
            yield Keeping.AT_RISK, f"counted until {until:%H:%M} UTC"

    return _line(name, told(), withinSeconds=within, promisedShare=PROMISED_SHARE, **spans)


def _counted(rates: Document, job_type: str) -> dict[str, int]:
    kinds = [kind for kind in rates["kinds"] if kind["jobType"] == job_type]
    return {name: sum(kind.get(name, 0) for kind in kinds) for name in ("promised", "late")}


def _stands(counted: dict[str, int], at_worst: Keeping) -> Keeping:
    if counted["late"] <= (1 - PROMISED_SHARE) * counted["promised"]:
        return Keeping.KEPT
    return at_worst if counted["late"] >= FEW else Keeping.AT_RISK


def _share(counted: dict[str, int]) -> str:
    """Never rounded up: 100 % are all."""
    promised = counted["promised"]
    if not promised:
        return "none"
    hundredths = math.floor(10_000 * (promised - counted["late"]) / promised)
    return f"{hundredths / 100:g} % of {promised:,}"


def _dark(line: Document, edge: Document, queues: Document) -> Document:
    """The same, with what is not dark yet: of that no rollup tells."""
    waits = [_due_for(depth, queues) for depth in queues["depths"] if _waits(depth, DELETES_IMAGES)]
    longest = max([*waits, edge["oldestOwedFor"] if edge["owed"] else 0.0])
    line["oldestSeconds"] = longest
    if longest > PROMISED_WITHIN[DELETES_IMAGES].seconds:
        late = Keeping.BROKEN if longest > DARK_IS_LATE_AFTER else Keeping.AT_RISK
        line["status"] = _worst([line["status"], late])
        line["told"] += f"; one still shows after {_span(longest)}"
    return line


def _waits(depth: Document, job_type: str | None = None) -> bool:
    return depth["status"] != "processing" and job_type in {None, depth["jobType"]}


def _due_for(depth: Document, queues: Document) -> float:
    due, now = (datetime.fromisoformat(at) for at in (depth["oldestDue"], queues["takenAt"]))
    return max((now - due).total_seconds(), 0.0)


def _waiting(queues: Document) -> Document:
    waits = [depth for depth in queues["depths"] if _waits(depth)]
    jobs = sum(depth["jobs"] for depth in waits)
    first = max(waits, key=lambda depth: _due_for(depth, queues), default=None)
    longest = _due_for(first, queues) if first else 0.0

    def told() -> Iterator[tuple[Keeping, str]]:
        if first is None:
            running = sum(lane["processing"] for lane in queues["lanes"])
            runs = f"{_many(running, 'job')} at work" if running else "nothing runs"
            yield Keeping.KEPT, f"nothing waits, {runs}"
            return
        late = Keeping.AT_RISK if longest > PROMISED_WITHIN[MAKES_IMAGES].seconds else Keeping.KEPT
        yield (
            Keeping.BROKEN if longest > FIRST_WAITS_FOR else late,
            f"{_many(jobs, 'job')}, the first due for {_span(longest)} ({first['jobType']})",
        )
        for lane in queues["lanes"]:
            if lane["waiting"] and not lane["workers"]:
                yield Keeping.BROKEN, f"nobody serves the lane {lane['lane']}"
        served = {lane["lane"] for lane in queues["lanes"] if lane["workers"]}
        for depth in waits:
            if depth["unroutable"] and depth["lane"] in served:
                yield Keeping.BROKEN, f"no worker takes {depth['jobType']}"

    return _line("waiting", told(), jobs=jobs, oldestSeconds=longest)


def _trouble(breakers: Document, pauses: Document, ledger: Document, queues: Document) -> Document:
    parts = [*_troubles(breakers["breakers"], pauses["pauses"], ledger, queues)]
    parts.sort(key=lambda part: [*Keeping].index(part[0]), reverse=True)
    more = len(parts) - PARTS_TOLD
    rest = [(Keeping.KEPT, f"and {more} more")] if more > 0 else []
    well = [(Keeping.KEPT, "no open breaker, no pause, no dead letter")]
    told = [*parts[:PARTS_TOLD], *rest] or well
    return _line("trouble", told, unacknowledged=queues["unacknowledged"])


def _troubles(
    breakers: Iterable[Document], pauses: Iterable[Document], ledger: Document, queues: Document
) -> Iterator[tuple[Keeping, str]]:
    if ledger["missing"]:
        yield Keeping.BROKEN, f"{_many(ledger['missing'], 'job')} missing"
    for breaker in breakers:
        if breaker["state"] != "closed":
            stands = Keeping.BROKEN if breaker["state"] == "open" else Keeping.AT_RISK
            why = breaker["updatedBy"] if breaker["forced"] else breaker.get("lastErrorCode")
            named = f"{breaker['service']} breaker {breaker['state'].replace('_', ' ')}"
            yield stands, f"{named} ({why})" if why else named
    if queues["unacknowledged"]:
        yield Keeping.AT_RISK, f"{_many(queues['unacknowledged'], 'dead letter')}"
    for pause in pauses:
        everything = pause["scope"] == "all"
        whose = " ".join(filter(None, (pause["scope"], pause.get("name"), pause.get("tenant"))))
        named = "everything" if everything else whose
        yield Keeping.BROKEN if everything else Keeping.AT_RISK, f"{named} paused"


def _workers(workers: Document, edge: Document) -> Document:
    alive = [worker for worker in workers["workers"] if not worker.get("deadAt")]
    silent = [each for each in alive if each["silentFor"] > SILENT_AFTER.total_seconds()]
    slots, busy = sum(each["slots"] for each in alive), sum(len(each["held"]) for each in alive)

    def told() -> Iterator[tuple[Keeping, str]]:
        if not alive:
            yield Keeping.BROKEN, "no worker"
        else:
            yield Keeping.KEPT, f"{_many(len(alive), 'worker')}, {busy} of {slots} slots busy"
        if silent:
            longest = max(each["silentFor"] for each in silent)
            everybody = Keeping.BROKEN if len(silent) == len(alive) else Keeping.AT_RISK
            yield everybody, f"{len(silent)} silent for {_span(longest)}"
        if not (edge.get("flusher") or {}).get("holds"):
            yield Keeping.BROKEN, "no maintenance process"

    return _line("workers", told(), workers=len(alive), silent=len(silent), slots=slots, busy=busy)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
