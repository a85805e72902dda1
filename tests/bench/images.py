"""What isolation and every check cost: our road from a file to variants against bare Pillow.

Both make the default recipe of the same 12-megapixel photo, two at a time, with the same encoder
options. Bare Pillow is a loop in two plain processes: draft, cascade, encode, nothing else. Ours is
the worker's renderer: a forked and confined child for each picture, header judgement, orientation,
colour, placeholder, hashes, files checked again by the parent. CPU is counted, of all processes.

    make bench-images            # or ARGS="--pictures 40"
"""

import argparse
import asyncio
import io
import logging
import os
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final
from unittest.mock import patch

import structlog
from PIL import Image

from imagefleet.imaging.limits import Limits
from imagefleet.imaging.recipes import ENCODERS, RECIPES
from imagefleet.jobs.model import JsonObject
from imagefleet.worker.isolation import client, report
from imagefleet.worker.isolation.client import Renderer
from imagefleet.worker.isolation.report import Ending

SIZE: Final = (4000, 3000)
AT_ONCE: Final = 2
MARGIN: Final = 1.25  # over the largest target, as ours decodes it
MEMORY: Final = 2**30


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_seconds: float
    wall_seconds: float


def photo() -> bytes:
    """Something with edges, gradients and grain, of the size of a phone's picture."""
    grain = Image.effect_noise((SIZE[0] // 4, SIZE[1] // 4), 40).resize(SIZE)
    tone = Image.radial_gradient("L").resize(SIZE)
    picture = Image.merge("RGB", (grain, tone, Image.blend(grain, tone, 0.5)))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=90, subsampling="4:2:0")
    return out.getvalue()


def bare(path: str) -> int:
    """Bare Pillow: the fewest calls that make the same variants."""
    recipe = RECIPES["default"]
    boxes = sorted({(spec.width, spec.height) for spec in recipe.variants}, reverse=True)
    picture = Image.open(path)
    largest = boxes[0][0] * MARGIN
    picture.draft("RGB", (int(largest), int(largest * SIZE[1] / SIZE[0])))
    picture.load()
    written = 0
    for box in boxes:
        picture.thumbnail(box, Image.Resampling.LANCZOS, reducing_gap=None)
        for spec in recipe.variants:
            if (spec.width, spec.height) == box:
                out = io.BytesIO()
                options = dict(ENCODERS[spec.format])
                picture.save(out, spec.format.name, quality=spec.quality, **options)
                written += len(out.getvalue())
    return written


def measure_bare(path: Path, pictures: int) -> Cost:
    """Two plain processes, warm before the clock starts."""
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:
        list(pool.map(bare, [str(path)] * AT_ONCE))
        begun = time.monotonic()
        costs = list(pool.map(_bare_with_cost, [str(path)] * pictures))
        return Cost(sum(costs), time.monotonic() - begun)


def _bare_with_cost(path: str) -> float:
    before = time.process_time()
    bare(path)
    return time.process_time() - before


async def measure_ours(path: Path, pictures: int) -> Cost:
    """The worker's renderer, with its zygote warm before the clock starts."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with Renderer() as renderer:
        with tempfile.TemporaryDirectory() as folder:
            scratch, spent = Path(folder), _Spent()

            async def one() -> None:
                async with gate:
                    rendered = await renderer.render(
                        path,
                        "default",
                        Limits(),
                        deadline_seconds=60,
                        memory_bytes=MEMORY,
                        scratch=scratch,
                    )
                    rendered.discard()

            await one()
            with patch.object(client, "result_of", spent.judged):
                own, begun = _own_cpu(), time.monotonic()
                await asyncio.gather(*(one() for _ in range(pictures)))
                return Cost(spent.seconds + _own_cpu() - own, time.monotonic() - begun)


class _Spent:
    """What children cost, by the kernel's word."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._judge = report.result_of

    def judged(self, ending: Ending, allowance: report.Allowance) -> JsonObject:
        self.seconds += ending.usage.cpu_seconds if ending.usage else 0.0
        return self._judge(ending, allowance)


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pictures = options.pictures
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photo.jpg"
        path.write_bytes(photo())
        print(f"12-megapixel JPEG of {path.stat().st_size:,} bytes, default recipe,", end=" ")
        print(f"{pictures} pictures, {AT_ONCE} at once on {os.cpu_count()} cores")
        rounds = [
            (measure_bare(path, pictures), asyncio.run(measure_ours(path, pictures)))
            for _ in range(options.rounds)
        ]
    for theirs, ours in rounds:
        print(
            f"bare Pillow {theirs.cpu_seconds / pictures:.3f} s CPU a picture, "
            f"ours {ours.cpu_seconds / pictures:.3f} s: ratio "
            f"{ours.cpu_seconds / theirs.cpu_seconds:.3f}; ours kept "
            f"{ours.cpu_seconds / ours.wall_seconds:.2f} cores busy"
        )
    median = statistics.median(ours.cpu_seconds / theirs.cpu_seconds for theirs, ours in rounds)
    print(f"median ratio {median:.3f} (1.05 is the goal)")


if __name__ == "__main__":
    main()
