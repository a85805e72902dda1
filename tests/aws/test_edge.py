"""CloudFront as the flusher uses it: asked of the emulators, and of the one that tests play.

What only the played one can show, its limits and faults, is in test_edge_limits.py.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from imagefleet.aws.edge import Edge
from imagefleet.aws.session import open_session
from imagefleet.embedded.bootstrap import InPlace
from imagefleet.errors import FleetError, NotFound, Unavailable
from tests.aws.conftest import sdk
from tests.support.aws import Server, a_name, serving, settings_for, xml_error
from tests.support.cloudfront import DISTRIBUTION, FILES, STATUSES, WILDCARDS, a_cloudfront
from tests.support.emulators import CREDENTIALS, KINDS, Emulator, shared, shared_folder
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from types_aiobotocore_cloudfront.client import CloudFrontClient

# LocalStack has no CloudFront; moto stands in for it.
PLACES = (*(kind for kind in KINDS if kind != "localstack"), "fake")


@pytest.fixture(scope="session", params=PLACES)
def emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Iterator[Emulator]:
    """The played one lives in the loop of its test, so it has no address yet."""
    if request.param == "fake":
        yield Emulator("fake", "")
        return
    with shared(request.param, shared_folder(tmp_path_factory, worker_id)) as emulator:
        yield emulator


@pytest.fixture(scope="session")
def distribution_id(emulator: Emulator, request: pytest.FixtureRequest) -> str:
    if emulator.kind == "fake":
        return DISTRIBUTION
    applied: InPlace = request.getfixturevalue("applied")
    assert applied.distribution_id is not None
    return applied.distribution_id


@pytest.fixture
async def place(emulator: Emulator, distribution_id: str) -> AsyncIterator[tuple[str, str]]:
    """Where CloudFront is, and a distribution there."""
    if emulator.kind != "fake":
        yield emulator.url, distribution_id
        return
    async with a_cloudfront() as played:
        yield played.url, distribution_id


@pytest.fixture
async def edge(place: tuple[str, str]) -> AsyncIterator[Edge]:
    url, distribution_id = place
    async with open_session(settings_for(url), credentials=CREDENTIALS) as session:
        yield await session.edge(distribution_id)


@pytest.fixture
async def cloudfront(place: tuple[str, str]) -> AsyncIterator["CloudFrontClient"]:
    """For what the flusher never asks."""
    async with sdk().client("cloudfront", endpoint_url=place[0]) as client:
        yield client


async def refusal_of(
    client: "CloudFrontClient",
    distribution_id: str,
    items: Sequence[str],
    *,
    reference: str | None = None,
    quantity: int | None = None,
) -> tuple[str, int] | None:
    """Code and status of the answer to a request for these items; None when it is taken."""
    paths = {"Quantity": len(items) if quantity is None else quantity, "Items": list(items)}
    batch = {"Paths": paths, "CallerReference": reference or a_name("batch")}
    try:
        await client.create_invalidation(
            DistributionId=distribution_id,
            InvalidationBatch=batch,  # type: ignore[arg-type]
        )
    except ClientError as error:
        return told(error)
    return None


def told(error: ClientError) -> tuple[str, int]:
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return error.response["Error"]["Code"], status


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


async def test_an_unknown_distribution_is_not_found(
    place: tuple[str, str], cloudfront: "CloudFrontClient"
) -> None:
    assert ("NoSuchDistribution", 404) == await refusal_of(cloudfront, "ENOTHERE", ["/i/1/*"])
    with pytest.raises(ClientError) as refused:
        await cloudfront.get_invalidation(DistributionId=place[1], Id="INOTHERE")
    assert ("NoSuchInvalidation", 404) == told(refused.value)


async def test_a_reference_with_other_paths_has_a_code_of_its_own(
    place: tuple[str, str], cloudfront: "CloudFrontClient", differs: Callable[[str], bool]
) -> None:
    """The code is AWS's (API reference, InvalidationBatch); it tells no status: a sender's."""
    reference = a_name("batch")
    assert await refusal_of(cloudfront, place[1], ["/i/1/*"], reference=reference) is None

    refused = await refusal_of(cloudfront, place[1], ["/i/2/*"], reference=reference)

    if differs("caller-reference-is-ignored"):
        assert refused is None
    else:
        assert ("InvalidationBatchAlreadyExists", 400) == refused


async def test_invalidations_are_listed_newest_first_and_page_by_page(
    place: tuple[str, str],
    edge: Edge,
    cloudfront: "CloudFrontClient",
    differs: Callable[[str], bool],
) -> None:
    made = [
        (await edge.create_invalidation([f"/i/{n}/*"], caller_reference=a_name("batch"))).id
        for n in range(3)
    ]

    first = (await cloudfront.list_invalidations(DistributionId=place[1], MaxItems="2"))[
        "InvalidationList"
    ]

    listed = [item["Id"] for item in first["Items"]]
    if differs("list-is-oldest-first"):
        assert listed != made[:0:-1]
        return
    assert (made[:0:-1], True) == (listed, first["IsTruncated"])
    rest = (
        await cloudfront.list_invalidations(
            DistributionId=place[1], MaxItems="2", Marker=first["NextMarker"]
        )
    )["InvalidationList"]
    assert made[0] == rest["Items"][0]["Id"]


@pytest.mark.parametrize(
    ("items", "quantity", "code"),
    [
        (["/i/1/*"], 2, "InconsistentQuantities"),
        (["i/1/*"], None, "InvalidArgument"),
        (["/i/*/1"], None, "InvalidArgument"),
        (["#" + "x" * 257], None, "InvalidArgument"),
    ],
    ids=["quantity", "no-slash", "wildcard-in-the-middle", "long-tag"],
)
async def test_what_is_malformed_is_refused(
    place: tuple[str, str],
    cloudfront: "CloudFrontClient",
    differs: Callable[[str], bool],
    items: list[str],
    quantity: int | None,
    code: str,
) -> None:
    """AWS: «the * wildcard must be the last character»; a tag has at most 256 characters."""
    refused = await refusal_of(cloudfront, place[1], items, quantity=quantity)

    if differs("batches-are-not-checked"):
        assert refused is None
    else:
        assert (code, STATUSES[code]) == refused


@pytest.mark.parametrize("item", ["/i/{}/*", "/i/{}", "#img-{}"])
async def test_too_much_in_one_request_is_refused(
    place: tuple[str, str],
    cloudfront: "CloudFrontClient",
    differs: Callable[[str], bool],
    item: str,
) -> None:
    most = WILDCARDS if item.endswith("*") else FILES

    refused = await refusal_of(cloudfront, place[1], [item.format(n) for n in range(most + 1)])

    if differs("nothing-is-too-much"):
        assert refused is None
    else:
        assert refused is not None


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
