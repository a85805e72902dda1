"""CloudFront as the flusher uses it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from imagefleet.aws.edge import Edge
from imagefleet.aws.session import open_session
from imagefleet.errors import FleetError, NotFound, Unavailable
from tests.support.aws import Server, a_name, serving, settings_for, xml_error
from tests.support.emulators import CREDENTIALS
from tests.support.eventually import eventually


@asynccontextmanager
async def edge_at(server: Server) -> AsyncIterator[Edge]:
    settings = settings_for(server.url)
    async with open_session(settings, credentials=CREDENTIALS) as session:
        yield await session.edge("E1")


async def test_an_invalidation_is_followed_to_its_completion(edge: Edge) -> None:
    created = await edge.create_invalidation(["/i/1/*"], caller_reference=a_name("batch"))

    async def is_completed() -> bool:
        return (await edge.get_invalidation(created.id)).completed

    await eventually(is_completed, within=5)


async def test_paths_wildcards_and_tags_share_a_batch(edge: Edge) -> None:
    created = await edge.create_invalidation(
        ["/i/1/current/thumb.webp", "/i/2/*", "#image-3"], caller_reference=a_name("batch")
    )

    assert created.id


async def test_the_same_batch_sent_twice_is_one_invalidation(
    edge: Edge, differs: Callable[[str], bool]
) -> None:
    """Resending on doubt must cost nothing and count once."""
    reference = a_name("batch")

    first = await edge.create_invalidation(["/i/1/*"], caller_reference=reference)
    second = await edge.create_invalidation(["/i/1/*"], caller_reference=reference)

    if differs("caller-reference-is-ignored"):
        assert first.id != second.id
    else:
        assert first.id == second.id


async def test_a_reference_is_not_taken_for_another_batch(
    edge: Edge, differs: Callable[[str], bool]
) -> None:
    reference = a_name("batch")
    await edge.create_invalidation(["/i/1/*"], caller_reference=reference)

    if differs("caller-reference-is-ignored"):
        await edge.create_invalidation(["/i/2/*"], caller_reference=reference)
        return
    with pytest.raises(FleetError) as refused:
        await edge.create_invalidation(["/i/2/*"], caller_reference=reference)
    assert refused.value.code == "cloudfront_rejected"


async def test_an_unknown_invalidation_is_not_found(edge: Edge) -> None:
    with pytest.raises(NotFound):
        await edge.get_invalidation("INOTHERE")


@pytest.mark.parametrize(
    ("status", "code", "ours", "tries"),
    [
        (400, "TooManyInvalidationsInProgress", "cloudfront_too_many", 1),
        (400, "Throttling", "cloudfront_throttled", 3),
        (503, "ServiceUnavailable", "cloudfront_unavailable", 3),
        (500, "InternalError", "cloudfront_unavailable", 3),
        (404, "NoSuchDistribution", "cloudfront_missing", 1),
        (403, "AccessDenied", "cloudfront_denied", 1),
    ],
)
async def test_what_to_repeat_later_is_told_apart(
    status: int, code: str, ours: str, tries: int
) -> None:
    async with serving(xml_error(code, status)) as server, edge_at(server) as edge:
        with pytest.raises(Unavailable) as error:
            await edge.create_invalidation(["/i/1/*"], caller_reference="1")

    assert error.value.code == ours
    assert server.requests["POST"] == tries
