"""SQS's batch calls: ten entries at most, each with an answer of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from imagefleet.errors import FleetError, Unavailable

if TYPE_CHECKING:
    from types_aiobotocore_sqs.type_defs import BatchResultErrorEntryTypeDef

MOST_ENTRIES: Final = 10
MOST_BYTES: Final = 256 * 1024  # what every SQS has taken since 2013; newer ones take 1 MiB
TRIES_ALONE: Final = 2  # after the one in the batch
PAUSE: Final = 0.1  # seconds before a try alone, doubled each time

BatchCall: TypeAlias = Callable[
    [Sequence[int]], Awaitable[Sequence["BatchResultErrorEntryTypeDef"]]
]
"""Sends the entries of these indices, each with its index as id, and gives back `Failed`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one entry was not taken, or is not known to have been."""

    code: str
    detail: str
    final: bool
    """The same entry would be refused again."""


Failures: TypeAlias = tuple[Failure | None, ...]
"""One answer an entry, in the order of the entries; None is success."""


async def in_batches(sizes: Sequence[int], call: BatchCall) -> Failures:
    """Send entries of these sizes, and those that failed once more, one by one.

    When SQS cannot be reached at all, what was not sent yet is not tried either.
    """
    failures: list[Failure | None] = [None] * len(sizes)
    unreached: Failure | None = None
    for batch in _batches(sizes):
        if unreached is None:
            failed, unreached = await _send(batch, call)
            for index, failure in failed.items():
                failures[index] = failure
                if unreached is None and not failure.final:
                    failures[index], unreached = await _send_alone(index, failure, call)
        else:
            for index in batch:
                failures[index] = unreached
    return tuple(failures)


async def _send(batch: Sequence[int], call: BatchCall) -> tuple[dict[int, Failure], Failure | None]:
    """The entries that failed; the second is set when SQS was not reached."""
    try:
        answers = await call(batch)
    except Unavailable as error:
        unreached = Failure(error.code, str(error), final=False)
        return dict.fromkeys(batch, unreached), unreached
    except FleetError as error:
        # The request as a whole was refused: one entry may have spoiled it for the others.
        refused = Failure(error.code, str(error), final=len(batch) == 1)
        return dict.fromkeys(batch, refused), None
    failed = {
        int(answer["Id"]): Failure(answer["Code"], answer.get("Message", ""), answer["SenderFault"])
        for answer in answers
    }
    return failed, None


async def _send_alone(
    index: int, failure: Failure, call: BatchCall
) -> tuple[Failure | None, Failure | None]:
    """What became of the entry; the second is set when SQS was not reached."""
    for attempt in range(TRIES_ALONE):
        await asyncio.sleep(PAUSE * 2**attempt)
        failed, unreached = await _send([index], call)
        if index not in failed:
            return None, None
        failure = failed[index]
        if failure.final or unreached is not None:
            return failure, unreached
    return failure, None


def _batches(sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    batch: list[int] = []
    filled_bytes = 0
    for index, size in enumerate(sizes):
        if len(batch) == MOST_ENTRIES or (batch and filled_bytes + size > MOST_BYTES):
            yield batch
            batch, filled_bytes = [], 0
        batch.append(index)
        filled_bytes += size
    if batch:
        yield batch
