"""Messages and ids: what goes over the wire, and what may come back from it."""

import json
import time
from uuid import RFC_4122, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.errors import InputRejected
from imagefleet.jobs.model import (
    MAX_MESSAGE_BYTES,
    OPEN,
    TERMINAL,
    JobId,
    JobMessage,
    JobState,
    encode_message,
    new_job_id,
    parse_message,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_message_is_read_back_as_it_was_written() -> None:
    bare = JobMessage(job_id=new_job_id())
    traced = JobMessage(job_id=new_job_id(), traceparent=TRACE, tracestate="a=b")

    assert bare == parse_message(encode_message(bare))
    assert traced == parse_message(encode_message(traced))


def test_a_message_carries_an_id_and_a_trace_and_nothing_else() -> None:
    job_id = new_job_id()

    body = json.loads(encode_message(JobMessage(job_id=job_id, traceparent=TRACE)))

    assert body == {"v": 1, "job_id": str(job_id), "traceparent": TRACE}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "[]",
        '"text"',
        "{}",
        '{"v": 2, "job_id": "0198c0de-0000-7000-8000-000000000000"}',
        '{"v": 1}',
        '{"v": 1, "job_id": 5}',
        '{"v": 1, "job_id": null}',
        '{"v": 1, "job_id": "nobody"}',
        "[" * (MAX_MESSAGE_BYTES - 1),
        " " * MAX_MESSAGE_BYTES + "{}",
    ],
)
def test_a_body_that_is_not_ours_is_unreadable(body: str) -> None:
    with pytest.raises(InputRejected) as rejected:
        parse_message(body)

    assert rejected.value.code == "unreadable"


@given(st.text())
def test_any_other_text_is_unreadable(body: str) -> None:
    with pytest.raises(InputRejected):
        parse_message(body)


@pytest.mark.parametrize("trace", [None, "", 7, ["x"]])
def test_a_broken_trace_does_not_stop_the_job(trace: object) -> None:
    job_id = JobId(uuid4())
    body = json.dumps({"v": 1, "job_id": str(job_id), "traceparent": trace})

    assert JobMessage(job_id=job_id) == parse_message(body)


def test_ids_are_uuids_of_version_seven_that_carry_the_time() -> None:
    before = time.time_ns() // 1_000_000
    job_id = new_job_id()
    after = time.time_ns() // 1_000_000

    assert job_id.version == 7
    assert job_id.variant == RFC_4122
    assert before <= job_id.int >> 80 <= after


def test_ids_do_not_repeat() -> None:
    assert len({new_job_id() for _ in range(10_000)}) == 10_000


def test_a_state_is_either_open_or_terminal() -> None:
    assert set(JobState) == OPEN | TERMINAL
    assert not OPEN & TERMINAL
