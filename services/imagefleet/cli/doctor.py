"""`imagefleet doctor`: is everything there that a process needs, and if not, what is to be done."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from imagefleet.cli.output import Columns, ExitCode, GivesWay, Table, finish, run_async, show
from imagefleet.cli.verbs import Json
from imagefleet.errors import FleetError, Misconfigured, NotFound
from imagefleet.jobs.lifecycle import Role
from imagefleet.jobs.model import Lane
from imagefleet.settings import Aws, Database, load
from imagefleet.settings.slices import Slice
from imagefleet.store.database import Connection, connect
from imagefleet.store.schema.migrations import require_schema
from imagefleet.store.schema.roles import OWNER, ROLES, describe_session

if TYPE_CHECKING:
    from imagefleet.aws.session import AwsSession

# A signature is good for five minutes. Due times and leases are the database's own.
MOST_SKEW: Final = timedelta(seconds=30)
WITHIN: Final = 30.0  # seconds for one check

LOOK_AT_POSTGRES: Final = "Is it up, is DATABASE_URL right, may this machine reach it?"
LOOK_AT_AWS: Final = "Do region, endpoint, credentials and names belong to the same installation?"
MIGRATE: Final = "Run `imagefleet migrate` with DATABASE_URL of imagefleet_owner."
OWN_ROLE: Final = "Give every process its own role; only `migrate` is the owner."
SET_CLOCKS: Final = "Let NTP set the clocks: requests to AWS are refused beyond five minutes."


Settings = TypeVar("Settings", bound=Slice)


def doctor(
    role: Annotated[
        Role | None, typer.Option("--as", help="The process whose environment this is.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check everything that a process depends on, one line each.

    Run it in the environment of the process that does not work, in its container for example.
    Exits with 1 when a check fails. It writes one object to each bucket and deletes it again.

    For example:

        imagefleet doctor --as worker
    """
    checks = run_async(_examine(role=role.value if role else None))
    failed = [check for check in checks if not check.ok]
    columns: Columns = {
        "": lambda check: "ok" if check.ok else "failed",
        "check": "name",
        "found": "found",
        "what to do": "advice",
    }
    document = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    gives_way: GivesWay = {"wraps": ("found", "what to do")}
    show(document, lambda _: Table(checks, columns, gives_way), as_json=as_json)
    finish(ExitCode.FAILED if failed else ExitCode.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The answer to one question."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    milliseconds: int = 0


class Wrong(Exception):
    """A dependency answers, but not as it should."""


async def _ask(name: str, question: Callable[[], Awaitable[str]], advice: str) -> Check:
    """Ask; whatever comes instead of an answer is one as well."""
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(WITHIN):
            found, ok = await question(), True
    except FleetError as error:
        found, ok = error.detail or error.public_message, False
    except Wrong as error:
        found, ok = str(error), False
    except TimeoutError:
        found, ok = f"no answer within {WITHIN:.0f} s", False
    spent = round((time.perf_counter() - begun) * 1000)
    return Check(name=name, ok=ok, found=found, advice="" if ok else advice, milliseconds=spent)


async def _examine(*, role: str | None) -> list[Check]:
    """Ask the database and AWS, as this environment describes them."""
    return [
        *await _examine_with("database", Database, partial(_examine_database, role=role)),
        *await _examine_with("aws", Aws, _examine_aws),
    ]


async def _examine_with(
    name: str, wanted: type[Settings], examine: Callable[[Settings], Awaitable[list[Check]]]
) -> list[Check]:
    name = f"settings: {name}"
    try:
        settings = load(wanted)
    except Misconfigured as error:
        faults = " ".join((error.detail or "").split())
        advice = "docs/settings.md lists all variables."
        return [Check(name=name, ok=False, found=faults, advice=advice)]
    return [Check(name=name, ok=True, found="complete"), *await examine(settings)]


async def _examine_database(settings: Database, role: str | None) -> list[Check]:
    url = settings.url.get_secret_value()

    async def asked(question: Callable[[Connection], Awaitable[str]]) -> str:
        async with connect(url, process="doctor") as connection:
            return await question(connection)

    reached = await _ask("postgres", partial(asked, _version), LOOK_AT_POSTGRES)
    if not reached.ok:
        return [reached]
    its_role = partial(_role, wanted=role)
    return [
        reached,
        await _ask("postgres: schema", partial(asked, _schema), MIGRATE),
        await _ask("postgres: role", partial(asked, its_role), OWN_ROLE),
        await _ask("clock: postgres", partial(asked, _database_clock), SET_CLOCKS),
    ]


async def _version(connection: Connection) -> str:
    return f"Postgres {(await describe_session(connection)).version}"


async def _schema(connection: Connection) -> str:
    await require_schema(connection)
    return "current"


async def _role(connection: Connection, wanted: str | None) -> str:
    session = await describe_session(connection)
    if wanted is not None and session.role != f"imagefleet_{wanted}":
        message = f"{session.role}, not imagefleet_{wanted}"
        raise Wrong(message)
    if session.superuser or session.role == OWNER or session.role not in ROLES:
        message = f"{session.role}{', a superuser' if session.superuser else ''}"
        raise Wrong(message)
    return session.role


async def _database_clock(connection: Connection) -> str:
    return _skew_of((await describe_session(connection)).now)


async def _examine_aws(settings: Aws) -> list[Check]:
    from imagefleet.aws.session import open_session  # noqa: PLC0415 - no other verb waits for it

    async with open_session(settings) as session:
        urls = {lane.value: settings.queue_url(lane) for lane in Lane}
        urls["dead letters"] = settings.dead_letter_queue_url
        questions = {f"sqs: {name}": partial(_queue, session, url) for name, url in urls.items()}
        for bucket in (settings.originals_bucket, settings.outputs_bucket):
            questions[f"s3: {bucket}"] = partial(_bucket, session, bucket)
        if settings.distribution_id is not None:
            questions["cloudfront"] = partial(_distribution, session, settings.distribution_id)
        return [await _ask(name, question, LOOK_AT_AWS) for name, question in questions.items()]


async def _queue(session: "AwsSession", url: str) -> str:
    depth = await (await session.queue(url)).depth()
    return f"{depth.visible} waiting, {depth.in_flight} in flight"


async def _bucket(session: "AwsSession", bucket: str) -> str:
    """Write an object, find it, delete it; its age tells the difference of the clocks."""
    from imagefleet.aws.objects import Headers  # noqa: PLC0415 - as above

    objects = await session.objects(bucket)
    key = f"doctor/{secrets.token_hex(8)}"
    await objects.put(key, b"imagefleet doctor", Headers(content_type="text/plain"))
    facts = await objects.head(key)
    deleted = await objects.delete([key])
    if deleted.failures:
        message = f"deleting {key}: {', '.join(deleted.failures.values())}"
        raise Wrong(message)
    return f"put, head and delete; clock {_skew_of(facts.modified_at)}"


async def _distribution(session: "AwsSession", distribution_id: str) -> str:
    edge = await session.edge(distribution_id)
    with suppress(NotFound):
        await edge.get_invalidation("DOCTORDOCTOR1")
    return f"{distribution_id} answers"


def _skew_of(theirs: datetime) -> str:
    skew = datetime.now(UTC) - theirs
    if abs(skew) > MOST_SKEW:
        message = f"differs from this machine's by {abs(skew).total_seconds():.0f} s"
        raise Wrong(message)
    return f"within {MOST_SKEW.total_seconds():.0f} s of this machine's"
