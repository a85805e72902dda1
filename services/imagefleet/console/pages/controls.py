"""What is turned while the fleet runs: pauses and breakers."""

from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import Response

from imagefleet.console.visits import VisitHere

router = APIRouter()


@router.post("/breakers/{service}/reset")
async def reset_breaker(visit: VisitHere, service: str) -> Response:
    """Close it, whatever it counted."""
    why = {"reason": visit.form.one("reason") or None}
    await visit.ask("POST", f"/v1/operator/breakers/{quote(service, safe='')}/reset", why)
    return visit.done(f"The breaker of {service} is closed; what it held back is due at once.")


@router.post("/pauses/resume")
async def resume(visit: VisitHere) -> Response:
    """Lift a pause."""
    names = ("scope", "name", "tenant", "reason")
    what = {name: visit.form.one(name) or None for name in names}
    await visit.ask("DELETE", "/v1/operator/pauses", what)
    return visit.done("The pause is lifted; what it held back is announced within a second.")
