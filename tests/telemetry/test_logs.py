"""What a log line looks like, and what never gets into one."""

import asyncio
import io
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NoReturn
from uuid import uuid4

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from imagefleet.jobs.model import Claim, Lane, TenantId, new_job_id
from imagefleet.telemetry import logs
from imagefleet.telemetry.logs import (
    REDACTED,
    bind_job,
    configure,
    for_a_person,
    ids_of,
    read_line,
)

CLAIM = Claim(
    job_id=new_job_id(),
    claim_no=3,
    tenant_id=TenantId("acme"),
    type="process_image",
    lane=Lane.GENERAL,
    payload={"source_key": "o/1"},
    target=None,
    target_seq=None,
    priority=100,
    attempts=2,
    max_attempts=5,
    crashes=0,
    cursor=None,
    progress_done=0,
    correlation_id="c-1",
    parent_job_id=None,
    replay_of=None,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    tracestate=None,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    claimed_at=datetime(2026, 1, 1, tzinfo=UTC),
    queue_time=timedelta(0),
    cancel_code=None,
)


class Lines(io.StringIO):
    """A stream that can be read as log lines."""

    def all(self) -> list[dict[str, object]]:
        text = self.getvalue()
        assert text == "" or text.endswith("\n")
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def one(self) -> dict[str, object]:
        (line,) = self.all()
        return line


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture
def lines() -> Lines:
    stream = Lines()
    configure("json", "info", process="worker", stream=stream)
    return stream


@pytest.fixture
def terminal() -> io.StringIO:
    stream = io.StringIO()
    configure("console", "info", stream=stream)
    return stream


def log() -> structlog.typing.FilteringBoundLogger:
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def fail(message: str) -> NoReturn:
    raise ValueError(message)


# The form.


def test_a_line_for_programs_reads_like_one_for_people(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")

    def told(stream: io.StringIO, form: Literal["json", "console"]) -> str:
        configure(form, "info", process="worker", stream=stream)
        try:
            fail("a\nb\x1b")
        except ValueError:
            log().exception("job.broken", jobs=3, reason="c\x1b d", found=[1, None])
        return stream.getvalue()

    read = read_line(told(Lines(), "json").strip())
    shown = told(io.StringIO(), "console")

    assert read is not None
    after_the_time = len("2026-01-01T00:00:00.000000Z")
    assert shown[after_the_time:] == for_a_person(read)[after_the_time:] + "\n"


@pytest.mark.parametrize(
    "said", ["", "imagefleet api does not start", "[1]", "{", '{"a": 1}', '{"event": 1}', '"event"']
)
def test_what_is_no_line_of_a_log_is_not_taken_for_one(said: str) -> None:
    assert read_line(said) is None


def test_a_line_is_one_json_object_that_begins_with_when_how_bad_and_what(lines: Lines) -> None:
    log().info("job.completed", seconds=1.5, variants=["thumb"], image=uuid4())

    line = lines.one()
    assert ["timestamp", "level", "event"] == list(line)[:3]
    assert (line["level"], line["event"], line["process"]) == ("info", "job.completed", "worker")
    assert (line["seconds"], line["variants"]) == (1.5, ["thumb"])


def test_time_is_utc_and_iso(lines: Lines) -> None:
    log().info("job.completed")

    stamp = str(lines.one()["timestamp"])
    assert stamp.endswith("Z")
    assert datetime.fromisoformat(stamp).utcoffset() == timedelta(0)


def test_lines_below_the_level_are_not_written(lines: Lines) -> None:
    log().debug("job.considered")
    logging.getLogger("anything").debug("x")

    assert lines.all() == []


def test_a_logger_made_before_the_configuration_obeys_it() -> None:
    early = log()
    early.bind(a=1)
    first, second = Lines(), Lines()
    configure("json", "info", stream=first)
    early.info("one.thing")

    configure("json", "warning", stream=second)
    early.info("another.thing")
    early.warning("third.thing")

    assert first.one()["event"] == "one.thing"
    assert second.one()["event"] == "third.thing"


def test_without_a_stream_lines_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "info")
    log().info("job.completed")

    assert json.loads(capsys.readouterr().out)["event"] == "job.completed"


def test_a_traceback_is_one_value_of_its_line(lines: Lines) -> None:
    try:
        fail("broken")
    except ValueError:
        log().exception("attempt.broke")

    line = lines.one()
    assert str(line["exception"]).endswith("\nValueError: broken")
    assert line["level"] == "error"


def test_values_json_does_not_know_are_written_as_text(lines: Lines) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    deep: object = "bottom"
    deeper: object = "bottom"
    for _ in range(5000):
        deep, deeper = {"in": deep}, [deeper]

    log().info(
        "odd.values",
        huge=2**80,
        when=datetime(2026, 1, 1, tzinfo=UTC),
        broken=Broken(),
        raw=b"\x00",
        nothing=None,
        some={"b"},
        numbered={1: (2, True)},
        deep=deep,
        deeper=deeper,
    )

    line = lines.one()
    assert line["huge"] == str(2**80)
    assert line["when"] == "2026-01-01T00:00:00+00:00"
    assert line["broken"] == "<Broken>"
    assert line["raw"] == "b'\\x00'"
    assert line["nothing"] is None
    assert line["some"] == ["b"]
    assert line["numbered"] == {"1": [2, True]}


def test_a_value_of_any_length_leaves_the_line_bearable(lines: Lines) -> None:
    log().info("long.value", text="x" * 1_000_000)

    assert len(lines.getvalue()) < 20_000
    assert str(lines.one()["text"]).endswith("(1000000 characters)")


# What is bound.


def test_the_lines_of_an_attempt_carry_its_ids(lines: Lines) -> None:
    with bind_job(CLAIM):
        log().info("inside.it")
    log().info("outside.it")

    inside, outside = lines.all()
    assert {
        "job_id": str(CLAIM.job_id),
        "job_type": "process_image",
        "tenant_id": "acme",
        "lane": "general",
        "claim_no": 3,
        "attempt": 2,
        "correlation_id": "c-1",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }.items() <= inside.items()
    assert {"timestamp", "level", "event", "process"} == outside.keys()


@pytest.mark.parametrize("traceparent", [None, "", "nonsense", "a-b"])
def test_an_attempt_without_a_trace_has_no_trace_id(lines: Lines, traceparent: str | None) -> None:
    with bind_job(replace(CLAIM, traceparent=traceparent)):
        log().info("inside.it")

    assert "trace_id" not in lines.one()


async def test_attempts_that_run_at_once_do_not_mix_their_ids(lines: Lines) -> None:
    both_bound = asyncio.Barrier(2)

    async def attempt(correlation_id: str) -> None:
        with bind_job(replace(CLAIM, correlation_id=correlation_id)):
            await both_bound.wait()
            log().info("inside.it", mine=correlation_id)

    async with asyncio.TaskGroup() as group:
        for name in ("first", "second"):
            group.create_task(attempt(name))

    assert all(line["correlation_id"] == line["mine"] for line in lines.all())
    assert len(lines.all()) == 2


# Libraries.


def test_a_librarys_line_has_the_same_form(lines: Lines) -> None:
    with bind_job(CLAIM):
        logging.getLogger("uvicorn.error").warning("Started %s", "it")

    line = lines.one()
    assert line["event"] == "library.logged"
    assert (line["level"], line["logger"], line["message"]) == (
        "warning",
        "uvicorn.error",
        "Started it",
    )
    assert line["job_id"] == str(CLAIM.job_id)
    assert not any(key.startswith("_") for key in line)


def test_a_librarys_traceback_is_kept(lines: Lines) -> None:
    try:
        fail("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")

    assert "ValueError: broken" in str(lines.one()["exception"])


def test_handlers_that_a_library_brought_do_not_write_twice() -> None:
    stream = Lines()
    server = logging.getLogger("uvicorn")
    server.addHandler(logging.StreamHandler(stream))
    server.propagate = False
    configure("json", "info", stream=stream)
    configure("json", "info", stream=stream)

    logging.getLogger("uvicorn").error("x")

    assert stream.one()["message"] == "x"


def test_the_aws_libraries_do_not_write_their_requests_at_debug() -> None:
    stream = Lines()
    configure("json", "debug", stream=stream)

    logging.getLogger("botocore.auth").debug("CanonicalRequest")
    logging.getLogger("botocore.auth").warning("clock skew")

    assert stream.one()["message"] == "clock skew"


def test_warnings_become_lines(lines: Lines) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure("json", "info", stream=lines)
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    assert "DeprecationWarning: old" in str(lines.one()["message"])


# What never gets into a line.


@pytest.mark.parametrize(
    "name",
    [
        "secret",
        "client_secret",
        "secretAccessKey",
        "password",
        "db_passwd",
        "Authorization",
        "payload",
        "job_payload",
        "database_url",
        "OPERATOR_DATABASE_URL",
        "api_key",
        "access_key_id",
        "private_key",
        "session_token",
        "cookie",
        "Set-Cookie",
        "credentials",
    ],
)
def test_a_name_that_promises_a_secret_hides_its_value(lines: Lines, name: str) -> None:
    log().info("some.event", **{name: "hunter2"}, nested=[{"in": {name: "hunter2"}}])

    line = lines.one()
    assert line[name] == REDACTED
    assert "hunter2" not in lines.getvalue()


@pytest.mark.parametrize(
    "name", ["source_key", "idempotency_key", "dedup_key", "payload_bytes", "tokens", "upload"]
)
def test_a_name_that_only_sounds_secret_is_shown(lines: Lines, name: str) -> None:
    log().info("some.event", **{name: "value"})

    assert lines.one()[name] == "value"


def test_a_database_address_without_its_password_may_be_shown(lines: Lines) -> None:
    shown = "postgresql://imagefleet_api:***@db:5432/imagefleet"

    log().info("process.started", settings={"DATABASE_URL": shown, "OPERATOR_DATABASE_URL": None})

    assert lines.one()["settings"] == {"DATABASE_URL": shown, "OPERATOR_DATABASE_URL": None}


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://u:hunter2@db/x now",
        "header Authorization: Bearer hunter2",
        "GET https://b/k?X-Amz-Signature=hunter2&a=1",
        "?x-amz-security-token=hunter2",
    ],
)
def test_a_secret_inside_of_a_text_is_hidden(lines: Lines, text: str) -> None:
    log().info("some.event", message=text)
    logging.getLogger("library").info(text)
    try:
        fail(text)
    except ValueError:
        log().exception("some.event")

    assert "hunter2" not in lines.getvalue()
    assert lines.getvalue().count("***") == 3


def test_a_secret_at_the_end_of_a_long_value_is_not_shown_by_cutting_it(lines: Lines) -> None:
    address = "postgresql://u:hunter2@db/x"
    for shift in range(len(address)):
        log().info("some.event", message="x" * (16_384 - shift) + " " + address)

    assert "hunt" not in lines.getvalue()


@pytest.mark.parametrize(
    "part", ["x", "://", "://a:", "Bearer ", "X-Amz-Signature=", "a" * 9 + ":"]
)
def test_hiding_secrets_takes_no_longer_than_the_text(lines: Lines, part: str) -> None:
    log().info("some.event", message=part * 1_000_000)

    assert len(lines.all()) == 1


USUAL: Final[tuple[dict[str, object], ...]] = (
    {
        "event": "request.answered", "method": "POST", "route": "/v1/images/{image_id}",
        "status": 202, "problem": None, "duration_seconds": 0.0123, "tenant_id": "acme",
        "correlation_id": "0af7651916cd43dd8448eb211c80319c",
    },
    {
        "event": "job.completed", **ids_of(CLAIM), "worker_id": str(uuid4()),
        "duration_seconds": 1.5, "queue_seconds": 0.5, "outcome": "completed", "why": "done",
        "retries": 0, "max_attempts": 5, "state": "completed",
    },
)  # fmt: skip


@pytest.mark.parametrize("usual", USUAL, ids=lambda usual: str(usual["event"]))
@pytest.mark.parametrize(
    ("more", "searched", "walked"),
    [
        ({}, 0, 0),
        ({"detail": "cannot reach postgresql://u:hunter2@db/x"}, 1, 0),
        ({"detail": "Bearer\thunter2"}, 1, 1),
        ({"url": "postgresql://u:hunter2@db/x"}, 1, 0),
        ({"url": "https://s3/key?X-Amz-Signature=hunter2"}, 1, 0),
        ({"token": "hunter2"}, 0, 0),
    ],
    ids=["usual", "an address", "a tab", "no space", "no space either", "a name"],
)
def test_of_a_usual_line_nothing_is_searched_for_secrets(
    usual: dict[str, object],
    more: dict[str, object],
    searched: int,
    walked: int,
    lines: Lines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    for name in ("_without_secrets", "_visible"):
        monkeypatch.setattr(logs, name, _counted(calls, name))
    values = {key: value for key, value in usual.items() if key != "event"}

    log().info(str(usual["event"]), **values, **more)

    assert calls["_without_secrets"] == searched
    assert bool(calls["_visible"]) == bool(walked)
    assert "hunter2" not in lines.getvalue()
    assert values.items() <= lines.one().items()


@given(
    st.lists(st.sampled_from([*"aB0_.+@{}:/-= &?", "://", "Bearer", "X-Amz-Signature="]))
    .map("".join)
    .filter(logs._is_word)
)
def test_in_what_is_not_searched_there_is_nothing_to_be_found(text: str) -> None:
    assert text == logs._without_secrets(text)


def _counted(calls: Counter[str], name: str) -> Callable[..., object]:
    called: Callable[..., object] = getattr(logs, name)

    def counting(*given: object) -> object:
        calls[name] += 1
        return called(*given)

    return counting


def test_a_secret_type_stays_a_secret(lines: Lines) -> None:
    log().info("some.event", value=SecretStr("hunter2"))

    assert "hunter2" not in lines.getvalue()


EVIL = (
    '\x1b[31m\r\n{"event":"job.completed"}\n\x00\x7f\x9b\u2028\u061c\u200b\u202e\u2066\ufeff\ud800'
)
HARMLESS = ("\\x1b[31m\\r", "\\u2028\\u061c\\u200b\\u202e\\u2066\\ufeff\\ud800")


# Half a character: pytest reports what libraries log, and xdist cannot carry it from its workers.
SENDABLE = EVIL.removesuffix("\ud800")


def test_no_value_can_break_a_json_line(lines: Lines) -> None:
    log().info(EVIL, value=EVIL, nested={EVIL: [EVIL]}, **{EVIL: 1})
    logging.getLogger("library").info(SENDABLE)

    first, second = lines.all()
    for text in (str(first["value"]), str(first["event"])):
        assert all(part in text for part in HARMLESS)
    assert str(second["message"]) in str(first["value"])
    assert "\x1b" not in json.dumps([first, second], ensure_ascii=False)


def test_no_value_can_break_a_line_on_a_terminal(terminal: io.StringIO) -> None:
    log().info(EVIL, value=EVIL, nested={EVIL: [EVIL]}, **{EVIL: 1})
    logging.getLogger("library").info(SENDABLE)

    text = terminal.getvalue()
    assert text.count("\n") == 2
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in text.replace("\n", ""))


def test_a_traceback_on_a_terminal_is_indented_so_that_nothing_passes_for_a_line(
    terminal: io.StringIO,
) -> None:
    try:
        fail("x\n2026-01-01 [info] job.completed\x1b[0m")
    except ValueError:
        log().exception("attempt.broke")

    first, *rest = terminal.getvalue().rstrip("\n").split("\n")
    assert "attempt.broke" in first
    assert "    2026-01-01 [info] job.completed\\x1b[0m" in rest
    assert all(line.startswith("    ") for line in rest)


def test_a_terminal_has_colours_and_a_file_has_none(terminal: io.StringIO) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    log().info("job.completed")
    tty = Tty()
    configure("console", "info", stream=tty)
    log().info("job.completed")

    assert "\x1b[" not in terminal.getvalue()
    assert "\x1b[" in tty.getvalue()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    event=st.text(),
    values=st.dictionaries(
        st.text(),
        st.recursive(
            st.text() | st.integers() | st.floats() | st.binary() | st.none(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    ),
)
def test_whatever_is_logged_is_one_readable_line(event: str, values: dict[str, object]) -> None:
    for reserved in ("event", "exc_info", "stack_info", "level", "timestamp"):
        values.pop(reserved, None)
    stream, terminal = Lines(), io.StringIO()
    configure("json", "info", stream=stream)
    log().info(event, **values)
    configure("console", "info", stream=terminal)
    log().info(event, **values)

    assert stream.one()["level"] == "info"
    lines = terminal.getvalue().split("\n")
    assert all(line == "" or line.startswith("    ") for line in lines[1:])
