"""Tells which calls processes of the product make to AWS, and on what.

Loaded by every process of a test run: by `tests.support.calls` in those that run tests, by
`sitecustomize.py` in those that tests start. A call belongs to the process whose `main` opened the
session, whoever makes it; over a session that a test opened, to the process whose code asked for
it; and `imagefleet doctor` asks as the process that it is for. What tests ask for themselves, and
what emulators are told by clients of their own, is nobody's.

Told is the place and not the key: `originals/o/`, `fast`, `distribution`. Each line is written when
a process makes such a call first, so one that is killed has told what it did.
"""

import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

FILE: Final = "IMAGEFLEET_CALLS"  # a path, in the environment of every process of a test run
PROCESSES: Final = ("api", "worker", "maintenance")


FOLDER: Final = os.path.dirname(__file__)  # noqa: PTH120 - for PYTHONPATH


class Call(NamedTuple):
    """One kind of call: by whom, which, and on what."""

    process: str
    operation: str
    """As AWS names it; after a blank which part of it this is."""
    place: str
    """A queue, a bucket, `distribution`; behind a bucket and a slash the beginning of keys."""
    prefix: str | None = None
    """Of a listing, the beginning of what was asked for."""


def environment() -> dict[str, str]:
    """What a process is given beside `FOLDER` on its PYTHONPATH; nothing where nobody listens."""
    return {FILE: os.environ[FILE]} if FILE in os.environ else {}  # noqa: TID251 - of tests


Tell = Callable[[Call], None]
LISTENING: Final[list[Tell]] = []


def listen(session: ModuleType) -> None:
    """Hear every client that `imagefleet.aws.session` opens from now on."""
    kind: Any = session.AwsSession
    begin, opened = kind.__init__, kind._opened

    @functools.wraps(begin)
    def begun(self: Any, settings: Any, *others: Any) -> None:  # noqa: ANN401
        begin(self, settings, *others)
        self.heard_as = Hearing(process_of(sys._getframe(1)), places_of(settings))

    @functools.wraps(opened)
    async def opened_and_heard(self: Any, service: str, context: Any) -> Any:  # noqa: ANN401
        client = await opened(self, service, context)
        self.heard_as.hear(client, service)
        return client

    kind.__init__, kind._opened = begun, opened_and_heard


def writing_to(path: str) -> Tell:
    """Write what is new; many processes append to one file."""
    told: set[Call] = set()

    def tell(call: Call) -> None:
        if call not in told:
            told.add(call)
            line = json.dumps(call).encode() + b"\n"
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(file, line)
            finally:
                os.close(file)

    return tell


@contextmanager
def heard() -> Iterator[set[Call]]:
    """What processes inside this one call within the context."""
    calls: set[Call] = set()
    LISTENING.append(calls.add)
    try:
        yield calls
    finally:
        LISTENING.remove(calls.add)


class Hearing:
    """What one session is heard as: whose it is, and what the settings call its resources."""

    def __init__(self, owner: str | None, places: Mapping[str, str]) -> None:
        self._owner = owner
        self._places = places

    def hear(self, client: Any, service: str) -> None:  # noqa: ANN401
        client.meta.events.register(f"provide-client-params.{service}", self._before)
        if service == "s3":
            client.generate_presigned_post = self._before_form(client.generate_presigned_post)

    def _before(
        self,
        params: Mapping[str, Any],
        model: Any,  # noqa: ANN401 - botocore's own
        context: Mapping[str, Any],
        **_: object,
    ) -> None:
        if not context.get("is_presign_request"):
            self._tell(model.name, params)
        elif model.name != "CreateBucket":  # a form is told by itself, with its key
            self._tell("Presign" + model.name.removesuffix("Object"), params)

    def _before_form(
        self, make: Callable[..., Awaitable[object]]
    ) -> Callable[..., Awaitable[object]]:
        async def make_and_tell(bucket: str, key: str, **named: object) -> object:
            self._tell("PresignPost", {"Bucket": bucket, "Key": key})
            return await make(bucket, key, **named)

        return make_and_tell

    def _tell(self, operation: str, params: Mapping[str, Any]) -> None:
        process = self._owner or process_of(sys._getframe(1))
        resource = params.get("QueueUrl") or params.get("Bucket") or params.get("DistributionId")
        place = self._places.get(str(resource))
        if process is None or (place is None and not self._owner):
            return
        if operation == "DeleteObjects" and is_doctors(sys._getframe(1)):
            return  # who may not is told, and leaves it to the sweep
        for part, key in parts_of(operation, params):
            where = f"{place}/{beginning_of(key)}" if key is not None else place
            call = Call(process, part, where or "elsewhere", _prefix_of(params))
            for tell in LISTENING:
                tell(call)


def parts_of(operation: str, params: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """What a call asks rights for, each with the key that it is about, if it is about one."""
    if operation == "DeleteObjects":
        for each in params["Delete"]["Objects"]:
            yield operation + (" of versions" if "VersionId" in each else ""), each["Key"]
        return
    if operation == "CopyObject":
        yield "CopyObject from", params["CopySource"]["Key"]
    yield operation, params.get("Key")


def beginning_of(key: str) -> str:
    """The first folder of a key; of one that lies in none all of it.

    Of a preview, which lies beside its original, that it is one.
    """
    folder, slash, rest = key.partition("/")
    preview = rest.partition("/")[2].startswith("preview-")
    return f"{folder}/image/preview-" if preview else folder + slash


def places_of(settings: Any) -> dict[str, str]:  # noqa: ANN401 - the product's
    """What each resource is to a process, by url, name or id; nothing where two are one."""
    named = {
        "fast": settings.fast_queue_url,
        "general": settings.general_queue_url,
        "quarantine": settings.quarantine_queue_url,
        "dead-letter": settings.dead_letter_queue_url,
        "originals": settings.originals_bucket,
        "outputs": settings.outputs_bucket,
        "distribution": settings.distribution_id,
    }
    often = Counter(named.values())
    return {str(value): place for place, value in named.items() if often[value] == 1}


def process_of(frame: FrameType | None) -> str | None:
    """Whose code asks, looking outwards: a process of the product, or None for a test's."""
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        package, _, within = name.partition(".")
        folder = within.partition(".")[0]
        if package == "imagefleet" and folder == "doctor":  # tries what one process may
            folder = frame.f_locals.get("process", folder)
        if package == "imagefleet" and folder in PROCESSES:
            return folder
        if package == "tests" and name != __name__:
            return None
        frame = frame.f_back
    return None


def is_doctors(frame: FrameType | None) -> bool:
    """Whether `imagefleet doctor` asks."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("imagefleet.doctor."):
            return True
        frame = frame.f_back
    return False


def _prefix_of(params: Mapping[str, Any]) -> str | None:
    return beginning_of(params["Prefix"]) if "Prefix" in params else None
