"""The application: the pages, the files that they load, and what is shown where there is none."""

from importlib.metadata import version
from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from imagefleet.client.api import ApiClient
from imagefleet.console.guarding import Guard
from imagefleet.console.pages import (
    controls,
    edge,
    faults,
    images,
    job,
    jobs,
    login,
    now,
    tenants,
    timeline,
    workers,
)
from imagefleet.console.sessions import Attempted, Session, Sessions
from imagefleet.console.showing import Showing
from imagefleet.console.visits import Visit
from imagefleet.errors import FleetError, NotFound
from imagefleet.settings import Console
from imagefleet.telemetry.metrics import ConsoleMetrics

PAGES: Final = (login, now, faults, jobs, job, images, tenants, timeline, workers, edge, controls)
NAVIGATION: Final = (
    ("Now", "/"),
    ("Faults", "/faults"),
    ("Jobs", "/jobs"),
    ("Images", "/images"),
    ("Tenants", "/tenants"),
    ("Timeline", "/timeline"),
    ("Workers", "/workers"),
    ("Edge and storage", "/edge"),
    ("Controls", "/controls"),
)
FOR_EVER: Final = "public, max-age=31536000, immutable"  # another content has another address


def create_app(
    settings: Console, client: ApiClient, sessions: Sessions, metrics: ConsoleMetrics
) -> Guard:
    """All of it behind its guard; the client bears no key of its own."""
    app = FastAPI(
        version=version("imagefleet"),
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.settings = settings
    app.state.client = client
    app.state.sessions = sessions
    app.state.attempted = Attempted()
    app.state.showing = showing = Showing(navigation=NAVIGATION, version=app.version)
    for page in PAGES:
        app.include_router(page.router)
    app.add_api_route("/static/{name:path}", send_file)
    app.add_api_route("/favicon.ico", lambda: Response(status_code=204))
    app.add_exception_handler(FleetError, tell_trouble)
    app.add_exception_handler(HTTPException, tell_absent)
    app.add_exception_handler(Exception, tell_bug)

    def refused(status: int, sentence: str) -> Response:
        return HTMLResponse(showing.page("refused.html", {"sentence": sentence}), status)

    return Guard(app, settings, sessions, metrics, refused)


async def send_file(request: Request) -> Response:
    """A file that pages load; its address says which content it has."""
    showing: Showing = request.app.state.showing
    file = showing.files.get(request.url.path)
    if file is None:
        return Response(status_code=404)
    headers = {"Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.packed, headers=headers, media_type=file.media_type)
    return Response(file.content, headers=headers, media_type=file.media_type)


async def tell_trouble(request: Request, error: Exception) -> Response:
    """What the API said no to, or did not answer: back to where it was asked, or a page of it."""
    assert isinstance(error, FleetError)  # noqa: S101 - nothing else is brought here
    session: Session | None = request.state.session
    if session is None:
        raise error
    visit = Visit(request)
    if request.method == "POST" and error.code != "unauthorized":
        return visit.refused(error)
    return visit.trouble(error)


async def tell_absent(request: Request, error: Exception) -> Response:
    """An address that no page has."""
    assert isinstance(error, HTTPException)  # noqa: S101 - nothing else is brought here
    if request.state.session is None:
        return Response(status_code=error.status_code)
    return Visit(request).trouble(NotFound("page"))


async def tell_bug(request: Request, _error: Exception) -> Response:
    """A fault of ours: the log has all of it, by the guard, and the page a sentence."""
    showing: Showing = request.app.state.showing
    sentence = "This page is broken. Its log says why; the fleet goes on without it."
    return HTMLResponse(showing.page("refused.html", {"sentence": sentence}), 500)
