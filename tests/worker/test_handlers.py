"""Which handlers a worker has, and what the built-in ones do."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import EntryPoint
from pathlib import Path
from uuid import uuid4

import pytest

from imagefleet.aws import transfers
from imagefleet.aws.objects import Headers, Objects
from imagefleet.errors import Misconfigured
from imagefleet.extensions import HANDLERS
from imagefleet.jobs.kinds import BUILT_IN, JobKind, Noop
from imagefleet.jobs.lifecycle import Completed, Released
from imagefleet.jobs.model import JobMessage, JobState, Lane, TenantId, encode_message
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from imagefleet.worker import handlers
from imagefleet.worker.handlers import load_handlers
from imagefleet.worker.handling import Handler, modules_of
from imagefleet.worker.isolation import report
from tests.support.bench import Bench, done
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission, a_worker
from tests.support.fleet import Place, an_image_submission, inside
from tests.support.images import quadrants, saved
from tests.support.recipes import RECIPES
from tests.support.rows import attempts_rows, job_row

STANDARD = RetryPolicy(base=timedelta(seconds=7), cap=timedelta(seconds=70))
OWN = RetryPolicy(base=timedelta(seconds=1), cap=timedelta(seconds=1), max_attempts=2)
NO_BACKOFF = {"BACKOFF_BASE_SECONDS": "0.01", "BACKOFF_CAP_SECONDS": "0.01"}
EXTRA = Handler(kind=JobKind(name="extra", payload=Noop, retry=OWN), run=done)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install entry points."""

    def install(**points: str) -> None:
        found = [
            EntryPoint(name, f"tests.worker.installed:{value}", HANDLERS)
            for name, value in points.items()
        ]
        monkeypatch.setattr(handlers, "entry_points", lambda *, group: found)

    return install


def test_every_built_in_kind_with_a_handler_is_there() -> None:
    loaded = load_handlers(standard_retry=STANDARD)

    assert {"process_image", "cancel_job", "noop"} <= set(loaded) <= set(BUILT_IN)
    assert all(name == handler.kind.name for name, handler in loaded.items())


def test_the_settings_replace_the_policy_of_those_that_name_none(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "BUILT_IN", (*handlers.BUILT_IN, EXTRA))

    loaded = load_handlers(standard_retry=STANDARD)

    assert STANDARD == loaded["noop"].kind.retry
    assert OWN == loaded["extra"].kind.retry


def test_a_worker_can_be_limited_to_types() -> None:
    assert ["noop"] == list(load_handlers(("noop",), standard_retry=STANDARD))


def test_a_type_that_nobody_knows_is_refused_with_those_that_are() -> None:
    with pytest.raises(Misconfigured, match=r"WORKER_JOB_TYPES names teleport; known are .*noop"):
        load_handlers(("noop", "teleport"), standard_retry=STANDARD)


def test_handlers_are_installed_by_entry_points(installed: Callable[..., None]) -> None:
    installed(mine="HANDLER")

    loaded = load_handlers(("extra",), standard_retry=STANDARD)

    assert "extra" == loaded["extra"].kind.name
    assert ("tests.support.children",) == modules_of(loaded)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("TAKEN", "noop is there already"),
        ("NO_HANDLER", "is a str, no Handler"),
        ("NOWHERE", "cannot be loaded"),
    ],
)
def test_an_entry_point_that_is_of_no_use_stops_the_start(
    installed: Callable[..., None], value: str, why: str
) -> None:
    installed(mine=value)

    with pytest.raises(Misconfigured, match=why):
        load_handlers(standard_retry=STANDARD)


async def test_cancel_job_flags_a_job_of_its_tenant_and_rings_it(
    bench: Bench, superuser: Connection
) -> None:
    victim = await bench.submit()
    finished = await a_job(bench.worker, superuser, state=JobState.COMPLETED)
    foreign = await bench.submit(a_submission(tenant_id=TenantId("others")))
    answers = [
        await cancelling(bench, job_id)
        for job_id in (victim.job_id, finished.job_id, uuid4(), foreign.job_id)
    ]

    assert ["requested", "already_finished", "nothing_left", "nothing_left"] == answers
    assert "cancelled" == (await job_row(superuser, victim.job_id))["cancel_code"]


async def cancelling(bench: Bench, job_id: object) -> str:
    run = load_handlers(standard_retry=STANDARD)["cancel_job"]
    submission = a_submission(type="cancel_job", payload={"job_id": str(job_id)})
    outcome = await bench.attempt(await bench.claim(submission), run.run, run.kind).work()
    assert isinstance(outcome, Completed)
    return outcome.reason.value


# process_image and children, in a whole worker.


async def test_an_image_that_is_not_there_or_not_the_one_submitted_fails_for_good(
    place: Place, api: Connection, superuser: Connection
) -> None:
    originals = await place.session.objects(place.settings.originals_bucket)
    stored = await place.store(originals, "o/k", saved(quadrants()))
    wanted = {
        "not_found": an_image_submission(uuid4(), source_key="o/nowhere", source_bytes=1),
        "source_changed": an_image_submission(
            uuid4(), source_key="o/k", source_bytes=stored.bytes, source_sha256="0" * 64
        ),
    }
    async with inside(place, "worker") as worker:
        for submission in wanted.values():
            await place.submit(api, submission)
        await worker.tells("job.failed", times=2)

    for code, submission in wanted.items():
        row = await job_row(superuser, submission.job_id)
        assert ("failed", code) == (row["state"], row["failure_code"])
    outputs = await place.session.objects(place.settings.outputs_bucket)
    assert () == (await outputs.page("i/")).objects


@pytest.mark.parametrize("payload", [{}, {"crops_only": True, "source_seq": 1}])
async def test_what_is_for_a_worker_with_more_memory_is_neither_fetched_nor_copied(
    bench: Bench, payload: dict[str, object]
) -> None:
    """Every few seconds it comes again: there are no buckets here, so a request would fail."""
    huge = {"content_type": "image/png", "source_width": 20_000, "source_height": 20_000}
    submission = an_image_submission(uuid4(), source_key="o/k", source_bytes=1, **huge, **payload)
    await a_worker(bench.worker, memory_bytes=2**33)
    run = load_handlers(standard_retry=STANDARD)["process_image"]

    outcome = await bench.attempt(await bench.claim(submission), run.run, run.kind).work()

    assert isinstance(outcome, Released)
    assert (outcome.why, outcome.after > timedelta()) == ("memory", True)


async def test_variants_are_hashed_by_their_check_alone_and_the_ledger_tells_what_made_them(
    place: Place, api: Connection, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[bytes] = []
    measured: list[int] = []
    measure = report._measured

    def measuring(file: int) -> tuple[int, str]:
        measured.append(file)
        return measure(file)

    await place.upload(api, uuid4(), saved(quadrants()))
    monkeypatch.setattr(transfers, "_sha256", again.append)
    monkeypatch.setattr(report, "_measured", measuring)

    async with inside(place, "worker") as worker:
        await worker.tells("job.completed")

    assert again == []
    files: int = await superuser.fetchval("SELECT count(DISTINCT key) FROM variants")
    assert len(measured) == files, "the source was when it was fetched"
    encoder: str = await superuser.fetchval("SELECT encoder FROM image_revisions")
    assert encoder.startswith(f"recipe/{RECIPES['default'].hash} ")


@pytest.mark.parametrize(
    ("size", "pictures"), [((150, 100), 2), ((500, 400), 3), ((500, 1000), 4), ((4000, 3000), 5)]
)
async def test_what_is_one_picture_is_stored_once_whatever_its_names(
    place: Place,
    api: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
    size: tuple[int, int],
    pictures: int,
) -> None:
    puts: list[str] = []
    put = Objects.put

    async def counting(self: Objects, key: str, body: Path, *rest: Headers, sha256: str) -> object:
        puts.append(key)
        return await put(self, key, body, *rest, sha256=sha256)

    image_id = uuid4()
    await place.upload(api, image_id, saved(quadrants(*size)))
    monkeypatch.setattr(Objects, "put", counting)
    async with inside(place, "worker") as worker:
        await worker.tells("job.completed")

    assert len(puts) == 2 * pictures, "WebP and JPEG"
    outputs = await place.session.objects(place.settings.outputs_bucket)
    assert sorted(puts) == sorted(entry.key for entry in (await outputs.page("i/")).objects)
    rows = await superuser.fetch("SELECT name, format, key, width, sha256 FROM variants")
    assert len(rows) == len(RECIPES["default"].variants)
    assert {row["key"] for row in rows} == set(puts)
    assert len({(row["key"], row["width"], row["sha256"], row["format"]) for row in rows}) == len(
        puts
    )
    widest = {row["key"] for row in rows if row["name"] == "large"}
    names = {2: "thumb", 3: "small", 4: "medium", 5: "large"}
    assert widest == {f"i/{image_id}/1.1/{names[pictures]}.{form}" for form in ("webp", "jpg")}


async def test_a_crashing_child_costs_its_own_job_a_retry_and_nobody_a_beat(
    place: Place, api: Connection, superuser: Connection, installed: Callable[..., None]
) -> None:
    installed(mine="CRASHING")
    crashing, steady = a_submission(type="extra"), a_submission(payload={"milliseconds": 1500})
    async with inside(place, "worker", environment=NO_BACKOFF) as worker:
        await place.submit(api, steady)
        await place.submit(api, crashing)
        await worker.tells("job.retried")
        assert await worker.counted("last_beat_age_seconds") < 3
        await place.ring(crashing)
        await worker.tells("job.completed", times=2)

    row = await job_row(superuser, crashing.job_id)
    assert ("completed", 1, {"hello": "child"}) == (row["state"], row["crashes"], row["result"])
    why = [attempt["why"] for attempt in await attempts_rows(superuser, crashing.job_id)]
    assert ["crashed", "done"] == why
    assert "completed" == (await job_row(superuser, steady.job_id))["state"]


async def test_the_second_crash_moves_a_job_to_quarantine_and_a_third_there_ends_it(
    place: Place, api: Connection, superuser: Connection, installed: Callable[..., None]
) -> None:
    installed(mine="FATAL")
    fatal = a_submission(type="extra")
    async with inside(place, "worker", environment=NO_BACKOFF) as worker:
        await place.submit(api, fatal)
        for times in (1, 2):
            await worker.tells("job.retried", times=times)
            await eventually(lambda: is_due(superuser))
            lane = Lane((await job_row(superuser, fatal.job_id))["lane"])
            await place.send(lane, encode_message(JobMessage(job_id=fatal.job_id)))
        line = await worker.tells("job.failed")

    assert "poison" == line["why"]
    row = await job_row(superuser, fatal.job_id)
    assert ("failed", "quarantine", 2) == (row["state"], row["lane"], row["crashes"])


async def is_due(connection: Connection) -> bool:
    return bool(await connection.fetchval("SELECT bool_and(run_at <= now()) FROM jobs"))


async def test_waiting_noops_do_not_wait_for_each_other(bench: Bench) -> None:
    run = load_handlers(standard_retry=STANDARD)["noop"].run
    claims = [await bench.claim(a_submission(payload={"milliseconds": 100})) for _ in range(20)]

    async with asyncio.timeout(2):
        outcomes = await asyncio.gather(*(bench.attempt(claim, run).work() for claim in claims))

    assert [Completed()] * 20 == outcomes
