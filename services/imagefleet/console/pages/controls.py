"""What is turned while the fleet runs: pauses, breakers, live settings."""

import asyncio
from typing import Final
from urllib.parse import quote

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.console.showing import Context
from imagefleet.console.visits import VisitHere
from imagefleet.errors import RequestRejected
from imagefleet.jobs.model import Lane, PauseScope
from imagefleet.jobs.shapes.fleet import Breakers, Pauses, PauseView
from imagefleet.jobs.shapes.rules import Settings, SettingView

SETTINGS: Final = "/v1/operator/settings"
BREAKERS: Final = "/v1/operator/breakers"
PAUSES: Final = "/v1/operator/pauses"

router = APIRouter()


@router.get("/controls")
async def show_controls(visit: VisitHere) -> Response:
    """All of them, and who turned what."""

    async def look() -> Context:
        pauses, breakers, settings = await asyncio.gather(
            visit.glance(Pauses, PAUSES),
            visit.glance(Breakers, BREAKERS),
            visit.glance(Settings, SETTINGS),
        )
        return {
            "pauses": pauses,
            "breakers": breakers,
            "settings": settings,
            "lanes": [*Lane],
            "scopes": [*PauseScope],
        }

    return await visit.show("controls.html", look)


@router.post("/pauses/pause")
async def pause(visit: VisitHere) -> Response:
    """Hold something back."""
    form = visit.form
    named = ((name, form.one(name)) for name in ("scope", "name", "tenant", "reason"))
    asked: dict[str, object] = {name: value for name, value in named if value}
    if form.one("refuse_new"):
        asked["refuseNew"] = True
    paused = await visit.order(PauseView, "PUT", PAUSES, document=asked)
    running = f" {paused.running} that run already will finish." if paused.running else ""
    unknown = " No type of that name is known here: is it spelled right?"
    return visit.done(f"It is paused.{running}{unknown if paused.known is False else ''}")


@router.post("/pauses/resume")
async def resume(visit: VisitHere) -> Response:
    """Lift a pause."""
    names = ("scope", "name", "tenant", "reason")
    what = {name: visit.form.one(name) or None for name in names}
    await visit.ask("DELETE", PAUSES, what)
    return visit.done("The pause is lifted; what it held back is announced within a second.")


@router.post("/breakers/force")
async def open_breaker(visit: VisitHere) -> Response:
    """Hold back all that needs a service, until somebody closes it."""
    service = visit.form.one("service")
    if not service:
        raise RequestRejected("no_service", "No service was named. Nothing was changed.")
    why = {"reason": visit.form.one("reason") or None}
    await visit.ask("POST", f"{BREAKERS}/{quote(service, safe='')}/open", why)
    return visit.done(f"The breaker of {service} is open until it is reset.")


@router.post("/breakers/{service}/reset")
async def reset_breaker(visit: VisitHere, service: str) -> Response:
    """Close it, whatever it counted."""
    why = {"reason": visit.form.one("reason") or None}
    await visit.ask("POST", f"{BREAKERS}/{quote(service, safe='')}/reset", why)
    return visit.done(f"The breaker of {service} is closed; what it held back is due at once.")


@router.post("/settings/turn")
async def turn(visit: VisitHere) -> Response:
    """Let another value hold, or, without one, the default again."""
    name, value, reason = (visit.form.one(field) for field in ("name", "value", "reason"))
    path = f"{SETTINGS}/{quote(name, safe='')}"
    if visit.form.one("how") == "reset":
        await visit.ask("DELETE", path, {"reason": reason})
        return visit.done(f"{name} has its default again, in every process within five seconds.")
    document = {"value": _value(value), "reason": reason}
    turned = await visit.order(SettingView, "PUT", path, document=document)
    return visit.done(f"{name} is {turned.value}, in every process within five seconds.")


def _value(written: str) -> object:
    """As JSON has it; what is none is refused by the API, with what it may be."""
    try:
        value: object = orjson.loads(written)
    except orjson.JSONDecodeError:
        return written
    return value
