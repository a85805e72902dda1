"""What `--json` prints: the keys that every verb tells, and what kind of value each of them has."""

import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

import orjson
import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.images import Emptied
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, JobState
from imagefleet.jobs.shapes.sweeping import MissingView, SweepProgress
from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import (
    Accepted,
    BatchLimits,
    accept_batch,
    commit_batch,
    complete_batch,
    look_at_owed,
)
from imagefleet.store.fleet.elections import begin_period, finish_period
from imagefleet.store.images.sweeping import WALK, save_walk
from tests.cli.conftest import Cli
from tests.cli.world import rolled_up
from tests.support.api import ACME, Running, published
from tests.support.database import Database
from tests.support.factories import a_job, settle_job
from tests.support.golden import Golden
from tests.support.http import a_jpeg, claimed

WHY: Final = ("--reason", "why")
EIGHT_FILES: Final = Path(__file__).with_name("eight_files.toml")
ROOMY: Final = BatchLimits(paths=3000, wildcards=15)
ID: Final = re.compile(r"[0-9a-f-]{36}")
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")

Typed: TypeAlias = Callable[..., Awaitable[Any]]
Shape: TypeAlias = Any  # a word, or a dictionary or list of shapes


def shape_of(value: object) -> Shape:
    """A word for a value, the same of each of its fields, and what the items of a list are."""
    match value:
        case dict():
            return {ID.sub("an id", name): shape_of(inner) for name, inner in value.items()}
        case list():
            return [reduce(both, map(shape_of, value))] if value else []
        case str() if time := TIME.fullmatch(value):
            return "time " + time[2]
        case None:
            return "nothing"
        case _:
            return type(value).__name__


def both(one: Shape, other: Shape) -> Shape:
    """What holds for the one and for the other; a field that only one has is followed by `?`."""
    match one, other:
        case (dict(), dict()):
            ours = {name.rstrip("?"): inner for name, inner in one.items()}
            theirs = {name.rstrip("?"): inner for name, inner in other.items()}
            always = {name for name in one if name in other and not name.endswith("?")}
            return {
                name if name in always else name + "?": both(
                    ours.get(name, theirs.get(name)), theirs.get(name, ours.get(name))
                )
                for name in ours | theirs
            }
        case ([*ours], [*theirs]):
            items = [*ours, *theirs]
            return [reduce(both, items)] if items else []
        case (str(), str()):
            return " or ".join(sorted({*one.split(" or "), *other.split(" or ")}))
        case _:
            return one if one == other else sorted([one, other], key=str)


async def test_every_verb_answers_scripts_as_before(
    golden: Golden,
    cli: Cli,
    running: Running,
    database: Database,
    worker: Connection,
    maintenance: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("DATABASE_URL", database.url("owner"))
    answers: dict[str, object] = {}

    def under(key: str) -> Typed:
        async def typed(*words: str, name: str = "") -> Any:  # noqa: ANN401 - JSON
            monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets[key])
            ended = await cli(*words, "--json")
            assert ended.code in {ExitCode.DONE, ExitCode.FAILED}, ended.err
            answer = [json.loads(line) for line in ended.out.splitlines()] if name else ended.json()
            verb = name or told(words)
            answers[verb] = both(answers.get(verb, shape_of(answer)), shape_of(answer))
            return answer

        return typed

    photo = tmp_path / "photo.jpg"
    photo.write_bytes(a_jpeg())
    await of_images(under("acme"), worker, superuser, str(photo))
    await of_the_edge(under("operator"), maintenance, superuser)
    await of_jobs(under("acme"), under("operator"), worker, superuser)
    await of_the_fleet(under("operator"), maintenance)
    for words in (
        ("keys", "list"),
        ("migrate", "status"),
        ("migrate", "--check"),
        ("migrate", "--plan"),
    ):
        await under("operator")(*words)
    for told_by in (["list"], ["show", "default"], ["diff", str(EIGHT_FILES)]):
        await under("operator")("recipes", *told_by)
    await under("operator")("capacity", "--images-per-day", "1000000")
    new_key = ("keys", "create", "--tenant", "acme", "--name", "new")
    await under("operator")(*new_key)

    golden.holds(
        "answers.json", orjson.dumps(answers, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    )


def told(words: tuple[str, ...]) -> str:
    """The verb and its switches, without what differs from run to run."""
    kept = [word for word in words if "/" not in word and not ID.search(word)]
    return " ".join(kept)


async def of_images(acme: Typed, worker: Connection, superuser: Connection, photo: str) -> None:
    (accepted,) = await acme("submit", photo)
    image = accepted["imageId"]
    await acme("images", "show", image)
    await published(worker, accepted)
    await acme("images", "show", image)
    await acme("images", "original", image)
    await acme("images", "list", "--limit", "1")
    await acme("images", "focal", image, "0", "1")
    await acme("images", "reprocess", image)
    await acme("images", "reprocess", "--all")
    await acme("jobs", "show", accepted["jobId"])
    await acme("jobs", "watch", accepted["jobId"], name="jobs watch")
    await acme("images", "replace", image, photo)
    (deleted,) = await acme("images", "delete", "--yes", image)
    receipt = Emptied(
        image_id=UUID(image), tenant_id=ACME, deleted=5, not_there=0, errors=0, keys=("a", "b")
    )
    job = await claimed(worker, JobId(UUID(deleted["jobId"])))
    await settle_job(worker, job, Completed(emptied=receipt))
    await superuser.execute("UPDATE image_tombstones SET dark_at = now(), emptied_again_at = now()")
    await acme("images", "delete", "--yes", "--wait", image)


async def of_jobs(acme: Typed, operator: Typed, worker: Connection, superuser: Connection) -> None:
    submitted = await acme("jobs", "submit", "noop", "--payload", '{"note": "x"}')
    later = ("--run-at", "2090-01-01T00:00", "--dedup-key", "nightly")
    await acme("jobs", "submit", "noop", *later, "--parent", submitted["jobId"])
    await acme("jobs", "types", "noop")
    held = await a_job(worker, superuser, state=JobState.PROCESSING)
    failed = await a_job(worker, superuser, state=JobState.FAILED)
    await acme("jobs", "show", str(failed.job_id))
    await acme("jobs", "show", str(held.job_id))
    await acme("jobs", "list", "--limit", "1", "--type", "noop")
    await operator("jobs", "list", "--tenant", "acme", "--type", "noop", "--limit", "2")
    for job in (JobId(UUID(submitted["jobId"])), held.job_id, failed.job_id):
        state = str(await superuser.fetchval("SELECT state FROM jobs WHERE id = $1", job))
        for verb in (("explain",), ("show", "--full")):
            shown = await operator("jobs", *verb, str(job))
            assert state == shown["status"]
    await operator("jobs", "attempts", str(failed.job_id))
    await operator("jobs", "cancel", *WHY, submitted["jobId"])
    await operator("jobs", "fail", *WHY, str(held.job_id))
    await operator("jobs", "retry-now", *WHY, str(failed.job_id))
    (drained,) = (await operator("workers", "list"))["workers"][:1]
    await operator("workers", "drain", *WHY, drained["workerId"])
    await operator("queue", "stats")
    await rolled_up(superuser)
    await operator("queue", "rates")
    await operator("queue", "costs")
    (letter,) = (await operator("dlq", "list"))["letters"]
    await operator("dlq", "groups")
    await operator("dlq", "show", letter["id"])
    await operator("dlq", "replay", *WHY, "--all", "--dry-run")
    await operator("dlq", "replay", *WHY, "--within", "0.1", letter["id"])
    await operator("dlq", "ack", "--note", "known", "--all", "--yes")
    await operator("dlq", "list", "--history")


async def of_the_edge(operator: Typed, maintenance: Connection, superuser: Connection) -> None:
    image = str(await superuser.fetchval("SELECT id FROM images"))
    await operator("edge", "invalidate", *WHY, image)
    debts = [owed.debt for owed in await look_at_owed(maintenance, limit=10)]
    batch = await commit_batch(maintenance, debts, lambda tag: f"#img-{tag}", within=ROOMY)
    assert batch is not None
    await accept_batch(maintenance, batch.id, "I1")
    await complete_batch(maintenance, Accepted(batch.id, "I1"))
    await superuser.execute(
        "INSERT INTO elections (name, holder, term, until)"
        " VALUES ('flusher', gen_random_uuid(), 1, now() + interval '1 hour')"
    )
    await operator("edge", "status")


async def of_the_fleet(operator: Typed, maintenance: Connection) -> None:
    paused = ("--type", "noop", *WHY)
    await operator("queue", "pause", *paused)
    await operator("queue", "pauses")
    await operator("queue", "resume", *paused)
    await operator("tenants", "pause", "acme", *WHY)
    await operator("tenants", "list")
    await operator("tenants", "limit", "acme", "--set", "uploads=2", *WHY)
    await operator("tenants", "show", "acme")
    await operator("tenants", "resume", "acme", *WHY)
    await operator("tenants", "cancel", "acme", "--dry-run", *WHY)
    await operator("tenants", "cancel", "acme", "--yes", *WHY)
    await operator("tenants", "cancel", "--every-tenant", "--yes", *WHY)
    await operator("breaker", "open", "s3", *WHY)
    await operator("breaker", "list")
    await operator("breaker", "reset", "s3", *WHY)
    await operator("settings", "live", "set", "retry.*.max_attempts", "8", *WHY)
    await operator("settings", "live", "list", "--turned")
    await operator("settings", "live", "reset", "retry.*.max_attempts", *WHY)
    await operator("settings", "live", "list")
    missing = MissingView(
        bucket="outputs",
        key="i/key",
        tenant_id="acme",
        image_id=uuid4(),
        found_at=datetime(2026, 1, 2, tzinfo=UTC),
        reprocess=True,
    )
    walk = await begin_period(maintenance, WALK, timedelta(hours=6), uuid4())
    assert walk is not None
    await save_walk(maintenance, walk, SweepProgress(listed=7, missing=(missing,)), is_through=True)
    swept = await begin_period(maintenance, "sweep", timedelta(minutes=1), uuid4())
    assert swept is not None
    await finish_period(maintenance, "sweep", swept, {"did": True, "objects": 4321})
    pruned = await begin_period(maintenance, "prune", timedelta(minutes=1), uuid4())
    assert pruned is not None
    await finish_period(maintenance, "prune", pruned, {"jobs": 12})
    await operator("sweep")
    await operator("prune")
    await operator("ledger")
    await operator("audit", "--limit", "100")
