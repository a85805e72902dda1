"""One AWS session for the life of a process, with one client a service, opened when first needed.

Long polls have an SQS client of their own: a poll that waits 20 s holds a connection for as long,
and a pool that is full of polls would keep deletes and heartbeats waiting.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import orjson
from aiobotocore.client import AioBaseClient
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.loaders import JSONFileLoader

from imagefleet.aws.calls import CallWatcher, Line, Service
from imagefleet.aws.edge import Edge
from imagefleet.aws.objects import Objects
from imagefleet.aws.queue import LONGEST_WAIT, Queue
from imagefleet.settings.slices import Aws

if TYPE_CHECKING:  # stubs, which only a developer has
    from types_aiobotocore_cloudfront.client import CloudFrontClient
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_sqs.client import SQSClient

ATTEMPTS: Final = 3  # of one call, the first included, with the SDK's own backoff between them
SILENCES: Final = 2  # read timeouts that fit into a call's deadline: one lost reply is survived

# Parameters of S3's endpoints that no rule of theirs names. The SDK keeps what its rules came to by
# all parameters, so every key had the rules run anew; botocore itself leaves these out since #3692.
UNNAMED: Final = ("Key", "Prefix", "CopySource")

# What requests say that they come from, before the SDK's name. All that it would say itself, of
# platform, features and settings, it puts together anew for each of them, twice.
AGENT: Final = f"imagefleet/{version('imagefleet')}"

# Whom we ask, and whom the SDK asks for credentials; of others it knows where they usually are.
KEPT: Final = {"cloudfront", "s3", "sqs", "sts"}

Client = TypeVar("Client", bound=AioBaseClient)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A fixed key, for emulators; everywhere else the SDK finds credentials by itself."""

    key_id: str
    secret: str = field(repr=False)


class Descriptions(JSONFileLoader):
    """What the SDK ships about services, of which a process keeps what it may ask for.

    The SDK's own reader makes ordered dictionaries, of the endpoints of three hundred services too:
    9 MB more of every process, for as long as it lives.
    """

    def load_file(self, file_path: str) -> object:
        """What is in this file, or None if there is none; its name lacks how it is packed."""
        plain, packed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if packed.is_file():
            return orjson.loads(gzip.decompress(packed.read_bytes()))
        if not plain.is_file():
            return None
        described = orjson.loads(plain.read_bytes())
        if plain.stem == "endpoints":
            for partition in described["partitions"]:
                services = partition["services"]
                partition["services"] = {name: services[name] for name in KEPT & services.keys()}
        return described


@asynccontextmanager
async def open_session(
    settings: Aws, *, calls: CallWatcher | None = None, credentials: Credentials | None = None
) -> AsyncIterator["AwsSession"]:
    """Give a session for the life of a process; its end closes every client."""
    async with AsyncExitStack() as stack:
        yield AwsSession(settings, stack, calls or CallWatcher(), credentials)


class AwsSession:
    """Hands out what speaks to one queue, bucket or distribution; all share its clients."""

    def __init__(
        self,
        settings: Aws,
        stack: AsyncExitStack,
        calls: CallWatcher,
        credentials: Credentials | None,
    ) -> None:
        self._settings = settings
        self._stack = stack
        self._calls = calls
        self._sdk = get_session()
        self._sdk.get_component("data_loader").file_loader = Descriptions()
        self._sdk.set_config_variable("region", settings.region)
        if credentials:
            self._sdk.set_credentials(credentials.key_id, credentials.secret)
        self._opening = asyncio.Lock()
        self._sqs: SQSClient | None = None
        self._polls: SQSClient | None = None
        self._s3: S3Client | None = None
        self._cloudfront: CloudFrontClient | None = None

    async def queue(self, url: str) -> Queue:
        """Speak to the queue at this URL."""
        async with self._opening:
            if self._sqs is None:
                self._sqs = await self._open_sqs(self._config())
            if self._polls is None:
                # A poll is never sent twice: a reply that got lost took its messages with it, and
                # the next would take more than the caller has room for. The caller asks again.
                read_timeout = self._settings.read_timeout + LONGEST_WAIT
                self._polls = await self._open_sqs(self._config(read_timeout, attempts=1))
        line = self._line("sqs", url.rpartition("/")[2])
        return Queue(url, line=line, client=self._sqs, polls=self._polls)

    async def objects(self, bucket: str) -> Objects:
        """Speak to this bucket."""
        async with self._opening:
            if self._s3 is None:
                self._s3 = await self._open_s3()
        return Objects(bucket, line=self._line("s3", bucket), client=self._s3)

    async def edge(self, distribution_id: str) -> Edge:
        """Speak to this distribution."""
        async with self._opening:
            if self._cloudfront is None:
                self._cloudfront = await self._open_cloudfront()
        line = self._line("cloudfront", distribution_id)
        return Edge(distribution_id, line=line, client=self._cloudfront)

    async def _open_sqs(self, config: AioConfig) -> "SQSClient":
        endpoint = self._settings.endpoint("sqs")
        verify = _verifies(endpoint)
        return await self._opened(
            "sqs",
            self._sdk.create_client("sqs", endpoint_url=endpoint, verify=verify, config=config),
        )

    async def _open_s3(self) -> "S3Client":
        endpoint = self._settings.endpoint("s3")
        # An emulator has no host name for every bucket.
        style: Literal["path", "auto"] = "path" if endpoint else "auto"
        own = AioConfig(
            signature_version="s3v4",
            # What is put bears its SHA-256 in a header that is signed, and S3 compares: to hash it
            # again for the signature would be the event loop's work.
            s3={"addressing_style": style, "payload_signing_enabled": False},
            # Nor what is fetched: that is hashed here, and compared with what was measured before.
            response_checksum_validation="when_required",
        )
        config = self._config().merge(own)
        verify = _verifies(endpoint)
        client = await self._opened(
            "s3",
            self._sdk.create_client("s3", endpoint_url=endpoint, verify=verify, config=config),
        )
        with suppress(AttributeError, KeyError):  # an SDK of another making is slower, and works
            rules = vars(client)["_ruleset_resolver"]._provider.ruleset  # noqa: SLF001 - no other way
            for name in UNNAMED:
                rules.parameters.pop(name, None)
        return client

    async def _open_cloudfront(self) -> "CloudFrontClient":
        endpoint = self._settings.endpoint("cloudfront")
        verify, config = _verifies(endpoint), self._config()
        return await self._opened(
            "cloudfront",
            self._sdk.create_client(
                "cloudfront", endpoint_url=endpoint, verify=verify, config=config
            ),
        )

    async def _opened(
        self, service: Service, context: AbstractAsyncContextManager[Client]
    ) -> Client:
        line = self._line(service, "")
        async with line.calling("Open"):  # may ask for credentials
            client = await self._stack.enter_async_context(context)
        client.meta.events.register(f"before-send.{service}", line.sends)
        return client

    def _line(self, service: Service, resource: str) -> Line:
        within = self._settings.connect_timeout + SILENCES * self._settings.read_timeout
        return Line(service, resource, self._calls, within.total_seconds())

    def _config(
        self, read_timeout: timedelta | None = None, *, attempts: int = ATTEMPTS
    ) -> AioConfig:
        return AioConfig(
            connect_timeout=self._settings.connect_timeout.total_seconds(),
            read_timeout=(read_timeout or self._settings.read_timeout).total_seconds(),
            max_pool_connections=self._settings.max_connections,
            retries={"mode": "standard", "total_max_attempts": attempts},
            tcp_keepalive=True,
            user_agent=AGENT,
            ignore_configured_endpoint_urls=True,  # the settings have read those variables already
        )


def _verifies(endpoint: str | None) -> Literal[False] | None:
    """Nothing where there is no TLS: to read all certificates of the world takes each client 15 ms.

    None is what the SDK does by itself: it verifies.
    """
    return False if endpoint is not None and endpoint.startswith("http://") else None
