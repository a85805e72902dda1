"""docs/install.md: what can run without an account or a cluster runs as it is written."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
import pytest
from PIL import Image

from tests.infra.aws.parsed import put_out
from tests.infra.kubernetes.wholeness import AUTHORITY
from tests.support.http import a_jpeg
from tests.support.install import PAGE, blocks, marked
from tests.support.stack import Producer, Stack

ROOT: Final = Path(__file__).parents[2]
OVERLAYS: Final = ROOT / "infra" / "k8s" / "overlays"
SOMEWHERE_ELSE: Final = {"sh account", "sh cluster", "sh machine", "sh yours"}
# Named `admin` are two things: whoever may make roles, and the role that makes keys.
ROLES: Final = ("owner", "api", "worker", "maintenance", "operator", "admin")


def of_an_operator(stack: Stack) -> dict[str, str]:
    """What the blocks marked `yours` export, and the outputs of what was applied."""
    facts = stack.facts
    urls: dict[str, str] = {role: facts["database_urls"][role] for role in ROLES}
    names = {"QUEUE_URL": facts["queue_urls"], "BUCKET": facts["buckets"]}
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # noqa: TID251 - where curl is
        "ADMIN_DATABASE_URL": stack._superuser_url,
        "ADMIN_ROLE_URL": urls["admin"],
        **{f"{role.upper()}_URL": urls[role] for role in ("owner", "api", "worker")},
        **{
            f"{role.upper()}_DATABASE_PASSWORD": str(urlsplit(urls[role]).password)
            for role in ROLES
        },
        "SCALER_DATABASE_PASSWORD": "of-this-test",  # nobody scales the stack
        **facts["aws"],
        **{
            f"{name.upper().replace('-', '_')}_{what}": value
            for what, each in names.items()
            for name, value in each.items()
        },
        "CLOUDFRONT_DISTRIBUTION_ID": facts["distribution_id"],
        "PUBLIC_BASE_URL": facts["public_base_url"],
        "IMAGEFLEET_URL": facts["api_url"],
    }


@pytest.mark.timeout(180)  # a dozen verbs, each a process, beside a stack on a busy machine
async def test_its_blocks_lead_to_a_published_image(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(a_jpeg())
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", "\n".join(blocks("sh"))),
        cwd=tmp_path,
        env=of_an_operator(stack),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(120):
        said, _ = await process.communicate()

    assert process.returncode == 0, said.decode()
    with Image.open(tmp_path / "newest") as picture:
        first = json.loads((tmp_path / "image.json").read_text(encoding="utf-8"))["variants"][0]
        assert (first["width"], first["height"]) == picture.size
    await its_upload_is_told_to_the_judge(stack, (tmp_path / "key").read_text().strip())


async def its_upload_is_told_to_the_judge(stack: Stack, key: str) -> None:
    """By a repeat, which has the same answer."""
    async with httpx.AsyncClient(
        base_url=stack.facts["api_url"], headers={"Authorization": f"Bearer {key}"}, timeout=20
    ) as http:
        repeat = await Producer(http, stack.journal, "shop").post(
            "/v1/images?reference=first", "first-1", "first",
            {"Content-Type": "image/jpeg"}, content=a_jpeg(),
        )  # fmt: skip
        (image,) = (await http.get("/v1/images?reference=first")).json()["images"]

    assert image["imageId"] == repeat.json()["imageId"]


def test_what_is_told_to_terraform_is_all_that_the_example_asks_for() -> None:
    asked = {
        name: "default" in rest
        for name, rest in re.findall(
            r'^variable "(\w+)" \{\n(.*?)^\}',
            (ROOT / "infra/aws/examples/complete/variables.tf").read_text(encoding="utf-8"),
            re.MULTILINE | re.DOTALL,
        )
    }
    told = set(re.findall(r"^(\w+) += ", blocks("sh yours")[0], re.MULTILINE))

    assert {name for name, is_optional in asked.items() if not is_optional} <= told
    assert told <= {*asked}


OF_ACCOUNT: Final = {
    "terraform": """#!/bin/sh
cat "$(dirname "$0")/$3.json"
""",
    "aws": """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        get-secret-value) echo '{"username": "administrator", "password": "a/b?c:d@e"}';;
        --name) name=$2;;
        --secret-string) mkdir -p "$name" && printf %s "$2" >"$name/string";;
    esac
    shift
done
""",
}
WITHIN: Final = 30.0  # seconds
# Where it is not that of the process whose secret it is.
ROLE_OF: Final = {
    "OPERATOR_DATABASE_URL": "operator",
    "imagefleet/migrations": "owner",
    "imagefleet/operator": "admin",
}


def by_account(tmp_path: Path, script: str, **outputs: object) -> str:
    """Run a block with an `aws` and a `terraform` that have no account."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in OF_ACCOUNT.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name, value in outputs.items():
        (programs / f"{name}.json").write_text(json.dumps(value))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},  # noqa: TID251 - as above
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked_of_the_store() -> set[tuple[str, str]]:
    """Which keys of which secrets the manifests of production read."""
    texts = [file.read_text() for file in (OVERLAYS / "production").rglob("secrets.yaml")]
    return {
        found
        for text in texts
        for found in re.findall(r"remoteRef: \{key: (\S+), property: (\w+)\}", text)
    }


def test_every_secret_that_the_manifests_ask_for_is_made_and_verifies_postgres(
    tmp_path: Path,
) -> None:
    (script,) = (text for text in blocks("sh account") if "secretsmanager" in text)
    database = {"host": "db.example", "port": 5432, "administrator_secret_arn": "arn:..."}

    by_account(tmp_path, script, database=database)

    made: dict[str, dict[str, str]] = {
        str(file.parent.relative_to(tmp_path)): json.loads(file.read_text())
        for file in tmp_path.glob("imagefleet/*/string")
    }
    assert {(name, key) for name, keys in made.items() for key in keys} == asked_of_the_store()
    verified = {"sslmode": "verify-full", "sslrootcert": f"{AUTHORITY}/ca.pem"}
    words = made["imagefleet/roles"]
    addresses = [
        (name, key, urlsplit(value))
        for name, keys in made.items()
        for key, value in keys.items()
        if key.endswith("_URL")
    ]
    for name, key, url in addresses:
        assert (url.hostname, url.port, dict(parse_qsl(url.query))) == (
            "db.example", 5432, verified,
        )  # fmt: skip
        if key == "ADMIN_DATABASE_URL":
            assert (url.path, unquote(url.password or "")) == ("/postgres", "a/b?c:d@e")
            continue
        role = ROLE_OF.get(key) or ROLE_OF.get(name) or name.partition("/")[2]
        word = words[f"{role.upper()}_DATABASE_PASSWORD"]
        assert (url.path, url.username, url.password) == (
            "/imagefleet", f"imagefleet_{role}", word,
        )  # fmt: skip
    assert made["imagefleet/scaling"]["password"] == words["SCALER_DATABASE_PASSWORD"]
    assert len({word for key, word in words.items() if key.endswith("_PASSWORD")}) == 7
    assert "--from-file=ca.pem=" in "".join(blocks("sh cluster"))


def test_what_terraform_puts_out_becomes_the_file_of_the_overlay(tmp_path: Path) -> None:
    (script,) = (text for text in blocks("sh account") if "aws.env" in text)
    shared = {name: f"value of {name}" for name in put_out()}
    environment = {"worker": shared, "api": {**shared, "PUBLIC_BASE_URL": "https://images.example"}}

    said = by_account(tmp_path, script, environment=environment)

    lines = (tmp_path / "aws.env").read_text().splitlines()
    assert dict(line.split("=", 1) for line in lines) == shared
    assert said.strip() == "https://images.example"


def test_every_overlay_that_is_applied_is_there() -> None:
    overlays = {path for text in blocks("sh cluster") for path in re.findall(r"infra/\S+", text)}

    assert len(overlays) == 4
    assert [] == [path for path in overlays if not (ROOT / path / "kustomization.yaml").is_file()]


def test_every_block_says_who_runs_it() -> None:
    told = [info for info, _ in marked()]
    fences = re.findall(r"^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert {*told} == {"sh", *SOMEWHERE_ELSE}
    assert len(fences) == 2 * len(told), "a block that is not marked"


def test_no_block_that_is_not_run_could_be() -> None:
    """What asks for an account, a cluster or an engine says so by its commands."""
    tools = {
        "sh account": r"terraform|aws ",
        "sh cluster": r"kubectl",
        "sh machine": r"docker|make image",
        "sh yours": r"^export \w+=|^cat > ",
    }

    for kind, tool in tools.items():
        for text in blocks(kind):
            assert re.search(tool, text, re.MULTILINE), text
    assert not any(re.search(r"terraform |kubectl |docker ", text) for text in blocks("sh"))
