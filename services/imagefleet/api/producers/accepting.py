"""The way through the store: jobs of many requests, written together.

Requests that come while a write is on its way share the next one: one commit for all, and each has
an answer of its own. They share nothing else: what the database refuses takes no other with it. And
what may have to wait for somebody else's transaction is written by itself, so that nobody waits for
that who has nothing to do with it: for a target, for the job that bears a dedup key, or for a
request under the same key.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar

from imagefleet.api.http.limiting import Limiting
from imagefleet.api.http.requests import Tools
from imagefleet.api.producers.submitting import Admission, Admitted
from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, Submission, Submitted
from imagefleet.runtime import Batcher
from imagefleet.store.database import CONNECT_WITHIN, Connection, unavailable
from imagefleet.store.fleet.keys import ApiKey
from imagefleet.store.jobs.submissions import (
    find_standing_jobs,
    submit_jobs,
    submit_together,
)

MOST_TOGETHER: Final = 100  # jobs, as many as a batch has: a few milliseconds of one connection
CLOSE_WITHIN: Final = 5.0  # seconds

Wanted: TypeAlias = tuple[ApiKey, Submission]
Waiting: TypeAlias = tuple[ApiKey, Submission, asyncio.Timeout]
Taken: TypeAlias = Submitted | Exception
Answer = TypeVar("Answer")
Taking: TypeAlias = Callable[[Connection, Sequence[Submission]], Awaitable[Sequence[Answer]]]


class Accepting:
    """Takes jobs in."""

    def __init__(self, tools: Tools, admission: Admission, limiting: Limiting) -> None:
        self._tools = tools
        self._limiting = limiting
        self._admission = admission
        self._together: Batcher[Waiting, Submitted | None] = Batcher(
            self._take_together, name="accepting", linger=0, most=MOST_TOGETHER
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Accepting"]:
        """Take jobs until the end of the context; those that came before it, too."""
        async with self._together.open(close_within=CLOSE_WITHIN):
            yield self

    async def take(self, key: ApiKey, job: Submission) -> Submitted:
        """Accept one job, or find the one that stands for it; else raise why not."""
        if job.target is None and job.dedup_key is None:
            async with self._limiting.counting(key, 1) as is_wanted:  # by nobody beside it
                if is_wanted:
                    async with self._tools.pool.use("admit", "jobs") as connection:
                        await self._limiting.count(connection, key)
            try:
                async with asyncio.timeout(CONNECT_WITHIN) as patience:  # as for a connection
                    answer = await self._together.put((key, job, patience))
            except TimeoutError as error:
                raise unavailable("database_timeout") from error
            if answer is not None:
                return answer
        [alone] = await self._take([(key, job)], submit_jobs, "submit_job")
        if isinstance(alone, Submitted):
            return alone
        raise alone

    async def take_batch(self, key: ApiKey, jobs: Sequence[Submission]) -> Sequence[Taken]:
        """The same of many, in one transaction; one answer for each, in order."""
        return await self._take([(key, job) for job in jobs], submit_jobs, "submit_jobs")

    async def _take_together(
        self, waiting: Sequence[Waiting]
    ) -> Sequence[Submitted | Exception | None]:
        for _, _, patience in waiting:
            patience.reschedule(None)  # nobody is told "no" while it is being written
        wanted = [(key, job) for key, job, _ in waiting]
        return await self._take(wanted, submit_together, "submit_job")

    async def _take(
        self, wanted: Sequence[Wanted], submitting: Taking[Answer], operation: str
    ) -> list[Answer | Taken]:
        answers: dict[JobId, Answer | Taken] = {}
        admitted: dict[Admitted, list[Submission]] = {way: [] for way in Admitted}
        async with self._tools.pool.use(operation, "jobs") as connection:
            # What waits together was counted before: none of them is to wait for another's count.
            is_one = submitting is submit_jobs
            verdicts = await self._admission.admit_batch(connection, wanted, counts=is_one)
            for (_, job), verdict in zip(wanted, verdicts, strict=True):
                if isinstance(verdict, Admitted):
                    admitted[verdict].append(job)
                else:
                    answers[job.job_id] = verdict
            if standing := admitted[Admitted.STANDS]:
                told = await find_standing_jobs(connection, standing)
                for answer in told if is_one else ():
                    if isinstance(answer, Unavailable):  # of the request, of which nothing is kept
                        raise answer
                answers |= zip((job.job_id for job in standing), told, strict=True)
            if new := admitted[Admitted.NEW]:
                given = await submitting(connection, new)
                answers |= zip((job.job_id for job in new), given, strict=True)
        self._tools.ring((job, answers[job.job_id]) for _, job in wanted)
        return [answers[job.job_id] for _, job in wanted]
