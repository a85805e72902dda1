"""A job type of another package: built, installed beside the product's wheel, run by its processes.

Nothing here comes from the checkout but two wheels: the stack is the installed `imagefleet up`.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID
from zipfile import ZipFile

import httpx
import pytest
import pytest_asyncio

from imagefleet.jobs.model import Lane, TenantId
from imagefleet.store.database import connect
from imagefleet.store.jobs.submissions import submit_job
from tests.faults.director import directing
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.http import is_problem
from tests.support.images import quadrants, saved
from tests.support.journal import Journal
from tests.support.stack import Producer, Stack, end, stack_folder, wait_until_ready
from tests.support.wheels import (
    ROOT,
    Environment,
    build_wheel,
    fresh_environment,
    mirror,
    run_uv,
)

pytestmark = pytest.mark.timeout(120)  # whichever is first builds, installs and starts
IN_THE_STACKS_LOOP: Final = pytest.mark.asyncio(loop_scope="module")

EXAMPLE: Final = ROOT / "docs" / "examples" / "image-palette"
BROUGHT: Final = Path(__file__).parent / "brought_types"
KINDS: Final = """
[imagefleet.kinds]
isolation_probe = fleet_probe_types:PROBE
orphan = fleet_probe_types:ORPHAN
[imagefleet.handlers]
isolation_probe = fleet_probe_handlers:PROBING
"""
ADOPTED: Final = f"{KINDS}orphan = fleet_probe_handlers:ADOPTED\n"


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("product"))


def install_as_told(command: str, into: Path) -> None:
    """A documented line that installs something with uv into `.venv`, into that folder instead."""
    name, *arguments = shlex.split(command)
    assert name == ".tools/bin/uv", command
    arguments = [str(into) if word == ".venv" else word for word in arguments]
    run_uv(*(str(ROOT / word) if word.startswith("./") else word for word in arguments), **mirror())


@pytest.fixture(scope="module")
def installed(product: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Both packages, what the lock pins for them, and types that show what becomes of types."""
    environment = fresh_environment(tmp_path_factory.mktemp("installed") / "env", "embedded")
    environment.install(product)
    install_as_told(blocks_of_its_readme()[0], environment.folder)
    environment.bring("fleet_probes", KINDS, *BROUGHT.glob("*.py"))
    return environment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(installed: Environment) -> AsyncIterator[Stack]:
    with stack_folder() as folder, directing(Journal(), ()) as director:
        (folder / "tmp").mkdir()
        process = begin(installed, folder)
        stack = Stack(process=process, folder=folder, journal=Journal(), director=director)
        try:
            await wait_until_ready(stack)
            yield stack
        finally:
            await asyncio.to_thread(end, process)


def blocks_of_its_readme() -> list[str]:
    """The first installs it; the others are a walk that goes on from one to the next."""
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)


def begin(installed: Environment, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [
                *(installed.command, "up", "--workers", "1"),
                *("--state-dir", folder / "state", "--ready-file", folder / "ready.json"),
                *("--api-port", "0", "--console-port", "0", "--edge-port", "0"),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**clean_environment(), "TMPDIR": str(folder / "tmp")},
            start_new_session=True,
        )


@pytest_asyncio.fixture(loop_scope="module")
async def producer(stack: Stack) -> AsyncIterator[Producer]:
    async with stack.producer() as producer:
        yield producer


@pytest_asyncio.fixture(loop_scope="module")
async def operator(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with stack.producer(key="operator_key") as producer:
        yield producer.http


def clean_environment() -> dict[str, str]:
    """As from a terminal, with the uv of `.ci/setup`, and without a way back to the checkout."""
    tools = ROOT / ".tools" / "bin"
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # noqa: TID251
    return {**inherited, "PATH": f"{tools}:{inherited['PATH']}"}


async def asked(operator: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await operator.get(f"/v1/operator/{path}")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def accepted(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 202, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def an_image(producer: Producer, content: bytes) -> str:
    return str((await accepted(await producer.upload(content)))["imageId"])


async def a_palette(producer: Producer, image_id: str, colors: int = 4) -> str:
    payload = {"image_id": image_id, "colors": colors}
    return str((await accepted(await producer.submit("image_palette", payload)))["jobId"])


async def command(installed: Environment, stack: Stack, *arguments: str) -> tuple[int, str]:
    """What the installed command line says to an operator."""
    process = await asyncio.create_subprocess_exec(
        installed.command,
        *arguments,
        cwd=stack.folder,
        env={
            **clean_environment(),
            "IMAGEFLEET_URL": stack.facts["api_url"],
            "IMAGEFLEET_KEY": stack.facts["operator_key"],
            "DATABASE_URL": stack.facts["database_urls"]["owner"],
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def series(stack: Stack, process: str, name: str) -> set[str]:
    """The lines of one metric."""
    async with httpx.AsyncClient(timeout=5) as http:
        page = (await http.get(stack.facts["metrics_urls"][process])).text
    return {line for line in page.splitlines() if line.startswith(f"{name}{{")}


def test_the_wheel_is_the_whole_product(product: Path) -> None:
    services = ROOT / "services"
    package = [path for path in (services / "imagefleet").rglob("*") if path.is_file()]
    expected = {
        str(path.relative_to(services)) for path in package if "__pycache__" not in path.parts
    } | {f"imagefleet/migrations/{path.name}" for path in (ROOT / "migrations").glob("*.sql")}
    expected |= {"imagefleet/errors.md"}

    with ZipFile(product) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert expected == names
    assert any(name.endswith(".sql") for name in names)


def test_the_kind_is_loaded_without_what_only_workers_have(installed: Environment) -> None:
    """The API's container has no Pillow, and no use for the AWS SDK of a handler."""
    program = (
        "import json, sys\n"
        "import imagefleet\n"
        "from imagefleet.extensions import load_kinds\n"
        "kinds = list(load_kinds())\n"
        "loaded = sorted({'PIL', 'botocore', 'asyncpg'} & set(sys.modules))\n"
        "print(json.dumps([imagefleet.__file__, kinds, loaded]))\n"
    )
    said = subprocess.run(
        [installed.python, "-c", program],
        cwd=installed.folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout

    file, kinds, loaded = json.loads(said)
    assert Path(file).is_relative_to(installed.packages)
    assert {"process_image", "image_palette", "orphan"} <= set(kinds)
    assert [] == loaded


@IN_THE_STACKS_LOOP
async def test_installed_migrations_are_those_of_the_database(
    installed: Environment, stack: Stack
) -> None:
    code, said = await command(installed, stack, "migrate", "status")

    assert 0 == code, said


@IN_THE_STACKS_LOOP
async def test_a_job_of_the_type_runs_in_a_worker_and_has_its_result(
    producer: Producer, operator: httpx.AsyncClient, stack: Stack
) -> None:
    image_id = await an_image(producer, saved(quadrants()))
    job_id = await a_palette(producer, image_id)

    shown = await producer.ended(job_id)

    assert ("image_palette", "completed") == (shown["jobType"], shown["status"])
    assert {"done": 2, "total": 2} == shown["progress"]
    whole = await asked(operator, f"jobs/{job_id}")
    assert image_id == whole["result"]["imageId"]
    assert 64 == len(whole["result"]["sha256"])
    colors = {color["color"] for color in whole["result"]["colors"]}
    assert 4 == len(colors), colors
    assert all(0.2 < color["share"] < 0.3 for color in whole["result"]["colors"])
    assert ["s3"] == whole["services"]
    assert f"image_palette:{image_id}" == whole["target"]
    assert 3 == whole["maxAttempts"]
    counted = await series(stack, "worker-1", "job_processed_total")
    told = 'job_processed_total{job_type="image_palette",status="completed"}'
    assert any(line.startswith(told) for line in counted), counted


@IN_THE_STACKS_LOOP
async def test_the_walk_in_its_readme_works(installed: Environment, stack: Stack) -> None:
    here = {
        ".venv/bin/": f"{installed.folder}/bin/",
        "http://127.0.0.1:8080": stack.facts["api_url"],
        ".imagefleet/": f"{stack.state}/",
        "/tmp/": f"{stack.folder}/tmp/",  # noqa: S108 - where the README puts things
    }
    walk = "".join(blocks_of_its_readme()[1:])
    assert all(there in walk for there in here)
    places = re.compile("|".join(map(re.escape, here)))
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c"),
        places.sub(lambda match: here[match.group()], walk),
        cwd=stack.folder,
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()

    assert process.returncode == 0, said.decode()
    assert b'"status":"completed"' in said
    assert 3 == said.count(b"'color': '#"), said.decode()


@IN_THE_STACKS_LOOP
async def test_its_work_is_done_where_nothing_can_be_reached(
    producer: Producer, operator: httpx.AsyncClient, stack: Stack
) -> None:
    job_id = (await accepted(await producer.submit("isolation_probe")))["jobId"]

    await producer.ended(job_id)

    result = (await asked(operator, f"jobs/{job_id}"))["result"]
    child = result["child"]
    assert [result["worker"]] == list(stack.pids("worker").values())
    assert child.pop("pid") != result["worker"]
    assert {"told": "hello", "environment": 0} | dict.fromkeys(
        ("network", "file", "process", "program", "signal"), "PermissionError"
    ) == child


@IN_THE_STACKS_LOOP
async def test_a_payload_is_judged_where_it_is_submitted(producer: Producer) -> None:
    answer = await producer.submit("image_palette", {"image_id": "mine", "colors": 17})

    is_problem(answer, 422, "invalid_payload")
    assert "image_id" in answer.json()["detail"]
    assert "colors" in answer.json()["detail"]
    assert "mine" not in answer.text


@IN_THE_STACKS_LOOP
async def test_a_type_that_nobody_brought_is_refused_with_those_there_are(
    producer: Producer,
) -> None:
    answer = await producer.submit("teleport")

    is_problem(answer, 422, "unknown_job_type")
    assert {"image_palette", "isolation_probe", "noop"} <= set(
        answer.json()["detail"].rstrip(".").replace(",", "").split()
    )


@IN_THE_STACKS_LOOP
async def test_another_tenants_image_is_not_found(producer: Producer, stack: Stack) -> None:
    image_id = await an_image(producer, saved(quadrants()))
    async with stack.database() as owner:
        await owner.execute("INSERT INTO tenants (id, name) VALUES ('others', 'others')")
    async with connect(stack.facts["database_urls"]["api"], process="test") as api:
        submission = a_submission(
            type="image_palette",
            tenant_id=TenantId("others"),
            lane=Lane.GENERAL,
            payload={"image_id": image_id},
        )
        foreign = (await submit_job(api, submission)).job_id

        async def failed() -> bool:
            state = await api.fetchrow("SELECT state, failure_code FROM jobs WHERE id=$1", foreign)
            return state is not None and tuple(state) == ("failed", "not_found")

        assert await eventually(failed, within=30)


@IN_THE_STACKS_LOOP
async def test_a_failure_is_a_dead_letter_and_its_replay_succeeds_once_the_cause_is_gone(
    producer: Producer, operator: httpx.AsyncClient, installed: Environment, stack: Stack
) -> None:
    whole = saved(quadrants())
    image_id = await an_image(producer, whole[: len(whole) // 2])
    failed = await producer.ended(await a_palette(producer, image_id))

    assert ("failed", "corrupt") == (failed["status"], failed["failure"]["code"])
    job_id = failed["jobId"]
    assert 1 == (await asked(operator, f"jobs/{job_id}"))["attempts"]
    open_ones = await asked(operator, "dead-letters?jobType=image_palette&tenant=demo")
    (letter,) = open_ones["letters"]
    assert job_id == letter["jobId"]

    replaced = await producer.http.put(
        f"/v1/images/{image_id}", content=whole, headers={"Content-Type": "image/jpeg"}
    )
    await accepted(replaced)
    code, said = await command(
        installed, stack, "dlq", "replay", letter["id"], "--reason", "repaired", "--json"
    )

    assert 0 == code, said
    (replay,) = json.loads(said[said.index("{") :])["jobIds"]
    assert "completed" == (await producer.ended(replay))["status"]
    shown = await asked(operator, f"jobs/{replay}")
    assert (job_id, 1, "repaired") == (
        shown["replayOf"],
        shown["generation"],
        shown["replayReason"],
    )


@IN_THE_STACKS_LOOP
async def test_what_no_worker_can_do_waits_in_sight_until_one_can(
    producer: Producer, operator: httpx.AsyncClient, installed: Environment, stack: Stack
) -> None:
    """The API has the package and the workers do not: the way of every careless deployment."""
    job_id = (await accepted(await producer.submit("orphan")))["jobId"]
    async with connect(stack.facts["database_urls"]["api"], process="test") as api:
        unheard = replace(a_submission(type="teleport"), tenant_id=TenantId("demo"))
        nobodys = str((await submit_job(api, unheard)).job_id)

    async def met_a_worker() -> bool:
        counted = await series(stack, "worker-1", "claim_verdict_total")
        return any('verdict="unroutable"' in line for line in counted)

    assert await eventually(met_a_worker, within=30)
    for one in (job_id, nobodys):
        told = await asked(operator, f"jobs/{one}/explain")
        assert ("unroutable", "no_worker_for_type") == (told["verdict"], told["reason"])
    stats = await asked(operator, "queues")
    assert {("orphan", "general", 1), ("teleport", "fast", 1)} <= {
        (depth["jobType"], depth["lane"], depth["jobs"])
        for depth in stats["depths"]
        if depth["unroutable"]
    }
    _, said = await command(installed, stack, "queue", "stats")
    assert 2 == said.count("unroutable"), said

    async def sampled() -> bool:
        depths = await series(stack, "maintenance", "job_queue_depth")
        return {
            'job_queue_depth{job_type="orphan"} 1.0',
            'job_queue_depth{job_type="image_palette"} 0.0',
            'job_queue_depth{job_type="other"} 1.0',
        } <= depths

    assert await eventually(sampled, within=30)

    await the_workers_learn_it(installed, stack)
    assert (await operator.post(f"/v1/operator/jobs/{job_id}/retry-now")).is_success
    assert "completed" == (await producer.ended(job_id))["status"]
    waiting = await asked(operator, f"jobs/{UUID(nobodys)}")
    assert ("queued", 0) == (waiting["status"], waiting["attempts"])
    assert waiting["ringDueAt"]


async def the_workers_learn_it(installed: Environment, stack: Stack) -> None:
    """The package comes to them with their next start."""
    installed.bring("fleet_probes", ADOPTED)
    (before,) = stack.pids("worker").values()
    os.kill(before, signal.SIGTERM)

    async def another_one() -> bool:
        (now,) = stack.pids("worker").values()
        return now != before

    assert await eventually(another_one, within=60)
