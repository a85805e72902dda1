"""Fetch the files of others that lie in the package, or say whether they are what was fetched.

    .ci/vendor.py [--package NAME] [--check | --version VERSION]

By npm, which need not be there otherwise: the archive of the version that a vendored.json names
must have the digest that stands there, and of its files those that are named are kept, all in one
folder. With `--version` the registry's digest of another version of the package that is named is
written down first; read the diff of it. With `--check`
nothing is fetched. Ends with 1 and a line for each fault: what was mended by fetching is one, too.
"""

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "services" / "imagefleet"
FOLDERS: Final = {
    "swagger-ui-dist": PACKAGE / "api" / "public" / "swagger-ui",
    "htmx.org": PACKAGE / "console" / "static" / "htmx",
    "uplot": PACKAGE / "console" / "static" / "uplot",
}
PIN: Final = "vendored.json"
SPDX: Final = {"BSD-0-Clause": "0BSD"}  # as a package writes it, and as bills of materials do
IN_ARCHIVE: Final = "package/"
FETCHED_WITHIN: Final = 300.0  # seconds


class Unfit(Exception):
    """What came is not what is wanted."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="fetch nothing")
    what.add_argument("--version", help="another version from now on")
    parser.add_argument("--package", choices=FOLDERS, help="this one alone")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.version and not asked.package:
        parser.error("--version is of one --package")
    wanted = [asked.package] if asked.package else [*FOLDERS]
    folders = [asked.folder] if asked.folder else [FOLDERS[name] for name in wanted]
    faults = [fault for folder in folders for fault in looked_after(folder, asked)]
    for fault in faults:
        print(f"vendor: {fault}", file=sys.stderr)
    return int(bool(faults))


def looked_after(folder: Path, asked: argparse.Namespace) -> list[str]:
    """What was not right with one of them, whether or not it is now."""
    faults = [] if asked.version else [*faults_in(folder)]
    if asked.check:
        return faults
    recorded = _pin(folder)
    try:
        fetch(folder, asked.version)
    except (Unfit, OSError, subprocess.SubprocessError) as error:
        return [str(error)]
    if not asked.version and recorded != _pin(folder):
        faults.append(f"{PIN} said other digests of these files than the archive has")
    return faults


def faults_in(folder: Path) -> Iterator[str]:
    """What does not lie there as it was fetched."""
    files = {Path(name).name: digest for name, digest in _pin(folder)["files"].items()}
    there = {each.name for each in folder.iterdir()} - {PIN}
    for name in sorted(there | set(files)):
        if name not in files:
            yield f"{name} is none of the files that are named"
        elif name not in there:
            yield f"{name} is not there"
        elif hashlib.sha256((folder / name).read_bytes()).hexdigest() != files[name]:
            yield f"{name} is not as it was fetched"


def fetch(folder: Path, version: str | None) -> None:
    """Bring the archive, and keep of it what is named."""
    pin = _pin(folder)
    if version is not None:
        pin |= {"version": version, "integrity": _told(pin["package"], version)}
    with tempfile.TemporaryDirectory() as room:
        wanted = f"{pin['package']}@{pin['version']}"
        _npm("pack", wanted, "--pack-destination", room)
        (archive,) = Path(room).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if pin["integrity"] != f"sha512-{digest}":
            message = f"{wanted} came as sha512-{digest}, and not as {pin['integrity']}"
            raise Unfit(message)
        with tarfile.open(archive) as files:
            licence = json.loads(_content(files, "package.json"))["license"]
            pin["license"] = SPDX.get(licence, licence)
            for name in pin["files"]:
                content = _content(files, name)
                (folder / Path(name).name).write_bytes(content)
                pin["files"][name] = hashlib.sha256(content).hexdigest()
    (folder / PIN).write_text(json.dumps(pin, indent=2) + "\n", encoding="utf-8")


def _content(files: tarfile.TarFile, name: str) -> bytes:
    member = files.extractfile(IN_ARCHIVE + name)
    if member is None:
        message = f"the archive has no file {name}"
        raise Unfit(message)
    return member.read()


def _pin(folder: Path) -> dict[str, Any]:
    pin: dict[str, Any] = json.loads((folder / PIN).read_text(encoding="utf-8"))
    return pin


def _told(package: str, version: str) -> str:
    return _npm("view", f"{package}@{version}", "dist.integrity").strip()


def _npm(*words: str) -> str:
    npm = shutil.which("npm")
    if npm is None:
        message = "npm is needed for this"
        raise Unfit(message)
    done = subprocess.run(  # noqa: S603 - words of ours, and a version that somebody here typed
        [npm, *words], capture_output=True, text=True, check=False, timeout=FETCHED_WITHIN
    )
    if done.returncode:
        message = f"npm {' '.join(words)}: {done.stderr.strip()[-500:]}"
        raise Unfit(message)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
