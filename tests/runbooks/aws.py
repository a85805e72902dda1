"""The AWS CLI, as far as runbooks use it: a service, an operation, its parameters as options.

The CLI makes its commands from the models of botocore, and so does this: what is no operation
there, or none of its parameters, is refused.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import boto3  # type: ignore[import-untyped]
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError, UnknownServiceError

from tests.runbooks.shell import Ended, Refused

MADE_OF: Final[Mapping[str, Callable[[str], object]]] = {
    "string": str,
    "integer": int,
    "long": int,
    "boolean": lambda text: text == "true",
}


def read(client: Any, arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:  # noqa: ANN401 - boto3's
    """The method of the client, and its parameters."""
    named = {xform_name(name, "-"): name for name in client.meta.service_model.operation_names}
    operation, *options = arguments
    if operation not in named:
        message = f"argument operation: Invalid choice: {operation}"
        raise Refused(message)
    shape = client.meta.service_model.operation_model(named[operation]).input_shape
    members = {f"--{xform_name(name, '-')}": (name, of) for name, of in shape.members.items()}
    if len(options) % 2:
        message = f"{options[-1]} expects a value"
        raise Refused(message)
    given: dict[str, Any] = {}
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option not in members or members[option][1].type_name not in MADE_OF:
            message = f"Unknown options: {option}"
            raise Refused(message)
        name, of = members[option]
        given[name] = MADE_OF[of.type_name](value)
    missing = [name for name in shape.required_members if name not in given]
    if missing:
        message = f"the following arguments are required: {missing}"
        raise Refused(message)
    return xform_name(named[operation]), given


def move(
    client: Any,  # noqa: ANN401 - boto3's
    *,
    SourceArn: str,  # noqa: N803 - as AWS names them
    DestinationArn: str,  # noqa: N803
    **_: object,
) -> dict[str, Any]:
    """What SQS does for a task that MiniStack has not: bodies and attributes go as they are."""
    source, destination = (
        client.get_queue_url(QueueName=arn.rpartition(":")[2])["QueueUrl"]
        for arn in (SourceArn, DestinationArn)
    )
    taken: list[dict[str, Any]] = []
    while received := client.receive_message(
        QueueUrl=source, MaxNumberOfMessages=10, MessageAttributeNames=["All"], WaitTimeSeconds=0
    ).get("Messages"):
        taken += received
    for message in taken:
        attributes = message.get("MessageAttributes", {})
        client.send_message(
            QueueUrl=destination, MessageBody=message["Body"], MessageAttributes=attributes
        )
        client.delete_message(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"])
    return {"TaskHandle": "of-a-task-that-is-over"}


async def answer(variables: Mapping[str, str], arguments: Sequence[str]) -> Ended:
    """Ask the emulator that these variables name, and print what the CLI prints."""
    service, *rest = arguments
    try:
        client = boto3.client(
            service,
            endpoint_url=variables["AWS_ENDPOINT_URL"],
            region_name=variables["AWS_REGION"],
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        )
    except UnknownServiceError as error:
        raise Refused(str(error)) from None
    method, given = read(client, rest)
    ask = partial(move, client) if method == "start_message_move_task" else getattr(client, method)
    try:
        told = await asyncio.to_thread(ask, **given)
    except (BotoCoreError, ClientError) as error:
        return Ended(254, "", f"\n{error}\n")
    told.pop("ResponseMetadata", None)
    return Ended(0, json.dumps(told, indent=4, default=str) + "\n")
