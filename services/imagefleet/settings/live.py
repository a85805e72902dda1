"""What an operator turns while everything runs: each setting declared once, with its bounds.

How a process starts is said by the environment. A live setting is a deviation from that: a row in
Postgres, read by every process within seconds (`imagefleet.live`), undone by deleting it. A name
may have a place, `<service>` or `<type>`, in which the names of what it is about stand.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from imagefleet.errors import RequestRejected
from imagefleet.jobs.limits import LIMITS, OPEN_JOBS
from imagefleet.jobs.policies import LONGEST_CAP, MOST_ATTEMPTS

Value: TypeAlias = bool | int | float
Process: TypeAlias = Literal["api", "worker", "maintenance"]
Form: TypeAlias = Literal["whole", "number", "switch"]

TRACES: Final = "sampling.traces_ratio"
EVERYTHING_ELSE: Final = "*"
RETENTION: Final = "retention.jobs_days"
"""The one that statements read, not processes: in Postgres it is turned along with its row."""

# What may stand in a place. A star is every one that is not named by itself.
PLACES: Final[Mapping[str, str]] = {
    "<service>": r"\*|[a-z][a-z0-9_.-]{0,62}",
    "<policy>": r"\*|[a-z][a-z0-9_]{0,62}",
    "<type>": r"[a-z][a-z0-9_]{0,62}",
    "<lane>": r"fast|general|quarantine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSetting:
    """One of them, or one for each name that may stand in its place."""

    name: str
    form: Form
    low: float = 0
    high: float = 1
    unit: str = ""
    meaning: str
    read_by: tuple[Process, ...]
    default: str
    """Where the default comes from: a variable of that process's environment, or a word on it."""

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        if self.form == "switch":
            return "true or false"
        kind = "a whole number" if self.form == "whole" else "a number"
        of = f" of {self.unit}" if self.unit else ""
        return f"{kind}{of} from {self.low:.15g} to {self.high:.15g}"

    @property
    def is_about_a_type(self) -> bool:
        """Whether a job type stands in its place."""
        return "<policy>" in self.name or "<type>" in self.name

    def read(self, name: str, value: object) -> Value:
        """Take a value as it was written, if it may be one of this setting; RequestRejected."""
        match value:
            case bool() if self.form == "switch":
                return value
            case bool():
                pass
            case int() if self.form != "switch" and self.low <= value <= self.high:
                return value if self.form == "whole" else float(value)
            case float() if self.form == "number" and math.isfinite(value):
                if self.low <= value <= self.high:
                    return value
            case _:
                pass
        raise RequestRejected("invalid_setting", f"{name} is {self.allowed}.")


_DAY: Final = 86_400.0
_WORKER: Final[tuple[Process, ...]] = ("worker",)
_UPKEEP: Final[tuple[Process, ...]] = ("maintenance",)
_SUBMITTERS: Final[tuple[Process, ...]] = ("api",)

DECLARED: Final[tuple[LiveSetting, ...]] = (
    LiveSetting(
        name="breaker.<service>.failures",
        form="whole",
        low=1,
        high=1_000_000,
        meaning="Failures in a window of which nobody takes notice if there are fewer.",
        read_by=_WORKER,
        default="BREAKERS",
    ),
    LiveSetting(
        name="breaker.<service>.ratio",
        form="number",
        low=0.01,
        high=1,
        meaning="The share of the calls of a window that have to fail to open the breaker.",
        read_by=_WORKER,
        default="BREAKERS",
    ),
    LiveSetting(
        name="breaker.<service>.window_seconds",
        form="number",
        low=1,
        high=3600,
        unit="seconds",
        meaning="How long calls are counted together.",
        read_by=_WORKER,
        default="BREAKERS",
    ),
    LiveSetting(
        name="breaker.<service>.open_seconds",
        form="number",
        low=1,
        high=_DAY,
        unit="seconds",
        meaning="How long an open breaker waits for its first probe; one that is open already "
        "keeps its time until a probe fails.",
        read_by=_WORKER,
        default="BREAKERS",
    ),
    LiveSetting(
        name="retry.<policy>.base_seconds",
        form="number",
        low=0.1,
        high=LONGEST_CAP.total_seconds(),
        unit="seconds",
        meaning="The wait after the first failure of a job of this type; it doubles with each "
        "further one.",
        read_by=_WORKER,
        default="BACKOFF_BASE_SECONDS",
    ),
    LiveSetting(
        name="retry.<policy>.cap_seconds",
        form="number",
        low=0.1,
        high=LONGEST_CAP.total_seconds(),
        unit="seconds",
        meaning="The longest wait, up to a fifth of jitter apart.",
        read_by=_WORKER,
        default="BACKOFF_CAP_SECONDS",
    ),
    LiveSetting(
        name="retry.<policy>.max_attempts",
        form="whole",
        low=1,
        high=MOST_ATTEMPTS,
        meaning="How often a job may run, of those that producers submit from now on: a job keeps "
        "the number that it was accepted with, and gives it to its replay and, as a set, to the "
        "jobs of its images.",
        read_by=_SUBMITTERS,
        default="MAX_ATTEMPTS",
    ),
    LiveSetting(
        name="timeout.lane.<lane>",
        form="number",
        low=1,
        high=7200,
        unit="seconds",
        meaning="How long an attempt in this lane may take, of types that name no time of their "
        "own; attempts that run already keep theirs.",
        read_by=_WORKER,
        default="the lane",
    ),
    LiveSetting(
        name="timeout.type.<type>",
        form="number",
        low=1,
        high=7200,
        unit="seconds",
        meaning="The same for one type, in whatever lane.",
        read_by=_WORKER,
        default="the job type, else its lane",
    ),
    LiveSetting(
        name="slots.lane.<lane>",
        form="whole",
        low=0,
        high=100,
        unit="slots",
        meaning="How many of a worker's slots in this lane are used; more than it was started "
        "with is all of them. Running jobs finish. General slots go on helping `fast`.",
        read_by=("worker", "maintenance"),
        default="WORKER_FAST_SLOTS, WORKER_GENERAL_SLOTS",
    ),
    LiveSetting(
        name="slots.type.<type>",
        form="whole",
        low=0,
        high=200,
        unit="slots",
        meaning="How many jobs of this type a worker runs at once, whatever their lanes; 0 is "
        "none. Running jobs finish; what is received beyond it waits a second at a time, counted "
        "as `unroutable`.",
        read_by=("worker", "maintenance"),
        default="as many as have slots",
    ),
    LiveSetting(
        name="window.spare_jobs",
        form="whole",
        low=1,
        high=1000,
        unit="jobs",
        meaning="Announced in each lane beyond what its workers can take until the next look.",
        read_by=_UPKEEP,
        default="the program",
    ),
    LiveSetting(
        name="window.looks",
        form="number",
        low=1,
        high=20,
        unit="looks",
        meaning="How many looks of the dispatcher the horizon bridges.",
        read_by=_UPKEEP,
        default="the program",
    ),
    LiveSetting(
        name="window.shortest_seconds",
        form="number",
        low=0.2,
        high=60,
        unit="seconds",
        meaning="The horizon at least: for so long what is announced lasts at a lane's pace.",
        read_by=_UPKEEP,
        default="the program",
    ),
    LiveSetting(
        name="window.longest_seconds",
        form="number",
        low=0.2,
        high=60,
        unit="seconds",
        meaning="The horizon at most, however late the looks are.",
        read_by=_UPKEEP,
        default="the program",
    ),
    LiveSetting(
        name="window.batch_jobs",
        form="whole",
        low=1,
        high=5000,
        unit="jobs",
        meaning="The most jobs of a lane announced by one look.",
        read_by=_UPKEEP,
        default="DISPATCH_BATCH",
    ),
    LiveSetting(
        name=RETENTION,
        form="whole",
        low=30,
        high=3650,
        unit="days",
        meaning="How long finished jobs, their attempts and their idempotency keys are kept. What "
        "is forgotten under a shorter one is gone.",
        read_by=_UPKEEP,
        default="`retention` of the row in `fleet`",
    ),
    LiveSetting(
        name="retention.superseded_seconds",
        form="number",
        low=0,
        high=10 * _DAY,
        unit="seconds",
        meaning="How long a superseded version is kept after the edge has forgotten it.",
        read_by=_UPKEEP,
        default="SWEEP_GRACE_SECONDS",
    ),
    LiveSetting(
        name="retention.sweep_deletes",
        form="switch",
        meaning="Whether what is swept is deleted from S3; off, it is only counted.",
        read_by=_UPKEEP,
        default="SWEEP_DELETES",
    ),
    LiveSetting(
        name="sampling.gauges_seconds",
        form="number",
        low=1,
        high=300,
        unit="seconds",
        meaning="How often gauges are read from Postgres and SQS.",
        read_by=_UPKEEP,
        default="SAMPLE_INTERVAL_SECONDS",
    ),
    LiveSetting(
        name=TRACES,
        form="number",
        low=0,
        high=1,
        meaning="The share of the traces that begin here which are recorded at all; what came "
        "with a trace stays in it. Of these `OTEL_TRACES_SAMPLER` takes its own share: where that "
        "is a ratio, this lowers it and cannot raise it.",
        read_by=("api", "worker", "maintenance"),
        default="the program",
    ),
    *(
        LiveSetting(
            name=f"limits.{one.name}",
            form="whole",
            low=one.lowest,
            high=one.highest,
            meaning=f"{one.meaning} ({one.unit}; of every tenant that has no limit of its own.)",
            read_by=_SUBMITTERS,
            default="the limit",
        )
        for one in LIMITS.values()
        if one.name != OPEN_JOBS
    ),
)


def _pattern(name: str) -> re.Pattern[str]:
    words = [PLACES.get(word) for word in name.split(".")]
    parts = [
        re.escape(text) if place is None else f"(?P<about>{place})"
        for text, place in zip(name.split("."), words, strict=True)
    ]
    return re.compile(r"\.".join(parts))


_PATTERNS: Final = tuple((_pattern(setting.name), setting) for setting in DECLARED)


def find_setting(name: str) -> LiveSetting | None:
    """Return the setting of this name, as it was declared; None: this release has none."""
    return next((one for pattern, one in _PATTERNS if pattern.fullmatch(name)), None)


def named(pattern: str, name: str) -> str:
    """Put a name in the place of a declared one."""
    place = next(one for one in PLACES if one in pattern)
    return pattern.replace(place, name)


def about(setting: LiveSetting, name: str) -> str | None:
    """Return what stands in the place of this name; None: there is no place, or nothing in it."""
    found = _pattern(setting.name).fullmatch(name)
    return found.groupdict().get("about") if found else None


def live_reference() -> Iterator[str]:
    """Write the section of docs/settings.md: a row a setting."""
    yield "## Live settings"
    yield ""
    yield LIVE_FOREWORD
    yield "| setting | value | default | read by | meaning |"
    yield "|---|---|---|---|---|"
    for one in DECLARED:
        cells = (
            f"`{one.name}`",
            one.allowed,
            f"`{one.default}`" if one.default.isupper() and "," not in one.default else one.default,
            ", ".join(one.read_by),
            one.meaning,
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


LIVE_FOREWORD: Final = """\
What an operator turns during an incident is no variable but a row in Postgres; the environment is
its default, and shown beside it, as the last process that started and has it said: a worker of one
lane says nothing of the others, and what no process has any more stays shown.
`imagefleet settings live set NAME VALUE --reason R` turns one,
`imagefleet settings live reset NAME --reason R` gives the default back, and
`imagefleet settings live list` shows all of them. Each change is in the audit. Every process looks
once a second, so it is in force within 5 s for whatever is decided from then on. A process that
cannot read keeps what it read last (`live_settings_age_seconds`).

`<service>` is that of a circuit breaker, `<policy>` a job type; `*` in the place of either is every
one that is named neither here nor by the environment, nor brings a policy of its own. `<lane>` is
fast, general or quarantine. Names that a release does not know, and values that it does not allow,
it ignores with a line in its log (`setting.ignored`). A rescued job is due within seconds whatever
its policy says.
"""
