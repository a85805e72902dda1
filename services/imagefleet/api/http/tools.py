"""What routes work with: tools that `main` makes once, and how they answer."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias, cast

from fastapi import Depends, Request
from starlette.responses import Response

from imagefleet.aws.objects import Objects
from imagefleet.aws.queue import Queue
from imagefleet.doorbell import Doorbell
from imagefleet.errors import NotFound
from imagefleet.imaging.limits import Limits
from imagefleet.jobs.kinds import STANDARD_RETRY, Kinds
from imagefleet.jobs.model import Lane, Submission, Submitted, TenantId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.jobs.shapes.shape import AcceptedImage, AcceptedJob, Shape
from imagefleet.live import Live
from imagefleet.settings import Api
from imagefleet.store.database import Connection, Isolation, Pool
from imagefleet.store.fleet.audit import Acting, Actor, acting
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.rings import rings_for
from imagefleet.telemetry.metrics import ApiMetrics
from imagefleet.telemetry.tracing import Tracing

LONGEST_NAME: Final = 200  # characters of a key's, as the audit keeps it

_ROUTE: Final = "route"


class _Rehearsed(Exception):
    """Nothing of it is to stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The fleet, as far as the API reaches it."""

    settings: Api
    pool: Pool
    originals: Objects
    queues: Mapping[Lane, Queue]
    dead_letters: Queue
    doorbell: Doorbell
    known_kinds: Kinds
    """With the policies of the environment."""
    metrics: ApiMetrics
    tracing: Tracing
    live: Live = field(default_factory=Live)
    """What operators have turned."""
    standard_retry: RetryPolicy = STANDARD_RETRY
    """The policy of kinds that have none of their own."""
    edge_monthly_paths: int = 1000
    """How many invalidation paths a month are expected."""
    operators: Pool | None = None
    """Postgres under the operator's role; None where its routes are not served."""

    @property
    def kinds(self) -> Kinds:
        """The job types, with the policies that are in force."""
        return self.live.now.kinds(self.known_kinds, self.standard_retry)

    def turned_for(self, tenant_id: TenantId, name: str) -> int | None:
        """What operators have turned a limit to, of this tenant or of all."""
        return self.live.now.limit(tenant_id, name)

    @property
    def limits(self) -> Limits:
        """What one picture may cost."""
        return Limits(max_bytes=self.settings.max_upload_bytes)

    @asynccontextmanager
    async def operating(
        self, operation: str, table: str, *, of_one_moment: bool = False
    ) -> AsyncIterator[Connection]:
        """The same under the operator's role, to look; who changes something is `acting`.

        Postgres refuses whatever else is tried here. Several statements may see one moment alone.
        """
        isolation: Isolation | None = "repeatable_read" if of_one_moment else None
        async with (
            self._operators(operation, table) as connection,
            connection.transaction(isolation=isolation, readonly=True),
        ):
            yield connection

    @asynccontextmanager
    async def rehearsing(self, operation: str, table: str) -> AsyncIterator[Connection]:
        """The same to do something and leave no trace of it: it is always undone."""
        async with self._operators(operation, table) as connection:
            with suppress(_Rehearsed):
                async with connection.transaction():
                    yield connection
                    raise _Rehearsed

    @asynccontextmanager
    async def _operators(self, operation: str, table: str) -> AsyncIterator[Connection]:
        if self.operators is None:  # then nobody has these routes
            raise NotFound(_ROUTE)
        async with self.operators.use(operation, table) as connection:
            yield connection

    @asynccontextmanager
    async def acting(
        self, operation: str, table: str, request: Request, key: ApiKey
    ) -> AsyncIterator[Acting]:
        """The one way for operators to change something: one transaction, told to the audit."""
        by = Actor(name=key.name[:LONGEST_NAME], key_id=key.id, address=request.state.address)
        async with (
            self._operators(operation, table) as connection,
            acting(connection, by) as begun,
        ):
            yield begun

    def ring(self, accepted: Iterable[tuple[Submission, Submitted]]) -> None:
        """After the commit: announce what is new and due, without waiting for it."""
        self.doorbell.ring(rings_for(accepted))


def tools_of(request: Request) -> Tools:
    """The dependency of every route."""
    return cast("Tools", request.app.state.tools)


ToolsHere: TypeAlias = Annotated[Tools, Depends(tools_of)]


def answer(shape: Shape, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The shape as it is sent; the framework would look at every field of it once more."""
    return Response(shape.encoded(), status, headers, "application/json")


def accepted(shape: AcceptedJob | AcceptedImage) -> Response:
    """202: recorded, and it will be done."""
    return answer(shape, 202, {"Location": shape.links.self})
