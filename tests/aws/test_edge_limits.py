"""The limits and faults of CloudFront that no emulator has, as the one that tests play has them.

Each quotes what AWS says, and each is red where the limit is switched off: a fake that has lost a
limit would let the flusher pass for nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, TypeAlias

import pytest

from imagefleet.aws.edge import Edge
from imagefleet.aws.session import open_session
from imagefleet.errors import FleetError
from tests.support.aws import Heard, a_name, settings_for
from tests.support.cloudfront import BURST, DISTRIBUTION, CloudFront, Limits, a_cloudfront
from tests.support.emulators import CREDENTIALS

HOUR: Final = 3600.0
Proof: TypeAlias = Callable[[CloudFront, Edge], Awaitable[None]]


@asynccontextmanager
async def edge_of(played: CloudFront, heard: Heard | None = None) -> AsyncIterator[Edge]:
    settings = settings_for(played.url)
    async with open_session(settings, calls=heard, credentials=CREDENTIALS) as session:
        yield await session.edge(DISTRIBUTION)


async def code_of(asking: Awaitable[object]) -> str | None:
    try:
        await asking
    except FleetError as error:
        return error.code
    return None


async def create(edge: Edge, *items: str) -> str | None:
    return await code_of(edge.create_invalidation(items, caller_reference=a_name("batch")))


async def files_in_progress(played: CloudFront, edge: Edge) -> None:
    """Files in progress.

    «up to 3,000 files per distribution in progress at one time. This can be one invalidation
    request for up to 3,000 files, up to 3,000 requests for one file each, or any other combination
    [...] If you exceed the maximum, CloudFront returns an error message»
    (Developer Guide, Concurrent invalidation request maximum; the code is that of the API reference
    and of the knowledge center: TooManyInvalidationsInProgress).
    """
    assert await create(edge, *(f"/i/{n}" for n in range(2900))) is None
    assert await create(edge, *(f"/i/{n}" for n in range(100))) is None
    assert "cloudfront_too_many" == await create(edge, "/i/1")


async def tags_in_progress(played: CloudFront, edge: Edge) -> None:
    """Tags are counted with the files.

    «Tag invalidation items count toward the same concurrent invalidation limits as path items.
    Each tag item counts as one invalidation path» (What you need to know when invalidating tags).
    """
    assert await create(edge, *(f"/i/{n}" for n in range(2000))) is None
    assert "cloudfront_too_many" == await create(edge, *(f"#img-{n}" for n in range(1001)))
    assert await create(edge, *(f"#img-{n}" for n in range(1000))) is None


async def batch_size(played: CloudFront, edge: Edge) -> None:
    """The size of one request.

    BatchTooLarge: «Invalidation batch specified is too large. HTTP Status Code: 413»
    (API reference, CreateInvalidation); that the size is 3,000 follows from the limit above.
    """
    assert "cloudfront_rejected" == await create(edge, *(f"/i/{n}" for n in range(3001)))


async def wildcards_in_progress(played: CloudFront, edge: Edge) -> None:
    """Wildcards in progress.

    «If you're using the * wildcard, you can have requests for up to 15 invalidation paths in
    progress at one time. You can also have [...] up to 3,000 individual files [...]; the maximum on
    wildcard invalidation requests allowed is independent of the maximum on invalidating files»
    (Concurrent invalidation request maximum).
    """
    assert await create(edge, *(f"/i/{n}" for n in range(3000))) is None
    assert await create(edge, *(f"/i/{n}/*" for n in range(15))) is None
    assert "cloudfront_too_many" == await create(edge, "/i/15/*")


async def quick_calls(played: CloudFront, edge: Edge) -> None:
    """Calls in quick succession.

    «Throttling: Rate exceeded [...] first 6-7 requests executed successfully» with status 400
    (aws/aws-sdk-js issue 3983; AWS documents the error, and no number).
    """
    for _ in range(BURST):
        assert await code_of(edge.get_invalidation("INOTHERE")) == "not_found"
    await create(edge, "/i/1")  # which the SDK repeats, until the second's call is there

    assert played.refusals["Throttling"] > 0


async def references(played: CloudFront, edge: Edge) -> None:
    """One invalidation a reference.

    «If you make a second invalidation request with the same value for CallerReference, and if
    the rest of the request is the same, CloudFront doesn't create a new invalidation request.
    Instead, CloudFront returns information about the invalidation request that you previously
    created with the same CallerReference»
    (API reference, InvalidationBatch).
    """
    for _ in range(2):
        await edge.create_invalidation(["/i/1/*"], caller_reference="the same")

    assert 1 == len(played.made)


PROOFS: Final = MappingProxyType(
    {
        "files": files_in_progress,
        "tags": tags_in_progress,
        "batch": batch_size,
        "wildcards": wildcards_in_progress,
        "burst": quick_calls,
        "references": references,
    }
)


def without(limit: str) -> CloudFront:
    """One that lacks this limit."""
    if limit == "references":
        return CloudFront(limits=Limits(burst=None), remembers_references=False)
    attribute = {"tags": "files", "batch": "files"}.get(limit, limit)
    limits = Limits(**{"burst": None, attribute: None})
    return CloudFront(limits=limits, completes_after=HOUR)


@pytest.mark.parametrize("limit", PROOFS)
async def test_it_has_the_limit(limit: str) -> None:
    burst = BURST if limit == "burst" else None
    played = CloudFront(limits=Limits(burst=burst), completes_after=HOUR)
    async with a_cloudfront(played), edge_of(played) as edge:
        await PROOFS[limit](played, edge)


@pytest.mark.parametrize("limit", PROOFS)
async def test_the_proof_of_a_limit_fails_where_that_is_switched_off(limit: str) -> None:
    played = without(limit)
    async with a_cloudfront(played), edge_of(played) as edge:
        with pytest.raises(AssertionError):
            await PROOFS[limit](played, edge)


async def test_what_is_complete_makes_room_again() -> None:
    """Room comes back with completion.

    «As long as all 30 invalidation requests are still in progress, you can't submit any more»
    (Concurrent invalidation request maximum); «end-to-end completion time [...] is under 25 seconds
    at P95» (What's New, April 2026).
    """
    played = CloudFront(completes_after=25)
    async with a_cloudfront(played), edge_of(played) as edge:
        items = [f"/i/{n}/*" for n in range(15)]
        made = await edge.create_invalidation(items, caller_reference="1")
        assert not (await edge.get_invalidation(made.id)).completed
        assert "cloudfront_too_many" == await create(edge, "/i/15/*")

        played.pass_time(25)

        assert (await edge.get_invalidation(made.id)).completed
        assert await create(edge, "/i/15/*") is None


async def test_throttled_calls_are_taken_again_after_a_while() -> None:
    played = CloudFront(refuses="Throttling")
    async with a_cloudfront(played), edge_of(played) as edge:
        assert "cloudfront_throttled" == await create(edge, "/i/1")
        assert 3 == played.refusals["Throttling"]

        played.refuses = None

        assert await create(edge, "/i/1") is None


async def test_a_lost_reply_is_a_request_that_was_carried_out() -> None:
    """The SDK repeats, and there is one invalidation.

    «CloudFront uses the value to prevent you from accidentally resubmitting an identical
    request» (API reference, InvalidationBatch, CallerReference).
    """
    played, heard = CloudFront(loses_replies=1), Heard()
    async with a_cloudfront(played), edge_of(played, heard) as edge:
        made = await edge.create_invalidation(["/i/1/*"], caller_reference="1")
        assert [made.id] == list(played.made)
        assert 2 == heard.sent_requests["cloudfront", "CreateInvalidation"]

        played.loses_replies = 3
        assert "cloudfront_unavailable" == await create(edge, "/i/2/*")
        assert [("/i/1/*",), ("/i/2/*",)] == played.accepted


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        ("ServiceUnavailable", "cloudfront_unavailable"),
        ("AccessDenied", "cloudfront_denied"),
        ("NoSuchDistribution", "cloudfront_missing"),
        ("InvalidArgument", "cloudfront_rejected"),
    ],
)
async def test_every_refusal_can_be_brought_about(code: str, ours: str) -> None:
    """Codes and status codes are those of the API reference's errors of CreateInvalidation."""
    played = CloudFront(refuses=code)
    async with a_cloudfront(played), edge_of(played) as edge:
        assert ours == await create(edge, "/i/1")

    assert {} == played.made
