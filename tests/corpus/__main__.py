"""Run it: see the package.

Ends with 1 where a format stays below its goal, a child died, or what is drawn became larger.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from imagefleet.jobs.images import ImageFormat
from imagefleet.worker.isolation.client import Renderer
from tests.corpus import __doc__ as described
from tests.corpus.browser import Browser, browser
from tests.corpus.drawn import drawn, drawn_by_pillow
from tests.corpus.fetching import (
    PACKAGES,
    Found,
    NotThere,
    Package,
    chosen,
    listed,
    newest,
    unpacked,
)
from tests.corpus.judging import Look, Verdict, findings, judged, share_alike, table
from tests.support.wheels import ROOT

CACHE: Final = ROOT / ".bench" / "corpus"
GOAL: Final = 0.94
HELD_TO_IT: Final = (ImageFormat.JPEG, ImageFormat.PNG, ImageFormat.GIF, ImageFormat.WEBP)
DIED: Final = ("ChildCrashed", "ChildFailed")
AT_ONCE: Final = 2


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.corpus",
        description=described,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=list(ImageFormat), action="append", metavar="FORMAT")
    parser.add_argument("--most", type=int, default=400, help="files of a format (400)")
    parser.add_argument("--seconds", type=float, default=3600, help="for all files together (3600)")
    parser.add_argument("--package", action="append", help="of these packages alone")
    parser.add_argument("--named", type=int, default=8, help="files to name of each cause (8)")
    parser.add_argument("--no-browser", action="store_true", help="compare with nothing")
    parser.add_argument("--smoke", action="store_true", help="a few drawn files, no network")
    parser.add_argument("--pin", action="store_true", help="write today's versions down instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every verdict")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options(arguments)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    if asked.pin:
        return pin()
    look: Look | None = drawn_by_pillow
    with ExitStack() as stack:
        if asked.smoke:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            found = drawn(folder)
        else:
            found = gathered(asked.package, asked.most)
            look = stack.enter_context(looking(none=asked.no_browser))
        found = [each for each in found if not asked.only or each.format in asked.only]
        verdicts = asyncio.run(all_judged(found, look, asked.seconds))
    say(*table(verdicts), "", *findings(verdicts, asked.named))
    if asked.json:
        asked.json.write_text(
            json.dumps([asdict(each) for each in verdicts], default=str, indent=1)
        )
    return int(not verdicts or any(failures(verdicts)))


def failures(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Why a run is none to be content with."""
    for form in HELD_TO_IT:
        share = share_alike([each for each in verdicts if each.found.format is form])
        if share is not None and share < GOAL:
            yield f"{form.name}: {share:.1%} are alike, {GOAL:.0%} is the goal"
    yield from (f"{each.found.path}: {each.said}" for each in verdicts if each.said in DIED)
    yield from (f"{each.found.path}: larger than it was" for each in verdicts if each.outgrown)


def gathered(names: Sequence[str] | None, most: int) -> list[Found]:
    """The pictures of all packages that can be had, and a line about each."""
    everything = []
    for package in listed():
        if names and package.name not in names:
            continue
        try:
            pictures = unpacked(package, CACHE)
        except NotThere as error:
            say(f"not there: {error}")
            continue
        everything.append(pictures)
        counts = [
            f"{form.value} {sum(each.format is form for each in pictures)}" for form in ImageFormat
        ]
        say(f"{package}: {', '.join(each for each in counts if not each.endswith(' 0')) or 'none'}")
    return chosen(everything, most)


@contextmanager
def looking(*, none: bool) -> Iterator[Look | None]:
    if none:
        yield None
        return
    with browser() as started:
        if started is None:
            say("no browser is here and none could be fetched: compared with Pillow alone")
        yield started.show if isinstance(started, Browser) else drawn_by_pillow


async def all_judged(found: Sequence[Found], look: Look | None, seconds: float) -> list[Verdict]:
    """Some files at a time, until the time is over."""
    ends, gate = time.monotonic() + seconds, asyncio.Semaphore(AT_ONCE)
    verdicts: list[Verdict] = []

    async def one(each: Found, renderer: Renderer, scratch: Path) -> None:
        async with gate:
            if time.monotonic() > ends:
                return
            verdicts.append(await judged(each, renderer, scratch, look))
            if len(verdicts) % 100 == 0:
                say(f"{len(verdicts)} of {len(found)}", to=sys.stderr)

    async with Renderer() as renderer:
        with tempfile.TemporaryDirectory() as scratch:
            work = partial(one, renderer=renderer, scratch=Path(scratch))
            await asyncio.gather(*map(work, found))
    if len(verdicts) < len(found):
        say(f"{len(found) - len(verdicts)} files were left when the time was over")
    return sorted(
        verdicts, key=lambda each: (each.found.format, each.found.package, each.found.name)
    )


def pin() -> int:
    """The list again, with the versions of today."""
    lines = []
    for line in PACKAGES.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            package = Package(*words)
            lines.append(str(replace(package, version=newest(package) or package.version)))
        else:
            lines.append(line)
    PACKAGES.write_text("\n".join(lines) + "\n")
    return 0


def say(*lines: str, to: object = None) -> None:
    for line in lines:
        print(line, file=to or sys.stdout, flush=True)  # type: ignore[arg-type]  # one of two streams


if __name__ == "__main__":
    sys.exit(main())
