"""The application: its routes, its errors, and what surrounds every request."""

from importlib.metadata import version
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from imagefleet.api.http import errors
from imagefleet.api.http.auth import Keys
from imagefleet.api.http.bodies import Heads
from imagefleet.api.http.intake import Intake
from imagefleet.api.http.limiting import Limiting, Unhurried
from imagefleet.api.http.observing import Observed
from imagefleet.api.http.openapi import DescribedApp
from imagefleet.api.http.tools import Tools
from imagefleet.api.http.watching import Watcher
from imagefleet.api.operators import audit as operator_audit
from imagefleet.api.operators import breakers as operator_breakers
from imagefleet.api.operators import edge as operator_edge
from imagefleet.api.operators import jobs as operator_jobs
from imagefleet.api.operators import letters as operator_letters
from imagefleet.api.operators import pauses as operator_pauses
from imagefleet.api.operators import queues as operator_queues
from imagefleet.api.operators import settings as operator_settings
from imagefleet.api.operators import tenants as operator_tenants
from imagefleet.api.operators.queues import Looks
from imagefleet.api.producers import events, images, jobs, uploads
from imagefleet.api.producers.admission import Admission
from imagefleet.api.producers.events import Streams
from imagefleet.api.public import stable
from imagefleet.api.public.stable import Addresses
from imagefleet.jobs.model import TenantId

OPERATORS: Final = (
    operator_jobs,
    operator_letters,
    operator_pauses,
    operator_queues,
    operator_breakers,
    operator_edge,
    operator_tenants,
    operator_audit,
    operator_settings,
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

    def turned(tenant_id: TenantId, name: str) -> int | None:
        return tools.live.now.limit(tenant_id, name)

    app.state.limiting = limiting = Limiting(turned)
    app.state.unhurried = Unhurried()
    app.state.keys = Keys(tools)
    app.state.admission = Admission(limiting)
    app.state.heads = heads = Heads()
    app.state.intake = Intake(tools, heads, limiting)
    app.state.streams = Streams(tools, app.state.keys, watcher, limiting)
    app.state.addresses = Addresses(tools)
    errors.install(app)
    for part in (images, uploads, jobs, events, stable):
        app.include_router(part.router)
    if tools.operators is not None:
        app.state.looks = Looks()
        for part in OPERATORS:
            app.include_router(part.router)
    return app


def observed(app: FastAPI, tools: Tools) -> ASGIApp:
    """The application as it is served."""
    return Observed(app, app.state.unhurried, tools.metrics, tools.tracing)
