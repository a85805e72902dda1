"""The processes of an embedded stack as a cluster has them: deployments, pods, and their ends.

A pod is a process of the stack, which starts it again as a cluster would. What is set of a
deployment is there when a process of it begins anew: the fault plugin reads it. A process that
stands still is killed when it is asked to end, as its grace would be over some time.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import httpx

from imagefleet.embedded.machine import free_port
from tests.runbooks import kubectl
from tests.runbooks.kubectl import Order
from tests.runbooks.shell import Ended, Refused
from tests.support.eventually import eventually
from tests.support.stack import Stack

NAMESPACE: Final = "imagefleet"
# The worker of an embedded stack serves every lane.
PROCESSES: Final = {
    "imagefleet-api": "api",
    "imagefleet-worker-general": "worker",
    "imagefleet-maintenance": "maintenance",
}
SCALED: Final = ("imagefleet-worker-general",)
BEGINS_WITHIN: Final = 40.0  # seconds, beside other tests on two cores
ENDS_WITHIN: Final = 40.0
NEVER_BEGINS: Final = {"NEVER_BEGINS": "1"}
VOLUME: Final = 2 << 30  # bytes of /tmp, where a pod has one of its own

Hook: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Cluster:
    """What kubectl speaks to."""

    stack: Stack
    ended_for: dict[str, str] = field(default_factory=dict)
    """Why the process before this one of a pod ended, where a situation ended it."""
    when_restarted: dict[str, Hook] = field(default_factory=dict)
    """What else ends with the pods of a kind."""
    patched: dict[str, object] = field(default_factory=dict)
    _more: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _more_urls: dict[str, str] = field(default_factory=dict)
    _begun: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def _turned_file(self) -> Path:
        return self.stack.folder / "turned.json"

    @property
    def turned(self) -> dict[str, dict[str, str]]:
        """What was set, by process."""
        kept = self._turned_file
        turned: dict[str, dict[str, str]] = json.loads(kept.read_text()) if kept.exists() else {}
        return turned

    def turn(self, process: str, **settings: str) -> None:
        """Have the next processes of a kind begin with these; without any as they were."""
        self._turned_file.write_text(json.dumps({**self.turned, process: settings}))

    def pod(self, process: str) -> str:
        """The first one of a kind."""
        return f"imagefleet-{next(iter(self.stack.pids(process)))}"

    def metrics_urls(self) -> dict[str, str]:
        return {**self.stack.facts["metrics_urls"], **self._more_urls}

    # What situations do.

    def stop(self, process: str) -> None:
        """It hangs."""
        for pid in self.stack.pids(process).values():
            os.kill(pid, signal.SIGSTOP)

    async def kill(self, process: str, why: str) -> None:
        """It ends at once, and another one begins."""
        self.ended_for[self.pod(process)] = why
        await self._replaced(process, signal.SIGKILL)

    async def restart(self, process: str, **settings: str) -> None:
        """End it in order, and have another one begin with these settings."""
        self.turn(process, **settings)
        await self._replaced(process, signal.SIGTERM)

    async def start_another(self, process: str) -> str:
        """One more of a kind, in the environment of the first; its name."""
        pid = next(iter(self.stack.pids(process).values()))
        variables = environment_of(pid) | {"HEALTH_LISTEN_PORT": str(free_port())}
        name = f"{process}-{len(self._more) + 2}"
        with (self.stack.folder / f"said-{name}").open("wb") as said:
            self._more[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "imagefleet", process),
                env=variables, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip
        self._more_urls[name] = f"http://127.0.0.1:{variables['HEALTH_LISTEN_PORT']}/metrics"
        await self._until_ready(self._more_urls[name])
        return name

    async def end_others(self) -> None:
        """Those that were started beside the stack's own."""
        for process in self._more.values():
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self._more.clear()
        self._more_urls.clear()

    async def _replaced(self, process: str, number: signal.Signals) -> None:
        before = self.stack.pids(process)
        for name, pid in before.items():
            await self._end(name, pid, number)
        if "NEVER_BEGINS" in self.turned.get(process, {}):
            return

        def another() -> bool:
            now = self.stack.pids(process)
            return now.keys() == before.keys() and not set(now.values()) & set(before.values())

        await eventually(another, within=BEGINS_WITHIN)
        for name in before:
            await self._until_ready(self.stack.facts["metrics_urls"][name])

    async def _end(self, name: str, pid: int, number: signal.Signals) -> None:
        if stands_still(pid):
            number = signal.SIGKILL
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        async with httpx.AsyncClient(timeout=1) as http:
            await eventually(partial(self._gone, http, name, pid), within=ENDS_WITHIN)
        folder = environment_folder(self.stack, name)
        if folder is not None:  # a pod's own goes with it
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

    async def _gone(self, http: httpx.AsyncClient, name: str, pid: int) -> bool:
        """Whether it has ended; until then it stays for its last scrape, which this is."""
        with suppress(httpx.HTTPError, KeyError):
            await http.get(self.stack.facts["metrics_urls"][name])
        return not is_there(pid)

    async def _until_ready(self, metrics_url: str) -> None:
        url = metrics_url.removesuffix("metrics") + "readyz"
        async with httpx.AsyncClient(timeout=2) as http:

            async def listens() -> bool:
                try:
                    return (await http.get(url)).status_code in {200, 503}
                except httpx.HTTPError:
                    return False

            await eventually(listens, within=BEGINS_WITHIN)

    # What kubectl is asked for.

    async def answer(self, arguments: Sequence[str]) -> Ended:
        """Do what is asked, if there is such a thing here."""
        order = kubectl.read(arguments)
        if order.namespace != NAMESPACE:
            message = f'namespaces "{order.namespace}" not found'
            raise Refused(message)
        if order.kind == "Deployment" and order.name not in PROCESSES:
            message = f'deployments.apps "{order.name}" not found'
            raise Refused(message)
        if order.kind == "ScaledObject" and order.name not in SCALED:
            message = f'scaledobjects.keda.sh "{order.name}" not found'
            raise Refused(message)
        if order.name and order.kind == "Pod" and order.name not in self._pods():
            message = f'pods "{order.name}" not found'
            raise Refused(message)
        ended: Ended = await getattr(self, "_" + order.verb.replace(" ", "_"))(order)
        return ended

    def _pods(self) -> dict[str, str]:
        names = {*self.stack.facts["metrics_urls"], *self._more}
        return {f"imagefleet-{name}": name for name in sorted(names)}

    async def _get(self, _: Order) -> Ended:
        rows = [f"{pod}   1/1   Running" for pod in self._pods()]
        return Ended(0, "\n".join(["NAME   READY   STATUS", *rows, ""]))

    async def _describe(self, order: Order) -> Ended:
        why = self.ended_for.get(order.name)
        last = f"    Last State:  Terminated\n      Reason:    {why}\n" if why else ""
        return Ended(0, f"Name:  {order.name}\nContainers:\n    State:  Running\n{last}")

    async def _delete(self, order: Order) -> Ended:
        await self._ended_and_begun(self._pods()[order.name].partition("-")[0])
        return Ended(0, f'pod "{order.name}" deleted\n')

    async def _rollout_restart(self, order: Order) -> Ended:
        await self._ended_and_begun(PROCESSES[order.name])
        return Ended(0, f"deployment.apps/{order.name} restarted\n")

    async def _rollout_undo(self, order: Order) -> Ended:
        self.turn(PROCESSES[order.name])
        await self._ended_and_begun(PROCESSES[order.name])
        return Ended(0, f"deployment.apps/{order.name} rolled back\n")

    async def _scale(self, order: Order) -> Ended:
        process = PROCESSES[order.name]
        if "NEVER_BEGINS" in self.turned.get(process, {}):
            self.turn(process)
            await self._ended_and_begun(process)
        there = len(self.stack.pids(process)) + sum(name.startswith(process) for name in self._more)
        # Kubernetes has two of maintenance, and the stack one.
        for _ in range(there, min(order.replicas, 2)):
            await self.start_another(process)
        return Ended(0, f"deployment.apps/{order.name} scaled\n")

    async def _set_env(self, order: Order) -> Ended:
        process = PROCESSES[order.name]
        self.turn(process, **self.turned.get(process, {}) | dict(order.settings))
        await self._ended_and_begun(process)
        return Ended(0, f"deployment.apps/{order.name} env updated\n")

    async def _set_resources(self, order: Order) -> Ended:
        await self._ended_and_begun(PROCESSES[order.name])
        return Ended(0, f"deployment.apps/{order.name} resource requirements updated\n")

    async def _patch(self, order: Order) -> Ended:
        self.patched[order.name] = order.patch
        return Ended(0, f"scaledobject.keda.sh/{order.name} patched\n")

    async def _exec(self, order: Order) -> Ended:
        process = PROCESSES[order.name]
        pid = next(iter(self.stack.pids(process).values()))
        variables = environment_of(pid) | self.turned.get(process, {})
        program, *arguments = order.command
        if program != "imagefleet":
            message = f'exec: "{program}": executable file not found in $PATH'
            raise Refused(message)
        ran = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "imagefleet", *arguments),
            env=variables | {"COLUMNS": "200"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await ran.communicate()
        return Ended(ran.returncode or 0, out.decode(), err.decode())

    async def _ended_and_begun(self, process: str) -> None:
        if process in self.when_restarted:
            await self.when_restarted[process]()
        await self._replaced(process, signal.SIGTERM)


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process began with."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    except FileNotFoundError:
        message = "container not found"
        raise Refused(message) from None
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def environment_folder(stack: Stack, name: str) -> Path | None:
    """Where a pod has its own /tmp, if a situation gave it one."""
    folder = stack.folder / "volumes" / name.partition("-")[0]
    return folder if folder.exists() else None


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()


def stands_still(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
