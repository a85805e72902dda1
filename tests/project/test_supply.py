"""What is installed is what was locked: uv by hash, images and actions by digest, audited."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
SERVICES: Final[dict[str, Any]] = yaml.safe_load((ROOT / "compose.localstack.yml").read_text())[
    "services"
]
NOBODY: Final = "http://127.0.0.1:1"

Said = tuple[int, Mapping[str, str], bytes]


@contextmanager
def serving(answer: Callable[[str, Mapping[str, str], bytes], Said]) -> Iterator[str]:
    """A server that answers a path, headers and a body so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, headers, content = answer(self.path, dict(self.headers), body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_POST = do_GET  # noqa: N815 - the base's names

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def ended(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **environment},  # noqa: TID251 - as from a terminal
    )


# --- uv


def test_uv_is_only_ever_installed_by_hash() -> None:
    pinned = (ROOT / ".ci" / "uv.txt").read_text()
    installed = "--require-hashes --only-binary :all: --requirement"
    dockerfile = (ROOT / "services" / "Dockerfile").read_text()

    assert len(re.findall(r"^uv==\S+ \\$", pinned, re.MULTILINE)) == 1
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", pinned)) > 10  # one for each platform
    assert f"{installed} .ci/uv.txt" in (ROOT / ".ci" / "setup").read_text()
    assert f"uv/bin/pip install --quiet {installed} uv.txt" in dockerfile
    assert "!.ci/uv.txt\n" in (ROOT / ".dockerignore").read_text()
    asked = [
        path
        for path in (*ROOT.glob(".ci/*"), *ROOT.glob("infra/*/*"), ROOT / "services" / "Dockerfile")
        if path.is_file() and re.search(r"install[^\n]*\buv\b(==|\"|')", path.read_text())
    ]
    assert asked == []


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout of nothing but what fetches uv."""
    shutil.copytree(ROOT / ".ci", tmp_path / "bare" / ".ci")
    return tmp_path / "bare"


@pytest.fixture
def no_pip(tmp_path: Path) -> dict[str, str]:
    """An interpreter without pip, and a PATH that has none and knows a uv."""
    venv.create(tmp_path / "interpreter", with_pip=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "sed", "dirname", "cat", "rm"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    (tools / "uv").symlink_to(ROOT / ".tools" / "bin" / "uv")
    return {"PYTHON": str(tmp_path / "interpreter" / "bin" / "python"), "PATH": str(tools)}


@contextmanager
def another_uv(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """An index that has no uv but this one of the right version, and what it was asked."""
    version = re.findall(r"^uv==(\S+)", (ROOT / ".ci" / "uv.txt").read_text(), re.MULTILINE)[0]
    name = f"uv-{version}-py3-none-any.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        info = f"uv-{version}.dist-info"
        wheel.writestr("bin/uv", "#!/bin/sh\ntouch owned\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    asked: list[str] = []

    def index(path: str, headers: Mapping[str, str], body: bytes) -> Said:
        asked.append(path.rpartition("/")[2])
        if path.endswith(".whl"):
            return 200, {}, (tmp_path / name).read_bytes()
        return 200, {"Content-Type": "text/html"}, f'<a href="/{name}">{name}</a>'.encode()

    with serving(index) as url:
        yield f"{url}/simple", asked


def test_another_uv_than_the_locked_one_is_not_installed(bare: Path, tmp_path: Path) -> None:
    with another_uv(tmp_path) as (url, asked):
        done = ended(bare / ".ci" / "setup", PIP_INDEX_URL=url, PIP_NO_CACHE_DIR="1")

    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stdout + done.stderr
    assert any(each.endswith(".whl") for each in asked)
    assert not (bare / ".tools" / "bin").exists()


def test_without_pip_a_uv_of_any_version_fetches_the_locked_one_and_no_other(
    bare: Path, tmp_path: Path, no_pip: dict[str, str]
) -> None:
    with another_uv(tmp_path) as (url, asked):
        done = ended(bare / ".ci" / "setup", PIP_INDEX_URL=url, UV_NO_CACHE="1", **no_pip)

    assert done.returncode != 0
    assert "Hash mismatch" in done.stderr
    assert any(each.endswith(".whl") for each in asked)
    assert not (bare / ".tools" / "bin").exists()


def test_a_uv_that_says_it_is_the_locked_one_is_not_believed(
    bare: Path, no_pip: dict[str, str]
) -> None:
    version = re.findall(r"^uv==(\S+)", (ROOT / ".ci" / "uv.txt").read_text(), re.MULTILINE)[0]
    there = bare / ".tools" / "bin" / "uv"
    there.parent.mkdir(parents=True)
    there.write_text(f"#!/bin/sh\n: >owned\necho uv {version}\n")
    there.chmod(0o755)

    done = ended(bare / ".ci" / "setup", PIP_INDEX_URL=NOBODY, UV_HTTP_RETRIES="0", **no_pip)

    assert done.returncode != 0
    assert not (bare / "owned").exists()


def test_what_builds_the_package_is_locked_as_well() -> None:
    """It runs with all our rights, before any test does; for an editable one it is one more."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    own = next(each for each in lock if each["name"] == "imagefleet")
    setup = (ROOT / ".ci" / "setup").read_text()

    assert {each["name"] for each in own["dev-dependencies"]["build"]} == {"editables", "hatchling"}
    assert "--only-group build --output-file .venv/build.txt" in setup
    assert len(re.findall(r"--editable \.", setup)) == 1
    assert "--build-constraints .venv/build.txt --editable ." in setup
    assert (
        len(re.findall(r"uv\" sync .*--no-install-project", setup)) == setup.count(" sync --") == 1
    )


# --- make pin

PYTHON: Final = json.dumps({"manifests": ["of python"]}).encode()
POSTGRES: Final = json.dumps({"layers": ["of postgres"]}).encode()
COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def registry(path: str, headers: Mapping[str, str], body: bytes) -> Said:
    """Docker Hub, as far as it matters: it wants a token, and knows two images."""
    if path.startswith("/token"):
        return 200, {}, json.dumps({"token": path.partition("scope=")[2]}).encode()
    found = {
        "/v2/library/python/manifests/3.13-slim": PYTHON,
        "/v2/library/postgres/manifests/17-alpine": POSTGRES,
        "/v2/localstack/localstack/manifests/4.14.0": b"<html>a portal</html>",
    }.get(path)
    if found is None:
        return 404, {}, b"{}"
    if "Authorization" not in headers:
        where = f"http://{headers['Host']}/token"
        challenge = f'Bearer realm="{where}",service="s",scope="repository:x:pull"'
        return 401, {"WWW-Authenticate": challenge}, b""
    return 200, {"Content-Type": headers["Accept"].partition(",")[0]}, found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of all that names an image or an action."""
    root = tmp_path / "project"
    for name in (
        "services/Dockerfile",
        "tests/containers/standins.Dockerfile",
        "Makefile",
        "compose.localstack.yml",
        ".github/workflows/ci.yml",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture
def forge(tmp_path: Path) -> Path:
    """Where actions come from: one of those that the workflow uses is there."""
    forge = tmp_path / "forge"
    action = forge / "actions" / "checkout"
    action.mkdir(parents=True)
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "tag.gpgsign=false")
    for command in (
        ("init", "--quiet"),
        (*who, "-c", "commit.gpgsign=false", "commit", "--quiet", "--allow-empty", "-m", "one"),
        (*who, "tag", "-a", "-m", "five", "v5"),
    ):
        done = ended("git", "-C", action, *command)
        assert done.returncode == 0, done.stderr
    return forge


def pinned(
    place: Path, registry: str, forge: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return ended(
        sys.executable, ROOT / ".ci" / "pin.py",
        *("--root", place, "--registry", registry, "--forge", forge), **environment,
    )  # fmt: skip


def texts(place: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(place.rglob("*")) if path.is_file()}


def test_what_can_be_fetched_is_pinned_and_nothing_else(place: Path, forge: Path) -> None:
    commit = ended("git", "-C", forge / "actions" / "checkout", "rev-parse", "HEAD").stdout.strip()
    python = f"python:3.13-slim@sha256:{hashlib.sha256(PYTHON).hexdigest()}"
    postgres = f"postgres:17-alpine@sha256:{hashlib.sha256(POSTGRES).hexdigest()}"
    before = "".join(texts(place).values())

    with serving(registry) as url:
        done = pinned(place, url, f"file://{forge}")
        again = pinned(place, url, f"file://{forge}")

    compose = yaml.safe_load((place / "compose.localstack.yml").read_text())["services"]
    workflow = (place / ".github" / "workflows" / "ci.yml").read_text()
    assert compose["postgres"]["image"] == f"${{POSTGRES_IMAGE:-{postgres}}}"
    assert compose["api"]["build"]["args"]["PYTHON_IMAGE"] == f"${{PYTHON_IMAGE:-{python}}}"
    for name in ("services/Dockerfile", "tests/containers/standins.Dockerfile"):
        assert f"ARG PYTHON_IMAGE={python}\n" in (place / name).read_text()
    assert f"PYTHON_IMAGE ?= {python}\n" in (place / "Makefile").read_text()
    assert f"uses: actions/checkout@{commit} # v5\n" in workflow
    # What did not come stays, and is said: unknown, no manifest, no such repository.
    assert compose["moto"]["image"] == SERVICES["moto"]["image"]
    assert compose["localstack"]["image"] == SERVICES["localstack"]["image"]
    assert "uses: actions/setup-python@v6\n" in workflow
    left = re.findall(r"pin: (\S+) is NOT pinned", done.stderr)
    assert [each.partition(":")[0].partition("@")[0] for each in left] == [
        "actions/setup-python", "localstack/localstack", "motoserver/moto",
    ]  # fmt: skip
    assert (1, 1) == (done.returncode, again.returncode)
    assert done.stdout == again.stdout
    after = "".join(texts(place).values())
    digests = re.compile(r"@sha256:[0-9a-f]{64}")
    assert digests.sub("", after).replace(f"@{commit} # v5", "@v5") == before


def test_a_caller_that_is_in_a_repository_of_its_own_changes_no_commit(
    place: Path, forge: Path, tmp_path: Path
) -> None:
    """As in a hook of git, which sets this; a repository there would be written to."""
    own = tmp_path / "own"
    assert ended("git", "init", "--quiet", own).returncode == 0
    before = texts(own)

    done = pinned(place, NOBODY, f"file://{forge}", GIT_DIR=str(own / ".git"))

    assert "pin: actions/checkout@v5 is " in done.stdout
    assert texts(own) == before


def test_where_nothing_can_be_reached_nothing_changes(place: Path, tmp_path: Path) -> None:
    before = texts(place)

    done = pinned(place, NOBODY, f"file://{tmp_path}/nowhere")

    assert done.returncode == 1
    assert done.stdout == ""
    assert len(re.findall("is NOT pinned and stays as it is", done.stderr)) == 6
    assert texts(place) == before


def test_every_image_and_action_is_one_that_is_pinned(place: Path, tmp_path: Path) -> None:
    """What else names one would be left out without a word."""
    done = pinned(place, NOBODY, f"file://{tmp_path}/nowhere")
    known = set(re.findall(r"pin: (\S+) is NOT", done.stderr))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()

    images = {
        re.sub(r"\$\{\w+:-(.*)\}", r"\1", service["image"])
        for service in SERVICES.values()
        if "build" not in service  # what we build ourselves has its base in the Dockerfile
    }
    named = images | set(re.findall(r"uses: (\S+)", workflow))
    for dockerfile in (place / "services" / "Dockerfile", *place.glob("tests/*/*.Dockerfile")):
        stages = set(re.findall(r" AS (\S+)", dockerfile.read_text()))
        from_ = set(re.findall(r"^FROM (\S+)", dockerfile.read_text(), re.MULTILINE))
        assert from_ - stages == {"${PYTHON_IMAGE}"}

    assert named - known == set()


# --- make audit


class Database:
    """OSV, as far as it matters."""

    def __init__(self, **known: list[str]) -> None:
        self.known = known
        self.asked: list[tuple[str, str]] = []
        self.withdrawn: set[str] = set()

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Said:
        if path.startswith("/v1/vulns/"):
            each = path.rpartition("/")[2]
            about: dict[str, object] = {"id": each, "summary": f"About {each}\x1b[2J"}
            about |= {"withdrawn": "2026-01-01T00:00:00Z"} if each in self.withdrawn else {}
            return 200, {}, json.dumps(about).encode()
        results = []
        for query in json.loads(body)["queries"]:
            name = query["package"]["name"]
            assert query["package"]["ecosystem"] == "PyPI"
            self.asked.append((name, query["version"]))
            ids = self.known.get(name, [])
            page = int(query.get("page_token", "0"))  # one at a time
            found: dict[str, object] = {"vulns": [{"id": ids[page]}]} if ids else {}
            if page + 1 < len(ids):
                found["next_page_token"] = str(page + 1)
            results.append(found)
        return 200, {}, json.dumps({"results": results}).encode()


def audited(url: str, *locks: Path) -> subprocess.CompletedProcess[str]:
    return ended(sys.executable, ROOT / ".ci" / "audit.py", "--database", url, *locks)


def test_every_locked_package_is_asked_about() -> None:
    database = Database()

    with serving(database.answer) as url:
        done = audited(url)

    assert done.returncode == 0, done.stderr
    asked = {name for name, _ in database.asked}
    assert {"fastapi", "asyncpg", "uvicorn", "pillow", "uv", "ministack", "localstack"} <= {
        name.partition("-")[0] for name in asked
    }
    assert len(database.asked) == len(set(database.asked))
    packages = re.findall(r'^name = "(.+)"', (ROOT / "uv.lock").read_text(), re.MULTILINE)
    assert set(packages) - asked <= {"imagefleet"}


def test_what_is_vulnerable_is_named_and_fails(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("one==1.0 \\\n    --hash=sha256:00\ntwo[x]==2.0 ; python_version > '3'\n")
    database = Database(one=["GHSA-1", "GHSA-2", "GHSA-3"])
    database.withdrawn = {"GHSA-2"}

    with serving(database.answer) as url:
        done = audited(url, lock)

    assert done.returncode == 1
    assert "one 1.0: GHSA-1: About GHSA-1\\x1b[2J\n" in done.stdout
    assert "GHSA-3" in done.stdout
    assert "GHSA-2" not in done.stdout
    assert "2 vulnerabilities in 2 packages" in done.stdout
    assert {("one", "1.0"), ("two", "2.0")} == set(database.asked)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("requirements.txt", ""),
        ("requirements.txt", "one @ https://x/one.whl\ntwo>=2\n"),
        ("uv.lock", "version = 1\npackage = []\n"),
        ("uv.lock", "version = 1\n"),
        ("uv.lock", "<<<<<<< HEAD\n"),
        ("missing.txt", None),
    ],
)
def test_a_lock_that_names_nothing_is_no_clean_bill(
    tmp_path: Path, name: str, content: str | None
) -> None:
    empty, other = tmp_path / name, tmp_path / "other.txt"
    other.write_text("one==1.0\n")
    if content is not None:
        empty.write_text(content)

    with serving(Database().answer) as url:
        for locks in ([empty], [other, empty]):
            done = audited(url, *locks)

            assert (2, "") == (done.returncode, done.stdout)
            assert f"NOT AUDITED: {empty}" in done.stderr


@pytest.mark.parametrize(
    "said",
    [
        (503, {}, b""),
        (200, {}, b"<html>a portal</html>"),
        (200, {}, b"{}"),
        (200, {}, b'{"results": []}'),
        (200, {}, b'{"results": null}'),
    ],
)
def test_a_database_that_says_nothing_is_no_clean_bill(said: Said) -> None:
    with serving(lambda *_: said) as url:
        done = audited(url)

    assert done.returncode == 2
    assert "NOT AUDITED" in done.stderr
    assert "0 vulnerabilities" not in done.stdout


def test_a_database_that_cannot_be_reached_is_none_either() -> None:
    done = audited(NOBODY)

    assert (2, "") == (done.returncode, done.stdout)
    assert "NOT AUDITED" in done.stderr


def test_it_runs_where_there_is_a_network_and_elsewhere_its_absence_is_said() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    runs = [step.get("run") for job in jobs.values() for step in job["steps"]]
    here = (ROOT / ".ci" / "run").read_text()

    assert "make audit" in runs
    assert "make check test\n" in here
    assert re.search(r"^echo .*NOT AUDITED", here, re.MULTILINE)
