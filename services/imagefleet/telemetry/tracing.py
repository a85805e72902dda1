"""Traces: one from the HTTP request over SQS to every S3 call, in OpenTelemetry's own terms.

Off unless the settings name an endpoint, and then as good as free: nothing is imported, started or
recorded. What arrived is still handed on: a span with a parent makes that parent what `inject`
gives, so that a process which does not record never cuts a trace in two.

Between processes a trace is two texts of the W3C, in headers, job rows and messages; `inject` gives
them and `extract` reads them, from anybody. Everything else about the exporter (headers, timeouts,
sampling, resource attributes) it reads from the standard OTEL_ variables by itself.
"""

import asyncio
import random
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import structlog
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from structlog.typing import FilteringBoundLogger

from imagefleet.errors import ClaimLost, FleetError, Misconfigured, RequestRejected
from imagefleet.settings import Telemetry

if TYPE_CHECKING:  # not loaded while tracing is off
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log: Final[FilteringBoundLogger] = structlog.get_logger()

Kind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]
Attributes: TypeAlias = Mapping[str, str | int | float | bool]

FLUSH_WITHIN: Final = timedelta(seconds=5)
LONGEST: Final = 512  # characters; what the W3C asks everybody to hand on, and all that we store

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_UNTRACED: Final[AbstractContextManager[Span]] = nullcontext(INVALID_SPAN)
# The propagator would write a log line for every one that is not of this form.
_TRACESTATE_MEMBER: Final = re.compile(
    r"(?:[a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class Carried(NamedTuple):
    """A place in a trace as texts, for a job's row, a message or a header; None is no trace."""

    traceparent: str | None = None
    tracestate: str | None = None


def inject() -> Carried:
    """Write down the current span, for those who come after it."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    tracestate = carrier.get("tracestate", "")
    fits = 0 < len(tracestate) <= LONGEST
    return Carried(carrier.get("traceparent"), tracestate if fits else None)


def extract(traceparent: str | None, tracestate: str | None) -> SpanContext | None:
    """Read what anybody may have written; None is no trace, or nothing that could be one."""
    if not traceparent or len(traceparent) > LONGEST:
        return None
    carrier = {"traceparent": traceparent}
    if tracestate and _is_tracestate(tracestate):
        carrier["tracestate"] = tracestate
    context = get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
    return context if context.is_valid else None


def _is_tracestate(text: str) -> bool:
    members = [member.strip(" \t") for member in text[: LONGEST + 1].split(",")]
    return len(text) <= LONGEST and all(
        not member or _TRACESTATE_MEMBER.fullmatch(member) for member in members
    )


class Tracing:
    """What makes spans; nothing is recorded without a tracer."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer
        self.share: Callable[[], float] = lambda: 1.0
        """Of the traces that begin here, those that are recorded at all."""

    def span(
        self,
        name: str,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        *,
        parent: SpanContext | None = None,
        links: Sequence[SpanContext] = (),
    ) -> AbstractContextManager[Span]:
        """Surround some work: a child of `parent`, else of the current span, else a new trace."""
        if self._tracer is not None and not self._passes_by(parent):
            return _recorded(self._tracer, name, SpanKind[kind.upper()], attributes, parent, links)
        if self._tracer is not None:  # a trace all the same, so that nobody behind records a part
            return use_span(NonRecordingSpan(_unsampled()))
        return _UNTRACED if parent is None else use_span(NonRecordingSpan(parent))

    def _passes_by(self, parent: SpanContext | None) -> bool:
        """Whether a trace begins here that is not of the share; others decided when they began."""
        if parent is not None or get_current_span().get_span_context().is_valid:
            return False
        share = self.share()
        return share < 1 and random.random() >= share  # noqa: S311 - guards nothing

    def child(
        self, name: str, kind: Kind = "internal", attributes: Attributes | None = None
    ) -> AbstractContextManager[Span]:
        """Surround a part of something traced; on its own it is worth no trace and gets none."""
        if self._tracer is None or not get_current_span().get_span_context().is_valid:
            return _UNTRACED
        return self.span(name, kind, attributes)

    def consumer(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        parent: SpanContext | None,
        message: SpanContext | None,
    ) -> AbstractContextManager[Span]:
        """Surround an attempt: it belongs to the job's trace, whoever rang it is only linked."""
        links = [] if message is None or message == parent else [message]
        return self.span(name, "consumer", attributes, parent=parent, links=links)


@asynccontextmanager
async def open_tracing(
    settings: Telemetry, *, process: str, flush_within: timedelta = FLUSH_WITHIN
) -> AsyncIterator[Tracing]:
    """Trace for the life of a process; its end sends what is left, within the deadline."""
    if settings.otlp_endpoint is None:
        yield Tracing()
        return
    provider, exporter = _start(settings.otlp_endpoint, process)
    try:
        yield Tracing(provider.get_tracer("imagefleet", version("imagefleet")))
    finally:
        await _flush(provider, exporter, flush_within)


def _start(endpoint: str, process: str) -> "tuple[TracerProvider, SpanExporter]":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:  # every image that is built has them
        msg = f"OTEL_EXPORTER_OTLP_ENDPOINT is set, and {error.name} is not installed"
        raise Misconfigured(msg) from error
    try:
        exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")
        resource = Resource.create(
            {"service.name": f"imagefleet-{process}", "service.version": version("imagefleet")}
        )
        # The end of the process is `_flush`, with a deadline; the library's own has none.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except ValueError as error:
        msg = f"an OTEL_ variable cannot be used: {error}"
        raise Misconfigured(msg) from error
    return provider, exporter


async def _flush(provider: "TracerProvider", exporter: "SpanExporter", within: timedelta) -> None:
    # A thread of our own: one of the loop's executor would have to be waited for.
    loop, flushed = asyncio.get_running_loop(), asyncio.Event()

    def flush() -> None:
        provider.shutdown()
        with suppress(RuntimeError):  # nobody waited, and the loop is gone
            loop.call_soon_threadsafe(flushed.set)

    threading.Thread(target=flush, name="trace-flush", daemon=True).start()
    try:
        async with asyncio.timeout(within.total_seconds()):
            await flushed.wait()
    except TimeoutError:
        log.warning("tracing.unflushed", deadline_seconds=within.total_seconds())
        exporter.shutdown()  # ends its retries, and with them the threads


def _unsampled() -> SpanContext:
    return SpanContext(
        trace_id=random.getrandbits(128) or 1,
        span_id=random.getrandbits(64) or 1,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.DEFAULT),
    )


@contextmanager
def _recorded(
    tracer: Tracer,
    name: str,
    kind: SpanKind,
    attributes: Attributes | None,
    parent: SpanContext | None,
    links: Sequence[SpanContext],
) -> Iterator[Span]:
    span = tracer.start_span(
        name,
        None if parent is None else set_span_in_context(NonRecordingSpan(parent)),
        kind,
        attributes,
        [Link(link) for link in links],
    )
    # Messages of exceptions may quote what nobody outside is to see; the code is enough to look up.
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except Exception as error:
            _mark(span, error)
            raise


def _mark(span: Span, error: Exception) -> None:
    if isinstance(error, RequestRejected | ClaimLost):
        return  # an answer
    code = error.code if isinstance(error, FleetError) else type(error).__qualname__
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))
