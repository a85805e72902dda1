"""What is in force in a process: what its environment says, and over it what operators turned.

A value that never changes; whoever follows Postgres makes another one. Nothing here raises: what
cannot be used, as a newer release or somebody at Postgres itself wrote it, was left out before.
Which setting a turned name is, and what it is about, is found here as well.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from imagefleet.errors import RequestRejected
from imagefleet.jobs.kinds import TIMEOUTS, JobKind, Kinds
from imagefleet.jobs.limits import LIMITS, OPEN_JOBS
from imagefleet.jobs.model import Lane
from imagefleet.jobs.policies import STANDARD, BreakerLimits, RetryPolicy
from imagefleet.settings.live import DECLARED, EVERYTHING_ELSE, ORIGINALS, LiveSetting, Value
from imagefleet.settings.slices import Maintenance, Worker
from imagefleet.settings.values import BreakerNumbers

_NO_NUMBERS: Final = BreakerNumbers()

# What may stand in a place. A star is every one that is not named by itself.
PLACES: Final[Mapping[str, str]] = {
    "<service>": r"\*|[a-z][a-z0-9_.-]{0,62}",
    "<policy>": r"\*|[a-z][a-z0-9_]{0,62}",
    "<type>": r"[a-z][a-z0-9_]{0,62}",
    "<lane>": r"fast|general|quarantine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How much a dispatcher announces ahead; `maintenance/window.py` says why."""

    spare: int = 4
    """Messages: enough that a lane of slow jobs never waits for a look."""
    looks: float = 2.5
    """That the horizon bridges; with one, slots fall idle when a look is late."""
    shortest: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(seconds=5)


AS_BUILT: Final = Horizon()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What operators have turned; whoever asks says what holds otherwise."""

    turned: Mapping[str, Value] = field(default_factory=dict)
    tenant_limits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By tenant and name."""

    def number(self, name: str, default: float) -> float:
        """Return a number, or what holds where it was not turned."""
        return self.turned.get(name, default)

    def count(self, name: str, default: int) -> int:
        """Return a whole number."""
        return int(self.turned.get(name, default))

    def seconds(self, name: str, default: timedelta) -> timedelta:
        """Return a span."""
        turned = self.turned.get(name)
        return default if turned is None else timedelta(seconds=turned)

    def switch(self, name: str, *, default: bool) -> bool:
        """Return whether something is on."""
        return bool(self.turned.get(name, default))

    def limit(self, tenant_id: str, name: str) -> int | None:
        """Return a tenant's own limit, else the one that was turned for all; None: neither."""
        own = self.tenant_limits.get((tenant_id, name))
        return self.limit_for_all(name) if own is None else own

    def limit_for_all(self, name: str) -> int | None:
        """Return what was turned for every tenant without a limit of its own, if anything was."""
        turned = self.turned.get(f"limits.{name}")
        return None if turned is None else int(turned)

    def breaker(self, service: str, configured: Mapping[str, BreakerNumbers]) -> BreakerLimits:
        """Return a service's limits: each number by its own name first, then by the star's."""
        limits = STANDARD
        for scope in (EVERYTHING_ELSE, service):
            told, of = configured.get(scope, _NO_NUMBERS), f"breaker.{scope}"
            window = told.window_seconds or limits.window.total_seconds()
            open_for = told.open_seconds or limits.open_for.total_seconds()
            limits = replace(
                limits,
                failures=self.count(f"{of}.failures", told.failures or limits.failures),
                ratio=self.number(f"{of}.ratio", told.ratio or limits.ratio),
                window=timedelta(seconds=self.number(f"{of}.window_seconds", window)),
                open_for=timedelta(seconds=self.number(f"{of}.open_seconds", open_for)),
            )
        return limits

    def retry(self, kind: JobKind, standard: RetryPolicy) -> RetryPolicy:
        """Return a type's policy; the star is for those that have the standard one.

        A base beyond the cap waits as long as the cap: together they are refused when they are
        turned, but one process may have another environment than the one that judged them.
        """
        otherwise = kind.retry
        scopes = [kind.name, EVERYTHING_ELSE] if otherwise is standard else [kind.name]

        def turned(number: str) -> Value | None:
            names = (f"retry.{scope}.{number}" for scope in scopes)
            return next((self.turned[name] for name in names if name in self.turned), None)

        base, cap, most = turned("base_seconds"), turned("cap_seconds"), turned("max_attempts")
        if base is None and cap is None and most is None:
            return otherwise
        longest = otherwise.cap if cap is None else timedelta(seconds=cap)
        return RetryPolicy(
            base=min(otherwise.base if base is None else timedelta(seconds=base), longest),
            cap=longest,
            max_attempts=otherwise.max_attempts if most is None else int(most),
            jitter=otherwise.jitter,
        )

    def kinds(self, kinds: Kinds, standard: RetryPolicy) -> Kinds:
        """Return the kinds with the policies that are in force."""
        if not any(name.startswith("retry.") for name in self.turned):
            return kinds
        return Kinds(replace(kind, retry=self.retry(kind, standard)) for kind in kinds.values())

    def timeout(self, kind: JobKind, lane: Lane) -> timedelta:
        """Return how long one attempt of a type may take in a lane."""
        if kind.timeout is not None:
            return self.seconds(f"timeout.type.{kind.name}", kind.timeout)
        of_lane = self.seconds(f"timeout.lane.{lane}", TIMEOUTS[lane])
        return self.seconds(f"timeout.type.{kind.name}", of_lane)

    def slots(self, lane: Lane, configured: int) -> int:
        """Return how many of a worker's slots in a lane are used."""
        return min(configured, self.count(f"slots.lane.{lane}", configured))

    def slots_of_lanes(self) -> dict[Lane, int]:
        """Return the most that any worker uses, of the lanes for which that was turned."""
        names = {lane: f"slots.lane.{lane}" for lane in Lane}
        return {lane: int(self.turned[name]) for lane, name in names.items() if name in self.turned}

    def slots_of_types(self) -> dict[str, int]:
        """Return how many jobs of a type run at once in a worker, of the types turned."""
        prefix = "slots.type."
        return {
            name.removeprefix(prefix): int(value)
            for name, value in self.turned.items()
            if name.startswith(prefix)
        }

    def horizon(self) -> Horizon:
        """Return how much is announced ahead."""
        longest = self.seconds("window.longest_seconds", AS_BUILT.longest)
        return Horizon(
            spare=self.count("window.spare_jobs", AS_BUILT.spare),
            looks=self.number("window.looks", AS_BUILT.looks),
            shortest=min(self.seconds("window.shortest_seconds", AS_BUILT.shortest), longest),
            longest=longest,
        )


def _pattern(name: str) -> re.Pattern[str]:
    parts = (
        f"(?P<about>{PLACES[word]})" if word in PLACES else re.escape(word)
        for word in name.split(".")
    )
    return re.compile(r"\.".join(parts))


_PATTERNS: Final = tuple((_pattern(setting.name), setting) for setting in DECLARED)


def find_setting(name: str) -> LiveSetting | None:
    """Return the setting of this name, as it was declared; None: this release has none."""
    return next((setting for pattern, setting in _PATTERNS if pattern.fullmatch(name)), None)


def named(pattern: str, name: str) -> str:
    """Put a name in the place of a declared one."""
    place = next(place for place in PLACES if place in pattern)
    return pattern.replace(place, name)


def about(setting: LiveSetting, name: str) -> str | None:
    """Return what stands in the place of this name; None: there is no place, or nothing in it."""
    match = _pattern(setting.name).fullmatch(name)
    return match.groupdict().get("about") if match else None


def in_force(
    rows: Mapping[str, object], tenant_limits: Mapping[tuple[str, str], int] | None = None
) -> tuple[Overlay, dict[str, str]]:
    """Read what stands in Postgres; and of what cannot be used, by name, why not."""
    turned: dict[str, Value] = {}
    ignored: dict[str, str] = {}
    for name, value in rows.items():
        setting = find_setting(name)
        if setting is None:
            ignored[name] = "this release has no such setting"
            continue
        try:
            turned[name] = setting.read(name, value)
        except RequestRejected as error:
            ignored[name] = error.public_message
    return Overlay(turned=turned, tenant_limits=tenant_limits or {}), ignored


def contradictions(
    turned: Overlay, kinds: Mapping[str, JobKind], standard: RetryPolicy
) -> Iterator[str]:
    """Say what does not make sense together: a sentence each."""
    scopes = {EVERYTHING_ELSE: standard} | {name: kind.retry for name, kind in kinds.items()}
    for name in turned.turned:
        if name.startswith("retry."):
            scopes.setdefault(name.split(".")[1], standard)
    for scope, own in scopes.items():
        of = [scope, EVERYTHING_ELSE] if own is standard else [scope]
        yield from _longer(
            _first(turned, [f"retry.{place}.base_seconds" for place in of], own.base),
            _first(turned, [f"retry.{place}.cap_seconds" for place in of], own.cap),
        )
    yield from _longer(
        _first(turned, ["window.shortest_seconds"], AS_BUILT.shortest),
        _first(turned, ["window.longest_seconds"], AS_BUILT.longest),
    )


def _first(turned: Overlay, names: list[str], otherwise: timedelta) -> tuple[str, timedelta]:
    name = next((name for name in names if name in turned.turned), names[-1])
    return name, turned.seconds(name, otherwise)


def _longer(least: tuple[str, timedelta], most: tuple[str, timedelta]) -> Iterator[str]:
    if least[1] > most[1]:
        yield (
            f"{least[0]} would be {least[1].total_seconds():g}, and so longer than {most[0]}, "
            f"which is {most[1].total_seconds():g}: turn that first."
        )


def defaults_of_api(standard: RetryPolicy, kinds: Mapping[str, JobKind]) -> dict[str, Value]:
    """Return what holds in an API while nothing is turned, by the names of live settings."""
    told: dict[str, Value] = {"retry.*.max_attempts": standard.max_attempts}
    limits = [limit for limit in LIMITS.values() if limit.name != OPEN_JOBS]
    told |= {f"limits.{limit.name}": limit.default for limit in limits}
    for kind in kinds.values():
        if kind.retry is not standard:
            told[f"retry.{kind.name}.max_attempts"] = kind.retry.max_attempts
    return told


def defaults_of_worker(
    worker: Worker,
    standard: RetryPolicy,
    kinds: Mapping[str, JobKind],
    type_slots: Mapping[str, int],
) -> dict[str, Value]:
    """Return what holds in a worker while nothing is turned."""
    slots = {Lane.FAST: worker.fast_slots, Lane.GENERAL: worker.general_slots, Lane.QUARANTINE: 1}
    told: dict[str, Value] = {f"slots.lane.{lane}": slots[lane] for lane in worker.lanes}
    told |= {f"slots.type.{name}": most for name, most in type_slots.items()}
    told |= {f"timeout.lane.{lane}": TIMEOUTS[lane].total_seconds() for lane in worker.lanes}
    policies = {EVERYTHING_ELSE: standard}
    for kind in kinds.values():
        if kind.retry is not standard:
            policies[kind.name] = kind.retry
        if kind.timeout is not None:
            told[f"timeout.type.{kind.name}"] = kind.timeout.total_seconds()
    for name, policy in policies.items():
        told[f"retry.{name}.base_seconds"] = policy.base.total_seconds()
        told[f"retry.{name}.cap_seconds"] = policy.cap.total_seconds()
    for service in (EVERYTHING_ELSE, *worker.breakers):
        limits = Overlay().breaker(service, worker.breakers)
        told |= {
            f"breaker.{service}.failures": limits.failures,
            f"breaker.{service}.ratio": limits.ratio,
            f"breaker.{service}.window_seconds": limits.window.total_seconds(),
            f"breaker.{service}.open_seconds": limits.open_for.total_seconds(),
        }
    return told


def defaults_of_maintenance(maintenance: Maintenance) -> dict[str, Value]:
    """Return what holds in maintenance while nothing is turned."""
    return {
        "window.spare_jobs": AS_BUILT.spare,
        "window.looks": AS_BUILT.looks,
        "window.shortest_seconds": AS_BUILT.shortest.total_seconds(),
        "window.longest_seconds": AS_BUILT.longest.total_seconds(),
        "window.batch_jobs": maintenance.dispatch_batch,
        ORIGINALS: maintenance.originals_kept_days,
        "retention.superseded_seconds": maintenance.sweep_grace.total_seconds(),
        "retention.sweep_deletes": maintenance.sweep_deletes,
        "sampling.gauges_seconds": maintenance.sample_interval.total_seconds(),
        "sampling.traces_ratio": 1.0,
    }
