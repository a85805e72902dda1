"""What an operator turns while everything runs: each setting declared once, with its bounds.

How a process starts is said by the environment. A live setting is a deviation from that: a row in
Postgres, read by every process within seconds (`imagefleet.live`), undone by deleting it. A name
may have a place, `<service>` or `<type>`, in which the names of what it is about stand; names as
they are turned are read in `in_force`.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from imagefleet.errors import RequestRejected
from imagefleet.jobs.limits import KEY_OPEN_JOBS, LIMITS, OPEN_JOBS
from imagefleet.jobs.policies import LONGEST_CAP, MOST_ATTEMPTS

Value: TypeAlias = bool | int | float
Process: TypeAlias = Literal["api", "worker", "maintenance"]
Form: TypeAlias = Literal["whole", "number", "switch"]

TRACES: Final = "sampling.traces_ratio"
EVERYTHING_ELSE: Final = "*"
ORIGINALS: Final = "retention.originals_days"
RETENTION: Final = "retention.jobs_days"
"""The one that statements read, not processes: in Postgres it is turned along with its row."""


@dataclass(frozen=True, slots=True)
class LiveSetting:
    """One of them, or one for each name that may stand in its place."""

    name: str
    form: Form
    low: float
    high: float
    unit: str
    read_by: tuple[Process, ...]
    default: str
    """Where the default comes from: a variable of that process's environment, or a word on it."""
    meaning: str

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
            case float() if self.form == "number" and self.low <= value <= self.high:
                return value
            case _:
                pass
        raise RequestRejected("invalid_setting", f"{name} is {self.allowed}.")


_DAY: Final = 86_400.0
_LONGEST_WAIT: Final = LONGEST_CAP.total_seconds()
_WORKER: Final[tuple[Process, ...]] = ("worker",)
_REPAIRS: Final[tuple[Process, ...]] = ("maintenance",)
_SUBMITTERS: Final[tuple[Process, ...]] = ("api",)

# fmt: off
DECLARED: Final[tuple[LiveSetting, ...]] = (
    # name, form, least, most, unit; read by, default; meaning
    LiveSetting("breaker.<service>.failures", "whole", 1, 1_000_000, "", _WORKER, "BREAKERS",
                "Failures in a window of which nobody takes notice if there are fewer."),
    LiveSetting("breaker.<service>.ratio", "number", 0.01, 1, "", _WORKER, "BREAKERS",
                "The share of the calls of a window that have to fail to open the breaker."),
    LiveSetting("breaker.<service>.window_seconds", "number", 1, 3600, "seconds",
                _WORKER, "BREAKERS", "How long calls are counted together."),
    LiveSetting("breaker.<service>.open_seconds", "number", 1, _DAY, "seconds", _WORKER, "BREAKERS",
                "How long an open breaker waits for its first probe; one that is open already "
                "keeps its time until a probe fails."),
    LiveSetting("retry.<policy>.base_seconds", "number", 0.1, _LONGEST_WAIT, "seconds",
                _WORKER, "BACKOFF_BASE_SECONDS",
                "The wait after the first failure of a job of this type; it doubles with each "
                "further one."),
    LiveSetting("retry.<policy>.cap_seconds", "number", 0.1, _LONGEST_WAIT, "seconds",
                _WORKER, "BACKOFF_CAP_SECONDS", "The longest wait, up to a fifth of jitter apart."),
    LiveSetting("retry.<policy>.max_attempts", "whole", 1, MOST_ATTEMPTS, "",
                _SUBMITTERS, "MAX_ATTEMPTS",
                "How often a job may run, of those that producers submit from now on: a job "
                "keeps the number that it was accepted with, and gives it to its replay and, as "
                "a set, to the jobs of its images."),
    LiveSetting("timeout.lane.<lane>", "number", 1, 7200, "seconds", _WORKER, "the lane",
                "How long an attempt in this lane may take, of types that name no time of their "
                "own; attempts that run already keep theirs."),
    LiveSetting("timeout.type.<type>", "number", 1, 7200, "seconds",
                _WORKER, "the job type, else its lane", "The same for one type, in whatever lane."),
    LiveSetting("slots.lane.<lane>", "whole", 0, 100, "slots",
                ("worker", "maintenance"), "WORKER_FAST_SLOTS, WORKER_GENERAL_SLOTS",
                "How many of a worker's slots in this lane are used; more than it was started "
                "with is all of them. Running jobs finish. General slots go on helping `fast`."),
    LiveSetting("slots.type.<type>", "whole", 0, 200, "slots",
                ("worker", "maintenance"), "RENDER_CHILDREN + 1 of what computes, else all",
                "How many jobs of this type a worker runs at once, whatever their lanes; 0 is "
                "none. Running jobs finish; what is received beyond it goes back to its turn, "
                "counted as `unroutable`."),
    LiveSetting("window.spare_jobs", "whole", 1, 1000, "jobs", _REPAIRS, "the program",
                "Announced in each lane beyond what its workers can take until the next look."),
    LiveSetting("window.looks", "number", 1, 20, "looks", _REPAIRS, "the program",
                "How many looks of the dispatcher the horizon bridges."),
    LiveSetting("window.shortest_seconds", "number", 0.2, 60, "seconds", _REPAIRS, "the program",
                "The horizon at least: for so long what is announced lasts at a lane's pace."),
    LiveSetting("window.longest_seconds", "number", 0.2, 60, "seconds", _REPAIRS, "the program",
                "The horizon at most, however late the looks are."),
    LiveSetting("window.batch_jobs", "whole", 1, 5000, "jobs", _REPAIRS, "DISPATCH_BATCH",
                "The most jobs of a lane announced by one look."),
    LiveSetting(RETENTION, "whole", 30, 3650, "days", _REPAIRS, "`retention` of the row in `fleet`",
                "How long finished jobs, their attempts and their idempotency keys are kept. "
                "What is forgotten under a shorter one is gone."),
    LiveSetting(ORIGINALS, "whole", 0, 36_500, "days", ("api", *_REPAIRS), "ORIGINALS_KEPT_DAYS",
                "How long an original is kept once accepted; 0: like its image. None comes back."),
    LiveSetting("retention.superseded_seconds", "number", 0, 10 * _DAY, "seconds",
                _REPAIRS, "SWEEP_GRACE_SECONDS",
                "How long a superseded version is kept after the edge has forgotten it."),
    LiveSetting("retention.sweep_deletes", "switch", 0, 1, "", _REPAIRS, "SWEEP_DELETES",
                "Whether what is swept is deleted from S3; off, it is only counted."),
    LiveSetting("sampling.gauges_seconds", "number", 1, 300, "seconds",
                _REPAIRS, "SAMPLE_INTERVAL_SECONDS",
                "How often gauges are read from Postgres and SQS."),
    LiveSetting(TRACES, "number", 0, 1, "", ("api", "worker", "maintenance"), "the program",
                "The share of the traces that begin here which are recorded at all; what came "
                "with a trace stays in it. Of these `OTEL_TRACES_SAMPLER` takes its own share: "
                "where that is a ratio, this lowers it and cannot raise it."),
    *(
        LiveSetting(f"limits.{limit.name}", "whole", limit.lowest, limit.highest, "",
                    ("api", "worker") if limit.name == KEY_OPEN_JOBS else _SUBMITTERS, "the limit",
                    f"{limit.meaning} ({limit.unit}; "
                    "of every tenant that has no limit of its own.)")
        for limit in LIMITS.values()
        if limit.name != OPEN_JOBS
    ),
)
# fmt: on
