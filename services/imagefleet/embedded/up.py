"""`imagefleet up`: everything on this machine, in one terminal, until a signal.

Up goes the ladder: the folder's lock, Postgres beside AWS, the front of published addresses, then
the processes. Down it goes the other way round, and the processes in the order in which work flows:
who takes it in, who does it, who looks after it.
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import orjson

from imagefleet.client import open_client
from imagefleet.embedded.environments import (
    API_GRACE,
    WORKER_GRACE,
    Facts,
    environment_of,
)
from imagefleet.embedded.ports import HOST, Ports, chosen
from imagefleet.embedded.stack import Stack
from imagefleet.embedded.state import DEFAULT_FOLDER, StateFolder, write_private
from imagefleet.embedded.supervisor import Program, Supervisor
from imagefleet.embedded.terminal import Terminal
from imagefleet.errors import Misconfigured, Unavailable
from imagefleet.runtime import Drain, run_until_signalled, supervise, unless

READY_WITHIN: Final = timedelta(seconds=60)
LOOK_EVERY: Final = 0.05  # seconds
MARGIN: Final = 5  # seconds a process has beyond its own grace, to close what it opened
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What `up` was asked for."""

    state: Path = DEFAULT_FOLDER
    ports: Ports = field(default_factory=Ports)
    workers: int = 1
    ready_file: Path | None = None
    demo: int = 0
    exit_after: bool = False
    as_json: bool = False


def up(wishes: Wishes, *, begun: float | None = None) -> int:
    """Run the stack; the exit code. `begun` is when the command was given, for the time it took."""
    running = Up(wishes, time.monotonic() if begun is None else begun)
    with running.state.held():
        signalled = run_until_signalled(running.run)
    return signalled or running.code


class Up:
    """One run of the stack."""

    def __init__(self, wishes: Wishes, begun: float) -> None:
        self.state = StateFolder(wishes.state)
        self.code = 0
        self._wishes = wishes
        self._begun = begun
        self._terminal = Terminal()
        self._ready = False
        self._health_ports: dict[str, int] = {}
        self._ports = Ports()
        self._stack: Stack
        self._supervisor: Supervisor

    async def run(self, drain: Drain) -> None:
        """Start everything, keep it, and end it in order."""
        say = self._terminal.say
        self._ports = _chosen_ports(self._wishes.ports)
        self._stack = Stack(self.state, self._ports, say)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stack.stop)
            stack.callback(self._forget_ready_file)
            self._forget_ready_file()
            await unless(drain, self._stack.start())
            if not drain.requested:
                await self._with_processes(drain, stack)
            say("stopping")
        say(f"stopped; everything is kept in {self.state.path}")

    async def _with_processes(self, drain: Drain, stack: AsyncExitStack) -> None:
        # Imported here: with it comes the AWS SDK, and the servers are better started before that.
        from imagefleet.embedded.front import serve_front  # noqa: PLC0415

        say = self._terminal.say
        facts = self._stack.facts
        say(f"postgres and aws are ready after {self._elapsed():.1f} s")
        await stack.enter_async_context(
            serve_front(
                self._ports.edge,
                aws=facts.aws,
                bucket=facts.topology["OUTPUTS_BUCKET"],
                api_url=self._api_url,
            )
        )
        self._supervisor = Supervisor(
            self._stages(facts), hear=self._terminal.hear, say=say, changed=self._changed
        )
        stack.callback(self._supervisor.close)
        async with supervise(drain) as parts:
            self._supervisor.start(parts)
            parts.start("servers", self._stack.watch(drain, self._servers_changed))
            try:
                await self._until_drain(drain)
            finally:
                drain.request("done")
                self._ready = False
                await self._supervisor.stop()

    async def _until_drain(self, drain: Drain) -> None:
        await unless(drain, self._until_ready())
        if drain.requested:
            return
        self._ready = True
        self._changed("all")
        elapsed = self._elapsed()
        self._terminal.say(f"ready after {elapsed:.1f} s")
        if self._wishes.demo:
            await unless(drain, self._demo(elapsed))
        elif self._wishes.as_json:
            self._print_json({"ready_seconds": round(elapsed, 2)})
        if not (self._wishes.demo and self._wishes.exit_after) and not drain.requested:
            self._say_what_to_try()
            await drain.wait()

    @property
    def _api_url(self) -> str:
        return f"http://{HOST}:{self._ports.api}"

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _stages(self, facts: Facts) -> list[list[Program]]:
        workers = [f"worker-{number}" for number in range(1, self._wishes.workers + 1)]
        graces = {"api": API_GRACE, "worker": WORKER_GRACE, "maintenance": WORKER_GRACE}

        def program(name: str) -> Program:
            process = name.partition("-")[0]
            if name not in self._health_ports:
                self._health_ports[name] = chosen(0, what=name, option="")
            return Program(
                name=name,
                command=[sys.executable, "-m", "imagefleet", process],
                environment=environment_of(
                    process,
                    facts,
                    health_port=self._health_ports[name],
                    port=self._ports.api,
                ),
                grace=timedelta(seconds=graces[process] + MARGIN),
            )

        return [[program("api")], [program(name) for name in workers], [program("maintenance")]]

    async def _until_ready(self) -> None:
        """Return when every process says so; a process that cannot ever start is the end of it."""
        deadline = time.monotonic() + READY_WITHIN.total_seconds()
        waiting = {name: f"{url}/readyz" for name, url in self._health_urls().items()}
        async with httpx.AsyncClient(timeout=2) as http:
            while waiting:
                refused = [one.program.name for one in self._supervisor.keepers if one.refused]
                if refused:
                    detail = f"{', '.join(refused)} did not start; its own words are above"
                    raise Misconfigured(detail)
                for name, url in list(waiting.items()):
                    reason = await _unready(http, url)
                    if reason is None:
                        del waiting[name]
                    elif time.monotonic() > deadline:
                        sentence = f"{name} is not ready: {reason}"
                        raise Unavailable("not_ready", sentence, sentence)
                await asyncio.sleep(LOOK_EVERY)

    def _health_urls(self) -> dict[str, str]:
        return {name: f"http://{HOST}:{port}" for name, port in self._health_ports.items()}

    async def _demo(self, ready_seconds: float) -> None:
        from imagefleet.embedded.demo import run_demo, table_of  # noqa: PLC0415 - loads Pillow

        restarts = self._restarts
        async with open_client(self._api_url, self._stack.keys["api-key"]) as client:
            shown = await run_demo(client, self._wishes.demo, self._terminal)
        restarts = self._restarts - restarts
        complete = shown.completed == len(shown.tried)
        self.code = 0 if complete and restarts == 0 else 1
        results: dict[str, object] = {
            "ok": self.code == 0,
            "submitted": len(shown.tried),
            "completed": shown.completed,
            "variants": sum(one.variants for one in shown.tried),
            "restarts": restarts,
            "ready_seconds": round(ready_seconds, 2),
            "demo_seconds": shown.seconds,
            "total_seconds": round(self._elapsed(), 2),
        }
        if self._wishes.as_json:
            self._print_json({**results, "images": [asdict(one) for one in shown.tried]})
            return
        self._terminal.results.print(table_of(shown))
        self._terminal.results.print(
            f"{shown.completed} of {len(shown.tried)} completed, {results['variants']} variants "
            f"fetched and decoded, {restarts} restarts; ready after {ready_seconds:.1f} s, "
            f"demo {shown.seconds:.1f} s, {self._elapsed():.1f} s in all"
        )

    @property
    def _restarts(self) -> int:
        return self._supervisor.restarts + self._stack.restarts

    def _print_json(self, document: Mapping[str, object]) -> None:
        sys.stdout.buffer.write(orjson.dumps(document) + b"\n")
        sys.stdout.flush()

    def _servers_changed(self) -> None:
        """After a server came back: where it matters to a process, the process is started again."""
        stages = self._stages(self._stack.facts)
        programs = {program.name: program for stage in stages for program in stage}
        for keeper in self._supervisor.keepers:
            if keeper.program != programs[keeper.program.name]:
                keeper.replace(programs[keeper.program.name])
        self._changed("servers")

    def _changed(self, _name: str) -> None:
        """Tell whoever reads the ready file, once there is one."""
        if self._ready and self._wishes.ready_file is not None:
            document = orjson.dumps(self._document(), option=orjson.OPT_INDENT_2)
            write_private(self._wishes.ready_file.absolute(), document.decode() + "\n")

    def _forget_ready_file(self) -> None:
        if self._wishes.ready_file is not None:
            self._wishes.ready_file.unlink(missing_ok=True)

    def _document(self) -> dict[str, object]:
        facts = self._stack.facts
        named = {
            kind: {
                name.removesuffix(kind).lower().replace("_", "-"): value
                for name, value in facts.topology.items()
                if name.endswith(kind)
            }
            for kind in ("_QUEUE_URL", "_BUCKET")
        }
        return {
            "api_url": self._api_url,
            "console_url": None,
            "public_base_url": facts.public_base_url,
            "metrics_urls": {
                name: f"{url}/metrics" for name, url in self._health_urls().items()
            },
            "api_key": self._stack.keys["api-key"],
            "operator_key": self._stack.keys["operator-key"],
            "database_urls": dict(facts.database_urls),
            "aws_endpoint_url": self._stack.aws_url,
            "aws": dict(facts.aws),
            "buckets": named["_BUCKET"],
            "queue_urls": named["_QUEUE_URL"],
            "distribution_id": facts.topology.get("CLOUDFRONT_DISTRIBUTION_ID"),
            "processes": self._supervisor.pids | self._stack.pids,
        }

    def _say_what_to_try(self) -> None:
        lines = [
            f"API        {self._api_url}",
            f"images     {self._stack.facts.public_base_url}",
            *(f"{name:<10} {url}/metrics" for name, url in self._health_urls().items()),
            f"keys       {self._stack.key_file('api-key')} (submit, read), operator-key beside it",
            "",
            "try it in another terminal:",
            f'  curl -sS -H "Authorization: Bearer $(cat {self._stack.key_file("api-key")})" \\',
            f"    -T photo.jpg -X POST {self._api_url}/v1/images",
            "",
            "Ctrl-C ends everything in order, a second one at once",
        ]
        for line in lines:
            self._terminal.say(line)


def _chosen_ports(wished: Ports) -> Ports:
    return replace(
        wished,
        api=chosen(wished.api, what="the API", option="--api-port"),
        edge=chosen(wished.edge, what="the published addresses", option="--edge-port"),
        postgres=wished.postgres
        and chosen(wished.postgres, what="Postgres", option="--postgres-port"),
        aws=wished.aws and chosen(wished.aws, what="the AWS emulator", option="--aws-port"),
    )


async def _unready(http: httpx.AsyncClient, url: str) -> str | None:
    """Why a process is not ready; None when it is."""
    try:
        answer = await http.get(url)
    except httpx.HTTPError as error:
        return f"no answer at {url} ({type(error).__name__})"
    return None if answer.is_success else answer.text
