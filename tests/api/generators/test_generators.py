"""Programs that write clients read both documents without a complaint, and what they write works.

They live in environments of their own, pinned beside this file, below .bench/ of the checkout.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from imagefleet.api.http.documents import DOCUMENTS, OPERATORS, PRODUCERS
from tests.support.api import Running, documents_of, of_nobody
from tests.support.wheels import ROOT, NoPrograms, pinned_environment, pinned_modules

pytestmark = pytest.mark.timeout(300)  # the first one fetches what the others find

PICTURE: Final = "image/webp"  # bytes, which it has to be told; of previews, for operators alone
HERE: Final = Path(__file__).parent
CACHE: Final = ROOT / ".bench"
WITHIN: Final = 200.0  # seconds for one program
ADDRESSES: Final = [each.address for each in DOCUMENTS]

# With the client that was written from the document of producers: submit, look, be refused.
USES: Final = """
import sys
from client import AuthenticatedClient
from client.api.jobs import create_job, list_job_types, show_job
from client.models import JobState, NewJob, NewJobJobType, NewJobPayload, Problem

with AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2]) as client:
    asked = NewJob(job_type=NewJobJobType.NOOP, payload=NewJobPayload.from_dict({"note": "x"}))
    accepted = create_job.sync(client=client, body=asked)
    job = show_job.sync(accepted.job_id, client=client)
    types = list_job_types.sync(client=client)
    asked.payload["note"] = "x" * 300
    refused = create_job.sync(client=client, body=asked)

assert job.status is JobState.QUEUED
assert "noop" in [each.job_type for each in types.job_types]
assert isinstance(refused, Problem)
assert refused.code == "invalid_payload"
"""
IMPORTS_ALL: Final = """
import importlib, pkgutil, client
found = [each.name for each in pkgutil.walk_packages(client.__path__, "client.")]
print(len([importlib.import_module(name) for name in found]))
"""


@pytest.fixture(scope="session")
def python() -> Path:
    return pinned_environment(HERE / "requirements.txt", CACHE)


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where those of npm are."""
    try:
        return pinned_modules(HERE, CACHE) / ".bin"
    except NoPrograms as why:
        pytest.skip(str(why))


@pytest.fixture(params=ADDRESSES)
def document(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(str(request.param), tmp_path)


def written(address: str, folder: Path) -> Path:
    file = folder / "document.json"
    file.write_text(json.dumps(documents_of(of_nobody())[address]), encoding="utf-8")
    return file


def run(*command: object, cwd: Path, path: Path | None = None) -> str:
    """What a program says, which must be content."""
    ours = dict(os.environ)  # noqa: TID251 - node and its registry are as the system has them
    found = ours["PATH"] if path is None else f"{path}{os.pathsep}{ours['PATH']}"
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**ours, "PATH": found},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def client_of(document: Path, python: Path) -> Path:
    """A package named client, written by openapi-python-client."""
    config = document.parent / "config.yml"
    config.write_text(f"content_type_overrides:\n  {PICTURE}: application/octet-stream\n")
    said = run(
        *(python.with_name("openapi-python-client"), "generate", "--path", document),
        *("--output-path", "client", "--meta", "none", "--fail-on-warning", "--config", config),
        cwd=document.parent,
        path=python.parent,
    )
    assert said.strip() == "Generating client"
    return document.parent


def test_openapi_python_client_writes_a_client_of_every_operation(
    document: Path, python: Path
) -> None:
    folder = client_of(document, python)

    modules = int(run(python, "-W", "error", "-c", IMPORTS_ALL, cwd=folder))

    paths = json.loads(document.read_text(encoding="utf-8"))["paths"]
    operations = [each["operationId"] for methods in paths.values() for each in methods.values()]
    assert modules > len(operations)
    written = {file.stem.replace("_", "") for file in folder.glob("client/api/*/*.py")}
    assert {name.lower() for name in operations} <= written


def test_datamodel_code_generator_writes_a_model_of_every_schema(
    document: Path, python: Path
) -> None:
    models = document.with_name("models.py")
    said = run(
        *(python.with_name("datamodel-codegen"), "--input", document, "--output", models),
        *("--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel"),
        *("--formatters", "builtin"),
        cwd=document.parent,
    )
    assert said.strip() == ""

    run(python, "-W", "error", models, cwd=document.parent)

    source = models.read_text(encoding="utf-8")
    for name in json.loads(document.read_text(encoding="utf-8"))["components"]["schemas"]:
        assert f"class {name}(" in source


def test_openapi_typescript_writes_types_that_are_sound(document: Path, programs: Path) -> None:
    said = run(programs / "openapi-typescript", document, "-o", "api.d.ts", cwd=document.parent)
    assert "warn" not in said.lower()

    run(programs / "tsc", "--noEmit", "--strict", "api.d.ts", cwd=document.parent)

    types = document.with_name("api.d.ts").read_text(encoding="utf-8")
    for methods in json.loads(document.read_text(encoding="utf-8"))["paths"].values():
        for operation in methods.values():
            assert f'operations["{operation["operationId"]}"]' in types


async def test_a_client_that_was_written_from_the_document_works(
    running: Running, python: Path, tmp_path: Path
) -> None:
    folder = client_of(written(PRODUCERS.address, tmp_path), python)

    arguments = ("-W", "error", "-c", USES, running.url, running.secrets["acme"])
    process = await asyncio.create_subprocess_exec(python, *arguments, cwd=folder)
    assert await process.wait() == 0


def test_what_no_program_can_read_is_a_complaint(python: Path, tmp_path: Path) -> None:
    file = written(OPERATORS.address, tmp_path)
    document = json.loads(file.read_text(encoding="utf-8"))
    body = {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}
    document["paths"]["/v1/operator/pauses"]["put"]["requestBody"] = body
    file.write_text(json.dumps(document), encoding="utf-8")

    with pytest.raises(AssertionError, match="Unsupported content type"):
        client_of(file, python)
