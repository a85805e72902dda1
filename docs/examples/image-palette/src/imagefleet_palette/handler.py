"""What a worker does for a job of this type: fetch the original, have a child look at it."""

import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from imagefleet.worker.handling import Completed, Handler, JobContext
from imagefleet_palette.kind import IMAGE_PALETTE, ImagePalette

FIND_COLORS: Final = "imagefleet_palette.colors:find_colors"
MAX_BYTES: Final = 50 * 2**20
STEPS: Final = 2  # fetched, found


async def run(job: JobContext) -> Completed:
    """The colours of the image's newest original, as the job's result."""
    payload: ImagePalette = job.payload
    with TemporaryDirectory(dir=job.scratch, prefix="palette-") as folder:
        source = Path(folder) / "source"
        original = await job.fetch_original(payload.image_id, source, max_bytes=MAX_BYTES)
        await job.progress(1, STEPS)
        found = await in_child(job, source, payload.colors)
    await job.progress(STEPS, STEPS)
    return Completed(
        result={
            "imageId": str(payload.image_id),
            "sha256": original.sha256,
            "colors": found["colors"],
        }
    )


async def in_child(job: JobContext, source: Path, colors: int) -> dict[str, object]:
    """Decode what a stranger sent where it can do no harm: the child has this file and no more."""
    file = await asyncio.to_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return dict(await job.run_isolated(FIND_COLORS, {"colors": colors}, {"source": file}))
    finally:
        os.close(file)


HANDLER: Final = Handler(kind=IMAGE_PALETTE, run=run, isolated=(FIND_COLORS,))
