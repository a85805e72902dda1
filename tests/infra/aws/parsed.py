"""The files of infra/aws as they are written, for what is to hold where there is no Terraform.

Expressions are told as text (`${var.name_prefix}`), literals as what they are.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from hcl2.query import DocumentView
from hcl2.query.blocks import BlockView
from hcl2.query.containers import ObjectView
from hcl2.rules.containers import ObjectRule
from hcl2.utils import SerializationOptions

from imagefleet.embedded.topology import described

AWS: Final = Path(__file__).parents[3] / "infra" / "aws"
EXAMPLE: Final = "complete"
PLAIN: Final = SerializationOptions(
    with_comments=False, explicit_blocks=False, strip_string_quotes=True
)


class Block(NamedTuple):
    """One block at the top of a file."""

    module: str
    labels: tuple[str, ...]
    """`resource`, `aws_sqs_queue`, `lane`."""
    body: dict[str, Any]

    @property
    def name(self) -> str:
        return ".".join((self.module, *self.labels))


def folders() -> list[Path]:
    """Every module, and the example."""
    return [*sorted((AWS / "modules").iterdir()), AWS / "examples" / EXAMPLE]


@cache
def _documents(folder: Path) -> tuple[DocumentView, ...]:
    return tuple(DocumentView.parse(file.read_text()) for file in sorted(folder.glob("*.tf")))


@cache
def blocks(*labels: str) -> tuple[Block, ...]:
    """Those of all modules whose labels begin so."""
    found: list[Block] = []
    for folder in folders():
        for document in _documents(folder):
            for block in cast("list[BlockView]", document.blocks(*labels)):
                body = block.body.to_dict(PLAIN)
                found.append(Block(folder.name, tuple(block.labels), body))
    return tuple(found)


def only(module: str, *labels: str) -> dict[str, Any]:
    """The body of the one block of this module with these labels."""
    (block,) = (block for block in blocks(*labels) if block.module == module)
    return block.body


def statements(folder: Path) -> Iterator[dict[str, Any]]:
    """Every statement of a policy that a module writes down, wherever in an expression."""
    for document in _documents(folder):
        for found in cast("list[ObjectView]", document.find_all(ObjectRule)):
            if {"Effect", "Action"} <= set(found.keys):
                yield {key: value.to_dict(PLAIN) for key, value in found.entries}


def put_out() -> set[str]:
    """What every process is given: by the rule of the bootstrap, and what has a name of its own."""
    topology = described()
    made = {f"{key.upper().replace('-', '_')}_QUEUE_URL" for key in topology.queues}
    made |= {f"{key.upper()}_BUCKET" for key in topology.buckets}
    text = (AWS / "examples" / EXAMPLE / "outputs.tf").read_text()
    return made | set(re.findall(r"^      ([A-Z_]+) +=", text, re.MULTILINE))
