"""The table of rights: complete, without a right to spare, and what Terraform and the page say."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel

from imagefleet.__main__ import PROCESSES
from imagefleet.embedded.topology import DEAD_LETTER, described
from imagefleet.jobs.images import originals_prefix, outputs_prefix, preview_key
from imagefleet.jobs.model import Lane, new_job_id
from imagefleet.settings import (
    ApiSettings,
    ConsoleSettings,
    MaintenanceSettings,
    WorkerSettings,
    slices_of,
)
from tests.faults.plugin.calls import Call, beginning_of, parts_of
from tests.support.golden import Golden
from tests.support.rights import ARNS, BUCKETS, LANES, Right, Table, allows, asked
from tests.support.sources import parsed

ROOT: Final = Path(__file__).parents[3]
SPEAKS_TO_AWS: Final = ROOT / "services" / "imagefleet" / "aws"
PAGE: Final = ROOT / "docs" / "aws-contract.md"
HEADING: Final = "## What each process may do\n"
TABLE: Final = Table.read()

SETTINGS: Final[dict[str, type[BaseModel]]] = {
    "api": ApiSettings,
    "worker": WorkerSettings,
    "maintenance": MaintenanceSettings,
    "console": ConsoleSettings,
}

# Of the names that calls of ours have: these are no calls of AWS.
NO_CALLS: Final = {"Open"}

OF_ANYBODY: Final = Right(
    process="api",
    action="s3:DeleteObject",
    on=("originals/o/*",),
    operations=("DeleteObjects",),
    why="?",
)


def needing(right: Right) -> Iterator[Call]:
    """Calls that this row is for."""
    prefix = right.prefixes[0].rstrip("*") if right.prefixes else None
    for place in right.on:
        for operation in right.operations:
            where = "general" if place == "lanes" else place.replace("*", "")
            if "/" not in where and where in BUCKETS and operation != "ListObjectVersions":
                where += "/o/" if where == "originals" else "/i/"
            yield Call(right.process, operation, where, prefix)


def calls_of(table: Table) -> set[Call]:
    return {call for right in table.rights for call in needing(right)}


def without(right: Right) -> Table:
    return replace(TABLE, rights=tuple(each for each in TABLE.rights if each is not right))


@pytest.mark.parametrize("right", TABLE.rights, ids=lambda right: right.name)
def test_no_right_can_be_spared(right: Right) -> None:
    """Each row is the only one that allows what it is for; or says why no test can tell."""
    refused = without(right).refused(needing(right))

    assert bool(refused) != bool(right.unseen), refused
    assert all(line.endswith(right.action) for line in refused)


def test_what_needs_every_right_is_allowed_and_leaves_none_idle() -> None:
    assert [] == TABLE.refused(calls_of(TABLE))
    assert {} == TABLE.idle(calls_of(TABLE))


@pytest.mark.parametrize(
    "needless",
    [
        OF_ANYBODY,
        replace(OF_ANYBODY, operations=()),
        replace(OF_ANYBODY, action="s3:*", operations=("PutObject",)),
        replace(OF_ANYBODY, action="s3:GetObject", on=("outputs/i/*",), operations=("GetObject",)),
    ],
)
def test_a_needless_right_is_found(needless: Right) -> None:
    idle = replace(TABLE, rights=(*TABLE.rights, needless)).idle(calls_of(TABLE))

    assert [needless.name] == [*idle]


@pytest.mark.parametrize(
    ("call", "lacks"),
    [
        (Call("api", "DeleteObjects", "originals/o/"), "s3:DeleteObject"),
        (Call("api", "PutObject", "outputs/i/"), "s3:PutObject"),
        (Call("api", "PutObject", "originals/tmp/"), "s3:PutObject"),
        (Call("api", "ReceiveMessage", "fast"), "sqs:ReceiveMessage"),
        (Call("worker", "PutObject", "originals/o/"), "s3:PutObject"),
        (Call("worker", "CreateInvalidation", "distribution"), "cloudfront:CreateInvalidation"),
        (Call("worker", "ListObjectVersions", "outputs", "elsewhere/"), "s3:ListBucketVersions"),
        (Call("maintenance", "PutObject", "outputs/i/"), "s3:PutObject"),
        (Call("maintenance", "ReceiveMessage", "general"), "sqs:ReceiveMessage"),
        (Call("keda", "ReceiveMessage", "fast"), "sqs:ReceiveMessage"),
        (Call("migrations", "GetQueueAttributes", "fast"), "sqs:GetQueueAttributes"),
        (Call("worker", "GetObject", "elsewhere/o/"), "s3:GetObject"),
    ],
)
def test_what_is_not_a_process_s_part_is_refused(call: Call, lacks: str) -> None:
    assert f"{call.process} may not {call.operation} on {call.place}: it lacks {lacks}" in (
        TABLE.refused([call])
    )


def test_a_call_that_the_table_does_not_know_is_refused() -> None:
    (refused,) = TABLE.refused([Call("worker", "PurgeQueue", "fast")])

    assert refused == "worker may not PurgeQueue on fast: it lacks a row of `needs`"


@pytest.mark.parametrize("process", TABLE.processes)
def test_nothing_is_allowed_that_does_not_come_over_tls(process: str) -> None:
    policy = TABLE.policy_of(process)
    plain = {"aws:SecureTransport": "false"}

    for right in TABLE.rights:
        if right.process == process and not right.via:
            resource = policy["Statement"][1]["Resource"][0]
            action = policy["Statement"][1]["Action"]
            assert allows(policy, action, resource, {"aws:SecureTransport": "true"})
            assert not allows(policy, action, resource, plain)
            return
    assert [policy["Statement"][0]] == policy["Statement"], "has no rights at all"


def test_a_key_is_used_by_way_of_what_is_encrypted_with_it_alone() -> None:
    policy = TABLE.policy_of("worker")
    by_s3 = {"kms:ViaService": "s3.eu-central-1.amazonaws.com"}

    assert allows(policy, "kms:Decrypt", ARNS["key"], by_s3)
    assert not allows(policy, "kms:Decrypt", ARNS["key"], {})
    assert not allows(policy, "kms:CreateGrant", ARNS["key"], by_s3)


def test_where_there_is_no_key_and_no_edge_nobody_has_rights_on_them() -> None:
    there = {name: arn for name, arn in ARNS.items() if name not in {"key", "distribution"}}

    for process in TABLE.processes:
        told = json.dumps(TABLE.policy_of(process, there))
        assert not re.search(r"kms|cloudfront", told), process


def test_every_call_that_is_written_in_the_product_is_in_the_table() -> None:
    names = set(operations_of_the_product()) - NO_CALLS
    known = {operation.partition(" ")[0] for operation in TABLE.needs}

    assert names == known


def operations_of_the_product() -> Iterator[str]:
    """The names under which `aws/` makes its calls."""
    for path in SPEAKS_TO_AWS.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="calling" | "_in_batches"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    yield name
                case _:
                    pass


def test_the_table_speaks_of_what_there_is() -> None:
    topology = described()
    places = {place for right in TABLE.rights for place in right.on}
    folders = {
        f"originals/{beginning_of(originals_prefix(new_job_id()))}*",
        f"outputs/{beginning_of(outputs_prefix(new_job_id()))}*",
        f"originals/{beginning_of(preview_key(new_job_id(), 1)).replace('image', '*')}*",
    }

    assert {*LANES} == {lane.value for lane in Lane}
    assert {*LANES, DEAD_LETTER} == {*topology.queues}
    assert {*BUCKETS} == {*topology.buckets}
    assert places == {"lanes", DEAD_LETTER, *BUCKETS, *folders, "distribution", "key"}
    for right in TABLE.rights:
        assert right.why.endswith("."), right.name
        assert "*" not in right.action, right.name
        for operation in right.operations:
            assert right.action in TABLE.needs[operation], right.name


def test_a_deletion_and_a_copy_are_told_by_their_parts() -> None:
    objects = [{"Key": "o/1"}, {"Key": "i/1", "VersionId": "2"}]
    copy = {"Key": "i/2", "CopySource": {"Bucket": "outputs", "Key": "i/1"}}

    deleted = [*parts_of("DeleteObjects", {"Delete": {"Objects": objects}})]

    assert deleted == [("DeleteObjects", "o/1"), ("DeleteObjects of versions", "i/1")]
    assert [*parts_of("CopyObject", copy)] == [("CopyObject from", "i/1"), ("CopyObject", "i/2")]


def test_a_listing_of_everything_is_no_listing_of_a_folder() -> None:
    policy = TABLE.policy_of("worker")
    within = Call("worker", "ListObjectVersions", "outputs", "i/")

    assert asked(policy, "s3:ListBucketVersions", within)
    assert not asked(policy, "s3:ListBucketVersions", within._replace(prefix=""))
    assert not asked(policy, "s3:ListBucketVersions", within._replace(prefix=None))


def test_the_policies_that_terraform_makes(golden: Golden) -> None:
    """With the ARNs of an example; the module's own test makes them, too, and compares."""
    policies = {process: TABLE.policy_of(process) for process in TABLE.processes}
    told = {"arns": ARNS, "policies": policies}

    golden.holds("policies.json", json.dumps(told, indent=1).encode())


def test_who_is_told_of_aws_has_rights_there_and_nobody_else() -> None:
    """The console asks the API alone; the migrations' role allows nothing; KEDA is not ours."""
    told = {process for process, settings in SETTINGS.items() if "aws" in slices_of(settings)}

    assert set(SETTINGS) == set(PROCESSES)
    assert {right.process for right in TABLE.rights} - {"keda"} == told
    assert "The console speaks to the API alone, and has no role." in PAGE.read_text()


def test_the_page_says_what_the_table_says(golden: Golden) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(HEADING)
    written, follows, after = rest.partition("\n## ")
    introduction, _, _ = written.partition("\n| Process")
    expected = f"{introduction}\n{in_markdown()}"
    if golden.writes:
        PAGE.write_text(before + HEADING + expected + follows + after)
        written = expected

    assert expected.splitlines() == written.splitlines(), "if it is meant, `make golden`"


def in_markdown() -> str:
    lines = ["| Process | Right | On | For | Why |", "|---|---|---|---|---|"]
    for right in TABLE.rights:
        on = " ".join(f"`{place}`" for place in right.on)
        calls = ", ".join(right.operations) or right.unseen
        lines.append(f"| {right.process} | `{right.action}` | {on} | {calls} | {right.why} |")
    return "\n".join(lines) + "\n"


RIGHT: Final = r"`[a-z0-9]+:[A-Za-z]+`"
CLAIM: Final = re.compile(
    rf"\b(API|[Ww]orkers?|[Mm]aintenance)[^.|]*?needs? ({RIGHT}(?:,? (?:and )?{RIGHT})*)"
)


def test_no_page_claims_a_right_that_its_process_has_not() -> None:
    claims = 0
    for path in (ROOT / "docs").rglob("*.md"):
        text = " ".join(path.read_text().split())
        for who, rights in CLAIM.findall(text):
            process = who.lower().removesuffix("s")
            held = {right.action for right in TABLE.rights if right.process == process}
            assert set(re.findall(r"`([^`]+)`", rights)) <= held, f"{path}: {who} needs {rights}"
            claims += 1

    assert claims > 3, "the pages say it in other words by now"
