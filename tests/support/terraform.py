"""Terraform as the machine has it, on a copy of infra/aws that is thrown away afterwards.

`TERRAFORM` names the program where it is another than `terraform` of the PATH. Where its provider
comes from is Terraform's own configuration (`TF_CLI_CONFIG_FILE`, `TF_CLI_ARGS_init`); where that
knows of none, a mirror that lies on this machine, as images of build machines bring one.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = Path("infra/aws")
EXAMPLE: Final = MODULES / "examples" / "complete"
# What the modules read, and what the tests of one compare with.
READ: Final = (
    Path("services/imagefleet/embedded/topology.json"),
    Path("tests/project/golden/policies.json"),
)

PROGRAM: Final = os.environ.get("TERRAFORM") or "terraform"  # noqa: TID251 - as from a terminal
WITHIN: Final = 540.0  # seconds
# What Terraform says where nobody has the provider for it, in whichever way it looked.
NO_PROVIDER: Final = ("Failed to query available provider packages", "Failed to install provider")
# A mirror is a folder with a registry's name in it.
MIRRORS: Final = tuple(
    f"{place}/*/registry.terraform.io" for place in ("opt", "srv", "usr/share", "usr/local/share")
)

# Emulators have one host for all buckets, and no metadata service is to be looked for.
EMULATOR_OVERRIDE: Final = """\
provider "aws" {
  s3_use_path_style = true
}

provider "aws" {
  alias             = "us_east_1"
  s3_use_path_style = true
}
"""
# What every account of the emulator begins with; whoever deploys has a cluster's.
PLACE: Final[Mapping[str, object]] = {
    "vpc_id": "vpc-00000001",
    "subnet_ids": ["subnet-00000001", "subnet-00000002"],
    "route_table_ids": ["rtb-00000001"],
    "clients": {"nodes": "sg-00000001"},
    "cluster": {
        "arn": "arn:aws:eks:eu-central-1:000000000000:cluster/none",
        "oidc_provider_arn": "arn:aws:iam::000000000000:oidc-provider/oidc.example.com/none",
    },
}
# What the modules are made of.
SERVICES: Final = (
    "sqs", "s3", "cloudfront", "sts", "iam", "ec2", "rds", "monitoring", "logs", "secretsmanager",
)  # fmt: skip


class LeftOutError(Exception):
    """It cannot be run on this machine, which says why."""


class TerraformError(RuntimeError):
    """What Terraform said when it failed."""


@dataclass(frozen=True, slots=True)
class Terraform:
    """One root, and what its program is told beside the words of a command."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str) -> str:
        """What it said; TerraformError if it failed."""
        done = subprocess.run(
            [PROGRAM, *words],
            cwd=self.root,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN,
            env={
                **os.environ,  # noqa: TID251 - where the provider is, is the user's to say
                "TF_IN_AUTOMATION": "1",
                "TF_INPUT": "0",
                "CHECKPOINT_DISABLE": "1",
                **self.environment,
            },
        )
        if done.returncode != 0:
            message = f"terraform {' '.join(words)}:\n{(done.stdout + done.stderr)[-8000:]}"
            raise TerraformError(message)
        return done.stdout

    def read(self, *words: str) -> Any:  # noqa: ANN401 - any JSON
        """What it said as JSON."""
        verb, *others = words
        return json.loads(self.run(verb, "-json", *others))

    def init(self) -> None:
        """Find modules and the provider; LeftOutError where nobody has that."""
        try:
            self.run("init", "-backend=false", "-no-color")
        except TerraformError as error:
            if not any(sentence in str(error) for sentence in NO_PROVIDER):
                raise
            mirror = next((found for place in MIRRORS for found in Path("/").glob(place)), None)
            if mirror is None:
                raise LeftOutError(_without_provider(str(error))) from error
            self.run("init", "-backend=false", "-no-color", f"-plugin-dir={mirror.parent}")


def present() -> None:
    """Return where there is a Terraform; else LeftOutError."""
    if shutil.which(PROGRAM) is None:
        message = f"there is no {PROGRAM} on the PATH (TERRAFORM names another)"
        raise LeftOutError(message)


@contextmanager
def copied() -> Iterator[Path]:
    """The modules and what they read, in the same places of another folder, which is told."""
    with tempfile.TemporaryDirectory(prefix="imagefleet-terraform-") as name:
        folder = Path(name)
        leave = shutil.ignore_patterns(".terraform*", "*.tfstate*", "*_override.tf")
        shutil.copytree(ROOT / MODULES, folder / MODULES, ignore=leave)
        for file in READ:
            (folder / file).parent.mkdir(parents=True)
            shutil.copyfile(ROOT / file, folder / file)
        yield folder


@contextmanager
def example_on(aws: Mapping[str, str], **variables: object) -> Iterator[Terraform]:
    """The complete example, ready to be applied to the emulator that these variables tell of."""
    present()
    with copied() as folder:
        root = folder / EXAMPLE
        (root / "emulator_override.tf").write_text(EMULATOR_OVERRIDE)
        given = {"region": aws["AWS_REGION"], "api_domain": "api.example.com", "destroyable": True}
        (root / "given.auto.tfvars.json").write_text(json.dumps({**given, **PLACE, **variables}))
        terraform = Terraform(root, {**aws, "AWS_EC2_METADATA_DISABLED": "true"})
        terraform.init()
        yield terraform


def outputs(terraform: Terraform) -> dict[str, Any]:
    """What the root puts out."""
    return {name: told["value"] for name, told in terraform.read("output").items()}


def changes(plan: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """What a plan would change: attributes by address, `*` for what comes or goes."""
    changed: dict[str, Sequence[str]] = {}
    for resource in plan.get("resource_changes", ()):
        change = resource["change"]
        if change["actions"] in (["no-op"], ["read"]):
            continue
        if change["actions"] != ["update"]:
            changed[resource["address"]] = ["*"]
            continue
        before, after, unknown = change["before"], change["after"], change["after_unknown"]
        changed[resource["address"]] = sorted(
            name for name in before if unknown.get(name) or before[name] != after.get(name)
        )
    return changed


def _without_provider(said: str) -> str:
    lines = (line.strip(" │╷╵") for line in said.splitlines())
    sentences = " ".join(line for line in lines if line)
    why = sentences.partition("Error: ")[2].partition("To see which modules")[0]
    return f"the provider hashicorp/aws can be had nowhere: {why.strip()}"
