"""docs/install.md: what can run without an account or a cluster runs as it is written."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from tests.support.http import a_jpeg
from tests.support.stack import Producer, Stack

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "install.md"
BLOCKS: Final = re.compile(r"^```(\S[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SOMEWHERE_ELSE: Final = {"sh account", "sh cluster", "sh machine", "sh yours"}
# Named `admin` are two things: whoever may make roles, and the role that makes keys.
ROLES: Final = ("owner", "api", "worker", "maintenance", "operator", "admin")


def blocks(kind: str) -> list[str]:
    return [text for info, text in BLOCKS.findall(PAGE.read_text(encoding="utf-8")) if info == kind]


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


def test_every_overlay_that_is_applied_is_there() -> None:
    overlays = {path for text in blocks("sh cluster") for path in re.findall(r"infra/\S+", text)}

    assert len(overlays) == 3
    assert [] == [path for path in overlays if not (ROOT / path / "kustomization.yaml").is_file()]


def test_every_block_says_who_runs_it() -> None:
    marked = [info for info, _ in BLOCKS.findall(PAGE.read_text(encoding="utf-8"))]
    fences = re.findall(r"^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert {*marked} == {"sh", *SOMEWHERE_ELSE}
    assert len(fences) == 2 * len(marked), "a block that is not marked"


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
