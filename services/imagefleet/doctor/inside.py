"""What a process finds where it stands: its settings, its disk, its memory, its sandbox."""

import io
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from typing import Final, TypeVar

from imagefleet.doctor import Check, Wrong, ask
from imagefleet.doctor.outside import (
    examine_api,
    examine_aws,
    examine_database,
    examine_operators,
    told_of,
)
from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import Lane
from imagefleet.runtime import container_limit
from imagefleet.settings import (
    Api,
    ApiSettings,
    Aws,
    Console,
    ConsoleSettings,
    Database,
    MaintenanceSettings,
    Pictures,
    Recipes,
    Retry,
    Slice,
    Worker,
    WorkerSettings,
    load,
    slices_of,
)

# What each reads; who says nothing of itself has what all of them need.
READS: Final[Mapping[str, Mapping[str, type[Slice]]]] = {
    "": {"database": Database, "aws": Aws},
    "api": slices_of(ApiSettings),
    "worker": slices_of(WorkerSettings),
    "maintenance": slices_of(MaintenanceSettings),
    "console": slices_of(ConsoleSettings),
}
OF_POSTGRES: Final[Mapping[str, type[Slice]]] = {"database": Database}

LOOK_AT_SETTINGS: Final = "docs/settings.md lists all variables."
MORE_DISK: Final = "Give /tmp, or what TMPDIR names, more room, where this user may write."
MORE_MEMORY: Final = "Lower RENDER_MEMORY_BYTES, or leave it out, or give the container more."
LET_IT: Final = "The container has to let a process limit itself: docs/containers.md."

Part = TypeVar("Part", bound=Slice)


async def examine(process: str = "", told: Sequence[str] = ()) -> list[Check]:
    """Everything that this process needs, as this environment describes it."""
    replicas = told_of(told)
    checks, parts = _settings(READS.get(process, OF_POSTGRES))
    if (database := _of(parts, Database)) is not None:
        checks += await examine_database(database, process, replicas)
        api = _of(parts, Api)
        if api is not None and api.operator_database_url is not None:
            theirs = database.model_copy(update={"url": api.operator_database_url})
            checks.append(await examine_operators(theirs))
    if (console := _of(parts, Console)) is not None:
        checks += await examine_api(console)
    worker = _of(parts, Worker)
    if (aws := _of(parts, Aws)) is not None:
        checks += await examine_aws(aws, process, worker.lanes if worker else tuple(Lane))
    if (pictures := _of(parts, Pictures)) is not None:
        room = partial(_room, pictures, worker)
        checks.append(await ask("disk", room, MORE_DISK))
    if worker is not None:
        checks.append(await ask("memory", partial(_memory, worker), MORE_MEMORY))
        retry, recipes = _of(parts, Retry), _of(parts, Recipes)
        if retry is not None and recipes is not None:
            tried = partial(_sandbox, worker, retry, recipes)
            checks.append(await ask("sandbox", tried, LET_IT))
    return checks


def _settings(wanted: Mapping[str, type[Slice]]) -> tuple[list[Check], list[Slice]]:
    checks, parts = [], []
    for name, part in wanted.items():
        try:
            parts.append(load(part))
            found, advice = "complete", ""
        except Misconfigured as error:
            found, advice = " ".join((error.detail or "").split()), LOOK_AT_SETTINGS
        checks.append(Check(name=f"settings: {name}", ok=not advice, found=found, advice=advice))
    return checks, parts


def _of(parts: Sequence[Slice], wanted: type[Part]) -> Part | None:
    return next((part for part in parts if isinstance(part, wanted)), None)


async def _room(pictures: Pictures, worker: Worker | None) -> str:
    """For all in hand at a time: a part of each upload, or what is rendered and the next one."""
    if worker is None:
        from imagefleet.api.http.turns import PLACES  # noqa: PLC0415 - in the API's container
        from imagefleet.aws.transfers import PART_BYTES  # noqa: PLC0415 - as above

        wanted = PLACES * min(PART_BYTES, pictures.max_bytes)
    else:
        wanted = (worker.render_children + 1) * pictures.max_bytes
    with tempfile.TemporaryFile() as file:
        file.write(b"imagefleet doctor")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    found = f"{_mib(free)} free in {tempfile.gettempdir()}, {_mib(wanted)} wanted"
    if free < wanted:
        raise Wrong(found)
    return found


async def _memory(worker: Worker) -> str:
    from imagefleet.worker import handling  # noqa: PLC0415 - in the worker's container

    limit, children = container_limit(), handling.room_of(worker).memory_bytes
    found = f"{_mib(children)} for {worker.render_children} children"
    if limit is None:
        return f"{found}; the container has no limit"
    found += f", {_mib(handling.BESIDE_CHILDREN)} beside them, of {_mib(limit)}"
    if children + handling.BESIDE_CHILDREN > limit:
        raise Wrong(found)
    return found


async def _sandbox(worker: Worker, retry: Retry, recipes: Recipes) -> str:
    """A child is started as the worker starts it, gives up what it must, and decodes."""
    if find_spec("PIL") is None:
        raise ModuleNotFoundError(name="Pillow")
    from imagefleet.imaging.recipes.files import recipes_in_force  # noqa: PLC0415 - as above
    from imagefleet.worker.handlers import load_handlers  # noqa: PLC0415 - as above
    from imagefleet.worker.handling import modules_of  # noqa: PLC0415 - as above
    from imagefleet.worker.isolation.client import Renderer  # noqa: PLC0415 - as above

    handlers = load_handlers(worker.job_types, standard_retry=retry.policy())
    in_force = recipes_in_force(recipes.file)
    with redirect_stdout(io.StringIO()):  # its log lines: the answer is ours
        async with Renderer(preload=modules_of(handlers), recipes=in_force.values()):
            return f"a child was confined and made a picture; {len(in_force)} recipes"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
