"""The one path of every AWS call: a deadline, a watcher, a border where errors become ours."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    MetadataRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    TokenRetrievalError,
)

from imagefleet.errors import FleetError, NotFound, Unavailable

if TYPE_CHECKING:  # whoever only translates errors needs no traces
    from imagefleet.telemetry.tracing import Tracing

Service: TypeAlias = Literal["sqs", "s3", "cloudfront"]

LONGEST_DETAIL: Final = 500  # characters

# What SQS, S3 and CloudFront call the same few things, in their JSON, XML and legacy spellings.
THROTTLED: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "OverLimit",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
CREDENTIALS: Final = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignatureException",
        "InvalidToken",
        "MissingAuthenticationToken",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
    }
)
NO_CREDENTIALS: Final = (
    CredentialRetrievalError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
)
DENIED: Final = frozenset({"403", "AccessDenied", "AccessDeniedException", "AllAccessDisabled"})
# What the bootstrap makes: gone, or not there yet.
MISSING: Final = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        "NoSuchBucket",
        "NoSuchDistribution",
        "QueueDoesNotExist",
    }
)
NOT_FOUND: Final = {"404": "object", "NoSuchKey": "object", "NoSuchInvalidation": "invalidation"}
# Answered with a status below 500, and still nobody's mistake: the next try may well succeed.
TRANSIENT: Final = frozenset(
    {
        "BadDigest",  # damaged on the way: S3 compared it with our checksum
        "IncompleteBody",
        "InternalError",
        "NoSuchUpload",  # a repeated completion whose first answer got lost
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "XAmzContentChecksumMismatch",
    }
)
OWN_CODES: Final = {
    "TooManyInvalidationsInProgress": "cloudfront_too_many",
    "ConditionalRequestConflict": "s3_conflict",
    "OperationAborted": "s3_conflict",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call: `SendMessageBatch` of `sqs` on a queue, `PutObject` of `s3` on a bucket."""

    service: Service
    operation: str
    resource: str
    """The name of the queue or bucket, or the id of the distribution."""


class CallWatcher:
    """Nobody. Who watches every call, for metrics and traces, is one of these; must not raise."""

    def during(self, call: Call) -> AbstractContextManager[None]:  # noqa: ARG002 - for who watches
        """Surround the call, with a span for instance; sees the translated error pass by."""
        return nullcontext()

    def ended(self, call: Call, seconds: float, error_code: str | None) -> None:
        """Hear how the call went; None is an answer, including an expected refusal."""

    def sent(self, service: Service, operation: str) -> None:
        """Count one HTTP request, of which a call that is retried costs several."""


class Line:
    """The line to one queue, bucket or distribution, over which all its calls go."""

    def __init__(self, service: Service, resource: str, calls: CallWatcher, within: float) -> None:
        self.resource = resource
        self._service: Service = service
        self._calls = calls
        self._within = within

    @asynccontextmanager
    async def calling(self, operation: str, *, plus: float = 0) -> AsyncIterator[None]:
        """Surround one call; its deadline is `plus` seconds later, for what it waits or carries."""
        call = Call(self._service, operation, self.resource)
        error_code: str | None = "cancelled"
        begun = time.perf_counter()
        with self._calls.during(call):
            try:
                with translated(self._service):
                    async with asyncio.timeout(self._within + plus):
                        yield
                error_code = None
            except FleetError as error:
                error_code = error.code
                raise
            except Exception:
                error_code = "bug"
                raise
            finally:
                self._calls.ended(call, time.perf_counter() - begun, error_code)

    def sends(self, event_name: str, **_: object) -> None:
        """Hear of one request, as the SDK tells it before it is sent."""
        self._calls.sent(self._service, event_name.rpartition(".")[2])


@contextmanager
def translated(service: Service) -> Iterator[None]:
    """Whatever the SDK raises inside leaves as one of `errors`; our own pass unchanged."""
    try:
        yield
    except ClientError as error:
        raise _of_answer(service, error) from error
    except ParamValidationError:  # the SDK was misused: a bug, and its own words say it best
        raise
    except NO_CREDENTIALS as error:
        raise unavailable("aws_credentials", str(error)) from error
    except (BotoCoreError, aiohttp.ClientError, OSError) as error:  # TimeoutError among them
        code = f"{service}_unavailable"
        detail = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise unavailable(code, detail) from error


def unavailable(code: str, detail: str) -> Unavailable:
    public_message = "A service we depend on is not available right now."
    return Unavailable(code, public_message, detail[:LONGEST_DETAIL])


def answered(error: ClientError) -> tuple[int, str]:
    """Status and code of an answer that is an error."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status, error.response.get("Error", {}).get("Code", "")


def _of_answer(service: Service, error: ClientError) -> FleetError:
    status, code = answered(error)
    detail = str(error)
    if code in NOT_FOUND:
        return NotFound(NOT_FOUND[code])
    if code in OWN_CODES:
        return unavailable(OWN_CODES[code], detail)
    if code in THROTTLED or status == HTTPStatus.TOO_MANY_REQUESTS:
        return unavailable(f"{service}_throttled", detail)
    if code in CREDENTIALS:
        return unavailable("aws_credentials", detail)
    if code in DENIED:
        return unavailable(f"{service}_denied", detail)
    if code in MISSING:
        return unavailable(f"{service}_missing", detail)
    if code in TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return unavailable(f"{service}_unavailable", detail)
    # A request that AWS will never take: ours to repair, so none of the errors that are expected.
    return FleetError(
        f"{service}_rejected", "Something went wrong on our side.", detail[:LONGEST_DETAIL]
    )


# PUT, COPY, POST and LIST, as S3's price list calls them; to delete, and to give up, is free.
WRITES: Final = ("Put", "Copy", "Create", "Upload", "Complete", "List")


@dataclass(slots=True)
class Billed:
    """Requests that were sent and that nobody was told of yet, of those that cost something."""

    sqs_requests: int = 0
    s3_writes: int = 0

    def sent(self, service: str, operation: str) -> None:
        """Count one HTTP request."""
        if service == "sqs":
            self.sqs_requests += 1
        elif service == "s3" and operation.startswith(WRITES):
            self.s3_writes += 1


class AwsCounts(Protocol):
    """The metrics of a process that speaks to AWS."""

    def call_ended(
        self, service: str, operation: str, resource: str, seconds: float, error_code: str | None
    ) -> None:
        """Take how a call went; None is no error."""

    def request_sent(self, service: str, operation: str) -> None:
        """Count one HTTP request."""


class AwsCalls(CallWatcher):
    """The watcher of a session: what it sees becomes metrics, and spans of traces."""

    def __init__(self, metrics: AwsCounts, tracing: "Tracing") -> None:
        self.billed = Billed()
        self._metrics = metrics
        self._tracing = tracing

    @contextmanager
    def during(self, call: Call) -> Iterator[None]:
        """Surround the call with a span, where it is made for the sake of something traced.

        Nothing else gets one: polls alone would fill any store of traces.
        """
        name = f"{call.service} {call.operation}"
        attributes = {
            "rpc.system": "aws-api",
            "rpc.service": call.service,
            "rpc.method": call.operation,
            "aws.resource": call.resource,
        }
        with self._tracing.child(name, "client", attributes):
            yield

    def ended(self, call: Call, seconds: float, error_code: str | None) -> None:
        """Hear how the call went."""
        self._metrics.call_ended(call.service, call.operation, call.resource, seconds, error_code)

    def sent(self, service: str, operation: str) -> None:
        """Count one HTTP request, of which a call that is retried costs several."""
        self.billed.sent(service, operation)
        self._metrics.request_sent(service, operation)
