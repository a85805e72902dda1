"""What may be typed: once, with a reason, and with a yes where it is much."""

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, document, failed


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "ack", "--note", "x"),
        ("dlq", "ack", "--note", "x", "--all", "--code", "corrupt"),
        ("dlq", "replay", "--reason", "x", "some-id", "--all"),
        ("dlq", "replay-all", "--reason", "x"),
        ("queue", "pause", "--reason", "x"),
        ("queue", "pause", "--reason", "x", "--type", "noop", "--all"),
        ("queue", "pause", "--reason", "x", "--target", "image:1"),
        ("queue", "resume", "--reason", "x", "--lane", "fast", "--tenant", "acme"),
        ("queue", "resume", "--reason", "x", "--all", "--tenant", "acme"),
        ("tenants", "limit", "acme", "--reason", "x"),
        ("tenants", "cancel", "--reason", "x"),
        ("tenants", "cancel", "acme", "--every-tenant", "--reason", "x"),
        ("tenants", "limit", "acme", "--reason", "x", "--set", "weight"),
        ("tenants", "limit", "acme", "--reason", "x", "--set", "weight=-1"),
    ],
)
async def test_what_is_meant_has_to_be_said_once(operate: Cli, arguments: tuple[str, ...]) -> None:
    assert ExitCode.USAGE == (await operate(*arguments)).code


@pytest.mark.parametrize(
    "arguments",
    [
        ("breaker", "open", "s3"),
        ("breaker", "reset", "s3"),
        ("jobs", "retry-now", "some-id"),
        ("queue", "resume", "--all"),
        ("tenants", "resume", "acme"),
        ("workers", "drain", "some-id"),
    ],
)
async def test_what_undoes_something_asks_why(operate: Cli, arguments: tuple[str, ...]) -> None:
    """Else a day of incidents is a page of the audit without a reason."""
    ended = await operate(*arguments)

    assert ExitCode.USAGE == ended.code
    assert "--reason" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "ack", "--note", "x", "--all"),
        ("dlq", "replay", "--reason", "x", "--code", "internal_error"),
        ("queue", "pause", "--reason", "x", "--all"),
        ("tenants", "cancel", "acme", "--reason", "x"),
        ("tenants", "cancel", "--every-tenant", "--reason", "x"),
        ("dlq", "replay-all", "--reason", "x", "--code", "internal_error"),
    ],
)
async def test_much_at_once_needs_a_yes(
    operate: Cli, worker: Connection, superuser: Connection, arguments: tuple[str, ...]
) -> None:
    await failed(worker, superuser, 1)

    ended = await operate(*arguments)

    assert ExitCode.USAGE == ended.code
    assert "--yes" in ended.err
    assert 1 == len(document(await operate("dlq", "list", "--json"))["letters"])
    assert [] == document(await operate("queue", "pauses", "--json"))["pauses"]
