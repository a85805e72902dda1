"""`imagefleet images preview`: a small picture of an original, as operators may look at it."""

from io import BytesIO
from typing import Annotated, Final

import typer

from imagefleet.cli.naming import EVERY_IMAGE, ImageNamed, whole
from imagefleet.cli.output import ExitCode, complain, finish, print_bytes, takes_bytes
from imagefleet.cli.verbs import (
    STDIN,
    WITHIN,
    Into,
    ReasonIfAny,
    Within,
    below,
    call,
    ends_in,
    looks,
)
from imagefleet.client.api import ApiClient, Document
from imagefleet.errors import Misconfigured, NotFound, RequestRejected, Unavailable

JOBS: Final = "/v1/operator/jobs"
_TERMINAL: Final = "this is no picture for a terminal: send it to a file or a pipe"


def preview(
    image_id: ImageNamed,
    into: Into,
    source_seq: Annotated[
        int | None,
        typer.Option("--original", metavar="N", help="Which of its originals; the last if not."),
    ] = None,
    reason: ReasonIfAny = None,
    within: Within = WITHIN,
) -> None:
    """Save a small picture of an image's original, of any tenant. A worker makes it.

    Exits with 1 when it cannot be decoded, and says why.

    For example:

        imagefleet images preview --into seen.webp 0199a5c2-7d41
    """
    if into == STDIN and not takes_bytes():
        raise Misconfigured(_TERMINAL)
    path = below(EVERY_IMAGE.path, whole(image_id, EVERY_IMAGE), "preview")
    which = {"sourceSeq": None if source_seq is None else str(source_seq)}
    picture = call(lambda client: _picture(client, path, which, reason, within))
    if isinstance(picture, str):
        complain(picture)
        finish(ExitCode.FAILED)
    elif into == STDIN:
        print_bytes(BytesIO(picture))
    else:
        into.write_bytes(picture)


async def _picture(
    client: ApiClient,
    path: str,
    which: dict[str, str | None],
    reason: str | None,
    within: float,
) -> bytes | str:
    """It, once there is one; or why there is none."""
    try:
        return await client.picture(path, which)
    except RequestRejected as error:
        if error.code != NotFound("preview").code:
            raise
    ordered = await client.ask("POST", path, which | {"reason": reason})
    async for _ in looks(ends_in(within)):
        job: Document = await client.ask("GET", below(JOBS, ordered["jobId"]))
        if job["status"] == "failed":
            return f"{job['failureCode']}: {job['failureMessage']}"
        if job["status"] == "completed":
            failure = (job.get("result") or {}).get("failure")
            if failure:
                return f"{failure['code']}: {failure['message']}"
            return await client.picture(path, which)
    sentence = f"Job {ordered['jobId']} is not done yet; it goes on without you."
    raise Unavailable("still_open", sentence)
