"""Spans that arrive, traces that are handed on, and what tracing costs while it is off."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from imagefleet.aws.calls import AwsCalls, Call, CallWatcher
from imagefleet.errors import Misconfigured, NotFound, Unavailable
from imagefleet.settings import Telemetry
from imagefleet.telemetry.metrics import ApiMetrics
from imagefleet.telemetry.tracing import Carried, Tracing, extract, inject, open_tracing
from tests.support.otlp import Collector, collecting

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"
OFF = Telemetry()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def on(collector: Collector) -> Telemetry:
    return Telemetry(otlp_endpoint=collector.endpoint)


async def test_a_job_is_one_trace_from_the_request_to_the_s3_call(collector: Collector) -> None:
    async with open_tracing(on(collector), process="api") as api:
        with api.span("POST /v1/images", "server", parent=extract(TRACEPARENT, "vendor=1")):
            row = inject()
            with api.span("send", "producer", {"messages": 1}):
                message = inject()

    async with open_tracing(on(collector), process="worker") as worker:
        parent, rung_by = extract(*row), extract(*message)
        with (
            worker.consumer("attempt", {"job_type": "noop"}, parent=parent, message=rung_by),
            worker.span("render"),
            worker.child("s3 PutObject", "client"),
        ):
            pass

    request, send = collector.named("POST /v1/images"), collector.named("send")
    attempt, render = collector.named("attempt"), collector.named("render")
    put = collector.named("s3 PutObject")
    assert {TRACE} == {span.trace_id for span in collector.spans}
    assert (PARENT, "server", "imagefleet-api") == (
        request.parent_id,
        request.kind,
        request.service,
    )
    assert (request.span_id, "producer", {"messages": 1}) == (
        send.parent_id,
        send.kind,
        send.attributes,
    )
    assert (request.span_id, "consumer", "imagefleet-worker") == (
        attempt.parent_id,
        attempt.kind,
        attempt.service,
    )
    assert (f"{TRACE}-{send.span_id}",) == attempt.links
    assert {"job_type": "noop"} == attempt.attributes
    assert (attempt.span_id, "internal") == (render.parent_id, render.kind)
    assert (render.span_id, "client") == (put.parent_id, put.kind)
    assert "vendor=1" == row.tracestate


async def test_a_message_of_the_jobs_own_context_is_no_link(collector: Collector) -> None:
    async with open_tracing(on(collector), process="worker") as tracing:
        here = extract(TRACEPARENT, None)
        with tracing.consumer("attempt", parent=here, message=here):
            pass

    assert () == collector.named("attempt").links


async def test_what_belongs_to_nothing_gets_no_span_of_its_own(collector: Collector) -> None:
    async with open_tracing(on(collector), process="worker") as tracing:
        with tracing.child("sqs ReceiveMessage", "client"):
            assert Carried() == inject()
        with tracing.span("job"):
            pass

    assert ["job"] == [span.name for span in collector.spans]


async def test_a_parent_that_is_not_sampled_is_obeyed_and_handed_on(collector: Collector) -> None:
    async with open_tracing(on(collector), process="api") as tracing:
        with tracing.span("request", parent=extract(f"00-{TRACE}-{PARENT}-00", None)):
            carried = inject()

    assert [] == collector.spans
    assert carried.traceparent is not None
    assert carried.traceparent.startswith(f"00-{TRACE}-")
    assert carried.traceparent.endswith("-00")


async def test_spans_of_concurrent_tasks_do_not_mix(collector: Collector) -> None:
    async def job(tracing: Tracing, name: str, both: asyncio.Barrier) -> None:
        with tracing.span(name):
            await both.wait()
            with tracing.span(f"{name}.child"):
                await both.wait()

    async with open_tracing(on(collector), process="worker") as tracing:
        both = asyncio.Barrier(2)
        async with asyncio.TaskGroup() as group:
            group.create_task(job(tracing, "one", both))
            group.create_task(job(tracing, "two", both))

    for name in ("one", "two"):
        assert collector.named(name).span_id == collector.named(f"{name}.child").parent_id


@pytest.mark.parametrize(
    ("error", "failed", "told"),
    [
        (Unavailable("s3_throttled", "Later.", "canary"), True, {"error.type": "s3_throttled"}),
        (NotFound("canary"), False, {}),
        (ZeroDivisionError("canary"), True, {"error.type": "ZeroDivisionError"}),
        (asyncio.CancelledError("canary"), False, {}),
    ],
)
async def test_an_error_marks_the_span_with_its_code_alone(
    collector: Collector, error: BaseException, *, failed: bool, told: dict[str, object]
) -> None:
    async with open_tracing(on(collector), process="worker") as tracing:
        with pytest.raises(type(error)), tracing.span("attempt"):
            raise error

    span = collector.named("attempt")
    assert (failed, told, 0) == (span.failed, span.attributes, span.events)


async def test_off_hands_on_what_arrived_and_makes_nothing_up() -> None:
    async with open_tracing(OFF, process="api") as tracing:
        with tracing.span("request"):
            assert Carried() == inject()
        with tracing.span("request", parent=extract(TRACEPARENT, "vendor=1")) as span:
            span.set_attribute("image_id", "1")
            with tracing.span("inner"), tracing.child("s3 PutObject", "client"):
                assert Carried(TRACEPARENT, "vendor=1") == inject()
        assert Carried() == inject()


def test_off_loads_no_exporter_and_starts_no_thread() -> None:
    program = """
import asyncio, socket, sys, threading
def refuse(*_): raise AssertionError("network")
socket.socket.connect = socket.getaddrinfo = refuse
from imagefleet.settings import Telemetry
from imagefleet.telemetry.tracing import open_tracing
async def main():
    async with open_tracing(Telemetry(), process="worker") as tracing:
        with tracing.span("attempt"), tracing.child("call"):
            assert threading.active_count() == 1, threading.enumerate()
asyncio.run(main())
loaded = [m for m in sys.modules if m.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_off_costs_next_to_nothing() -> None:
    tracing = Tracing()
    spans = 10_000

    begun = time.process_time()
    for _ in range(spans):
        with tracing.span("attempt"):
            pass

    assert (time.process_time() - begun) / spans < 10e-6  # seconds; it is well under one millionth


async def test_the_end_leaves_no_thread_behind(collector: Collector) -> None:
    before = set(threading.enumerate())
    async with open_tracing(on(collector), process="worker") as tracing:
        with tracing.span("attempt"):
            pass

    ours = [t for t in set(threading.enumerate()) - before if "Otel" in t.name]
    assert [] == ours


@pytest.mark.parametrize("trouble", ["refuses", "stalls", "is away"])
async def test_a_collector_in_trouble_delays_the_end_by_no_more_than_the_deadline(
    collector: Collector, trouble: str
) -> None:
    settings = on(collector)
    match trouble:
        case "refuses":
            collector.refuse = 503
        case "stalls":
            collector.stall.set()
        case _:
            settings = Telemetry(otlp_endpoint="http://127.0.0.1:9")
    within = timedelta(seconds=0.3)

    with capture_logs() as logs:
        async with open_tracing(settings, process="worker", flush_within=within) as tracing:
            with tracing.span("attempt"):
                pass
            begun = time.monotonic()
        took = time.monotonic() - begun

    assert took < 2
    assert ["tracing.unflushed"] == [line["event"] for line in logs]


async def test_a_refused_batch_is_given_up_at_once(collector: Collector) -> None:
    collector.refuse = 400

    async with open_tracing(on(collector), process="worker") as tracing:
        with tracing.span("attempt"):
            pass

    assert 1 == collector.requests


async def test_an_otel_variable_that_cannot_be_used_names_itself(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1")

    with pytest.raises(Misconfigured, match="OTEL_"):
        async with open_tracing(on(collector), process="worker"):
            pass


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "garbage",
        TRACEPARENT.upper(),
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"{TRACEPARENT}-more",
        f"{TRACEPARENT}\r\nX-Forged: 1",
        TRACEPARENT * 1000,
    ],
)
def test_what_is_no_traceparent_is_no_trace(traceparent: str | None) -> None:
    assert extract(traceparent, "vendor=1") is None


@pytest.mark.parametrize(
    ("tracestate", "kept"),
    [
        (None, None),
        ("vendor=1", "vendor=1"),
        ("a=1, tenant@vendor=2", "a=1,tenant@vendor=2"),
        ("a=1,a=2", None),
        ("forged\x1b[31m=1", None),
        ("=1", None),
        (f"a={'x' * 200},b={'x' * 200},c={'x' * 200}", None),
        ("x" * 1_000_000, None),
    ],
)
def test_a_tracestate_that_is_none_costs_itself_alone(
    tracestate: str | None, kept: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    context = extract(TRACEPARENT, tracestate)

    with Tracing().span("request", parent=context):
        assert Carried(TRACEPARENT, kept) == inject()
    assert [] == caplog.records


@given(st.text(max_size=100), st.text(max_size=100))
def test_any_text_can_be_extracted(traceparent: str, tracestate: str) -> None:
    assert extract(traceparent, tracestate) is None


@given(
    st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.sampled_from(["00", "01", "02", "03"])
)
def test_what_was_extracted_is_injected_again(trace: int, span: int, flags: str) -> None:
    text = f"00-{trace:032x}-{span:016x}-{flags}"

    with Tracing().span("request", parent=extract(text, None)):
        assert Carried(text, None) == inject()


async def test_aws_calls_are_spans_of_the_trace_that_asks_for_them(collector: Collector) -> None:
    call = Call("s3", "GetObject", "originals")
    async with open_tracing(on(collector), process="api") as tracing:
        calls: CallWatcher = AwsCalls(ApiMetrics(), tracing)
        with pytest.raises(Unavailable), tracing.span("request"), calls.during(call):
            raise Unavailable("s3_unavailable", "Later.")
        with calls.during(Call("sqs", "ReceiveMessage", "general")):
            pass

    span = collector.named("s3 GetObject")
    assert collector.named("request").span_id == span.parent_id
    assert ("client", True) == (span.kind, span.failed)
    assert {
        "rpc.system": "aws-api",
        "rpc.service": "s3",
        "rpc.method": "GetObject",
        "aws.resource": "originals",
        "error.type": "s3_unavailable",
    } == span.attributes
    assert 2 == len(collector.spans)
