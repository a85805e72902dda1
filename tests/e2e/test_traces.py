"""One trace tells of a picture from the request to the last object."""

from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.otlp import Collector, ReceivedSpan
from tests.support.stack import Producer

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
STATIONS = {("api", "server"), ("api", "client"), ("worker", "consumer"), ("worker", "client")}


async def test_one_trace_goes_from_the_request_to_s3(
    producer: Producer, collector: Collector
) -> None:
    accepted = await producer.post(
        "/v1/images",
        None,
        "traced",
        {"Content-Type": "image/jpeg", "traceparent": TRACEPARENT},
        content=saved(quadrants(56, 35)),
    )
    assert accepted.status_code == 202, accepted.text
    await producer.ended(accepted.json()["jobId"])

    def spans() -> list[ReceivedSpan]:
        mine = [span for span in collector.spans if span.trace_id == TRACE_ID]
        puts = [s for s in mine if s.service.endswith("worker") and "PutObject" in s.name]
        assert len(puts) == 4, [(s.service, s.name) for s in mine]
        kinds = {(span.service.rpartition("-")[2], span.kind) for span in mine}
        assert kinds >= STATIONS, sorted(kinds)
        return mine

    mine = await eventually(spans, within=15)

    known = {span.span_id for span in mine} | {"00f067aa0ba902b7"}
    assert {span.parent_id for span in mine} <= known
    assert {False} == {span.failed for span in mine}
