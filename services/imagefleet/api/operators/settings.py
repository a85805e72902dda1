"""Operators and live settings: what is turned while everything runs, by whom and why."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Path, Query, Request
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import Tools, ToolsHere, answer
from imagefleet.api.operators.schemas import NewValue, who
from imagefleet.api.producers.schemas import SENTENCE
from imagefleet.errors import NotFound, RequestRejected
from imagefleet.jobs.shapes.rules import Settings, SettingView
from imagefleet.settings.in_force import about, contradictions, find_setting, in_force, named
from imagefleet.settings.live import DECLARED, EVERYTHING_ELSE, RETENTION, LiveSetting, Value
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act
from imagefleet.store.fleet.live_settings import (
    MOST_SETTINGS,
    Turned,
    list_turned,
    read_defaults,
    turn,
    turn_back,
    turn_retention,
)

MOST_BYTES: Final = 4096  # of the JSON
_KIND: Final = "setting"
_ALL: Final = "all"  # together they have to make sense, so they are turned one after the other

Name = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_.*-]{0,199}$")]
WhyBack = Annotated[
    str, Query(alias="reason", pattern=SENTENCE, description="Why; kept in the audit.")
]

router = Routes(tags=["settings"])


@router.get("/v1/operator/settings", **described("List live settings", Settings))
async def find_settings(_key: Operator, tools: ToolsHere) -> Response:
    """What may be turned, what is in force, and who turned it."""
    async with tools.operating("list_settings", "live_settings") as connection:
        panel = await _panel(connection, tools)
    return answer(Settings(settings=list(panel.views())))


@router.put(
    "/v1/operator/settings/{name}",
    **described("Turn a live setting", SettingView, 404, takes=json_body(NewValue)),
)
async def put_setting(request: Request, name: Name, key: Operator, tools: ToolsHere) -> Response:
    """Let another value hold; it is in force in every process within five seconds."""
    asked = await read_json(request, NewValue, most_bytes=MOST_BYTES)
    setting = find_setting(name)
    if setting is None:
        raise NotFound(_KIND)
    value = setting.read(name, asked.value)
    async with tools.acting("turn", "live_settings", request, key) as acting:
        await acting.take_turns(_KIND, _ALL)
        before = await _panel(acting.connection, tools)
        before.refuse_more(name)
        before.refuse_nonsense(before.values | {name: value})
        await turn(acting.connection, name, value, by=who(key), reason=asked.reason)
        if name == RETENTION:
            await turn_retention(acting.connection, int(value))
        after = await _panel(acting.connection, tools)
        await acting.record(_act("set", name, before, after, asked.reason))
    return answer(after.view(name, setting))


@router.delete(
    "/v1/operator/settings/{name}", **described("Reset a live setting", SettingView, 404)
)
async def delete_setting(
    request: Request, name: Name, key: Operator, tools: ToolsHere, reason: WhyBack
) -> Response:
    """Let the default hold again; 404 where it does."""
    async with tools.acting("turn_back", "live_settings", request, key) as acting:
        await acting.take_turns(_KIND, _ALL)
        before = await _panel(acting.connection, tools)
        if name not in before.turned:
            raise NotFound(_KIND)
        kept = {other: value for other, value in before.values.items() if other != name}
        before.refuse_nonsense(kept)
        await turn_back(acting.connection, name)
        if name == RETENTION:
            await turn_retention(acting.connection, None)
        after = await _panel(acting.connection, tools)
        await acting.record(_act("reset", name, before, after, reason))
    return answer(after.view(name, find_setting(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """All of them at one moment."""

    tools: Tools
    turned: Mapping[str, Turned]
    defaults: Mapping[str, Value]

    @property
    def values(self) -> dict[str, object]:
        return {name: held.value for name, held in self.turned.items()}

    def refuse_more(self, name: str) -> None:
        """Raise if there are too many for everybody to read."""
        if name not in self.turned and len(self.turned) >= MOST_SETTINGS:
            sentence = f"{MOST_SETTINGS} settings are turned; reset some of them first."
            raise RequestRejected("invalid_setting", sentence)

    def refuse_nonsense(self, values: Mapping[str, object]) -> None:
        """Raise if these contradict each other, unless what stands did so already."""
        new = self._contradictions(values) - self._contradictions(self.values)
        if new:
            raise RequestRejected("invalid_setting", min(new))

    def _contradictions(self, values: Mapping[str, object]) -> set[str]:
        turned, _ = in_force(values)
        return set(contradictions(turned, self.tools.known_kinds, self.tools.standard_retry))

    def in_force(self, name: str) -> dict[str, object]:
        """What holds, for the audit."""
        view = self.view(name, find_setting(name))
        return {"value": view.value, "turned": view.turned}

    def views(self) -> Iterator[SettingView]:
        """In the order of their page, then what this release does not know."""
        known = {name: find_setting(name) for name in sorted({*self.defaults, *self.turned})}
        for setting in DECLARED:
            for name in [name for name, its in known.items() if its is setting] or [setting.name]:
                yield self.view(name, setting)
        for name, its in known.items():
            if its is None:
                yield self.view(name, None)

    def view(self, name: str, setting: LiveSetting | None) -> SettingView:
        """One of them."""
        turned = self.turned.get(name)
        default = self.defaults.get(name)
        if setting is not None and default is None and about(setting, name) is not None:
            default = self.defaults.get(named(setting.name, EVERYTHING_ELSE))
        rows: dict[str, object] = {} if turned is None else {name: turned.value}
        held, ignored = in_force(rows)
        return SettingView(
            name=name,
            value=held.turned.get(name, default),
            default=default,
            turned=turned is not None,
            allowed=None if setting is None else setting.allowed,
            meaning=None if setting is None else setting.meaning,
            processes=[] if setting is None else list(setting.read_by),
            default_from=None if setting is None else setting.default,
            known=None if setting is None else self._is_known(name, setting),
            ignored=ignored.get(name),
            set_by=None if turned is None else turned.set_by,
            set_at=None if turned is None else turned.set_at,
            reason=None if turned is None else turned.reason,
        )

    def _is_known(self, name: str, setting: LiveSetting) -> bool | None:
        named_one = about(setting, name)
        if named_one in {None, EVERYTHING_ELSE}:
            return None
        return named_one in self.tools.known_kinds if setting.is_about_a_type else None


async def _panel(connection: Connection, tools: Tools) -> _Panel:
    turned = await list_turned(connection)
    told, retention = await read_defaults(connection)
    defaults: dict[str, Value] = {RETENTION: retention}
    for process in told.values():
        held, _ = in_force(process)
        defaults |= held.turned
    return _Panel(tools=tools, turned=turned, defaults=defaults)


def _act(action: str, name: str, before: _Panel, after: _Panel, reason: str) -> Act:
    return Act(
        action=action,
        kind=_KIND,
        name=name,
        before=before.in_force(name),
        after=after.in_force(name),
        reason=reason,
    )
