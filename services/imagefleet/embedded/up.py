"""`imagefleet up`: everything on this machine, in one terminal, until a signal.

Up goes the ladder: the folder's lock, Postgres beside AWS, the edge, then the processes. Down it
goes the other way round, and the processes in the order in which work flows: who takes it in, who
does it, who looks after it. What is said on the way is the `terminal`'s to show or to keep.
"""

import sys
import time
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson

from imagefleet.client.api import open_client
from imagefleet.embedded.machine import (
    Ports,
    StateFolder,
    chosen,
    forget_cloud_account,
    write_private,
)
from imagefleet.embedded.processes import Facts, Processes, not_passed_on, settings_of
from imagefleet.embedded.stack import Stack
from imagefleet.embedded.supervisor import Supervisor
from imagefleet.embedded.terminal import Heard, Terminal, for_a_shell, what_to_try
from imagefleet.errors import FleetError
from imagefleet.runtime import Drain, in_thread, run_until_signalled, supervise, unless
from imagefleet.telemetry.logs import configure

CONSOLE: Final = "{console}"  # in a page that is kept: where it is may be another port next time


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What `up` was asked for."""

    state: Path
    ports: Ports = field(default_factory=Ports)
    workers: int = 1
    ready_file: Path | None = None
    demo: int = 0
    exit_after: bool = False
    as_json: bool = False
    opens: bool = False
    """Show the console in this machine's browser once it is there."""
    verbose: bool = False
    settings: Sequence[str] = ()
    """`NAME=VALUE` each, for the processes that know it."""


def up(wishes: Wishes, *, begun: float | None = None) -> int:
    """Run the stack; the exit code. `begun` is when the command was given, for the time it took."""
    settings = settings_of(wishes.settings)
    left_out = not_passed_on(settings)  # before the account's variables are gone
    forget_cloud_account()
    state = StateFolder(wishes.state)
    with state.held():
        ports = _free(wishes.ports)
        running = Up(wishes, state, ports, time.monotonic() if begun is None else begun)
        if left_out is not None:
            running.terminal.say(left_out)
        signalled = run_until_signalled(running.run)
    return signalled or running.code


class Up:
    """One run of the stack."""

    def __init__(self, wishes: Wishes, state: StateFolder, ports: Ports, begun: float) -> None:
        self.code = 0
        self._wishes = wishes
        self._state = state
        self._ports = ports
        self._begun = begun
        self.terminal = Terminal(
            state.path / "logs",
            verbose=wishes.verbose,
            started=self._started,
            ended=lambda server: self._stack.has_ended(server),  # noqa: PLW0108 - which is made below
        )
        heard = Heard(self.terminal, "up")
        configure("console" if wishes.verbose else "json", "warning", process="up", stream=heard)
        self._processes = Processes(
            workers=wishes.workers,
            api_port=ports.api,
            console_port=ports.console,
            settings=settings_of(wishes.settings),
            log_format=None if wishes.verbose else "json",
        )
        self._stack = Stack(state, ports, self.terminal.say)
        self._supervisor: Supervisor | None = None
        self._ready = False
        self._ready_files = {state.ready_file, (wishes.ready_file or state.ready_file).absolute()}
        self._aws_file = state.path / "aws.env"
        self._gallery_file = state.path / "gallery.html"

    async def run(self, drain: Drain) -> None:
        """Start everything, keep it, and end it in order."""
        say = self.terminal.say
        async with AsyncExitStack() as stack:
            stack.callback(self.terminal.files.close)
            stack.push_async_callback(self._stack.stop)
            stack.callback(self._forget_ready_file)
            self._forget_ready_file()
            await unless(drain, self._stack.start())
            if not drain.requested:
                await self._with_processes(drain, stack)
            say("stopping aws and postgres")
        say(f"stopped; everything is kept in {self._state.path}")

    async def _with_processes(self, drain: Drain, stack: AsyncExitStack) -> None:
        # Imported here: with it comes the AWS SDK, and the servers are better started before that.
        from imagefleet.embedded.edge.server import serve_edge  # noqa: PLC0415

        self.terminal.say(f"postgres and aws are ready after {self._elapsed():.1f} s")
        invalidations = await stack.enter_async_context(
            serve_edge(
                self._ports.edge,
                facts=lambda: self._stack.facts,
                api_url=self._processes.api_url,
                gallery=self._gallery,
            )
        )
        supervisor = self._supervisor = Supervisor(
            self._processes.programs(self._stack.facts),
            hear=self.terminal.hear,
            say=self.terminal.say,
            changed=self._tell_ready_file,
        )
        stack.callback(supervisor.close)
        failure: FleetError | None = None
        async with supervise(drain) as parts:
            supervisor.start(parts)
            edge = parts.start("edge", invalidations.follow())
            parts.start("servers", self._stack.watch(drain, self._servers_changed))
            try:
                await self._until_drain(drain, supervisor)
            except FleetError as error:  # one sentence at the end, not a traceback in between
                failure = error
            finally:
                drain.request("done")
                self._ready = False
                self.terminal.say("ending the processes in order; a second Ctrl-C ends them now")
                await supervisor.stop()
                edge.cancel()
        if failure is not None:
            raise failure

    async def _until_drain(self, drain: Drain, supervisor: Supervisor) -> None:
        await unless(drain, self._processes.ready(supervisor.keepers))
        if drain.requested:
            return
        self._ready = True
        self._tell_ready_file()
        ready_after = self._elapsed()
        self.terminal.say(f"ready after {ready_after:.1f} s")
        if self._wishes.demo:
            await unless(drain, self._demo(ready_after, supervisor))
        elif self._wishes.as_json:
            _print_json({"ready_seconds": round(ready_after, 2)})
        if self._wishes.exit_after or drain.requested:
            return
        if self._wishes.opens:
            await in_thread(lambda: webbrowser.open(self._processes.console_url))
        gallery = self._gallery_file.exists()
        for line in what_to_try(
            self._stack.facts, self._processes, self._state.path, gallery=gallery
        ):
            self.terminal.say(line)
        await drain.wait()

    def _gallery(self) -> str | None:
        """The page of the last demo, with the console where it is now."""
        if not self._gallery_file.exists():
            return None
        page = self._gallery_file.read_text(encoding="utf-8")
        return page.replace(CONSOLE, self._processes.console_url)

    async def _demo(self, ready_after: float, supervisor: Supervisor) -> None:
        from imagefleet.embedded.demo import gallery, run_demo, table_of  # noqa: PLC0415 - Pillow

        self.code = 1  # until the last of them was seen
        restarts = self._restarts(supervisor)
        async with open_client(self._processes.api_url, self._stack.keys["api-key"]) as client:
            begun = time.monotonic()
            tried = await run_demo(client, self._wishes.demo, self.terminal.messages)
            seconds = time.monotonic() - begun
        write_private(self._gallery_file, gallery(tried, console=CONSOLE))
        completed = sum(image.completed for image in tried)
        restarts = self._restarts(supervisor) - restarts
        self.code = 0 if completed == len(tried) and restarts == 0 else 1
        results: dict[str, object] = {
            "ok": self.code == 0,
            "submitted": len(tried),
            "completed": completed,
            "variants": sum(image.variants for image in tried),
            "restarts": restarts,
            "ready_seconds": round(ready_after, 2),
            "demo_seconds": round(seconds, 2),
            "total_seconds": round(self._elapsed(), 2),
        }
        if self._wishes.as_json:
            _print_json({**results, "images": [image.document for image in tried]})
            return
        self.terminal.results.print(table_of(tried))
        self.terminal.results.print(
            f"{completed} of {len(tried)} completed, {results['variants']} variants "
            f"fetched and decoded, {restarts} restarts\n"
            f"ready after {ready_after:.1f} s, demo {seconds:.1f} s, {self._elapsed():.1f} s in all"
        )

    def _started(self, process: str) -> str:
        return f"started; metrics at {self._processes.health_urls[process]}/metrics"

    def _restarts(self, supervisor: Supervisor) -> int:
        return supervisor.restarts + self._stack.restarts

    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _servers_changed(self) -> None:
        """After a server came back: where that matters to a process, it is started again."""
        assert self._supervisor is not None  # noqa: S101 - servers are watched beside processes
        self._supervisor.bring_to(self._processes.programs(self._stack.facts))
        self._tell_ready_file()

    def _tell_ready_file(self) -> None:
        """Write down what is there now, once everything was ready."""
        if not self._ready or self._supervisor is None:
            return
        document = ready_document(
            self._stack.facts,
            self._processes,
            keys=self._stack.keys,
            pids=self._supervisor.pids | self._stack.pids,
        )
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
        for file in self._ready_files:
            write_private(file, text + "\n")
        write_private(self._aws_file, for_a_shell(self._stack.facts))

    def _forget_ready_file(self) -> None:
        for file in {*self._ready_files, self._aws_file}:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)


def ready_document(
    facts: Facts, processes: Processes, *, keys: Mapping[str, str], pids: Mapping[str, int]
) -> dict[str, object]:
    """Everything that a program needs to use this stack, secrets included."""
    return {
        "api_url": processes.api_url,
        "console_url": processes.console_url,
        "public_base_url": facts.public_base_url,
        "metrics_urls": {name: f"{url}/metrics" for name, url in processes.health_urls.items()},
        "api_key": keys["api-key"],
        "operator_key": keys["operator-key"],
        "database_urls": dict(facts.database_urls),
        "aws_endpoint_url": facts.aws["AWS_ENDPOINT_URL"],
        "aws": dict(facts.aws),
        "buckets": _named(facts.topology, "_BUCKET"),
        "queue_urls": _named(facts.topology, "_QUEUE_URL"),
        "distribution_id": facts.topology.get("CLOUDFRONT_DISTRIBUTION_ID"),
        "processes": dict(pids),
    }


def _named(topology: Mapping[str, str], kind: str) -> dict[str, str]:
    """`FAST_QUEUE_URL` is the queue `fast`."""
    return {
        name.removesuffix(kind).lower().replace("_", "-"): value
        for name, value in topology.items()
        if name.endswith(kind)
    }


def _print_json(document: Mapping[str, object]) -> None:
    sys.stdout.write(orjson.dumps(document).decode() + "\n")
    sys.stdout.flush()


def _free(wished: Ports) -> Ports:
    """The ports as they will be; before anything starts, so that a refusal costs nothing."""
    return replace(
        wished,
        api=chosen(wished.api, what="the API", option="--api-port"),
        console=chosen(wished.console, what="the console", option="--console-port"),
        edge=chosen(wished.edge, what="the published addresses", option="--edge-port"),
        postgres=wished.postgres
        and chosen(wished.postgres, what="Postgres", option="--postgres-port"),
        aws=wished.aws and chosen(wished.aws, what="the AWS emulator", option="--aws-port"),
    )
