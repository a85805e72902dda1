"""What an error means for its job, said once: which outcome, which code, who reads what.

Code and message are public, and therefore fixed: only the words of an error that is made for the
public (InputRejected, RequestRejected) are passed on. All else goes into the detail, for operators.
"""

import asyncio
import traceback
from typing import Final

import structlog

from imagefleet.errors import (
    ClaimLost,
    FleetError,
    InputRejected,
    NotFound,
    RequestRejected,
    Unavailable,
)
from imagefleet.jobs.lifecycle import (
    Failed,
    Outcome,
    Released,
    Retry,
    failure_sentence,
)
from imagefleet.jobs.model import CancelCode
from imagefleet.worker.handling import Postponed
from imagefleet.worker.isolation.report import (
    ChildCancelled,
    ChildCrashed,
    ChildDeadline,
    ChildFailed,
)

LONGEST_DETAIL: Final = 2000  # characters
LONGEST_EXCERPT: Final = 4000

# Only a flag ends a job with these: for most of them no dead letter is written, and a child that a
# picture has taken over must not be able to leave without one.
FLAGS: Final = frozenset(code.value for code in CancelCode)

log = structlog.get_logger()


def outcome_of(error: BaseException) -> Outcome | None:
    """The outcome that an attempt asks for when this was raised; None: the claim is lost."""
    match error:
        case ClaimLost():
            return None
        case NotFound():
            return Failed(
                code="not_found", message=failure_sentence("not_found"), detail=storable(str(error))
            )
        case InputRejected() | RequestRejected() if error.code in FLAGS:
            return _bug(error)
        case InputRejected() | RequestRejected():
            return Failed(
                code=storable(error.code),
                message=storable(error.public_message),
                detail=None if error.detail is None else storable(error.detail),
            )
        case Postponed():
            return Released(why=error.why, after=error.after)
        case ChildCrashed():
            return _retry("crashed", error.detail, crashed=True)
        case ChildDeadline():
            return _retry("deadline", error.detail)
        case TimeoutError():
            return _retry("deadline", str(error))
        case Unavailable() if error.code == "database_unavailable":
            return Released(why="database")  # not the job's fault, and nobody could charge it
        case Unavailable():
            return _retry("unavailable", str(error))
        case _:
            return _bug(error)


def ends_with_a_stop(error: BaseException) -> bool:
    """Whether an attempt that was stopped raises this because of it."""
    return isinstance(error, TimeoutError | asyncio.CancelledError | ChildCancelled | Unavailable)


def _retry(code: str, detail: str | None, *, crashed: bool = False) -> Retry:
    return Retry(
        code=code,
        message=failure_sentence(code),
        detail=storable(detail) if detail else None,
        crashed=crashed,
    )


def _bug(error: BaseException) -> Retry:
    log.error("job.broken", exc_info=error)
    if isinstance(error, ChildFailed):  # its detail is the child's own traceback
        excerpt, detail = error.detail or "", (error.detail or "").strip().rpartition("\n")[2]
    elif isinstance(error, FleetError):
        excerpt, detail = "".join(traceback.format_exception(error)), str(error)
    else:
        excerpt = "".join(traceback.format_exception(error))
        detail = f"{type(error).__name__}: {error}"
    return Retry(
        code="internal_error",
        message=failure_sentence("internal_error"),
        detail=storable(detail),
        log_excerpt=storable(excerpt, longest=LONGEST_EXCERPT),
    )


def storable(text: str, *, longest: int = LONGEST_DETAIL) -> str:
    """The end of a text, which says most, without what Postgres cannot store."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
    return clean if len(clean) <= longest else f"…{clean[-longest:]}"
