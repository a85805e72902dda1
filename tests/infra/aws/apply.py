"""`make apply-test`: infra/aws applied for real to an emulator, and the fleet on what it made.

The complete example as anybody applies it; then every process with the environment that it put
out, pictures from their upload to what viewers get, a second apply that finds nothing to do but
what the emulator forgets, by name, and a destroy that leaves nothing.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import httpx
from botocore.exceptions import ClientError

from imagefleet.aws.session import Credentials
from imagefleet.embedded.bootstrap import Endpoints
from imagefleet.embedded.bootstrap import apply as bootstrap
from imagefleet.embedded.emulator import KEY_ID, SECRET, EmbeddedAws
from imagefleet.embedded.machine import free_port
from imagefleet.embedded.postgres import EmbeddedPostgres
from imagefleet.embedded.processes import Facts
from tests.infra.aws.agreement import Looks
from tests.infra.aws.differences import DIFFERENCES, of
from tests.infra.aws.tls import over_tls
from tests.localstack.fleet import Fleet, logs_of, prepared, processes_on
from tests.localstack.pictures import pictures
from tests.support.install import blocks
from tests.support.stack import stack_folder
from tests.support.terraform import (
    SERVICES,
    LeftOutError,
    Terraform,
    TerraformError,
    changes,
    example_on,
    outputs,
)

PREFIX: Final = "imagefleet"
in_thread = asyncio.to_thread


@dataclass(slots=True, kw_only=True)
class Applied:
    """What Terraform made, and where."""

    terraform: Terraform
    aws: Mapping[str, str]
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What it put out, by process."""

    def resources(self) -> list[str]:
        listed = self.terraform.run("state", "list").splitlines()
        return [address for address in listed if ".data." not in address and address[:5] != "data."]


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it: nothing is left
    begun = time.monotonic()
    try:
        asyncio.run(judge())
    except KeyboardInterrupt:
        say("ended before its time")
        return 130
    except LeftOutError as why:
        say(f"left out: {why}")
        return 0
    except (AssertionError, httpx.HTTPError, RuntimeError) as failure:
        say(f"BROKEN {failure}")
        return 1
    say(f"all held, in {time.monotonic() - begun:.0f} s")
    return 0


async def judge() -> None:
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(stack_folder())
        emulator = stack.enter_context(EmbeddedAws(folder / "state", services=SERVICES))
        reached = stack.enter_context(over_tls(emulator.url, folder))
        aws = {**emulator.environment(), **reached}
        aws["AWS_ENDPOINT_URL_CLOUDFRONT"] = aws["AWS_ENDPOINT_URL"]
        terraform = stack.enter_context(example_on(aws, name_prefix=PREFIX))
        applied = Applied(terraform=terraform, aws=aws)
        say(f"{'an emulator, terraform init':<36}{time.monotonic() - begun:>6.1f} s")
        await step("apply", partial(in_thread, apply, applied))
        async with fleet_on(folder, applied) as fleet:
            told = partial(logs_of, fleet)
            await step("the processes' environment", partial(given, fleet, applied), told)
            await step("images, one replaced", partial(pictures, fleet), told)
        await step("without TLS", partial(in_thread, refused, applied, emulator.url))
        await step("beside the bootstrap", partial(agreed, applied))
        await step("a second apply", partial(in_thread, again, applied))
        await step("destroy", partial(in_thread, destroy, applied))


async def step(
    name: str, work: Callable[[], Awaitable[str]], told: Callable[[], str] = str
) -> None:
    begun = time.monotonic()
    try:
        result = await work()
    except (AssertionError, TerraformError, httpx.HTTPError):
        say(f"{name}: it did not hold\n{told()}")
        raise
    say(f"{name:<36}{time.monotonic() - begun:>6.1f} s   {result}")


def apply(applied: Applied) -> str:
    """The first time, by the words of docs/install.md: everything is made."""
    for words in as_the_page_says("plan"):
        applied.terraform.run(*words)
    applied.environment = outputs(applied.terraform)["environment"]
    return f"{len(applied.resources())} resources"


@asynccontextmanager
async def fleet_on(folder: Path, applied: Applied) -> AsyncIterator[Fleet]:
    """The processes, on a Postgres of this machine: the emulator's is a record without a server."""
    with EmbeddedPostgres(folder / "state") as postgres:
        urls, keys = await prepared(postgres)
        facts = Facts(
            database_urls=urls,
            aws=applied.aws,
            topology=applied.environment["worker"],
            public_base_url=applied.environment["api"]["PUBLIC_BASE_URL"],
        )
        async with processes_on(folder, facts, keys, free_port()) as fleet:
            yield fleet


async def given(fleet: Fleet, applied: Applied) -> str:
    """Each process that runs was given what was put out for it, to the letter."""
    for process, wanted in applied.environment.items():
        running = [pid.pid for name, pid in fleet.running.items() if name.startswith(process)]
        assert running, f"no {process} runs"
        for pid in running:
            has = _environment(pid)
            assert wanted.items() <= has.items(), (process, wanted.items() - has.items())
    return ", ".join(f"{name} {len(told)}" for name, told in applied.environment.items())


def refused(applied: Applied, plain: str) -> str:
    """Who may do everything is refused all the same where it comes in plain text."""
    sqs = Looks({**applied.aws, "AWS_ENDPOINT_URL": plain}).client("sqs")
    told = applied.environment["worker"]
    queues = [url for name, url in told.items() if name.endswith("_QUEUE_URL")]
    for url in queues:
        try:
            sqs.receive_message(QueueUrl=url)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            assert code.startswith("AccessDenied"), (url, code)
        else:
            message = f"{url} answers without TLS"
            raise AssertionError(message)
    return f"{len(queues)} queues refuse"


def as_the_page_says(word: str) -> list[list[str]]:
    """All that the block of docs/install.md with this word tells Terraform but for its `init`."""
    (told,) = (text for text in blocks("sh account") if f"\nterraform {word} " in f"\n{text}")
    words = [line.split()[1:] for line in told.splitlines() if line.startswith("terraform ")]
    return [each for each in words if each[0] != "init"]


def _environment(pid: int) -> dict[str, str]:
    """What a process was started with, as the kernel tells it."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


async def agreed(applied: Applied) -> str:
    """The bootstrap of emulators makes the same of the topology, whatever Terraform does beside."""
    looks = Looks(applied.aws)
    booted = await bootstrap(
        Endpoints.all_at(applied.aws["AWS_ENDPOINT_URL"]),
        region=applied.aws["AWS_REGION"],
        credentials=Credentials(KEY_ID, SECRET),
        prefix="booted",
    )
    mine, theirs = looks.made(applied.environment["worker"]), looks.made(booted.environment())
    for part, made in theirs.items():
        assert mine[part] == made, f"{part}: {mine[part]}, and the bootstrap has {made}"
    return ", ".join(theirs)


def again(applied: Applied) -> str:
    """Nothing is changed but what the emulator forgets, and all of that is known by name."""
    applied.terraform.run("plan", "-out=second.tfplan", "-no-color")
    found = changes(applied.terraform.read("show", "second.tfplan"))
    by_resource = {of(address): tuple(names) for address, names in found.items()}
    known = {address: tuple(one.attributes) for address, one in DIFFERENCES.items()}
    assert by_resource == known, f"it would change {by_resource}, and known is {known}"
    applied.terraform.run("apply", "-no-color", "second.tfplan")
    assert outputs(applied.terraform)["environment"] == applied.environment
    names = ", ".join(sorted({one.name for one in DIFFERENCES.values()}))
    return f"would change nothing in AWS; what the emulator forgets: {names or 'nothing'}"


def destroy(applied: Applied) -> str:
    """Nothing is left, images least of all."""
    count = len(applied.resources())
    looks = Looks(applied.aws)
    before = looks.everything()
    *_, words = as_the_page_says("destroy")  # it was applied as destroyable
    applied.terraform.run(*words, "-auto-approve")
    assert applied.resources() == []
    named = {value for told in applied.environment.values() for value in told.values()}
    assert before & named, "it was not looked at in the right place"
    assert looks.everything() & named == set(), looks.everything() & named
    return f"{count} resources, none is left"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
