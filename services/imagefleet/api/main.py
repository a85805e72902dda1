"""The API process: its routes and what surrounds them, what it opens, and how it ends.

The drain: the port closes, requests that run may finish within the grace, those that only wait are
answered at once; then the doorbell rings for what was accepted last, and the rest is closed.
"""

import ctypes
import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Final

import structlog
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from imagefleet.api.http import errors
from imagefleet.api.http.auth import Direct, Keys
from imagefleet.api.http.bodies import Bodies
from imagefleet.api.http.connections import Server
from imagefleet.api.http.documents import DOCUMENTS, Telling
from imagefleet.api.http.intake import Heads, Intake
from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.requests import Observed, Tools
from imagefleet.api.operators import (
    audit,
    breakers,
    edge,
    lanes,
    letters,
    pauses,
    previews,
    rates,
    replaying,
    tenants,
)
from imagefleet.api.operators import images as operator_images
from imagefleet.api.operators import jobs as operator_jobs
from imagefleet.api.operators import queues as operator_queues
from imagefleet.api.operators import settings as operator_settings
from imagefleet.api.operators.queues import Looks
from imagefleet.api.producers import (
    arriving,
    events,
    images,
    job_types,
    jobs,
    rendering,
    targets,
    uploads,
)
from imagefleet.api.producers.accepting import Accepting
from imagefleet.api.producers.events import Streams, Watcher
from imagefleet.api.producers.submitting import Admission
from imagefleet.api.public import documentation, explaining, stable
from imagefleet.api.public.stable import Addresses
from imagefleet.aws.calls import AwsCalls
from imagefleet.aws.session import AwsSession, open_session
from imagefleet.aws.transfers import require_scratch
from imagefleet.billing import billing
from imagefleet.doorbell import Doorbell
from imagefleet.extensions import load_kinds
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe
from imagefleet.imaging.recipes.files import recipes_in_force
from imagefleet.jobs.model import Lane
from imagefleet.live import Live
from imagefleet.runtime import Drain, supervise
from imagefleet.settings import ApiSettings
from imagefleet.settings.in_force import defaults_of_api
from imagefleet.settings.live import TRACES
from imagefleet.store.database import Pool, open_pool, ping
from imagefleet.store.images.recipes import remember_recipes
from imagefleet.store.schema.migrations import open_current
from imagefleet.telemetry.health import serve_health
from imagefleet.telemetry.metrics import ApiMetrics
from imagefleet.telemetry.tracing import Tracing, open_tracing

log = structlog.get_logger()

# Of glibc's malloc.h. By default each thread has a heap of its own, and each of them keeps what the
# pieces of uploads took that it read or wrote once.
M_ARENA_MAX: Final = -8

SENT_BY_PAGES: Final = (
    "Authorization", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "X-Correlation-ID",
)  # fmt: skip
PATIENCE: Final = timedelta(seconds=5)  # of operators: a page of the console waits for six
SHOWN_TO_PAGES: Final = ("Allow", "ETag", "Location", "Retry-After", "X-Correlation-ID")

OPERATORS: Final = (
    operator_jobs,
    operator_images,
    previews,
    letters,
    replaying,
    pauses,
    operator_queues,
    rates,
    lanes,
    breakers,
    edge,
    tenants,
    audit,
    operator_settings,
)


async def main(
    settings: ApiSettings,
    drain: Drain,
    *,
    listening: Callable[[Server], None] | None = None,
) -> None:
    """Serve until asked to end; `listening` is told once requests are taken, and where."""
    metrics = ApiMetrics()
    with suppress(AttributeError):  # a C library that has no such thing
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    recipes = recipes_in_force(settings.recipes.file)
    await require_scratch()
    async with AsyncExitStack() as stack:
        tracing = await stack.enter_async_context(open_tracing(settings.telemetry, process="api"))
        pool = await stack.enter_async_context(open_current(settings.database, "api"))
        calls = AwsCalls(metrics, tracing)
        await stack.enter_async_context(billing(pool, calls.billed))
        session = await stack.enter_async_context(open_session(settings.aws, calls=calls))
        tools = await _open_tools(stack, settings, recipes, pool, session, metrics, tracing)
        watcher = Watcher(tools)
        app = create_app(tools, watcher)
        await stack.enter_async_context(app.state.accepting.open())
        origins = settings.api.allowed_origins
        routes = AcrossOrigins(app, origins) if origins else app
        server = Server(
            settings.api.host,
            settings.api.port,
            Observed(routes, app.state.unhurried, metrics, tracing),
            grace=settings.api.shutdown_grace,
        )
        await stack.enter_async_context(
            serve_health(
                settings.telemetry.health_host,
                settings.telemetry.health_port,
                metrics,
                vitals={},
                readiness={
                    "http": lambda: None if server.is_serving else "not serving",
                    "drain": lambda: "draining" if drain.requested else None,
                    "database": lambda: _reach(pool),
                },
            )
        )
        async with supervise(drain) as parts:
            parts.start("watcher", watcher.run(drain))
            parts.start("http", server.run(drain))
            gc.freeze()  # what is there now stays, and is not looked through again and again
            if listening is not None:
                listening(server)


async def _open_tools(
    stack: AsyncExitStack,
    settings: ApiSettings,
    recipes: Mapping[str, Recipe],
    pool: Pool,
    session: AwsSession,
    metrics: ApiMetrics,
    tracing: Tracing,
) -> Tools:
    operators = None
    if settings.api.operator_database_url is not None:
        operators = await stack.enter_async_context(
            open_pool(
                settings.api.operator_database_url.get_secret_value(),
                process="api-operator",
                min_size=0,  # opened when somebody asks
                max_size=settings.database.pool_of("api"),
                statement_within=min(settings.database.statement_timeout, PATIENCE).total_seconds(),
                pooler=settings.database.pooler,
                custom_plans=True,
            )
        )
        operators = operators.timed_by(metrics.query)
    async with pool.connection() as connection:  # before anything is pinned to them
        await remember_recipes(connection, recipes.values())
    timed = pool.timed_by(metrics.query)
    standard_retry = settings.retry.policy()
    kinds = load_kinds().with_standard_retry(standard_retry)
    defaults = defaults_of_api(standard_retry, kinds)
    live = await stack.enter_async_context(Live().open(timed, "api", defaults))
    metrics.watch_settings(lambda: live.age)
    metrics.watch_pool(lambda: pool.connections)
    tracing.share = lambda: live.now.number(TRACES, 1)
    queues = {lane: await session.queue(settings.aws.queue_url(lane)) for lane in Lane}
    return Tools(
        settings=settings.api,
        limits=Limits(**settings.pictures.model_dump()),
        pool=timed,
        originals=await session.objects(settings.aws.originals_bucket),
        queues=queues,
        dead_letters=await session.queue(settings.aws.dead_letter_queue_url),
        doorbell=await stack.enter_async_context(Doorbell(pool, queues).open()),
        known_kinds=kinds,
        recipes=recipes,
        metrics=metrics,
        tracing=tracing,
        live=live,
        standard_retry=standard_retry,
        edge_monthly_paths=settings.aws.monthly_paths,
        operators=operators,
    )


async def _reach(pool: Pool) -> str | None:
    async with pool.connection(within=1) as connection:
        await ping(connection)
    return None


def create_app(tools: Tools, watcher: Watcher) -> FastAPI:
    """The routes on these tools; whoever serves them also runs the watcher."""
    app = FastAPI(
        version=version("imagefleet"),
        openapi_url=None,  # there are two documents, and pages that load nothing from elsewhere
        redirect_slashes=False,
        # Spans and metrics are ours; whether anybody else wants some it would ask of every request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.tools = tools
    app.state.watcher = watcher
    app.state.limiting = limiting = Limiting(tools.turned_for)
    app.state.unhurried = errors.Unhurried()
    app.state.keys = Keys(tools)
    app.state.admission = admission = Admission(limiting)
    app.state.accepting = Accepting(tools, admission, limiting)
    app.state.bodies = Bodies(limiting)
    app.state.intake = Intake(tools, Heads(), limiting)
    app.state.streams = Streams(tools, app.state.keys, watcher, limiting)
    app.state.addresses = Addresses(tools)
    errors.install(app)
    for part in (
        arriving,
        images,
        rendering,
        uploads,
        jobs,
        targets,
        job_types,
        events,
        stable,
        documentation,
        explaining,
    ):
        part.router.take_in(app)
    if tools.operators is not None:
        app.state.looks = Looks()
        for part in OPERATORS:
            part.router.take_in(app)
    in_force = job_types.names_in_force(tools)
    for document in DOCUMENTS:
        if tools.operators is not None or not document.of_operators:
            telling = Telling(app, document, in_force)
            app.add_route(document.address, telling.answer, include_in_schema=False)
    # Without the framework's net around it: ours tells a bug, too.
    app.middleware_stack = ExceptionMiddleware(Direct(app), app.exception_handlers)
    return app


class AcrossOrigins(CORSMiddleware):
    """Lets pages of these origins speak to the API; with a key, and never with a cookie."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        """Take the routes with their errors, which such a page has to be able to read, too."""
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"),
            allow_headers=SENT_BY_PAGES,
            expose_headers=SHOWN_TO_PAGES,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what a browser asks beforehand; stable addresses are for any page as they are."""
        ours = scope.get("path", "").startswith("/v1/")
        await (super().__call__ if ours else self.app)(scope, receive, send)
