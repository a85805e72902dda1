"""A collector of traces in this process: what OTLP over HTTP sends to it can be asked for."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A span as it arrived; ids in hexadecimal, "" for no parent."""

    name: str
    kind: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    """`trace_id-span_id` of each."""
    attributes: dict[str, Value]
    failed: bool
    events: int


class Collector:
    """Keeps what arrived; `refuse` makes it answer with an error, `stall` not at all."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.spans: list[ReceivedSpan] = []
        self.requests = 0
        self.refuse: int | None = None
        self.stall = threading.Event()
        self.resumed = threading.Event()

    def named(self, name: str) -> ReceivedSpan:
        """Return the one span of this name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def take(self, path: str, body: bytes) -> int:
        """Take one request and return the status of its answer."""
        self.requests += 1
        if self.stall.is_set():
            self.resumed.wait(timeout=30)
        if self.refuse is not None:
            return self.refuse
        if path != "/v1/traces":
            return 404
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = str(_attributes(resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self.spans += [_received(service, span) for span in scope.spans]
        return 200


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = collector.take(self.path, body)
            try:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:  # whoever asked has given up
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield collector
    finally:
        collector.resumed.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _received(service: str, span: WireSpan) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        service=service,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=tuple(f"{link.trace_id.hex()}-{link.span_id.hex()}" for link in span.links),
        attributes=_attributes(span.attributes),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        events=len(span.events),
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Value:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bool_value":
            return value.bool_value
        case _:
            return None
