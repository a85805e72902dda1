"""What the files of infra/aws say, wherever the tests run: there may be no Terraform."""

import json
import re
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel

from imagefleet.embedded.edge.origins import ERROR_SECONDS, ERRORS_KEPT
from imagefleet.embedded.topology import DEAD_LETTER, POINTERS, SERVED, described
from imagefleet.maintenance import flusher
from imagefleet.settings import ApiSettings, MaintenanceSettings, WorkerSettings, slices_of
from imagefleet.settings.variables import Variable, variables
from tests.infra.aws.differences import DIFFERENCES
from tests.infra.aws.parsed import AWS, blocks, folders, only, put_out, statements

SETTINGS: Final[dict[str, type[BaseModel]]] = {
    "api": ApiSettings,
    "worker": WorkerSettings,
    "maintenance": MaintenanceSettings,
}
FILES: Final = sorted(AWS.rglob("*.tf"))


def test_every_input_has_a_type_and_every_one_says_what_it_is() -> None:
    inputs = blocks("variable")
    silent = [
        one.name
        for one in (*inputs, *blocks("output"))
        if len(str(one.body.get("description", "")).split()) < 3
    ]

    assert inputs
    assert [one.name for one in inputs if "type" not in one.body] == []
    assert silent == []


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_every_module_pins_the_same_provider(folder: Path) -> None:
    text = (folder / "versions.tf").read_text()
    uses = folder.name != "topology"

    assert re.findall(r'required_version = "(.+?)"', text) == [">= 1.9"]
    assert re.findall(r' version = "(.+?)"', text) == (["~> 5.100"] if uses else [])


def test_there_is_no_second_copy_of_the_topology() -> None:
    """Its numbers stand in no file; what is made of them is read, and once."""
    readers = [file for file in FILES if "topology.json" in file.read_text()]

    assert [file.relative_to(AWS) for file in readers] == [Path("modules/topology/main.tf")]
    (read,) = re.findall(r"\$\{path\.module\}/(\S+?)\"", readers[0].read_text())
    assert json.loads((readers[0].parent / read).read_text())["queues"].keys() == {
        *described().queues
    }


def test_queues_take_every_number_from_the_topology() -> None:
    for name, source in (("lane", "each.value"), ("dead_letter", "var.queues[")):
        queue = only("queues", "resource", "aws_sqs_queue", name)
        for attribute in ("visibility_timeout_seconds", "message_retention_seconds"):
            assert source in queue[attribute], (name, attribute)
        assert queue["receive_wait_time_seconds"] == "${var.long_poll_seconds}"
    lane = only("queues", "resource", "aws_sqs_queue", "lane")
    assert "maxReceiveCount = each.value.max_receives" in lane["redrive_policy"]


def test_dead_letters_are_kept_for_longer_than_any_message() -> None:
    """What Terraform refuses otherwise; and this is what it is given."""
    queues = described().queues
    lanes = [queue.retention_days for key, queue in queues.items() if key != DEAD_LETTER]

    assert queues[DEAD_LETTER].retention_days > max(lanes)


def test_every_queue_is_encrypted() -> None:
    for queue in blocks("resource", "aws_sqs_queue"):
        assert queue.body["sqs_managed_sse_enabled"] == "${var.kms_key_arn == null ? true : null}"
        assert queue.body["kms_master_key_id"] == "${var.kms_key_arn}"


@pytest.mark.parametrize(("module", "service"), [("queues", "sqs"), ("storage", "s3")])
def test_what_comes_without_tls_is_refused_from_anybody(module: str, service: str) -> None:
    refused = [one for one in statements(AWS / "modules" / module) if one["Effect"] == "Deny"]

    (statement,) = refused
    assert (statement["Principal"], statement["Action"]) == ("*", f"{service}:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_nobody_is_everybody(folder: Path) -> None:
    """Policies of endpoints know principals by condition alone; ECR signs for layers itself."""
    for statement in statements(folder):
        if statement["Effect"] == "Allow" and statement.get("Principal") == "*":
            if statement["Sid"] == "Layers":
                assert statement["Action"] == "s3:GetObject"
            else:
                assert statement["Condition"] == "${local.ours_alone}", statement
    assert '"*"' not in str([one for one in statements(folder) if "AWS" in one])


def test_an_endpoint_is_for_this_account_alone() -> None:
    text = (AWS / "modules" / "network" / "main.tf").read_text()

    (condition,) = re.findall(r"ours_alone = \{\s*StringEquals = \{(.*?)\}", text, re.DOTALL)
    assert dict(re.findall(r'"(\S+)"\s*=\s*(\S+)', condition)) == {
        "aws:PrincipalAccount": "local.account",
        "aws:ResourceAccount": "local.account",
    }


def test_buckets_are_private_versioned_and_know_no_acls() -> None:
    block = only("storage", "resource", "aws_s3_bucket_public_access_block")
    closed = {name: value for name, value in block.items() if name.endswith(("acls", "policy"))}
    closed["restrict_public_buckets"] = block["restrict_public_buckets"]

    assert closed == dict.fromkeys(closed, True)
    assert len(closed) == 4
    owner = only("storage", "resource", "aws_s3_bucket_ownership_controls")
    assert owner["rule"][0]["object_ownership"] == "BucketOwnerEnforced"
    kept = only("storage", "resource", "aws_s3_bucket_versioning")
    assert kept["versioning_configuration"][0]["status"] == "Enabled"


def test_whatever_a_bucket_has_every_bucket_has() -> None:
    every = {"${aws_s3_bucket.bucket}", "${var.buckets}"}

    for resource in blocks("resource"):
        if resource.labels[1].startswith("aws_s3_bucket") and "logging" not in resource.labels[1]:
            assert resource.body["for_each"] in every, resource.name


def test_the_edge_agrees_with_the_one_of_this_machine() -> None:
    """Two origins of the same names, the same path, and errors that are kept for as long."""
    made = only("edge", "locals")

    assert (made["served"], made["pointers"]) == (SERVED, POINTERS)
    assert made["error_seconds"] == ERROR_SECONDS
    assert set(made["errors_kept"]) <= ERRORS_KEPT


def test_an_address_is_all_that_the_cache_knows() -> None:
    policy = only("edge", "resource", "aws_cloudfront_cache_policy")
    (key,) = policy["parameters_in_cache_key_and_forwarded_to_origin"]

    assert (policy["min_ttl"], policy["default_ttl"]) == (0, 0)
    assert (key["enable_accept_encoding_brotli"], key["enable_accept_encoding_gzip"]) == (
        False,
        False,
    )
    assert key["cookies_config"][0] == {"cookie_behavior": "none"}
    assert key["headers_config"][0] == {"header_behavior": "none"}
    assert key["query_strings_config"][0] == {"query_string_behavior": "none"}


def test_postgres_forces_tls_and_can_be_put_back_to_any_moment() -> None:
    parameters = only("database", "locals")["parameters"]
    instance = only("database", "resource", "aws_db_instance")

    assert parameters["rds.force_ssl"] == 1
    assert instance["publicly_accessible"] is False
    assert instance["storage_encrypted"] is True
    assert instance["manage_master_user_password"] is True
    assert instance["backup_retention_period"] == "${var.backup_days}"
    assert only("database", "variable", "backup_days")["default"] >= 7
    assert instance["deletion_protection"] == "${var.deletion_protection}"
    assert only("database", "variable", "deletion_protection")["default"] is True


def test_a_destroy_takes_nothing_of_value_unless_that_is_said() -> None:
    assert only("complete", "variable", "destroyable")["default"] is False
    assert only("complete", "module", "storage")["force_destroy"] == "${var.destroyable}"
    assert only("storage", "variable", "force_destroy")["default"] is False
    assert only("complete", "module", "database")["deletion_protection"] == "${!var.destroyable}"


def test_parts_are_given_what_the_others_made() -> None:
    """Where Terraform's own tests pretend, as each of them has one module alone."""
    arn = "${module.edge.distribution_arn}"

    for module in ("storage", "identity"):
        assert only("complete", "module", module)["distribution_arn"] == arn
    for module in ("network", "database"):
        assert only("complete", "module", module)["clients"] == "${var.clients}"
        assert only("complete", "module", module)["subnet_ids"] == "${var.subnet_ids}"
    for module in ("queues", "storage", "database", "identity"):
        assert only("complete", "module", module)["kms_key_arn"] == "${var.kms_key_arn}"


def test_what_the_edge_does_is_looked_for_where_its_metrics_are() -> None:
    alarm = only("alarms", "resource", "aws_cloudwatch_metric_alarm", "edge_errors")

    assert alarm["provider"] == "${aws.us_east_1}"
    assert (
        only("complete", "module", "alarms")["distribution_id"] == "${module.edge.distribution_id}"
    )


def test_no_pod_reaches_the_metadata_service() -> None:
    options = only("network", "resource", "aws_launch_template")["metadata_options"][0]

    assert (options["http_tokens"], options["http_put_response_hop_limit"]) == ("required", 1)


def test_the_alarm_of_invalidations_counts_what_maintenance_writes() -> None:
    counted = only("alarms", "resource", "aws_cloudwatch_log_metric_filter")["pattern"]

    (event,) = re.findall(r'\$\.event = \\?"(\S+?)\\?"', counted)
    assert f'"{event}"' in Path(flusher.__file__).read_text()


@pytest.mark.parametrize("process", SETTINGS)
def test_a_process_is_given_what_it_must_have_but_for_secrets(process: str) -> None:
    known: list[Variable] = []
    for part in slices_of(SETTINGS[process]).values():
        known += variables(part)
    needed = {
        one.name for one in known if one.required and not one.secret and one.name[:8] != "DATABASE"
    }
    given = put_out() | ({"PUBLIC_BASE_URL"} if process == "api" else set())

    assert needed <= given
    assert given <= {name for one in known for name in one.names}


def test_what_checkov_is_told_to_leave_out_has_a_reason() -> None:
    told = [
        (file.name, *found)
        for file in FILES
        for found in re.findall(r"#checkov:skip=(\S+?)(?::(.*))?$", file.read_text(), re.MULTILINE)
    ]

    assert told
    for file, check, reason in told:
        assert re.fullmatch(r"CKV2?_AWS_\d+", check), (file, check)
        assert len(reason.split()) >= 5, (file, check)


def test_what_never_converges_on_the_emulator_has_its_name_on_the_page() -> None:
    page = (AWS / "README.md").read_text()
    resources = {".".join((block.module, *block.labels[1:])) for block in blocks("resource")}

    assert {one.name for one in DIFFERENCES.values() if f"`{one.name}`" not in page} == set()
    assert {address.removeprefix("module.") for address in DIFFERENCES} <= resources
