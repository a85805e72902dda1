"""Messages and ids: what goes over the wire, and what may come back from it."""

import json
import time
from datetime import UTC, datetime
from uuid import RFC_4122, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.errors import InputRejected
from imagefleet.jobs.model import (
    MAX_MESSAGE_BYTES,
    JobId,
    JobMessage,
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


def test_a_message_tells_when_it_was_announced() -> None:
    at = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
    message = JobMessage(job_id=new_job_id(), announced_at=at)

    assert message == parse_message(encode_message(message))
    assert at.isoformat() == json.loads(encode_message(message))["announced_at"]


@pytest.mark.parametrize(
    "told",
    [
        None,
        "",
        7,
        1767225600.5,
        True,
        ["2026-01-01T00:00:00+00:00"],
        {"at": "now"},
        "yesterday",
        "2026-01-01T00:00:00",  # of which clock?
        "2026-13-01T00:00:00+00:00",
        "0001-01-01T00:00:00+14:00",  # before the first day, in the time of the database
        "9999-12-31T23:59:59-12:00",
        "infinity",
        "2026-01-01T00:00:00+00:00; DROP TABLE rings",
        "9" * 1000,
    ],
)
def test_a_broken_announcement_does_not_stop_the_job(told: object) -> None:
    job_id = JobId(uuid4())
    body = json.dumps({"v": 1, "job_id": str(job_id), "announced_at": told})

    assert JobMessage(job_id=job_id) == parse_message(body)


@given(st.datetimes(timezones=st.timezones()))
def test_an_announcement_of_another_zone_is_the_same_moment(at: datetime) -> None:
    body = json.dumps({"v": 1, "job_id": str(new_job_id()), "announced_at": at.isoformat()})

    told = parse_message(body).announced_at

    # Compared in one zone: of an hour that comes twice Python holds no two moments for equal.
    assert told is None or (told.tzinfo is UTC and told == at.astimezone(UTC))


def test_ids_are_uuids_of_version_seven_that_carry_the_time() -> None:
    before = time.time_ns() // 1_000_000
    job_id = new_job_id()
    after = time.time_ns() // 1_000_000

    assert job_id.version == 7
    assert job_id.variant == RFC_4122
    assert before <= job_id.int >> 80 <= after


def test_ids_do_not_repeat() -> None:
    assert len({new_job_id() for _ in range(10_000)}) == 10_000
