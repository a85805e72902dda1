"""Watches AWS calls: times and outcomes become metrics, and spans of the traces they belong to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from imagefleet.telemetry.tracing import Tracing


class AwsCall(Protocol):
    """What is to know about a call before it is made."""

    @property
    def service(self) -> str:
        """Whose call it is: sqs, s3 or cloudfront."""

    @property
    def operation(self) -> str:
        """The name AWS gives it."""

    @property
    def resource(self) -> str:
        """The queue, bucket or distribution."""


class AwsCounts(Protocol):
    """The metrics of a process that speaks to AWS."""

    def call_ended(
        self, service: str, operation: str, resource: str, seconds: float, error_code: str | None
    ) -> None:
        """Take how a call went; None is no error."""

    def request_sent(self, service: str, operation: str) -> None:
        """Count one HTTP request."""


class AwsCalls:
    """The watcher of a session: pass it to `aws.session.open_session`."""

    def __init__(self, metrics: AwsCounts, tracing: Tracing) -> None:
        self._metrics = metrics
        self._tracing = tracing

    @contextmanager
    def during(self, call: AwsCall) -> Iterator[None]:
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

    def ended(self, call: AwsCall, seconds: float, error_code: str | None) -> None:
        """Hear how the call went."""
        self._metrics.call_ended(call.service, call.operation, call.resource, seconds, error_code)

    def sent(self, service: str, operation: str) -> None:
        """Count one HTTP request, of which a call that is retried costs several."""
        self._metrics.request_sent(service, operation)
