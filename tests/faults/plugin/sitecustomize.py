"""Loaded by every Python process of a stack under test, and by nothing else.

A stack is started with this folder on PYTHONPATH. In `imagefleet up` it hands the folder, and the
settings a test wants, on to the processes, which otherwise get an environment of their own. In the
processes it stops at named points, says so at a socket, and goes on when it is told to: whoever
listens there may kill the process instead, knowing exactly how far it had come.

Where a run of tests wants to know what processes call in AWS, `calls.py` tells it; with that alone
a process is as it would be without.

The product knows nothing of this. Its functions are replaced when their module has been loaded.
What is renamed there would never be patched, and the tests that need it would wait for nothing: so
each patch names what it replaces, a process in which one of these is missing ends, and
`tests/faults/test_plugin.py` looks for all of them.
"""

import asyncio
import contextvars
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any

HERE = os.path.dirname(__file__)  # noqa: PTH120 - nothing else is loaded yet
ROOT = HERE.removesuffix("/tests/faults/plugin")  # poison borrows its attacks from the tests
GIVEN: dict[str, Any] = json.loads(os.environ.get("IMAGEFLEET_FAULTS", "{}"))  # noqa: TID251
SOCKET: str = GIVEN.get("socket", "")
POINTS: frozenset[str] = frozenset(GIVEN.get("points", ()))
PROCESS = sys.orig_argv[-1] if "imagefleet" in sys.orig_argv else ""
# The job whose attempt the current task belongs to; tasks inherit it.
JOB: contextvars.ContextVar[str] = contextvars.ContextVar("job")
# A file, where somebody wants to know of calls to AWS.
CALLS: str = os.environ.get("IMAGEFLEET_CALLS", "")  # noqa: TID251
HEARD = "imagefleet.aws.session"
GATE_LOOK = 0.05  # seconds
if PROCESS and "turned" in GIVEN:  # a file that a test writes before a process begins anew
    importlib.import_module("turning").turn(GIVEN["turned"], PROCESS)
# In a process that is to tell where it walks, `walking.py` and what it has begun.
WALKING: Any = None
if "walk" in GIVEN and PROCESS in {"api", "worker", "maintenance"}:
    WALKING = importlib.import_module("walking")
    WALKING.begin(GIVEN["walk"], PROCESS)


# A folder, where somebody holds processes back by a file of their name, or has mended the decoder.
GATES: str = GIVEN.get("gates") or ""


def is_there(gate: str) -> bool:
    return bool(GATES) and os.path.exists(os.path.join(GATES, gate))  # noqa: PTH110, PTH118 - as above


def wait_at_the_gate() -> None:
    """A process that is held back comes no further than this."""
    while PROCESS and is_there(PROCESS):
        time.sleep(GATE_LOOK)  # noqa: TID251 - nothing of the process is there yet


def told(point: str, jobs: Sequence[str]) -> bytes:
    message = {"point": point, "process": PROCESS, "pid": os.getpid(), "jobs": list(jobs)}
    return json.dumps(message).encode() + b"\n"


async def reach(point: str, jobs: Sequence[str]) -> None:
    """Say that the process is here, and wait to be let on; everything else in it goes on."""
    if point not in POINTS:
        return
    reader, writer = await asyncio.open_unix_connection(SOCKET)
    writer.write(told(point, jobs))
    try:
        await reader.readline()
    finally:
        writer.close()


def reach_and_stand_still(point: str, jobs: Sequence[str]) -> None:
    """The same where nothing can be awaited: the whole process waits."""
    if point not in POINTS:
        return
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(SOCKET)
        channel.sendall(told(point, jobs))
        channel.recv(16)


Patch = Callable[[ModuleType], None]


@dataclasses.dataclass(frozen=True)
class Target:
    """What is replaced in a module: a function, a method, a constant."""

    names: tuple[str, ...]
    patch: Patch

    def missing(self, module: ModuleType) -> list[str]:
        """Of the names, those that nothing has there."""
        return [name for name in self.names if not _has(module, name)]

    def replace(self, module: ModuleType) -> None:
        missing = self.missing(module)
        if missing:
            sys.exit(f"the fault plugin patches what {module.__name__} lacks: {missing}")
        self.patch(module)


TARGETS: dict[str, Target] = {}


def after_loading(module: str, *names: str) -> Callable[[Patch], Patch]:
    """Replace these names of a module, `Class.method` among them."""

    def keep(patch: Patch) -> Patch:
        if module in TARGETS:  # the one before would never be patched
            sys.exit(f"the fault plugin has two patches of {module}")
        TARGETS[module] = Target(names, patch)
        return patch

    return keep


def _has(owner: object, name: str) -> bool:
    for part in name.split("."):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


def replacing(
    owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


@after_loading("imagefleet.embedded.processes", "environment_of")
def _hand_on(module: ModuleType) -> None:
    def make(environment_of: Callable[..., dict[str, str]]) -> Callable[..., dict[str, str]]:
        def with_faults(process: str, *args: object, **named: object) -> dict[str, str]:
            settings = GIVEN.get("settings", {})
            return {
                **environment_of(process, *args, **named),
                "PYTHONPATH": os.pathsep.join((HERE, ROOT)),
                "IMAGEFLEET_FAULTS": json.dumps(GIVEN),
                **({"IMAGEFLEET_CALLS": CALLS} if CALLS else {}),
                **settings.get("all", {}),
                **settings.get(process, {}),
            }

        return with_faults

    replacing(module, "environment_of", make)


@after_loading("imagefleet.embedded.supervisor", "LONGEST_PAUSE", "FIRST_PAUSE")
def _start_again_soon(module: ModuleType) -> None:
    """Ever longer pauses are for what dies by itself; here somebody kills."""
    if "longest_pause" in GIVEN:
        module.LONGEST_PAUSE = GIVEN["longest_pause"]  # type: ignore[attr-defined]
        module.FIRST_PAUSE = GIVEN["longest_pause"]  # type: ignore[attr-defined]


@after_loading("imagefleet.doorbell", "Doorbell.ring")
def _committed(module: ModuleType) -> None:
    """In the API a ring is asked for right after the commit, and before the answer."""

    def make(ring: Callable[..., None]) -> Callable[..., None]:
        def ring_after(self: object, rings: Any) -> None:  # noqa: ANN401
            listed = list(rings)
            if PROCESS == "api" and listed:
                reach_and_stand_still("committed", [str(item.job_id) for item in listed])
            ring(self, listed)

        return ring_after

    replacing(module.Doorbell, "ring", make)


@after_loading("imagefleet.aws.queue", "Queue.receive")
def _received(module: ModuleType) -> None:
    def make(receive: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def receive_and_say(*args: object, **named: object) -> Any:  # noqa: ANN401
            received = await receive(*args, **named)
            if PROCESS == "worker" and received:
                await reach("received", [job_of(message.body) for message in received])
            return received

        return receive_and_say

    replacing(module.Queue, "receive", make)


def job_of(body: str) -> str:
    try:
        return str(json.loads(body)["job_id"])
    except (ValueError, KeyError, TypeError):
        return ""


@after_loading("imagefleet.worker.attempt", "Attempt.__init__", "Attempt.work")
def _claimed(module: ModuleType) -> None:
    def make(work: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def work_after(self: Any) -> object:  # noqa: ANN401
            job = str(self.claim.job_id)
            JOB.set(job)
            await reach("claimed", [job])
            return await work(self)

        return work_after

    def make_shorter(begin: Callable[..., None]) -> Callable[..., None]:
        def begin_shorter(self: Any, claim: Any, handler: Any, *others: Any) -> None:  # noqa: ANN401
            kind = dataclasses.replace(
                handler.kind, timeout=timedelta(seconds=GIVEN["attempt_seconds"])
            )
            begin(self, claim, dataclasses.replace(handler, kind=kind), *others)

        return begin_shorter

    replacing(module.Attempt, "work", make)
    if GIVEN.get("attempt_seconds"):
        replacing(module.Attempt, "__init__", make_shorter)


@after_loading("imagefleet.worker.isolation.client", "_ending_of", "_RENDER")
def _rendering(module: ModuleType) -> None:
    """The child runs from here on, while its worker waits."""

    def make(ending_of: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def ending_after(child: object, cancel: object) -> object:
            if JOB.get(None) is not None:
                await reach("rendering", [JOB.get()])
            return await ending_of(child, cancel)

        return ending_after

    replacing(module, "_ending_of", make)
    if GIVEN.get("poison") and not is_there("mended"):
        module._RENDER = "poison:render_variants"  # type: ignore[attr-defined]


@after_loading("imagefleet.aws.objects", "Objects.put")
def _saving(module: ModuleType) -> None:
    """One variant is stored, others may be on their way."""

    def make(put: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def put_and_say(*args: object, **named: object) -> object:
            stored = await put(*args, **named)
            if JOB.get(None) is not None:
                await reach("saving", [JOB.get()])
            return stored

        return put_and_say

    replacing(module.Objects, "put", make)


@after_loading("imagefleet.aws.deletes", "Deletes.delete")
def _emptying(module: ModuleType) -> None:
    """A page of versions is listed; then S3 has deleted it."""

    def make(delete: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def delete_and_say(*args: object) -> object:
            jobs = [JOB.get()] if JOB.get(None) is not None else []
            await reach("not yet emptied", jobs)
            deleted = await delete(*args)
            await reach("emptied", jobs)
            return deleted

        return delete_and_say

    replacing(module.Deletes, "delete", make)


@after_loading("imagefleet.maintenance.flusher", "complete_batch")
def _agreeing(module: ModuleType) -> None:
    """CloudFront has said that it is done, and Postgres does not know it yet."""

    def make(complete: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def complete_after(*args: object) -> object:
            await reach("not yet agreed", [])
            return await complete(*args)

        return complete_after

    replacing(module, "complete_batch", make)


@after_loading("imagefleet.store.settling", "_settle_in_transaction", "complete_jobs")
def _settling(module: ModuleType) -> None:
    """Everything is written, and the transaction is not committed yet.

    What one statement writes and commits is not sent yet.
    """

    def make(settle: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def settle_before(
            connection: object, worker: object, settlements: Sequence[Any]
        ) -> object:
            report = await settle(connection, worker, settlements)
            await reach("settling", [str(settlement.job_id) for settlement in settlements])
            return report

        return settle_before

    def make_at_once(
        complete: Callable[..., Awaitable[object]],
    ) -> Callable[..., Awaitable[object]]:
        async def complete_after(
            connection: Any,  # noqa: ANN401 - whichever the product passes
            worker: object,
            outcomes: Any,  # noqa: ANN401 - those of the product
            *more: object,
        ) -> object:
            if not connection.is_in_transaction():
                await reach("settling", [str(job_id) for job_id, _ in outcomes])
            return await complete(connection, worker, outcomes, *more)

        return complete_after

    replacing(module, "_settle_in_transaction", make)
    replacing(module, "complete_jobs", make_at_once)


@after_loading("imagefleet.store.images.reprocessing", "_submit_in_transaction", "submit_page")
def _walking(module: ModuleType) -> None:
    """A page of a set is written, and then it is committed too."""

    def make(point: str) -> Callable[[Callable[..., Awaitable[object]]], Callable[..., Any]]:
        def make_at_point(submit: Callable[..., Awaitable[object]]) -> Callable[..., Any]:
            async def submit_and_say(connection: object, claim: Any, *others: Any) -> object:  # noqa: ANN401
                page = await submit(connection, claim, *others)
                await reach(point, [str(claim.job_id)])
                return page

            return submit_and_say

        return make_at_point

    replacing(module, "_submit_in_transaction", make("page written"))
    replacing(module, "submit_page", make("page committed"))


@after_loading("imagefleet.store.jobs.cancelling", "_flag_in_transaction")
def _cancelling(module: ModuleType) -> None:
    """A page of a tenant's jobs is flagged, and not committed yet."""

    def make(flag: Callable[..., Awaitable[object]]) -> Callable[..., Any]:
        async def flag_and_say(connection: object, claim: Any, *others: Any) -> object:  # noqa: ANN401
            page = await flag(connection, claim, *others)
            await reach("page flagged", [str(claim.job_id)])
            return page

        return flag_and_say

    replacing(module, "_flag_in_transaction", make)


@after_loading("imagefleet.store.letters.walks", "_replay_in_transaction")
def _replaying(module: ModuleType) -> None:
    """What replays a page of letters is submitted, and not committed yet."""

    def make(replay: Callable[..., Awaitable[object]]) -> Callable[..., Any]:
        async def replay_and_say(connection: object, claim: Any, *others: Any) -> object:  # noqa: ANN401
            page = await replay(connection, claim, *others)
            await reach("page replayed", [str(claim.job_id)])
            return page

        return replay_and_say

    replacing(module, "_replay_in_transaction", make)


@after_loading("imagefleet.worker.messages", "Messages.delete", "Unclaimed.dismiss")
def _letting_go(module: ModuleType) -> None:
    """The outcome is committed, and the message still there; or the job is not at stake here."""

    def make_delete(delete: Callable[..., None]) -> Callable[..., None]:
        def delete_after(self: object, queue: object, received: Any) -> None:  # noqa: ANN401
            reach_and_stand_still("not yet deleted", [job_of(received.body)])
            delete(self, queue, received)

        return delete_after

    def make_dismiss(dismiss: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def dismiss_and_say(self: object, delivery: Any, answer: object) -> None:  # noqa: ANN401
            await reach("dismissed", [str(delivery.message.job_id)])
            await dismiss(self, delivery, answer)

        return dismiss_and_say

    replacing(module.Messages, "delete", make_delete)
    replacing(module.Unclaimed, "dismiss", make_dismiss)


@after_loading("imagefleet.store.database", "open_pool")
def _statements(_module: ModuleType) -> None:
    if WALKING is not None:
        WALKING.tell_statements()


@after_loading(HEARD, "AwsSession.__init__", "AwsSession._opened")
def _heard(module: ModuleType) -> None:
    if CALLS:
        calls = importlib.import_module("calls")
        calls.LISTENING.append(calls.writing_to(CALLS))
        calls.listen(module)


@after_loading("imagefleet.worker.isolation.nursery", "BOOT")
def _walked_children(module: ModuleType) -> None:
    """The zygote has an empty environment; it is told by what it is started with."""
    if WALKING is not None:
        before, first, rest = module.BOOT.partition("from imagefleet")
        begin = f"import walking; walking.begin({GIVEN['walk']!r}, 'zygote'); "
        module.BOOT = before + begin + first + rest  # type: ignore[attr-defined]


class Loader(importlib.abc.Loader):
    """Loads as the real one does, and then lets the module be patched."""

    def __init__(self, loader: importlib.abc.Loader, target: Target) -> None:
        self._loader = loader
        self._target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._target.replace(module)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._targets:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader, self._targets[name])
                return spec
        return None


def nowhere() -> list[str]:
    """The modules to be patched that do not exist."""
    return [name for name in TARGETS if not _exists(name)]


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


if GIVEN:
    wait_at_the_gate()
    if nowhere():  # an exception here would be told and passed over
        sys.exit(f"the fault plugin patches modules that are not there: {nowhere()}")
    sys.meta_path.insert(0, Finder(TARGETS))
elif CALLS and __name__ == "sitecustomize":  # a process of no stack, that is only to be heard
    sys.meta_path.insert(0, Finder({HEARD: TARGETS[HEARD]}))
