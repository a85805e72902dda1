"""process_image: fetch the original, have it rendered in a child, save the variants, publish.

Nothing here is visible until the job completes: the variants lie under keys that only this claim
writes, and the pointer to them is flipped by the statement that completes the job.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from imagefleet.aws.objects import Headers, Stored
from imagefleet.errors import InputRejected, NotFound
from imagefleet.imaging.foretelling import foretold_bytes, least_bytes
from imagefleet.imaging.recipes import Fit, Recipe, VariantSpec
from imagefleet.jobs.images import (
    IMMUTABLE,
    Focal,
    Made,
    Publication,
    PublishedVariant,
    VariantFacts,
    cache_tag,
    variant_key,
)
from imagefleet.jobs.kinds import BUILT_IN, ProcessImage
from imagefleet.jobs.lifecycle import Completed, failure_sentence
from imagefleet.store.images.recipes import find_shown
from imagefleet.worker.handling import Handler, JobContext
from imagefleet.worker.isolation.report import RenderedFile, RenderedFiles

AT_ONCE: Final = 4  # requests to S3, of one attempt

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


async def run(job: JobContext) -> Completed:
    """One revision of one image."""
    from imagefleet.imaging.encoding import encoder_fingerprint  # noqa: PLC0415 - brings Pillow

    payload: ProcessImage = job.payload
    recipe = await job.recipe(payload.recipe, payload.recipe_hash)
    size = payload.source_width, payload.source_height, payload.source_bytes
    least = least_bytes(payload.content_type, *size, recipe)
    await job.pass_on(least)  # before anything is fetched or copied
    encoder = encoder_fingerprint(recipe)
    kept = await take_over(job, payload, recipe, encoder)
    parts = [] if kept is None else [kept]
    if left := left_of(recipe, kept):
        parts.append(await make(job, payload, replace(recipe, variants=left)))
    revision = job.claim.target_seq or 0
    publication = Publication(
        job_id=job.claim.job_id,
        claim_no=job.claim.claim_no,
        image_id=payload.image_id,
        tenant_id=job.claim.tenant_id,
        source_seq=revision if payload.source_seq is None else payload.source_seq,
        revision=revision,
        recipe=payload.recipe,
        recipe_hash=payload.recipe_hash or recipe.hash,
        focal=payload.focal and Focal(*payload.focal),
        encoder=encoder,
        source=parts[0].source,
        placeholder=parts[0].placeholder,
        variants=tuple(variant for part in parts for variant in part.variants),
    )
    counts = {"revision": revision, "variants": len(publication.variants)}
    return Completed(result={"imageId": str(payload.image_id), **counts}, publication=publication)


async def make(job: JobContext, payload: ProcessImage, recipe: Recipe) -> Made:
    """Every variant of the recipe, from the original."""
    with TemporaryDirectory(dir=job.scratch, prefix="job-") as folder:
        source = Path(folder) / "source"
        stored = await fetch(job, payload, source)
        focal, limits = payload.focal and Focal(*payload.focal), job.picture_limits
        foretold = await asyncio.to_thread(foretold_bytes, source, recipe, limits)
        async with job.room_for_a_child(foretold) as memory_bytes:
            rendered = await job.render(
                source, recipe, limits, focal=focal, memory_bytes=memory_bytes, known=stored
            )
        with rendered:
            variants = await save(job, payload, rendered)
    return Made(source=rendered.source, placeholder=rendered.placeholder, variants=tuple(variants))


async def fetch(job: JobContext, payload: ProcessImage, source: Path) -> Stored:
    """Copy the original here; another one than was submitted can never be meant."""
    stored = await job.originals.fetch_to_file(
        payload.source_key,
        source,
        max_bytes=job.picture_limits.max_bytes,
        expected_etag=payload.source_etag,
    )
    if payload.source_sha256 is not None and stored.sha256 != payload.source_sha256:
        why = f"sha256 {stored.sha256}"
        raise InputRejected("source_changed", failure_sentence("source_changed"), why)
    return stored


async def save(
    job: JobContext, payload: ProcessImage, rendered: RenderedFiles
) -> Sequence[PublishedVariant]:
    """Store every file under this claim's own keys; variants that share one share its key."""
    made = rendered.variants
    files = {file.path: file for file in made}

    async def save_one(file: RenderedFile) -> str:
        # Of several names the first. Something there already can only be an earlier try of this
        # very claim, with the same bytes, whose hash was measured when the file was checked.
        key, headers = place_of(job, payload, file.path.stem, file.facts)
        await job.outputs.put(key, file.path, headers, sha256=file.facts.sha256)
        return key

    keys = dict(zip(files, await few_at_once(save_one, files.values()), strict=True))
    return [PublishedVariant(key=keys[file.path], facts=file.facts) for file in made]


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
        key, headers = place_of(job, payload, facts.name, facts)
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


def place_of(
    job: JobContext, payload: ProcessImage, name: str, facts: VariantFacts
) -> tuple[str, Headers]:
    """The key that this claim alone stores a variant under, and what is served with it."""
    revision, claim_no = job.claim.target_seq or 0, job.claim.claim_no
    key = variant_key(payload.image_id, revision, claim_no, name, facts.format.extension)
    return key, Headers(
        content_type=facts.content_type,
        cache_control=IMMUTABLE,
        cache_tag=cache_tag(payload.image_id),
    )


async def few_at_once(
    store: Callable[[Item], Awaitable[Outcome]], items: Iterable[Item]
) -> list[Outcome]:
    """What came of each, in order; the first failure ends them all."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def store_one(item: Item) -> Outcome:
        async with gate:
            return await store(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(store_one(item)) for item in items]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # one is enough to know what to do
    return [task.result() for task in tasks]


HANDLER: Final = Handler(kind=BUILT_IN["process_image"], run=run, renders=True)
