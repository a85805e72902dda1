"""`python -m imagefleet.embedded.edge`: the edge alone, beside processes that others started.

    python -m imagefleet.embedded.edge --listen 0.0.0.0:8082 --api-url http://api:8080

It reads the same variables of AWS as the processes, and the emulator's key.
"""

import argparse
import os
from collections.abc import Sequence
from typing import Final

from imagefleet.embedded.edge.server import serve_edge
from imagefleet.embedded.processes import Facts
from imagefleet.errors import FleetError, Misconfigured
from imagefleet.runtime import Drain, run_until_signalled, supervise
from imagefleet.settings import Aws, load

KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def facts_of(settings: Aws) -> Facts:
    """What the embedded stack would say of the same emulator."""
    if settings.distribution_id is None or settings.endpoint_url is None:
        msg = "an edge needs AWS_ENDPOINT_URL and CLOUDFRONT_DISTRIBUTION_ID"
        raise Misconfigured(msg)
    missing = [name for name in KEYS if not os.environ.get(name)]
    if missing:
        msg = f"{' and '.join(missing)} must be set"
        raise Misconfigured(msg)
    elsewhere = settings.endpoint_url_cloudfront or settings.endpoint_url
    return Facts(
        database_urls={},
        aws={
            "AWS_REGION": settings.region,
            "AWS_ENDPOINT_URL": settings.endpoint_url,
            "AWS_ENDPOINT_URL_CLOUDFRONT": elsewhere,
            **{name: os.environ[name] for name in KEYS},
        },
        topology={
            "OUTPUTS_BUCKET": settings.outputs_bucket,
            "CLOUDFRONT_DISTRIBUTION_ID": settings.distribution_id,
        },
        public_base_url="",
    )


class _EdgeArguments(argparse.Namespace):
    listen: str
    api_url: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="edge", description=__doc__.partition("\n")[0])
    parser.add_argument("--listen", default="127.0.0.1:8082", metavar="HOST:PORT")
    parser.add_argument("--api-url", required=True, help="who answers the stable addresses")
    given = parser.parse_args(arguments, namespace=_EdgeArguments())
    host, _, port = given.listen.rpartition(":")
    if not host or not port.isdigit():
        parser.error(f"--listen expects HOST:PORT, not {given.listen!r}")

    async def serve(drain: Drain) -> None:
        facts = facts_of(load(Aws))
        async with (
            serve_edge(
                int(port), facts=lambda: facts, api_url=given.api_url, host=host
            ) as invalidations,
            supervise(drain) as parts,
        ):
            following = parts.start("edge", invalidations.follow())
            print(f"the edge listens at {given.listen}")
            await drain.wait()
            following.cancel()

    try:
        return run_until_signalled(serve)
    except FleetError as error:
        print(f"the edge does not start: {error.detail or error.public_message}")
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
