"""What lies in an environment of others is told of it: notices, and a bill of materials."""

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
STATUS: Final = """\
Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.3.dfsg+really1.3.1-1+b1
Description: compression library
 Package: none of this

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def notices() -> ModuleType:
    return script("notices")


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    return script("sbom")


def install(folder: Path, name: str, about: str = "", files: Mapping[str, str] = {}) -> None:
    """Put a distribution there as an installer does; files are named as in its RECORD."""
    info = folder / f"{name}-1.0.dist-info"
    written = {f"{info.name}/METADATA": f"Name: {name}\nVersion: 1.0\n{about}\n", **files}
    for path, content in written.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in written))


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """An environment with a package of every way to state a licence, and with ours."""
    folder = tmp_path / "lib" / "python3.13" / "site-packages"
    mit, apache = "The MIT text.", "The Apache text."
    expression, osi = "License-Expression: MIT", "Classifier: License :: OSI Approved :: "
    install(folder, "one", expression, {"one-1.0.dist-info/licenses/LICENSE": mit})
    install(folder, "two", f"{osi}BSD License", {"two/vendor/x/COPYING.txt": mit})
    install(folder, "three", "License: Apache 2.0", {"three-1.0.dist-info/LICENSE-APACHE": apache})
    pin = {
        "package": "pages",
        "version": "5.0",
        "license": "ISC",
        "files": {"LICENSE": "", "a": ""},
    }
    ours = {
        "imagefleet/api/pages/vendored.json": json.dumps(pin),
        "imagefleet/api/pages/LICENSE": "The text of pages.",
        "imagefleet/api/pages/a": "no text",
    }
    install(folder, "imagefleet", expression, ours)
    return folder


def test_every_part_is_named_with_its_version_and_licence(
    notices: ModuleType, packages: Path
) -> None:
    told = notices.notices([str(packages.parents[2])])

    assert [line for line in told.splitlines() if " | " in line] == [
        "one 1.0 | MIT | text: 1",
        "pages 5.0 | ISC | text: 2",
        "three 1.0 | Apache 2.0 | text: 3",
        "two 1.0 | BSD License | text: 1",
    ]
    assert "this environment of imagefleet 1.0 contains" in told


def test_every_text_is_there_once_with_all_whose_it_is(notices: ModuleType, packages: Path) -> None:
    told = notices.notices([str(packages.parents[2])])

    assert "1: one 1.0, two 1.0\n" in told
    for text in ("The MIT text.", "The Apache text.", "The text of pages."):
        assert told.count(text) == 1
    assert "no text" not in told


@pytest.mark.parametrize("about", ["", "License: UNKNOWN", "Classifier: License :: OSI Approved"])
def test_what_states_no_licence_is_named_and_is_no_notice(
    notices: ModuleType, packages: Path, capsys: pytest.CaptureFixture[str], about: str
) -> None:
    install(packages, "silent", about)

    assert notices.main([str(packages)]) == 1

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "notices: no licence is stated by silent\n"


def test_all_that_is_installed_here_states_a_licence(notices: ModuleType) -> None:
    """Of which containers are a part: what does not is seen before one is built."""
    import PIL  # noqa: PLC0415 - only where it lies

    told = notices.notices([str(Path(str(PIL.__file__)).parents[1])])

    assert "\npillow 1" in told
    assert "\nLIBWEBP\n" in told  # what its wheel carries is told by its own text


@pytest.fixture
def bill(sbom: ModuleType, packages: Path, tmp_path: Path) -> dict[str, Any]:
    """Of that environment on a small Debian, completed."""
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="13"\n')
    lists = packages / "two_parts-1.0.dist-info" / "sboms"
    lists.mkdir(parents=True)
    parts = [
        {"name": "libcarried", "version": "2", "type": "library", "bom-ref": "a", "hashes": []},
        {"name": "a-builder", "version": "3", "type": "library", "scope": "excluded"},
        {"name": "libimagequant", "version": "4", "type": "library", "scope": "optional"},
        {"name": "Two.Parts", "version": "1.0", "type": "library"},
    ]
    (lists / "all.cdx.json").write_text(json.dumps({"components": parts}))
    made: dict[str, Any] = {
        "components": [{"name": "Two.Parts", "version": "1.0"}, {"name": "one"}]
    }
    sbom.complete(made, tmp_path, tmp_path)
    return made


def test_a_bill_has_what_lies_beneath_python_and_in_our_package(bill: dict[str, Any]) -> None:
    named = {each["name"]: each for each in bill["components"]}

    assert named["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert named["pages"]["purl"] == "pkg:npm/pages@5.0"
    assert named["zlib1g"]["purl"] == (
        "pkg:deb/debian/zlib1g@1%3A1.3.dfsg%2Breally1.3.1-1%2Bb1?arch=amd64&distro=debian-13"
    )
    assert "gone" not in named


def test_a_bill_has_what_a_wheel_says_it_carries_inside_that_package(bill: dict[str, Any]) -> None:
    whole, other = bill["components"][:2]

    assert whole["components"] == [{"name": "libcarried", "version": "2", "type": "library"}]
    assert "components" not in other
