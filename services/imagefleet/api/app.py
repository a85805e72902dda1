"""The application: its routes, its errors, and what surrounds every request."""

from importlib.metadata import version
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from imagefleet.api import (
    errors,
    events,
    images,
    jobs,
    operator_breakers,
    operator_edge,
    operator_jobs,
    operator_letters,
    operator_pauses,
    operator_queues,
    operator_sweep,
    reprocessing,
    stable,
    uploads,
)
from imagefleet.api.admission import Admission
from imagefleet.api.auth import Keys
from imagefleet.api.events import Streams
from imagefleet.api.intake import Intake
from imagefleet.api.observing import Observed
from imagefleet.api.openapi import DescribedApp
from imagefleet.api.operator_queues import Looks
from imagefleet.api.tools import Tools
from imagefleet.api.watching import Watcher

OPERATORS: Final = (
    operator_jobs,
    operator_letters,
    operator_pauses,
    operator_queues,
    operator_breakers,
    operator_edge,
    operator_sweep,
)


def create_app(tools: Tools, watcher: Watcher) -> FastAPI:
    """The routes on these tools; whoever serves them also runs the watcher."""
    app = DescribedApp(
        title="imagefleet",
        version=version("imagefleet"),
        openapi_url="/v1/openapi.json",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.tools = tools
    app.state.watcher = watcher
    app.state.keys = Keys(tools)
    app.state.admission = Admission()
    app.state.intake = Intake(tools)
    app.state.streams = Streams(tools, app.state.keys, watcher)
    errors.install(app)
    for part in (images, reprocessing, uploads, jobs, events, stable):
        app.include_router(part.router)
    if tools.operators is not None:
        app.state.looks = Looks()
        for part in OPERATORS:
            app.include_router(part.router)
    return app


def observed(app: FastAPI, tools: Tools) -> ASGIApp:
    """The application as it is served."""
    return Observed(app, tools.metrics, tools.tracing)
