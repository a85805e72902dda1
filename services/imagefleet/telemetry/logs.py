"""Log lines: one event a line, named by a fixed verb (`job.completed`), with everything else as values.

`configure` is called once by a process; everybody else writes `structlog.get_logger()`. What is bound
with `bind` or `bind_job` is on every line of that task and of the tasks it starts. Lines of libraries
that use the standard library (uvicorn, asyncio) come out in the same form. No value can break a line
or colour a terminal, and values whose names promise a secret are not written.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from imagefleet.jobs.model import Claim

REDACTED: Final = "[redacted]"
_SECRET: Final = re.compile(
    r"secret|passw|authorization|credential|cookie|payload|database_url|api_?key|private_?key"
    r"|access_?key|(?:^|_)token$|^key$",
    re.IGNORECASE,
)
_IN_ADDRESS: Final = re.compile(r"(\w+://[^\s:/@]*):[^\s/@]*@")
# C0 without tab and newline, DEL, C1, and what Unicode has to break lines or turn their direction.
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
_CONTROLS_AND_BREAKS: Final = re.compile(_CONTROLS.pattern[:-1] + "\t\n]")
_DEPTH: Final = 6  # of nested values; what lies deeper is not worth reading in a log
_FOREIGN_LEVELS: Final = {"asyncio": logging.WARNING, "botocore": logging.WARNING}
