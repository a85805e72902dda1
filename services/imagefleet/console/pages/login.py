"""Logging in with an operator's key, and out."""

import re
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from imagefleet.client.api import ApiClient
from imagefleet.console.borders import LOGIN, LOGOUT, address_of, cookie_name, is_secure, local
from imagefleet.console.sessions import Attempted, Session, Sessions
from imagefleet.console.showing import Showing
from imagefleet.console.visits import VisitHere, sentence_of, within
from imagefleet.errors import FleetError, RequestRejected
from imagefleet.settings import Console

ASKED: Final = "/v1/operator/pauses"  # short, and for operators alone
KEY: Final = re.compile(r"[A-Za-z0-9_-]{8,200}")

_SENTENCES: Final = {
    "unauthorized": "No key in force is like this one. It may be revoked, or not all of it copied.",
    "forbidden": "This key is in force, but it may not operate: it lacks the scope operate.",
    "not_found": "The API at the other end does not serve operators.",
    "too_often": "Too many tries from your address. Wait a minute, and try again.",
}

router = APIRouter()


@router.get(LOGIN)
async def show_login(request: Request, next: str = "/") -> Response:  # noqa: A002 - in addresses
    """The one page that anybody may see."""
    if request.state.session is not None:
        return RedirectResponse(local(next), 303)
    return _page(request, next)


@router.post(LOGIN)
async def log_in(request: Request) -> Response:
    """Ask the API whether the key may operate, and begin a session with it."""
    state, form = request.app.state, request.state.form
    settings: Console = state.settings
    sessions: Sessions = state.sessions
    attempted: Attempted = state.attempted
    key, there = form.one("key"), form.one("next", "/")
    address = address_of(settings, request)
    if attempted.too_often(address):
        return _page(request, there, _SENTENCES["too_often"], 429)
    try:
        await _may_operate(state.client.asking_for(address), key)
    except FleetError as error:
        refused = isinstance(error, RequestRejected)
        sentence = _SENTENCES.get(error.code) or sentence_of(error)
        return _page(request, there, sentence, 403 if refused else 503)
    before: Session | None = request.state.session
    if before is not None:
        sessions.end(before, "logged_in_again")
    reads_only = settings.read_only or bool(form.one("only_look"))
    session = sessions.open(key, reads_only=reads_only)
    answer = RedirectResponse(local(there), 303)
    answer.set_cookie(
        cookie_name(settings),
        sessions.cookie_of(session),
        max_age=int(settings.session.total_seconds()),
        secure=is_secure(settings),
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post(LOGOUT)
async def log_out(request: Request, visit: VisitHere) -> Response:
    """Forget the key."""
    request.app.state.sessions.end(visit.session, "asked")
    answer = RedirectResponse(LOGIN, 303)
    settings: Console = request.app.state.settings
    answer.delete_cookie(
        cookie_name(settings), secure=is_secure(settings), httponly=True, samesite="strict"
    )
    return answer


async def _may_operate(client: ApiClient, key: str) -> None:
    if KEY.fullmatch(key) is None:
        raise RequestRejected("unauthorized", _SENTENCES["unauthorized"])
    await within(client.bearing(key).ask("GET", ASKED))


def _page(request: Request, there: str, sentence: str = "", status: int = 200) -> Response:
    showing: Showing = request.app.state.showing
    settings: Console = request.app.state.settings
    context = {"next": local(there), "sentence": sentence, "read_only": settings.read_only}
    return HTMLResponse(showing.page("login.html", context), status)
