"""Everything that can go wrong with an attempt, and what it comes to: one row each.

The rows are those of docs/failures.md. Each has a way to make it happen through the production
code: a handler that raises what the world raises, a real child that dies, a claim, a rescue.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeAlias

from imagefleet.aws.objects import Headers, Objects
from imagefleet.errors import ClaimLost, FleetError, InputRejected, Unavailable
from imagefleet.imaging.headers.facts import HeaderFacts, corrupt, unsupported
from imagefleet.imaging.limits import Limits, judge_bytes, judge_header, judge_scans, judge_size
from imagefleet.imaging.sniff import sniff
from imagefleet.jobs.images import ImageFormat
from imagefleet.jobs.kinds import JobKind
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import CancelCode, Claim, JobId, Lane, Submission
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.worker.attempt import Stop
from imagefleet.worker.handling import JobContext
from tests.support import children
from tests.support.bench import NOOP, Bench, Run, done, needing, never, raising
from tests.support.children import task
from tests.support.factories import a_submission, a_worker, claim_job, expire_lock, make_due

SECRET = "postgres://admin:hunter2@10.0.0.7 /etc/shadow"
LIMITS = Limits()
SHORT = replace(NOOP, timeout=timedelta(milliseconds=300))

Again: TypeAlias = Literal[
    "never", "after its backoff", "at once", "within seconds", "with the breaker", "it runs"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where it happens."""

    bench: Bench
    superuser: Connection
    maintenance: Connection
    operator: Connection
    originals: Objects
    folder: Path

    async def run(
        self, run: Run, submission: Submission | None = None, kind: JobKind = NOOP
    ) -> JobId:
        """A new job's one attempt, from claim to settlement."""
        claim = await self.bench.claim(submission)
        await self.bench.attempt(claim, run, kind).run()
        return claim.job_id

    async def run_again(self, job_id: JobId, run: Run) -> None:
        """The next attempt of a job that waits for it."""
        await make_due(self.superuser, job_id)
        await self.bench.attempt(await self.claim(job_id), run).run()

    async def claim(self, job_id: JobId) -> Claim:
        answer = await claim_job(self.bench.worker, job_id, self.bench.worker_id)
        assert answer.claim is not None, answer
        return answer.claim

    async def run_until_stopped(self, why: Stop, flag: CancelCode | None = None) -> JobId:
        """A job that would run for ever, were it not stopped."""
        claim, at_work = await self.bench.claim(), asyncio.Event()

        async def work(job: JobContext) -> Completed:
            at_work.set()
            return await never(job)

        attempt = self.bench.attempt(claim, work)
        async with asyncio.TaskGroup() as group:
            group.create_task(attempt.run())
            await at_work.wait()
            if flag is not None:
                await cancel_job(self.bench.worker, claim.job_id, code=flag, detail=SECRET)
            attempt.stop(why)
        return claim.job_id

    async def rescue(self) -> None:
        """Declare the bench's worker dead; another one lives on."""
        (seen,) = await look_at_workers(self.maintenance)
        await a_worker(self.bench.worker)
        assert await rescue_worker(self.maintenance, seen) is not None


How: TypeAlias = Callable[[Scene], Awaitable[JobId]]


def attempting(run: Run, submission: Submission | None = None, kind: JobKind = NOOP) -> How:
    return lambda scene: scene.run(run, submission and fresh(submission), kind)


def fresh(submission: Submission) -> Submission:
    return replace(submission, job_id=a_submission().job_id)


def refused(judge: Callable[[], object]) -> How:
    """What the product's own judgement of the input raises."""

    async def run(job: JobContext) -> Completed:
        judge()
        return Completed()

    return attempting(run)


def failing(error: BaseException, kind: JobKind = NOOP) -> How:
    return attempting(raising(error), kind=kind)


def away(code: str) -> Unavailable:
    return Unavailable(code, "A service we depend on is not available right now.", SECRET)


def in_a_child(function: Callable[..., object]) -> Run:
    async def run(job: JobContext) -> Completed:
        return Completed(result=await job.run_isolated(task(function), {}))  # type: ignore[arg-type]

    return run


async def too_much_output(scene: Scene) -> JobId:
    async def run(job: JobContext) -> Completed:
        out = os.open(scene.folder / "out", os.O_WRONLY | os.O_CREAT)
        try:
            return Completed(result=await job.run_isolated(task(children.flood), {}, {"out": out}))
        finally:
            os.close(out)

    return await scene.run(run)


async def no_such_object(scene: Scene) -> JobId:
    async def run(job: JobContext) -> Completed:
        await scene.originals.head("nowhere")
        return Completed()

    return await scene.run(run)


async def another_object(scene: Scene) -> JobId:
    async def run(job: JobContext) -> Completed:
        key = f"originals/{job.job_id}"
        await scene.originals.put(key, b"not what was submitted", Headers(content_type="x/y"))
        await scene.originals.fetch_to_file(
            key, scene.folder / "source", max_bytes=100, expected_etag='"0"'
        )
        return Completed()

    return await scene.run(run)


async def second_crash(scene: Scene) -> JobId:
    crash = in_a_child(children.segfault)
    job_id = await scene.run(crash)
    await scene.run_again(job_id, crash)
    return job_id


async def crash_in_quarantine(scene: Scene) -> JobId:
    job_id = await second_crash(scene)
    await scene.run_again(job_id, in_a_child(children.segfault))
    return job_id


async def not_storable(scene: Scene) -> JobId:
    async def run(job: JobContext) -> Completed:
        return Completed(result={"text": "before\x00after"})

    return await scene.run(run)


def flagged(code: CancelCode) -> How:
    async def how(scene: Scene) -> JobId:
        submission = await scene.bench.submit()
        await cancel_job(scene.bench.worker, submission.job_id, code=code, detail=SECRET)
        claim = await scene.claim(submission.job_id)
        await scene.bench.attempt(claim, raising(AssertionError())).run()
        return submission.job_id

    return how


async def lost_with_its_worker(scene: Scene) -> JobId:
    claim = await scene.bench.claim()
    await scene.rescue()
    return claim.job_id


async def lost_in_quarantine(scene: Scene) -> JobId:
    claim = await scene.bench.claim(a_submission(lane=Lane.QUARANTINE))
    await scene.rescue()
    return claim.job_id


async def expired(scene: Scene) -> JobId:
    claim = await scene.bench.claim(a_submission(max_attempts=1))
    await expire_lock(scene.superuser, claim.job_id)
    await claim_job(scene.bench.worker, claim.job_id, await a_worker(scene.bench.worker))
    return claim.job_id


async def taken_over(scene: Scene) -> JobId:
    """The first owner wakes up and finds that it is none any more."""
    claim = await scene.bench.claim()
    await expire_lock(scene.superuser, claim.job_id)
    await claim_job(scene.bench.worker, claim.job_id, await a_worker(scene.bench.worker))
    lost = ClaimLost.of_job(claim.job_id, claim.claim_no)
    assert await scene.bench.attempt(claim, raising(lost)).run() is None
    return claim.job_id


async def held_by_a_breaker(scene: Scene) -> JobId:
    claim = await scene.bench.claim()
    await force_open(scene.operator, "s3", by="tests")
    await scene.bench.attempt(claim, raising(away("s3_unavailable")), needing("s3")).run()
    return claim.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """One row: what happens, what it comes to, who reads what of it."""

    what: str
    how: How
    ends: str
    """The outcome of the attempt, in its row."""
    code: str | None
    """What the producer reads, with its sentence; None: no failure is shown."""
    why: str
    """What operators read first."""
    detail: str | None = SECRET
    """Something that operators read, and nobody else."""
    again: Again = "never"
    charged: bool = True
    letter: bool = True
    says: str | None = None
    """The sentence, where it is not the code's own."""
    lane: Lane = Lane.FAST

    @property
    def status(self) -> str:
        if self.again == "it runs":
            return "processing"
        return "failed" if self.again == "never" else "failed_retryable"


def fails(what: str, code: str, how: How, detail: str | None = SECRET, **more: object) -> Mishap:
    """For good, at the first attempt."""
    row = Mishap(what=what, how=how, ends="failed", code=code, why=code, detail=detail)
    return replace(row, **more)  # type: ignore[arg-type]


def retries(what: str, code: str, how: How, detail: str | None = SECRET, **more: object) -> Mishap:
    row = Mishap(
        what=what, how=how, ends="retried", code=code, why=code, detail=detail,
        again="after its backoff", letter=False,
    )  # fmt: skip
    return replace(row, **more)  # type: ignore[arg-type]


def releases(what: str, why: str, how: How, again: Again = "at once") -> Mishap:
    return Mishap(
        what=what, how=how, ends="released", code=None, why=why, detail=None,
        again=again, charged=False, letter=False,
    )  # fmt: skip


_PNG = HeaderFacts(ImageFormat.PNG, width=10, height=10, metadata_bytes=2**30)


def _raise(error: Exception) -> None:
    raise error


MISHAPS: tuple[Mishap, ...] = (
    # The input can never work.
    fails(
        "the file is empty", "empty_file", refused(lambda: sniff(b"")), None,
        says="The file is empty.",
    ),
    fails(
        "the image is damaged", "corrupt",
        refused(lambda: _raise(corrupt(ImageFormat.JPEG, SECRET))),
        says="The image is damaged and cannot be read.",
    ),
    fails(
        "the file is no image we take", "unsupported",
        refused(lambda: _raise(unsupported("file", SECRET))),
        says="This is not an image we accept: JPEG, PNG, WebP, GIF or AVIF.",
    ),
    fails(
        "the file is too large", "too_large", refused(lambda: judge_bytes(2**40, LIMITS)),
        f"{2**40} bytes", says="The file is larger than 50 MiB.",
    ),
    fails(
        "the image has too many pixels", "too_many_pixels",
        refused(lambda: judge_size(10_000, 10_000, ImageFormat.PNG, LIMITS)), "10000x10000",
        says="The image has more than 67,108,864 pixels.",
    ),
    fails(
        "the image is made of too many pieces", "too_many_parts",
        refused(lambda: sniff(b"\xff\xd8" + b"\xff\xfe\x00\x02" * 1001)), "1000 segments",
        says="The image is made of more pieces than it may be.",
    ),
    fails(
        "the image is coded in too many passes", "too_many_scans",
        refused(lambda: judge_scans(101, LIMITS)), "101 scans",
        says="The image is coded in more than 100 passes.",
    ),
    fails(
        "the image carries too much metadata", "too_much_metadata",
        refused(lambda: judge_header(_PNG, LIMITS)), f"{2**30} bytes",
        says="The image carries more than 16 MiB of metadata.",
    ),
    fails(
        "what is made of it would be too large", "output_too_large", too_much_output, None,
    ),
    fails(
        "its child asks for too much memory", "memory",
        attempting(in_a_child(children.hog_memory)), None,
        says="The image needs more memory to process than it may have.",
    ),
    fails("its object is not there", "not_found", no_such_object, "No such object"),
    fails("its object is another one", "source_changed", another_object, "is not"),
    fails(
        "its payload does not fit its type", "invalid_payload",
        attempting(done, a_submission(payload={"milliseconds": -1})), None,
        says="The payload is not valid for noop: milliseconds must be at least 0.",
    ),
    fails(
        "a handler refuses it in words of its own", "upside_down",
        failing(InputRejected("upside_down", "Turn it round.", SECRET)), says="Turn it round.",
    ),
    # The job, or the child it runs in, breaks.
    retries(
        "it is refused with the code of a flag", "internal_error",
        failing(InputRejected("cancelled", "The job was cancelled.", SECRET)),
    ),
    retries(
        "its handler passes the deadline", "deadline", attempting(never, kind=SHORT), None,
    ),
    retries(
        "its child passes the deadline", "deadline",
        attempting(in_a_child(children.spin), kind=SHORT), None,
    ),
    retries(
        "its child crashes", "crashed", attempting(in_a_child(children.segfault)), "signal 11",
    ),
    retries(
        "its child crashes again", "crashed", second_crash, "signal 11", lane=Lane.QUARANTINE,
    ),
    fails(
        "its child crashes in quarantine", "poison", crash_in_quarantine, "signal 11",
        lane=Lane.QUARANTINE,
    ),
    retries("there is a bug in its handler", "internal_error", failing(ValueError(SECRET))),
    retries(
        "there is a bug in its child", "internal_error",
        attempting(in_a_child(children.break_down)), "a bug in a task",
    ),
    fails("its result cannot be recorded", "settle_rejected", not_storable, "store_rejected"),
    # The world is not as it should be.
    retries("S3 does not answer", "unavailable", failing(away("s3_unavailable"), needing("s3"))),
    retries("S3 denies access", "unavailable", failing(away("s3_denied"), needing("s3"))),
    retries("SQS does not answer a handler", "unavailable", failing(away("sqs_unavailable"))),
    retries(
        "AWS will never take the request", "internal_error",
        failing(FleetError("s3_rejected", "Something went wrong on our side.", SECRET)),
    ),
    retries("no child can be started", "unavailable", failing(away("no_child"))),
    retries("Postgres is slow", "unavailable", failing(away("database_timeout"))),
    releases("Postgres is away", "database", failing(away("database_unavailable"))),
    releases(
        "the breaker of its service is open", "breaker:s3", held_by_a_breaker, "with the breaker",
    ),
    fails(
        "the last attempt fails as well", "unavailable",
        attempting(raising(away("s3_unavailable")), a_submission(max_attempts=1)),
        "attempts exhausted (1 of 1)",
    ),
    # Its worker ends, or loses it.
    releases(
        "its worker drains", "drain", lambda scene: scene.run_until_stopped(Stop.DRAIN),
    ),
    releases(
        "its worker cannot beat", "beat_lost",
        lambda scene: scene.run_until_stopped(Stop.BEAT_LOST),
    ),
    retries(
        "its worker goes silent", "worker_lost", lost_with_its_worker, "went silent",
        ends="rescued", again="within seconds",
    ),
    fails(
        "its worker goes silent in quarantine", "poison", lost_in_quarantine, "went silent",
        ends="rescued", lane=Lane.QUARANTINE,
    ),
    fails(
        "its lock expires on the last attempt", "attempts_exhausted", expired, None,
        ends="exhausted", why="lock_expired",
    ),
    Mishap(
        what="its lock expires and another worker has it", how=taken_over, ends="taken_over",
        code=None, why="lock_expired", detail=None, again="it runs", letter=False,
    ),
    # Somebody wants it to end.
    fails(
        "it was cancelled before it ran", "cancelled", flagged(CancelCode.CANCELLED),
        "instead of: flagged", charged=False, letter=False,
    ),
    fails(
        "it is cancelled while it runs", "cancelled",
        lambda scene: scene.run_until_stopped(Stop.CANCELLED, CancelCode.CANCELLED),
        "instead of: cancelled", letter=False,
    ),
    fails(
        "its image was deleted", "image_deleted", flagged(CancelCode.IMAGE_DELETED),
        "instead of: flagged", charged=False, letter=False,
    ),
    fails(
        "an operator ended it", "failed_by_operator", flagged(CancelCode.FAILED_BY_OPERATOR),
        "instead of: flagged", charged=False,
    ),
)  # fmt: skip
