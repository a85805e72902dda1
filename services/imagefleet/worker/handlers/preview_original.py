"""preview_original: a small inert picture of an original, for operators alone.

It lies beside the original, in the bucket that nobody is shown, until the next walk that finds it a
day old. What cannot be decoded is an answer too: the job completes with the code, as a dead letter
would be one more to look at.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from imagefleet.aws.objects import Headers
from imagefleet.errors import FleetError, InputRejected, NotFound
from imagefleet.imaging.foretelling import foretold_bytes
from imagefleet.imaging.recipes import Lossless, Recipe, VariantSpec
from imagefleet.jobs.images import ImageFormat, preview_key
from imagefleet.jobs.kinds import BUILT_IN, PreviewOriginal
from imagefleet.jobs.lifecycle import Completed
from imagefleet.store.images.originals import SourceOfImage, find_source
from imagefleet.worker.handling import Handler, JobContext
from imagefleet.worker.isolation.report import ChildCrashed, ChildDeadline

SIDE: Final = 320  # pixels, of the longer side
PREVIEW: Final = Recipe(
    "preview",
    (
        VariantSpec(
            name="preview",
            width=SIDE,
            height=SIDE,
            format=ImageFormat.WEBP,
            quality=70,
            lossless=Lossless.NEVER,
        ),
    ),
)
SHOWN: Final = Headers(content_type="image/webp", cache_control="private, no-store")


async def run(job: JobContext) -> Completed:
    """Make it; the result says how large it is, or why there is none."""
    payload: PreviewOriginal = job.payload
    try:
        async with job.database("find_source") as connection:
            source = await find_source(connection, payload.image_id, payload.source_seq)
        return Completed(result={"bytes": await make(job, source)})
    except (InputRejected, NotFound, ChildCrashed, ChildDeadline) as error:
        return Completed(result={"failure": said(error)})


def said(error: FleetError) -> dict[str, str]:
    """What operators are shown instead of a picture."""
    return {"code": error.code, "message": error.public_message}


async def make(job: JobContext, original: SourceOfImage) -> int:
    """The picture, under its key; how many bytes it has."""
    limits = job.picture_limits
    with TemporaryDirectory(dir=job.scratch, prefix="job-") as folder:
        source = Path(folder) / "source"
        stored = await job.originals.fetch_to_file(
            original.key, source, max_bytes=limits.max_bytes, expected_etag=original.etag
        )
        foretold = await asyncio.to_thread(foretold_bytes, source, PREVIEW, limits)
        async with job.room_for_a_child(foretold) as memory_bytes:
            rendered = await job.render(
                source, PREVIEW, limits, memory_bytes=memory_bytes, known=stored
            )
        with rendered:
            (file,) = rendered.variants
            key = preview_key(original.image_id, original.source_seq)
            await job.originals.put(key, file.path, SHOWN, sha256=file.facts.sha256)
    return file.facts.bytes


HANDLER: Final = Handler(kind=BUILT_IN["preview_original"], run=run, renders=True)
