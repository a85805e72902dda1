"""What a process finds where it goes: Postgres under its role, queues, buckets, the edge, the API.

Only calls that the process itself makes are made for it, as it has leave for no others.
"""

import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import uuid4

from imagefleet.doctor import Check, Wrong, ask
from imagefleet.errors import FleetError, Misconfigured, NotFound
from imagefleet.jobs.images import original_key, variant_key
from imagefleet.jobs.model import Lane
from imagefleet.settings import Aws, Console, Database
from imagefleet.settings.slices import POOLED
from imagefleet.store.database import OwnConnection, connect
from imagefleet.store.fleet.statistics import look_at_sessions
from imagefleet.store.schema.migrations import require_schema, status
from imagefleet.store.schema.roles import (
    OWNER,
    ROLES,
    describe_session,
)

if TYPE_CHECKING:
    from imagefleet.aws.session import AwsSession

# A signature is good for five minutes. Due times and leases are the database's own.
MOST_SKEW: Final = timedelta(seconds=30)
OTHERS: Final = 5  # connections: a migration, what scales the fleet, people
POOLED_ROLES: Final = 4  # PgBouncer has a pool for each: API, operators, workers, maintenance
OF_OPERATORS: Final = "/v1/operator/pauses"  # short, and for them alone
OF_A_POOL: Final = 20  # PgBouncer's own default_pool_size

LOOK_AT_POSTGRES: Final = "Is it up, is DATABASE_URL right, may this machine reach it?"
LOOK_AT_AWS: Final = "Do region, endpoint, credentials and names belong to the same installation?"
MIGRATE: Final = "Run `imagefleet migrate` with DATABASE_URL of imagefleet_owner."
OWN_ROLE: Final = "Give every process its own role; only `migrate` is the owner."
LOOK_AT_API: Final = "Is it up, is IMAGEFLEET_URL right, has it OPERATOR_DATABASE_URL?"
ANOTHER_KEY: Final = "Make one: `imagefleet keys create --scope operate --scope read`."
SET_CLOCKS: Final = "Let NTP set the clocks: requests to AWS are refused beyond five minutes."
SAY_WHICH: Final = "Set DATABASE_POOLER to what DATABASE_URL leads to (docs/settings.md)."
FEWER: Final = (
    "Raise max_connections, lower DATABASE_POOL_MAX or the replicas, or put PgBouncer in between."
)

Told: TypeAlias = Mapping[str, tuple[int, int | None]]
"""By process, how many of it there will be, and the size of its pool where that was told."""
Question: TypeAlias = Callable[[OwnConnection], Awaitable[str]]

# What each does to which bucket; who says nothing of itself, as much as can be tried.
USES: Final[Mapping[str, Mapping[str, str]]] = {
    "api": {"originals": "writes"},
    "worker": {"originals": "reads", "outputs": "writes"},
    "maintenance": {"originals": "lists", "outputs": "lists"},
    "": {"originals": "writes", "outputs": "writes"},
}


def told_of(words: Sequence[str]) -> Told:
    """Read `worker=20`, or `worker=20x4` with the size of a pool."""
    told = {}
    for word in words:
        said = re.fullmatch(r"(api|worker|maintenance|pgbouncer)=(\d{1,6})(?:x(\d{1,6}))?", word)
        if said is None:
            detail = f"{word!r} is not as in worker=20, or worker=20x4 where a pool has 4"
            raise Misconfigured(detail)
        told[said[1]] = (int(said[2]), int(said[3]) if said[3] else None)
    return told


async def examine_database(settings: Database, process: str, told: Told) -> list[Check]:
    """Ask Postgres, or a pooler in its place, as this process reaches it."""
    asked = partial(_asked, settings)
    reached = await ask("postgres", partial(asked, _version), LOOK_AT_POSTGRES)
    if not reached.ok:
        return [reached]
    migrates = process == "migrate"
    checks = [
        reached,
        await ask("postgres: pooler", partial(asked, partial(_pooler, settings)), SAY_WHICH),
        await ask("postgres: schema", partial(asked, _missing if migrates else _schema), MIGRATE),
        await ask("postgres: role", partial(asked, partial(_role, wanted=process)), OWN_ROLE),
        await ask("clock: postgres", partial(asked, _database_clock), SET_CLOCKS),
    ]
    if all(check.ok for check in checks) and not migrates:
        budget = partial(_budget, settings, process, told)
        checks.append(await ask("postgres: connections", partial(asked, budget), FEWER))
    return checks


async def examine_operators(settings: Database) -> Check:
    """The other address of an API."""
    its_role = partial(_role, wanted="operator")
    return await ask("postgres: operators", partial(_asked, settings, its_role), OWN_ROLE)


async def _asked(settings: Database, question: Question) -> str:
    url = settings.url.get_secret_value()
    async with connect(url, process="doctor", pooler=settings.pooler) as connection:
        return await question(connection)


async def _version(connection: OwnConnection) -> str:
    session = await describe_session(connection)
    return f"Postgres {session.version}, {session.tls or 'not encrypted'}"


async def _pooler(settings: Database, connection: OwnConnection) -> str:
    is_shared = await connection.is_shared()
    if is_shared != (settings.pooler != "none"):
        message = (
            f"DATABASE_POOLER says {settings.pooler}, and there is {'one' if is_shared else 'none'}"
        )
        raise Wrong(message)
    return settings.pooler


async def _schema(connection: OwnConnection) -> str:
    await require_schema(connection)
    return "current"


async def _missing(connection: OwnConnection) -> str:
    missing = (await status(connection)).pending
    return f"{len(missing)} migrations to apply" if missing else "current"


ROLE_OF: Final = {"migrate": OWNER, "keys": "imagefleet_admin"}


async def _role(connection: OwnConnection, wanted: str) -> str:
    session = await describe_session(connection)
    expected = ROLE_OF.get(wanted, f"imagefleet_{wanted}")
    if wanted and session.role != expected:
        message = f"{session.role}, not {expected}"
        raise Wrong(message)
    owns = session.role == OWNER and expected != OWNER
    if session.superuser or owns or session.role not in ROLES:
        message = f"{session.role}{', a superuser' if session.superuser else ''}"
        raise Wrong(message)
    return session.role


async def _database_clock(connection: OwnConnection) -> str:
    return _skew_of((await describe_session(connection)).now)


async def _budget(settings: Database, process: str, told: Told, connection: OwnConnection) -> str:
    """All that may be open at once, of as many as Postgres lets in."""
    seen = await look_at_sessions(connection)
    pools = {
        name: settings.pool_of(name) if name == process else most for name, most in POOLED.items()
    }
    alive = {
        "api": math.ceil(seen.named.get("api", 0) / pools["api"]),
        "worker": seen.named.get("worker-beat", 0),  # of these each has exactly one
        "maintenance": seen.named.get("maintenance-rescuer", 0),
    }
    parts = {}
    for name, pool in pools.items():
        replicas, size = told.get(name, (max(1, alive[name]), None))
        size = size or pool
        # Beside its pool an API has one for operators, a worker its beat, maintenance its rescuer.
        parts[name] = (replicas, 2 * size if name == "api" else size + 1)
    if settings.pooler != "none":
        replicas, size = told.get("pgbouncer", (1, None))
        parts = {"pgbouncer": (replicas, POOLED_ROLES * (size or OF_A_POOL))}
    total = sum(replicas * sessions for replicas, sessions in parts.values()) + OTHERS
    each = ", ".join(
        f"{name} {replicas} x {sessions}" for name, (replicas, sessions) in parts.items()
    )
    found = f"{total} of {seen.most}: {each}, others {OTHERS}"
    if total > seen.most:
        raise Wrong(found)
    return found


async def examine_aws(settings: Aws, process: str, lanes: Sequence[Lane]) -> list[Check]:
    """Ask AWS, or an emulator in its place."""
    from imagefleet.aws.session import open_session  # noqa: PLC0415 - no other verb waits for it

    async with open_session(settings) as session:
        urls = {lane.value: settings.queue_url(lane) for lane in lanes}
        if process != "worker":  # which only sends there
            urls["dead letters"] = settings.dead_letter_queue_url
        questions = {f"sqs: {name}": partial(_queue, session, url) for name, url in urls.items()}
        buckets = {"originals": settings.originals_bucket, "outputs": settings.outputs_bucket}
        for name, does in USES[process].items():
            questions[f"s3: {buckets[name]}"] = partial(_bucket, session, buckets[name], name, does)
        if settings.distribution_id is not None and process in {"maintenance", ""}:
            questions["cloudfront"] = partial(_distribution, session, settings.distribution_id)
        return [await ask(name, question, LOOK_AT_AWS) for name, question in questions.items()]


async def _queue(session: "AwsSession", url: str) -> str:
    depth = await (await session.queue(url)).depth()
    return f"{depth.visible} waiting, {depth.in_flight} in flight"


async def _bucket(session: "AwsSession", bucket: str, name: str, does: str) -> str:
    """Of what is written, the age tells the difference of the clocks."""
    from imagefleet.aws.objects import Headers  # noqa: PLC0415 - as above

    objects = await session.objects(bucket)
    # Where images lie, as a role may have leave for nothing else; what stays is swept in a day.
    key = original_key(uuid4(), uuid4())
    if name == "outputs":
        key = variant_key(uuid4(), 1, 1, "doctor", "jpg")
    if does == "lists":
        await objects.page(key)
        return "list"
    if does == "reads":
        with suppress(NotFound):
            await objects.head(key)
        return "head"
    await objects.put(key, b"imagefleet doctor", Headers(content_type="text/plain"))
    facts = await objects.head(key)
    deleted = await objects.delete([key])
    refused = set(deleted.failures.values())
    if refused - {"AccessDenied"}:
        message = f"deleting {key}: {', '.join(refused)}"
        raise Wrong(message)
    then = "left to the sweep, by a role that deletes nothing" if refused else "delete"
    return f"put, head, {then}; clock {_skew_of(facts.modified_at)}"


async def _distribution(session: "AwsSession", distribution_id: str) -> str:
    edge = await session.edge(distribution_id)
    with suppress(NotFound):
        await edge.get_invalidation("DOCTORDOCTOR1")
    return f"{distribution_id} answers"


async def examine_api(settings: Console) -> list[Check]:
    """Ask the API as the console does: whether it is there, and by each key that it was given."""
    checks = [await ask("api", partial(_may_operate, settings.api_url, None), LOOK_AT_API)]
    for name, key in settings.proxy_keys.items():
        may = partial(_may_operate, settings.api_url, key.get_secret_value())
        checks.append(await ask(f"key: {name}", may, ANOTHER_KEY))
    return checks


async def _may_operate(url: str, key: str | None) -> str:
    from imagefleet.client.api import open_client  # noqa: PLC0415 - in the console's container

    async with open_client(url, key, agent="imagefleet-doctor", tries=1) as client:
        try:
            await client.ask("GET", OF_OPERATORS)
        except FleetError as error:
            if key is None and error.code == "unauthorized":
                return f"{url} serves operators, and asks for a key"
            raise Wrong(error.public_message) from error
    return "may operate"


def _skew_of(theirs: datetime) -> str:
    skew = datetime.now(UTC) - theirs
    if abs(skew) > MOST_SKEW:
        message = f"differs from this machine's by {abs(skew).total_seconds():.0f} s"
        raise Wrong(message)
    return f"within {MOST_SKEW.total_seconds():.0f} s of this machine's"
