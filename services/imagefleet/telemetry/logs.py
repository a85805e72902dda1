"""Log lines: one event a line, named by a fixed verb (`job.completed`), all else in values.

`configure` is called once by a process; everybody else writes `structlog.get_logger()`. What
`bind_job` binds is on every line of that task and of the tasks it starts. Lines of libraries that
use the standard library (uvicorn, asyncio) come out in the same form, as `library.logged`. No value
can break a line or steer a terminal, and values whose names promise a secret are not written.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from typing import Final, Literal, TextIO

import orjson
import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.typing import EventDict, Processor, WrappedLogger

from imagefleet.jobs.model import Claim, Ended
from imagefleet.telemetry.plain import Visible, escaped

REDACTED: Final = "[redacted]"
_SECRET_NAME: Final = re.compile(
    r"secret|passw|authorization|credential|cookie|database_url|dsn|(?:^|_)payload$|(?:^|_)token$"
    r"|(?:api|access|private|signing|secret)_?key(?:$|_id$)",
    re.IGNORECASE,
)
_MASKED_ALREADY: Final = re.compile(r"\w+://[^:/@]*:\*\*\*@[^@]*")  # as settings.masked shows them
# An id, a name, a time, a path: none of the texts below fits into one.
_WORD: Final = re.compile(r"[\w.+@{}:-]{0,256}|[\w.+@{}/-]{0,256}", re.ASCII)
# Each begins with letters of its own and is bounded: a hostile text costs no more than its length.
_SECRETS_IN_TEXT: Final = (
    (re.compile(r"(://[^\s:/@]{0,128}:)[^\s/@]{0,256}@"), r"\1***@"),
    (re.compile(r"\b(Bearer\s+)[^\s\"',]+", re.IGNORECASE), r"\1***"),
    (
        re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)=)[^&\s]+", re.IGNORECASE),
        r"\1***",
    ),
)
_VISIBLE: Final = {kept: Visible(escaped, kept=kept) for kept in ("", "\n", "\n\t")}
_DEEPEST: Final = 6  # nested values; nobody reads further down in a log line
_LONGEST: Final = 16_384  # characters of one value: a line must fit the collectors' limits
_LONGEST_SECRET: Final = 1024  # one that begins before the cut is seen whole, and hidden, first
_LARGEST_INTEGER: Final = 2**63 - 1
_FIRST_KEYS: Final = ("timestamp", "level", "event")
_MANY_LINES: Final = frozenset({"exception", "stack"})
_NOISY: Final = ("aioboto3", "aiobotocore", "asyncio", "boto3", "botocore", "urllib3", "s3transfer")
_TOLD_ALREADY: Final = ("asyncpg.pool",)  # each try to connect, by whoever misses the database
_BRING_HANDLERS: Final = ("uvicorn", "uvicorn.access", "uvicorn.error")


def configure(
    log_format: Literal["json", "console"],
    level: Literal["debug", "info", "warning", "error"],
    *,
    process: str | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send every line of this process, ours and the libraries', to one stream in one form."""
    target = sys.stdout if stream is None else stream
    number = logging.getLevelNamesMapping()[level.upper()]
    common: list[Processor] = [
        merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _named(process),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    ending = [redact, *_rendering(log_format, colours=target.isatty())]
    writer = structlog.WriteLogger(target)
    structlog.configure(
        processors=[*common, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_given: writer,
        cache_logger_on_first_use=False,  # loggers made before this call must obey it too
    )
    _route_libraries(target, number, [_from_library, *common], ending)


@contextmanager
def bind_job(claim: Claim) -> Iterator[None]:
    """Put what tells this attempt from all others on every line that is written inside."""
    with bound_contextvars(**ids_of(claim)):
        yield


def ids_of(claim: Claim | Ended) -> dict[str, object]:
    """What tells an attempt from all others."""
    ids: dict[str, object] = {
        "job_id": str(claim.job_id),
        "job_type": claim.type,
        "tenant_id": claim.tenant_id,
        "lane": claim.lane.value,
        "claim_no": claim.claim_no,
        "attempt": claim.attempts,
        "correlation_id": claim.correlation_id,
    }
    if claim.traceparent and claim.traceparent.count("-") >= 2:  # noqa: PLR2004 - version-trace-span
        ids["trace_id"] = claim.traceparent.split("-")[1]
    return ids


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace values whose name promises a secret, and secrets inside of texts, at any depth.

    Most values of most lines are words and numbers, in which there is nothing to look for.
    """
    return {
        key: value if _is_word(value) and not _promises_secret(key) else _plain(key, value, 0)
        for key, value in event.items()
    }


@lru_cache(maxsize=1024)
def _promises_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _is_word(value: object) -> bool:
    if value.__class__ is str:
        return _WORD.fullmatch(str(value)) is not None
    if isinstance(value, int):
        return abs(value) <= _LARGEST_INTEGER
    return value is None or isinstance(value, float)


def _plain(name: str, value: object, depth: int) -> object:
    """Turn any value into what JSON has, without secrets."""
    if _SECRET_NAME.search(name) and not _is_masked(value):
        return REDACTED
    match value:
        case None | bool() | float():
            return value
        case int():
            return value if abs(value) <= _LARGEST_INTEGER else str(value)
        case str():
            return _without_secrets(value)
        case datetime():
            return value.isoformat()
        case Mapping() if depth < _DEEPEST:
            return {str(key): _plain(str(key), item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() if depth < _DEEPEST:
            return [_plain("", item, depth + 1) for item in value]
        case _:
            return _without_secrets(_text(value))


def _is_masked(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(_MASKED_ALREADY.fullmatch(value)))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the line
        return f"<{type(value).__name__}>"


def _without_secrets(text: str) -> str:
    clean = text[: _LONGEST + _LONGEST_SECRET]
    for pattern, replacement in _SECRETS_IN_TEXT:
        clean = pattern.sub(replacement, clean)
    return clean if len(text) <= _LONGEST else f"{clean[:_LONGEST]}… ({len(text)} characters)"


def _rendering(log_format: Literal["json", "console"], *, colours: bool) -> list[Processor]:
    if log_format == "json":
        return [_as_json]
    return [_harmless_on_a_terminal, _on_a_console(colours=colours)]


@lru_cache(maxsize=2)
def _on_a_console(*, colours: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=colours, exception_formatter=structlog.dev.plain_traceback
    )


def read_line(line: str) -> dict[str, object] | None:
    """What a process told in the form `json`; None: no line of a log."""
    with suppress(orjson.JSONDecodeError):
        told = orjson.loads(line) if line.startswith("{") else None
        if isinstance(told, dict) and all(isinstance(told.get(key), str) for key in _FIRST_KEYS):
            return told
    return None


def for_a_person(told: Mapping[str, object]) -> str:
    """The same in the form `console`; a traceback makes it several lines."""
    return str(_on_a_console(colours=False)(None, "", _harmless_on_a_terminal(None, "", {**told})))


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Write the line; JSON itself escapes line breaks, and the rest is made visible."""
    ordered = {key: event[key] for key in _FIRST_KEYS if key in event}
    ordered |= {key: value for key, value in event.items() if key not in ordered}
    with suppress(TypeError):  # half a character
        line = orjson.dumps(ordered, option=orjson.OPT_NON_STR_KEYS).decode()
        if line.isprintable() and "\\" not in line:
            return line
    return orjson.dumps(_visible(ordered, "\n\t"), option=orjson.OPT_NON_STR_KEYS).decode()


def _harmless_on_a_terminal(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Leave line breaks to tracebacks alone, and indent those: nothing passes for another line."""
    return {
        str(_visible(key, "")): (
            "    " + str(_visible(value, "\n")).replace("\n", "\n    ")
            if key in _MANY_LINES
            else _visible(value, "")
        )
        for key, value in event.items()
    }


def _visible(value: object, allowed: str) -> object:
    """Write control characters as their escapes, in keys and values at any depth."""
    match value:
        case str():
            return value if value.isprintable() else value.translate(_VISIBLE[allowed])
        case dict():
            return {_visible(key, ""): _visible(item, allowed) for key, item in value.items()}
        case list():
            return [_visible(item, allowed) for item in value]
        case _:
            return value


def _named(process: str | None) -> Processor:
    def name(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if process is not None:
            event.setdefault("process", process)
        return event

    return name


def _from_library(
    _logger: WrappedLogger, _method: str, event: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """Give a foreign line a fixed event like ours, and keep its text as a value."""
    record = event["_record"]
    event["message"] = event["event"]
    event["event"] = "library.logged"
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
    return event


def _route_libraries(
    target: TextIO, level: int, before: list[Processor], ending: list[Processor]
) -> None:
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(capture=True)
    for name in _NOISY:  # at debug they write every byte of every request, signatures included
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    for name in _TOLD_ALREADY:
        logging.getLogger(name).setLevel(max(level, logging.ERROR))
    for name in _BRING_HANDLERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
