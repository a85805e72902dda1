"""What runs between the fork and the end of one child, and the report it leaves in its pipe.

The other side of the border: from the first byte of a picture on, whatever is here may be somebody
else's code. `render_variants` is the task that renders; other job types bring theirs.

The report is a frame (a mark, a length, JSON); whatever else comes out of the pipe is noise. It is
written only when the task is over, so that a child that dies has said nothing.
"""

import errno
import importlib
import json
import os
import struct
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, NoReturn, TypeAlias, cast

from imagefleet.errors import InputRejected, Misconfigured
from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import Recipe
from imagefleet.jobs.images import Focal, ImageFormat
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation.sandbox import Confinement, confine

Files: TypeAlias = Mapping[str, int]
Task: TypeAlias = Callable[[JsonObject, Files], JsonObject]

FRAME_HEADER: Final = struct.Struct(">4sI")
FRAME_MARK: Final = b"IFR1"
LONGEST_MESSAGE: Final = 128 * 1024  # bytes of a request: a payload of 64 KiB and what surrounds it
MOST_FILES: Final = 64  # beside one request
LONGEST_ERROR: Final = 4000  # characters of a traceback

# Names among a request's files: the pipe of the report, and the picture to be rendered.
RESULT_FILE: Final = "result"
SOURCE_FILE: Final = "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One task, as the worker asks the zygote for it; the files travel beside it, in this order."""

    number: int
    task: str  # module:function
    argument: JsonObject
    files: tuple[str, ...]
    confinement: Mapping[str, int]


def file_name(name: str, image_format: ImageFormat) -> str:
    """What the file of a variant is called, in the request and in the scratch folder."""
    return f"{name}.{image_format.extension}"


def frame(report: JsonObject) -> bytes:
    """A report as it goes through the pipe. Half characters, as broken files have, become '?'."""
    body = json.dumps(report, ensure_ascii=False).encode(errors="replace")
    return FRAME_HEADER.pack(FRAME_MARK, len(body)) + body


def rejected(code: str, public_message: str, detail: str | None) -> bytes:
    """The report of an input that can never work."""
    refusal = {"kind": "rejected", "code": code, "public_message": public_message, "detail": detail}
    return frame(refusal)


# Made beforehand: the process that needs it has no memory left to make it with.
NEEDS_MEMORY: Final = failure_sentence("memory")
OUT_OF_MEMORY: Final = rejected("memory", NEEDS_MEMORY, None)
TOO_MUCH_OUTPUT: Final = rejected("output_too_large", failure_sentence("output_too_large"), None)


def probe(argument: JsonObject, _files: Files) -> JsonObject:
    """Whether a child can be confined and these watermarks be read: known before any job."""
    from imagefleet.imaging.composing import check_marks  # noqa: PLC0415 - see render_variants

    check_marks(cast("list[str]", argument["marks"]))
    return {}


def render_variants(argument: JsonObject, files: Files) -> JsonObject:
    """Every variant of the recipe into the file of its name, and the facts about all of them."""
    from imagefleet.imaging.render import render  # noqa: PLC0415 - a worker has no use for Pillow

    # The worker makes the argument, so it is believed.
    limits = Limits(**cast("dict[str, int]", argument["limits"]))
    recipe = Recipe.of("", cast("dict[str, object]", argument["recipe"]))
    focal = Focal(*cast("list[float]", argument["focal"])) if argument["focal"] else None

    def sink(name: str, image_format: ImageFormat, encoded: bytes) -> None:
        _write(files[file_name(name, image_format)], encoded)

    source = _read(files[SOURCE_FILE], limits.max_bytes + 1)
    return asdict(render(source, recipe, limits, sink, focal=focal))


def run(request: Request, files: Files, parent: int) -> NoReturn:
    """Live the whole life of a child. Never returns: the caller's stack belongs to the zygote."""
    status = 1
    try:
        _write(files[RESULT_FILE], _report_of(request, files, parent))
        status = 0
    finally:
        os._exit(status)


def _report_of(request: Request, files: Files, parent: int) -> bytes:
    try:
        # An import is reading files, so it comes before the sandbox; its text is the worker's own.
        module, _, function = request.task.partition(":")
        task: Task = getattr(importlib.import_module(module), function)
        _keep_only(files)
        confine(Confinement(**request.confinement), parent)
        return frame({"kind": "done", "value": task(request.argument, files)})
    except MemoryError:
        return OUT_OF_MEMORY
    except InputRejected as refusal:
        return rejected(refusal.code, refusal.public_message, refusal.detail)
    except BaseException as error:  # noqa: BLE001 - the worker learns of it and judges
        # SIGXFSZ is ignored by Python, so that a file at its limit answers with this instead.
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return TOO_MUCH_OUTPUT
        told = error.detail if isinstance(error, Misconfigured) else None
        return frame({"kind": "failed", "error": (told or traceback.format_exc())[-LONGEST_ERROR:]})


def _keep_only(files: Files) -> None:
    """Close what the zygote had open; standard input is nothing, and so become the other two."""
    os.dup2(0, 1)
    os.dup2(0, 2)
    above = 3
    for number in sorted(files.values()):
        os.closerange(above, number)
        above = number + 1
    os.closerange(above, os.sysconf("SC_OPEN_MAX"))


def _read(file: int, most_bytes: int) -> bytes:
    """From its beginning, wherever the worker left off reading; one copy, of the size it has."""
    return os.pread(file, min(os.fstat(file).st_size, most_bytes), 0)


def _write(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
