"""A few images through the whole fleet, and nothing counted before it was seen.

An image counts when its job is completed and every variant of it was fetched by its published
address, decoded to the last pixel, and found to be what the API says it is. What was made is shown
on a page of its own, `gallery`, for as long as the images are there.
"""

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from html import escape
from typing import Final

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from imagefleet.client.api import ApiClient
from imagefleet.errors import FleetError
from imagefleet.imaging.samples import Sample, decode, sample
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.images import ImageView
from imagefleet.jobs.shapes.pictures import Layout, VariantView
from imagefleet.runtime import in_thread

UPLOADS_AT_ONCE: Final = 8
FETCHES_AT_ONCE: Final = 8
JOB_WITHIN: Final = timedelta(seconds=120)
FETCH_TIMEOUT: Final = httpx.Timeout(20, connect=3, pool=60)


@dataclass(slots=True)
class Tried:
    """What came of one sample."""

    name: str
    bytes: int
    image_id: str | None = None
    job_id: str | None = None
    status: str = "not submitted"
    size: str = ""
    variants: int = 0
    variant_bytes: int = 0
    seconds: float = 0.0
    fault: str | None = None
    image: ImageView | None = None

    @property
    def document(self) -> dict[str, object]:
        """The result for programs."""
        names = (field.name for field in fields(self) if field.name != "image")
        return {name: getattr(self, name) for name in names}

    @property
    def completed(self) -> bool:
        """Whether every variant was seen."""
        return self.fault is None and self.status == JobState.COMPLETED and self.variants > 0


class Demo:
    """Uploads samples and looks at what is published."""

    def __init__(self, client: ApiClient, public: httpx.AsyncClient) -> None:
        self._client = client
        self._public = public
        self._uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self._fetches = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def run(self, number: int) -> Tried:
        """Try one sample; whatever goes wrong is in the result."""
        begun = time.monotonic()
        made = await in_thread(lambda: sample(number))
        tried = Tried(made.name, len(made.content))
        try:
            await self._try(made, tried)
        except FleetError as error:
            tried.fault = f"{error.code}: {error.public_message}"
        except httpx.HTTPError as error:
            tried.fault = f"{type(error).__name__}: {error}"
        tried.seconds = round(time.monotonic() - begun, 2)
        return tried

    async def _try(self, made: Sample, tried: Tried) -> None:
        async with self._uploads:
            accepted = await self._client.submit(
                made.content, name=made.name, reference=f"demo/{made.name}"
            )
        tried.job_id, tried.image_id = str(accepted.job_id), str(accepted.image_id)
        job = (await self._client.finished_job(tried.job_id, within=JOB_WITHIN)).shape
        tried.status = job.status.value
        if job.failure is not None:
            tried.fault = f"{job.failure.code}: {job.failure.message}"
            return
        image = tried.image = (await self._client.image(tried.image_id)).shape
        if image.source is not None:
            tried.size = f"{image.source.width}x{image.source.height}"
        await self._look_at(image, tried)

    async def _look_at(self, image: ImageView, tried: Tried) -> None:
        if not image.variants:
            tried.fault = "no variants"
        for variant in image.variants:
            async with self._fetches:
                fault = await self._fault_of(variant)
            if fault is not None:
                tried.fault = f"{variant.name}.{variant.format}: {fault}"
                return
            tried.variants += 1
            tried.variant_bytes += variant.bytes

    async def _fault_of(self, variant: VariantView) -> str | None:
        answer = await self._public.get(variant.url)
        if answer.is_error:
            return f"GET {variant.url}: {answer.status_code}"
        content = answer.content
        decoded = await in_thread(lambda: decode(content))
        said = (variant.format, variant.width, variant.height, variant.bytes)
        seen = (decoded.format, decoded.width, decoded.height, len(content))
        return None if said == seen else f"said to be {said}, is {seen}"


async def run_demo(client: ApiClient, count: int, messages: Console) -> list[Tried]:
    """Try that many samples, with a bar."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    async with httpx.AsyncClient(timeout=FETCH_TIMEOUT) as public:
        demo = Demo(client, public)
        with Progress(
            *columns, console=messages, transient=True, disable=not messages.is_terminal
        ) as progress:
            bar = progress.add_task("demo", total=count)

            async def counted(number: int) -> Tried:
                tried = await demo.run(number)
                progress.advance(bar)
                return tried

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(counted(number)) for number in range(count)]
    return [task.result() for task in tasks]


def table_of(tried: Sequence[Tried]) -> Table:
    """The results for people."""
    table = Table(
        "sample", "source", "bytes", "variants", "their bytes", "seconds", "result", box=None
    )
    for image in tried:
        why = image.fault or image.status
        table.add_row(
            image.name, image.size, f"{image.bytes:,}", str(image.variants),
            f"{image.variant_bytes:,}", f"{image.seconds:.2f}",
            "[green]completed[/]" if image.completed else f"[red]{why}[/]",
        )  # fmt: skip
    return table


_STYLE: Final = """\
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(20rem,1fr));gap:2rem}
figure{margin:0}img{width:100%;height:auto;border-radius:4px}
h2{font-size:1rem;margin:.5rem 0 0}p,li{margin:0;font-size:.875rem;color:#555}
ul{margin:.25rem 0;padding-left:1.2rem}
"""
_POLICY: Final = (
    "default-src 'none'; img-src 'self'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
)
_HEAD: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width">
<title>imagefleet: what the demo made</title>
"""
_WORDS: Final = """\
<h1>What the demo made</h1>
<p>Each picture is one &lt;picture&gt;: this browser chose the format and the width, and until it
was there showed the color that the API told it. The lists have every variant.</p>
"""


def gallery(tried: Sequence[Tried], *, console: str) -> str:
    """A page of what was made: no script, and nothing from anywhere else."""
    shown = [(each, each.image) for each in tried if each.completed and each.image is not None]
    colors = (
        f"#p{number} img{{background:{image.placeholder.color}}}\n"
        for number, (_, image) in enumerate(shown)
        if image.placeholder is not None and image.placeholder.is_opaque
        if re.fullmatch("#[0-9a-f]{6}", image.placeholder.color or "")
    )
    style = _STYLE + "".join(colors)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    head = _HEAD.format(policy=escape(_POLICY.format(digest)))
    figures = "".join(
        _figure(number, *each, f"{console}/jobs/{each[0].job_id}")
        for number, each in enumerate(shown)
    )
    return f"{head}<style>{style}</style>\n{_WORDS}<main>\n{figures}</main>\n</html>\n"


def _figure(number: int, tried: Tried, image: ImageView, job: str) -> str:
    page = Layout(alt=tried.name, sizes="(min-width: 48rem) 22rem, 100vw")
    picture = image.on_a(page).html or ""
    # Without their host they are right wherever this page is served beside them.
    picture = re.sub(r"https?://[^/\s\"]+(?=/i/)", "", picture)
    source = f"{tried.size}, {tried.bytes:,} bytes"
    made = f"{len(image.variants)} variants, {tried.variant_bytes:,} bytes"
    return (
        f'<figure id="p{number}">{picture}<figcaption>\n<h2>{escape(tried.name)}</h2>\n'
        f"<p>{escape(source)}; {made};\n"
        f'<a href="{escape(job)}">its job in the console</a></p>\n'
        f"<details><summary>all of them</summary><ul>\n{''.join(_listed(image))}</ul></details>\n"
        f"</figcaption></figure>\n"
    )


def _listed(image: ImageView) -> Iterator[str]:
    for made in image.variants:
        path = escape(re.sub(r"^https?://[^/]+", "", made.stable_url))
        words = f"{made.name}.{made.format}, {made.width}x{made.height}, {made.bytes:,} bytes"
        yield f'<li><a href="{path}">{escape(words)}</a></li>\n'
