"""The files of others in the package are what they published, and the package has them."""

import importlib.util
import io
import json
import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.support.wheels import ROOT, build_wheel

SCRIPT: Final = ROOT / ".ci" / "vendor.py"
PACKAGE: Final = ROOT / "services" / "imagefleet"
FOLDER: Final = PACKAGE / "api" / "public" / "swagger-ui"
OURS: Final = (
    FOLDER.with_name("docs"),
    PACKAGE / "console" / "static",
    PACKAGE / "console" / "templates",
)
NPM: Final = """#!/bin/sh
while [ $# -gt 1 ]; do shift; done
cp "$ARCHIVE" "$1/others.tgz"
"""


@pytest.fixture(scope="module")
def vendor() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vendor", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vendor"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER, tmp_path / "swagger-ui")


def test_what_lies_there_is_the_version_that_is_named(vendor: ModuleType) -> None:
    assert vendor.main(["--check"]) == 0

    pin = json.loads((FOLDER / "vendored.json").read_text(encoding="utf-8"))
    bundle = (FOLDER / "swagger-ui-bundle.js").read_text(encoding="utf-8")
    assert f'"{pin["version"]}"' in bundle or f"'{pin['version']}'" in bundle
    assert {"LICENSE", "NOTICE"} <= set(pin["files"])


def test_whatever_lies_in_the_package_lies_there_with_its_licence(vendor: ModuleType) -> None:
    pins = {path.parent for path in PACKAGE.rglob("vendored.json")}

    assert pins == set(vendor.FOLDERS.values())
    for folder in pins:
        pin = json.loads((folder / "vendored.json").read_text(encoding="utf-8"))
        assert vendor.FOLDERS[pin["package"]] == folder
        assert "LICENSE" in pin["files"]


def test_a_file_that_is_changed_or_missing_or_new_is_told(
    vendor: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "swagger-ui.css").open("a") as css:
        css.write("@import url(https://elsewhere.test/);")
    (folder / "NOTICE").unlink()
    (folder / "more.js").touch()

    assert vendor.main(["--check", "--folder", str(folder)]) == 1

    assert capsys.readouterr().err.splitlines() == [
        "vendor: NOTICE is not there",
        "vendor: more.js is none of the files that are named",
        "vendor: swagger-ui.css is not as it was fetched",
    ]


def test_an_archive_with_another_digest_changes_nothing(
    vendor: ModuleType,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with tarfile.open(tmp_path / "other.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("package/swagger-ui.css")
        archive.addfile(member, io.BytesIO())
    npm = tmp_path / "npm"
    npm.write_text(NPM)
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    monkeypatch.setenv("ARCHIVE", str(tmp_path / "other.tgz"))

    assert vendor.main(["--folder", str(folder)]) == 1

    assert re.search(r"came as sha512-\S+, and not as sha512-", capsys.readouterr().err)
    assert vendor.main(["--check", "--folder", str(folder)]) == 0


def test_a_wheel_has_the_pages_and_all_that_they_load(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(ROOT, tmp_path)) as wheel:
        packed = {name: wheel.read(name) for name in wheel.namelist()}

    for folder in (FOLDER, *OURS):
        for file in (each for each in folder.rglob("*") if each.is_file()):
            assert packed[file.relative_to(PACKAGE.parent).as_posix()] == file.read_bytes()
    assert "imagefleet/api/http/examples.json" in packed
