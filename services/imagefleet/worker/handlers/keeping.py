"""Where the variants of a claim are stored, and what of a revision is taken over by the next.

Who moves a focal point changes what is cut and nothing else. So the job of that takes the rest over
from what is shown: S3 copies it to this claim's own keys, and the new revision lies under its own
prefix like any other. Whoever sweeps or deletes need not know. What is not there to be copied, or
was made in another way or of another original, is rendered.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, TypeVar

from imagefleet.aws.objects import Headers
from imagefleet.errors import NotFound
from imagefleet.imaging.recipes import Fit, Recipe, VariantSpec
from imagefleet.jobs.images import (
    IMMUTABLE,
    Made,
    PublishedVariant,
    VariantFacts,
    cache_tag,
    variant_key,
)
from imagefleet.jobs.kinds import ProcessImage
from imagefleet.store.images.focal import find_shown
from imagefleet.worker.handling import JobContext

AT_ONCE: Final = 4  # requests to S3, of one attempt

Item = TypeVar("Item")
Stored = TypeVar("Stored")


async def take_over(
    job: JobContext, payload: ProcessImage, recipe: Recipe, encoder: str
) -> Made | None:
    """What is shown and is not cut, under this claim's own keys; None where all is to be made."""
    if payload.crops_only is None or payload.source_seq is None:
        return None
    async with job.database("find_shown") as connection:
        shown = await find_shown(
            connection,
            payload.image_id,
            job.claim.tenant_id,
            source_seq=payload.source_seq,
            encoder=encoder,
        )
    if shown is None:
        return None
    whole = {
        (variant.name, each)
        for variant in recipe.variants
        if variant.fit is not Fit.COVER
        for each in variant.formats
    }
    by_key: defaultdict[str, list[PublishedVariant]] = defaultdict(list)
    for variant in shown.variants:  # several may be one object
        if (variant.facts.name, variant.facts.format) in whole:
            by_key[variant.key].append(variant)

    async def copy(same: Sequence[PublishedVariant]) -> list[PublishedVariant]:
        facts = same[0].facts
        key, headers = place_of(job, payload, facts)
        try:
            await job.outputs.copy(same[0].key, key, headers, sha256=facts.sha256)
        except NotFound:
            return []
        return [replace(variant, key=key) for variant in same]

    copied = await few_at_once(copy, by_key.values())
    return replace(shown, variants=tuple(chain.from_iterable(copied)))


def left_of(recipe: Recipe, kept: Made | None) -> tuple[VariantSpec, ...]:
    """The variants that are to be made yet."""
    there = () if kept is None else kept.variants
    names = {(variant.facts.name, variant.facts.format) for variant in there}
    return tuple(
        variant
        for variant in recipe.variants
        if names.isdisjoint((variant.name, each) for each in variant.formats)
    )


def place_of(job: JobContext, payload: ProcessImage, facts: VariantFacts) -> tuple[str, Headers]:
    """The key that this claim alone stores a variant under, and what is served with it."""
    revision, claim_no = job.claim.target_seq or 0, job.claim.claim_no
    key = variant_key(payload.image_id, revision, claim_no, facts.name, facts.format.extension)
    return key, Headers(
        content_type=facts.content_type,
        cache_control=IMMUTABLE,
        cache_tag=cache_tag(payload.image_id),
    )


async def few_at_once(
    store: Callable[[Item], Awaitable[Stored]], items: Iterable[Item]
) -> list[Stored]:
    """What came of each, in order; the first failure ends them all."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def store_one(item: Item) -> Stored:
        async with gate:
            return await store(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(store_one(item)) for item in items]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # one is enough to know what to do
    return [task.result() for task in tasks]
