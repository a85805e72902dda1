"""What the fleet of containers stands on: servers of this machine, and what was made in them.

The embedded stack's, with what its bootstrap makes; or an emulator to which infra/aws was applied
by Terraform, with the environment that it puts out. A PgBouncer may stand before Postgres.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from imagefleet.embedded.emulator import EmbeddedAws
from imagefleet.embedded.machine import Ports, StateFolder
from imagefleet.embedded.postgres import EmbeddedPostgres
from imagefleet.embedded.processes import Facts
from imagefleet.embedded.stack import Stack
from tests.containers.engine import GIVEN
from tests.infra.aws.tls import over_tls
from tests.localstack.fleet import prepared
from tests.support.poolers import pooling, version
from tests.support.stack import stack_folder
from tests.support.terraform import SERVICES, example_on, outputs

PREFIX: Final = "imagefleet"
POOLED: Final = ("api", "operator", "worker", "maintenance")  # roles of what serves
SESSIONS: Final = 10  # of each role


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Servers that run, and API keys."""

    name: str
    facts: Facts
    key: str
    operator_key: str
    given: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables by process, beside those that follow from the facts."""
    authority: Path | None = None
    """Whose certificates AWS is believed by, where that is not everybody's."""


@asynccontextmanager
async def embedded() -> AsyncIterator[Ground]:
    """As `imagefleet up` would make it."""
    with stack_folder() as folder:
        state = StateFolder(Path(folder) / "state")
        with state.held():
            stack = Stack(state, Ports(api=0, console=0, edge=0), _say)
            await stack.start()
            try:
                yield Ground(
                    name="the embedded stack",
                    facts=stack.facts,
                    key=stack.keys["api-key"],
                    operator_key=stack.keys["operator-key"],
                )
            finally:
                await stack.stop()


@asynccontextmanager
async def terraformed() -> AsyncIterator[Ground]:
    """What Terraform made, and put out; its Postgres is a record without a server."""
    with ExitStack() as stack:
        state = Path(stack.enter_context(stack_folder())) / "state"
        emulator = stack.enter_context(EmbeddedAws(state, services=SERVICES))
        # Its policies refuse what comes without TLS.
        reached = stack.enter_context(over_tls(emulator.url, state.parent))
        aws = {**emulator.environment(), **reached}
        aws["AWS_ENDPOINT_URL_CLOUDFRONT"] = aws["AWS_ENDPOINT_URL"]
        terraform = stack.enter_context(example_on(aws, name_prefix=PREFIX))
        await asyncio.to_thread(terraform.run, "apply", "-auto-approve", "-no-color")
        made = outputs(terraform)["environment"]
        inside = {"AWS_CA_BUNDLE": GIVEN, "SSL_CERT_FILE": GIVEN}
        given = {process: {**told, **inside} for process, told in made.items()}
        urls, keys = await prepared(stack.enter_context(EmbeddedPostgres(state)))
        facts = Facts(
            database_urls=urls,
            aws=aws,
            topology=made["worker"],
            public_base_url=made["api"]["PUBLIC_BASE_URL"],
        )
        yield Ground(
            name="what Terraform made",
            facts=facts,
            key=keys["producer"],
            operator_key=keys["operator"],
            given=given,
            authority=Path(aws["AWS_CA_BUNDLE"]),
        )


@asynccontextmanager
async def pooled(ground: Ground) -> AsyncIterator[Ground]:
    """The same, with the processes' way to Postgres through a PgBouncer."""
    urls = ground.facts.database_urls
    async with pooling([urls[role] for role in POOLED], pool_size=SESSIONS) as pooler:
        through = {role: pooler.through(urls[role]) for role in POOLED}
        processes = ("api", "worker", "maintenance")
        told = {"DATABASE_POOLER": "pgbouncer"}
        yield replace(
            ground,
            name=f"{ground.name}, through PgBouncer {'.'.join(map(str, version()))}",
            facts=replace(ground.facts, database_urls={**urls, **through}),
            given={process: {**ground.given.get(process, {}), **told} for process in processes},
        )


def _say(_line: str) -> None:
    """What the servers say is of no interest here."""
