"""What KEDA and the HorizontalPodAutoscaler that it makes do with one ScaledObject.

KEDA asks every trigger in each polling interval: one that is active brings the first worker, and
when none has been for the cooldown all of them go at once, however many there are. Between one and
the most the HPA decides: every 15 seconds, by the trigger that wants the most, as fast as policies
allow, and down only to the most that was wanted within its window. Time is the caller's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tests.scaling.manifests import Policy, Rules, Scaled, Trigger

SYNC: Final = 15.0  # seconds between two looks of an HPA
TOLERANCE: Final = 0.1  # it leaves alone what is as near to what it should be

Values: TypeAlias = Sequence[float | None]
"""One for each trigger, in their order; None: it did not answer."""


@dataclass(slots=True)
class Autoscaler:
    """Decides how many workers there are to be."""

    scaled: Scaled
    replicas: int = 0
    _active_at: float = -math.inf
    _heard: list[float | None] = field(default_factory=list)
    _failures: list[int] = field(default_factory=list)
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._heard = [None] * len(self.scaled.triggers)
        self._failures = [0] * len(self.scaled.triggers)

    def poll(self, now: float, values: Values) -> None:
        """KEDA has asked: from zero to the first, and back to zero."""
        self._heard = list(values)
        self._failures = [
            failures + 1 if value is None else 0
            for failures, value in zip(self._failures, values, strict=True)
        ]
        active = any(
            value is not None and value > trigger.activation
            for value, trigger in zip(values, self.scaled.triggers, strict=True)
        )
        if active:
            self._active_at = now
            if self.replicas == 0:
                self.replicas = max(1, self.scaled.least)
        elif None in values:
            # Nobody knows: it takes nobody away, and brings those that were promised for the case.
            if self._fallen_back() and self.scaled.fallback is not None:
                self.replicas = max(self.replicas, self.scaled.fallback.replicas)
        elif self.scaled.least:
            self.replicas = max(self.replicas, self.scaled.least)
        elif now - self._active_at > self.scaled.cooldown:
            self.replicas = 0

    def sync(self, now: float, values: Values) -> None:
        """The HPA looks; of a trigger whose metrics are cached it hears what KEDA heard last."""
        if self.replicas == 0:
            return
        wanted = [
            self._wanted(number, trigger, heard if trigger.cached else value)
            for number, (trigger, heard, value) in enumerate(
                zip(self.scaled.triggers, self._heard, values, strict=True)
            )
        ]
        known = [each for each in wanted if each is not None]
        if not known or (len(known) < len(wanted) and max(known) < self.replicas):
            return  # a trigger that is away might have wanted more
        self._go(now, self._limited(now, self._stabilized(now, max(known))))

    def _wanted(self, number: int, trigger: Trigger, value: float | None) -> int | None:
        if value is None:
            if self.scaled.fallback is None or not self._failed(number):
                return None
            value = trigger.threshold * self._fallen_back_to()
        if abs(value / (trigger.threshold * self.replicas) - 1) <= TOLERANCE:
            return self.replicas
        return math.ceil(value / trigger.threshold)

    def _fallen_back(self) -> bool:
        return any(self._failed(number) for number in range(len(self._failures)))

    def _failed(self, number: int) -> bool:
        fallback = self.scaled.fallback
        return fallback is not None and self._failures[number] > fallback.failures

    def _fallen_back_to(self) -> int:
        assert self.scaled.fallback is not None
        replicas = self.scaled.fallback.replicas
        match self.scaled.fallback.behavior:
            case "currentReplicas":
                return self.replicas
            case "currentReplicasIfHigher":
                return max(replicas, self.replicas)
            case "currentReplicasIfLower":
                return min(replicas, self.replicas)
            case _:
                return replicas

    def _stabilized(self, now: float, wanted: int) -> int:
        def within(rules: Rules) -> list[int]:
            return [wanted, *(each for at, each in self._recommended if now - at < rules.window)]

        at_least, at_most = min(within(self.scaled.up)), max(within(self.scaled.down))
        self._recommended.append((now, wanted))
        return min(max(self.replicas, at_least), at_most)

    def _limited(self, now: float, wanted: int) -> int:
        bounded = min(max(wanted, 1, self.scaled.least), self.scaled.most)
        if bounded > self.replicas:
            return min(bounded, self._furthest(now, self.scaled.up, 1))
        if bounded < self.replicas:
            return max(bounded, self._furthest(now, self.scaled.down, -1))
        return bounded

    def _furthest(self, now: float, rules: Rules, sign: int) -> int:
        """Where policies let it go in this direction."""
        if rules.select == "Disabled":
            return self.replicas
        reached = [self._reached(now, policy, sign) for policy in rules.policies]
        far = (max if sign > 0 else min) if rules.select == "Max" else (min if sign > 0 else max)
        result: int = far(reached)
        return max(result, self.replicas) if sign > 0 else min(result, self.replicas)

    def _reached(self, now: float, policy: Policy, sign: int) -> int:
        begun = self.replicas - sum(by for at, by in self._changes if now - at < policy.period)
        if policy.kind == "Pods":
            return begun + sign * policy.value
        share = begun * (1 + sign * policy.value / 100)
        return math.ceil(share) if sign > 0 else math.floor(share)

    def _go(self, now: float, replicas: int) -> None:
        if replicas != self.replicas:
            self._changes.append((now, replicas - self.replicas))
            self.replicas = replicas
