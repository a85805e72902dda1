"""process_image: fetch the original, have it rendered in a child, save the variants, publish.

Nothing here is visible until the job completes: the variants lie under keys that only this claim
writes, and the pointer to them is flipped by the statement that completes the job.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from imagefleet.aws.objects import Headers, Stored
from imagefleet.errors import InputRejected
from imagefleet.imaging.limits import Limits, decoding_bytes
from imagefleet.imaging.recipes import Recipe
from imagefleet.imaging.sniff import HEAD_BYTES, sniff
from imagefleet.jobs.images import (
    IMMUTABLE,
    Focal,
    Publication,
    PublishedVariant,
    cache_tag,
    variant_key,
)
from imagefleet.jobs.kinds import BUILT_IN, ProcessImage
from imagefleet.jobs.lifecycle import Completed, failure_sentence
from imagefleet.worker.handling import Handler, JobContext
from imagefleet.worker.isolation.rendered import RenderedFile, RenderedFiles

SAVES_AT_ONCE: Final = 4


async def run(job: JobContext) -> Completed:
    """One revision of one image."""
    from imagefleet.imaging.encoding import encoder_fingerprint  # noqa: PLC0415 - brings Pillow

    payload: ProcessImage = job.payload
    recipe = await job.recipe(payload.recipe, payload.recipe_hash)
    with TemporaryDirectory(dir=job.scratch, prefix="job-") as folder:
        source = Path(folder) / "source"
        focal = payload.focal and Focal(*payload.focal)
        stored = await fetch(job, payload, source)
        limits = job.picture_limits
        foretold = await asyncio.to_thread(foretold_bytes, source, recipe, limits)
        async with job.room_for_a_child(foretold) as memory_bytes:
            rendered = await job.render(
                source, recipe, limits, focal=focal, memory_bytes=memory_bytes, known=stored
            )
        with rendered:
            variants = await save(job, payload, rendered)
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
        focal=focal,
        encoder=encoder_fingerprint(recipe),
        source=rendered.source,
        placeholder=rendered.placeholder,
        variants=tuple(variants),
    )
    return Completed(
        result={"imageId": str(payload.image_id), "revision": revision}, publication=publication
    )


def foretold_bytes(source: Path, recipe: Recipe, limits: Limits) -> int:
    """What making its variants takes in memory; by its head, without decoding."""
    with source.open("rb") as file:
        head = file.read(HEAD_BYTES)
        try:
            facts = sniff(head)
            if facts.width is None:
                facts = sniff(head + file.read())
        except InputRejected:
            return 0  # the child says so too, and does not need much for that
    return decoding_bytes(facts, source.stat().st_size, limits, recipe.variants)


async def fetch(job: JobContext, payload: ProcessImage, source: Path) -> Stored:
    """Copy the original here; another one than was submitted can never be meant."""
    stored = await job.originals.fetch_to_file(
        payload.source_key,
        source,
        max_bytes=job.picture_limits.max_bytes,
        expected_etag=payload.source_etag,
    )
    if payload.source_sha256 is not None and stored.sha256 != payload.source_sha256:
        raise InputRejected(
            "source_changed", failure_sentence("source_changed"), f"sha256 {stored.sha256}"
        )
    return stored


async def save(
    job: JobContext, payload: ProcessImage, rendered: RenderedFiles
) -> Sequence[PublishedVariant]:
    """Store every file under this claim's own keys; variants that share one share its key."""
    gate = asyncio.Semaphore(SAVES_AT_ONCE)
    made = rendered.variants
    files = {file.path: file for file in made}

    async def save_one(file: RenderedFile) -> str:
        async with gate:
            return await _save(job, payload, file)

    try:
        async with asyncio.TaskGroup() as group:
            keys = {path: group.create_task(save_one(file)) for path, file in files.items()}
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # one is enough to know what to do
    return [PublishedVariant(key=keys[one.path].result(), facts=one.facts) for one in made]


async def _save(job: JobContext, payload: ProcessImage, file: RenderedFile) -> str:
    facts = file.facts
    key = variant_key(
        payload.image_id,
        job.claim.target_seq or 0,
        job.claim.claim_no,
        file.path.stem,  # of several names the first
        facts.format.extension,
    )
    # Something there already can only be an earlier try of this very claim, with the same bytes.
    await job.outputs.put(
        key,
        file.path,
        Headers(
            content_type=facts.content_type,
            cache_control=IMMUTABLE,
            cache_tag=cache_tag(payload.image_id),
        ),
        sha256=facts.sha256,  # measured by us, when the file was checked
    )
    return key


HANDLER: Final = Handler(kind=BUILT_IN["process_image"], run=run, renders=True)
