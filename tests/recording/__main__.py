"""Record what the README shows: `make record` and `make newcomer`.

`healed`: a photo is uploaded, its variants are there; the worker that renders a large picture is
killed by SIGKILL, and the picture is there nevertheless. `newcomer`: what `make run` prints in a
clone that was never set up, with empty caches.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from PIL import Image

from imagefleet.imaging.samples import sample
from tests.recording.drawing import Shown, paced, svg, typed
from tests.recording.terminal import Ended, Line, run_in_terminal
from tests.support.database import roomy_memory
from tests.support.eventually import eventually

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ROOT / "docs" / "pages"
COLUMNS: Final = 100
WITHIN: Final = 600.0  # seconds for a command; of a first start most is what is downloaded
TRIES: Final = 3  # a picture that is ready before its worker is killed heals nothing
LARGE: Final = (7_600, 7_600)
GRAIN: Final = 1_500  # pixels of noise, drawn larger: an even ground is read in no time
ABOUT_HEALED: Final = (
    "A terminal: imagefleet submit uploads a photo, imagefleet images show lists its variants; a "
    "large picture is submitted and its worker is killed with kill -9 while the job is processing; "
    "half a minute later the job was rescued and is completed, and imagefleet status says that "
    "every promise is kept."
)


def is_head(line: str) -> bool:
    """Whether the table of results begins with it."""
    return line.split()[:2] == ["sample", "source"]


def surroundings(folder: Path) -> dict[str, str]:
    """What a command of a terminal is told: nothing of a fleet, and no cache that is filled."""
    mine = dict(os.environ)  # noqa: TID251 - as from a terminal
    told = {name: value for name, value in mine.items() if not name.startswith("IMAGEFLEET")}
    path = os.pathsep.join([str(Path(sys.executable).parent), mine["PATH"]])
    caches = {"XDG_CACHE_HOME": "", "PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv"}
    told.pop("COLUMNS", None)
    told.pop("VIRTUAL_ENV", None)
    return {
        **told, "PATH": path, "TERM": "xterm-256color", "LANG": "C.UTF-8",
        **{name: str(folder / ".cache" / below) for name, below in caches.items()},
    }  # fmt: skip


@asynccontextmanager
async def a_stack(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """`imagefleet up` with two workers; what its ready file says, of processes as they are now."""
    ports = [word for port in ("api", "console", "edge") for word in (f"--{port}-port", "0")]
    with (folder / "up.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "imagefleet", "up", "--workers", "2", *ports,
            cwd=folder, env=surroundings(folder), stdout=log, stderr=log,
        )  # fmt: skip
        file = folder / ".imagefleet" / "ready.json"

        def ready() -> dict[str, Any] | None:
            if process.returncode is not None:
                sys.exit((folder / "up.log").read_text(encoding="utf-8"))
            return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

        try:
            yield await eventually(ready, within=120)
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


class Recorder:
    """One terminal, in which one command follows another."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.lines: list[Line] = []
        self._folder, self._environment = folder, environment
        self._clock = 0.0

    async def run(self, command: str, remark: str = "", *, within: float = WITHIN) -> Ended:
        """Type it and wait for its end."""
        ended = await run_in_terminal(
            ["bash", "-c", command], columns=COLUMNS, folder=self._folder,
            environment=self._environment, within=within,
        )  # fmt: skip
        line = typed(command, remark)
        line.at = self._clock + 0.8  # a moment to read what is there, and to type
        shown = [*ended.lines] if ended.text else []
        for each in shown:
            each.at += line.at
        self.lines += [line, *shown, Line(at=line.at + ended.seconds)]
        self._clock = line.at + ended.seconds
        return ended


async def asked(folder: Path, *words: str) -> Any:  # noqa: ANN401 - JSON
    """What a verb says with --json, beside the terminal."""
    process = await asyncio.create_subprocess_exec(
        "imagefleet", *words, "--json",
        cwd=folder, env=surroundings(folder), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    return json.loads(out)


def draw_pictures(folder: Path) -> None:
    (folder / "photo.jpg").write_bytes(sample(0).content)
    noise = Image.effect_noise((GRAIN, GRAIN), 60).resize(LARGE, Image.Resampling.BICUBIC)
    few = noise.point(lambda shade: shade & 0xF0)
    few.convert("RGB").save(folder / "scan.png", compress_level=1)


async def kill_amid_a_render(folder: Path, terminal: Recorder) -> str | None:
    """Submit the large picture and kill its worker; the job, if it was not over by then."""
    submitted = await terminal.run("imagefleet submit scan.png", "58 megapixels")
    job = submitted.lines[-1].text.split()[2]

    async def holder() -> int | None:
        workers = (await asked(folder, "workers", "list"))["workers"]
        held = {each["jobId"]: worker["pid"] for worker in workers for each in worker["held"]}
        return held.get(job)

    for _ in range(20):
        if (pid := await holder()) is not None:
            break
    else:
        return None
    seen = await terminal.run(f"imagefleet jobs show {job} | grep status")
    await terminal.run(f"kill -9 {pid}", "the worker that renders it")
    return job if "processing" in seen.text else None


async def healed(folder: Path) -> list[Line]:
    """The recording, in a stack of its own."""
    draw_pictures(folder)
    async with a_stack(folder):
        for _ in range(TRIES):
            terminal = Recorder(folder, surroundings(folder))
            photo = await terminal.run("imagefleet submit --wait photo.jpg")
            await terminal.run(f"imagefleet images show {photo.lines[-1].text.split()[-1]}")
            job = await kill_amid_a_render(folder, terminal)
            if job is None:
                continue
            await terminal.run(f"imagefleet jobs show --wait {job} | grep -E 'status|finished'")
            attempts = await terminal.run(f"imagefleet jobs attempts {job}")
            if "rescued" in attempts.text and "completed" in attempts.text:
                await terminal.run("imagefleet status")
                return terminal.lines[:-1]
    sys.exit("each time the picture was ready before its worker was killed: take a larger one")


async def newcomer(folder: Path, arguments: str) -> tuple[list[Line], str]:
    """`make run` in a fresh clone; its lines, and what is to be said of them."""
    clone = folder / "imagefleet"
    git = await asyncio.create_subprocess_exec("git", "clone", "--quiet", ROOT, clone)
    if await git.wait():
        sys.exit("there is nothing to clone")
    terminal = Recorder(clone, surroundings(folder))
    command = f'make run ARGS="{arguments}"'
    ended = await terminal.run(command, "a fresh clone, empty caches")
    if ended.code:
        sys.exit(ended.text)
    place = next(n for n, line in enumerate(ended.lines) if is_head(line.text))
    until = ended.lines[place].at - terminal.lines[0].at
    table = f"{place} lines and {until:.0f} s until the table of results"
    told = f"{table}, {ended.seconds:.0f} s in all"
    return terminal.lines[:-1], told


def write(name: str, lines: Sequence[Line], *, title: str, about: str) -> None:
    shown: list[Shown] = [*paced(lines)]
    path = PAGES / f"{name}.svg"
    path.write_text(svg(shown, columns=COLUMNS, title=title, about=about), encoding="utf-8")
    sys.stdout.write(f"{path.relative_to(ROOT)}: {len(shown)} lines\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.recording", description=__doc__)
    parser.add_argument("what", choices=["healed", "newcomer"])
    parser.add_argument("--run", default="--demo 8 --exit", help="what make run is told")
    given = parser.parse_args()
    room = roomy_memory() if given.what == "healed" else None
    with tempfile.TemporaryDirectory(prefix=f"{given.what}-", dir=room) as place:
        folder = Path(place)
        folder.chmod(0o755)  # Postgres runs as another account where this one is root
        if given.what == "healed":
            title = "imagefleet: a worker is killed, and nothing is missing"
            write("healed", asyncio.run(healed(folder)), title=title, about=ABOUT_HEALED)
            return
        lines, told = asyncio.run(newcomer(folder, given.run))
        write("newcomer", lines, title=f"make run, the first time: {told}", about=told)
        sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    main()
