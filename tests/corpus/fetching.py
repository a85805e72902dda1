"""Packages by name and version, and the pictures that are in them."""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from http.client import HTTPResponse
from itertools import zip_longest
from pathlib import Path
from typing import IO, Final, NamedTuple

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from imagefleet.jobs.images import ImageFormat

HERE: Final = Path(__file__).parent
PACKAGES: Final = HERE / "packages.txt"
MOST_ARCHIVE_BYTES: Final = 400 * 2**20
MOST_FILE_BYTES: Final = 50 * 2**20
FETCHED_WITHIN: Final = 300.0  # seconds for one package
SUFFIXES: Final = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".webp", ".avif", ".avifs",
)  # fmt: skip
LINK: Final = re.compile(r'<a [^>]*?href="([^"#]+)#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>')
DEFAULT_INDEX: Final = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


class NotThere(Exception):
    """An index does not have it, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class Package:
    """What to fetch, in the words of its index."""

    index: str  # pypi, npm or debian
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.index} {self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Found:
    """One picture of one package."""

    format: ImageFormat
    package: str
    name: str
    path: Path

    def __str__(self) -> str:
        return f"{self.package}: {self.name} ({self.path.name})"


class Link(NamedTuple):
    """A file, as an index of Python packages tells of it."""

    address: str
    name: str
    sha256: str


def listed(file: Path = PACKAGES) -> list[Package]:
    lines = (line.partition("#")[0].split() for line in file.read_text().splitlines())
    return [Package(*words) for words in lines if words]


def fetched(package: Package, cache: Path) -> Path:
    """The package's file, from the cache or from its index; NotThere says why not."""
    name = package.name.replace("/", "+")
    folder = cache / "packages" / f"{package.index}-{name}-{package.version.replace(':', '+')}"
    there = sorted(folder.glob("[!.]*")) if folder.exists() else []
    if there:
        return there[0]
    shutil.rmtree(folder, ignore_errors=True)
    part = folder / ".part"
    part.mkdir(parents=True)
    try:
        _BY[package.index](package, part)
        (archive,) = part.iterdir()
    except (ArithmeticError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NotThere(f"{package}: {type(error).__name__}: {error}"[:300]) from error
    return archive.rename(folder / archive.name)


def _from_pypi(package: Package, folder: Path) -> None:
    """Straight from the index: pip would run what a source package brings."""
    address, name, sha256 = _file_of(package)
    digest, left = hashlib.sha256(), MOST_ARCHIVE_BYTES
    with _opened(address) as body, (folder / name).open("wb") as out:
        while piece := body.read(2**20):
            digest.update(piece)
            out.write(piece)
            left -= len(piece)
            if left < 0:
                raise OverflowError(name)
    if digest.hexdigest() != sha256:
        raise ValueError(name)


def _file_of(package: Package) -> Link:
    """The source package of the version, else a wheel of it."""
    there = [link for link in _links(package.name) if package.version == _version(link.name)]
    for ending in (".tar.gz", ".tar.bz2", ".zip", "none-any.whl", "x86_64.whl"):
        for link in there:
            if link.name.endswith(ending):
                return link
    raise LookupError(package.version)


def _links(name: str) -> list[Link]:
    page = _pips_index().rstrip("/") + f"/{name}/"
    with _opened(page) as answer:
        text = answer.read().decode()
    return [
        Link(urllib.parse.urljoin(page, href), file, sha256)
        for href, sha256, file in LINK.findall(text)
    ]


def _version(file: str) -> str | None:
    """Of a source package or a wheel; None of anything else."""
    try:
        if file.endswith(".whl"):
            return str(parse_wheel_filename(file)[1])
        return str(parse_sdist_filename(file)[1])
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None


def _opened(address: str) -> HTTPResponse:
    answer = urllib.request.urlopen(address, timeout=60)  # noqa: S310 - of the index that pip uses
    assert isinstance(answer, HTTPResponse)
    return answer


@cache
def _pips_index() -> str:
    """As pip itself has been told by its settings, or by nobody."""
    told = ("-m", "pip", "config", "get", "global.index-url"), ("-c", DEFAULT_INDEX)
    return next((said for words in told if (said := _said("python3", *words))), "")


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def _from_npm(package: Package, folder: Path) -> None:
    words = ["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"]
    _run([*words, "--pack-destination", str(folder)], folder)


def _from_debian(package: Package, folder: Path) -> None:
    _run(["apt-get", "download", "-qq", f"{package.name}={package.version}"], folder)


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=FETCHED_WITHIN,
        check=True,
    )


_BY: Final = {"pypi": _from_pypi, "npm": _from_npm, "debian": _from_debian}


def pictures_in(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Every picture of a package by its name; those that only call themselves one are left out."""
    for name, content in _members(archive):
        if format_of(content) is not None:
            yield name, content


def format_of(content: bytes) -> ImageFormat | None:
    """By the first bytes, whatever else is wrong with it."""
    if content.startswith(b"\xff\xd8\xff"):
        return ImageFormat.JPEG
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return ImageFormat.PNG
    if content.startswith((b"GIF87a", b"GIF89a")):
        return ImageFormat.GIF
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return ImageFormat.WEBP
    if content[4:8] == b"ftyp" and (b"avif" in content[8:64] or b"avis" in content[8:64]):
        return ImageFormat.AVIF
    return None


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix in {".zip", ".whl"}:
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                if _wanted(info.filename, info.file_size):
                    yield info.filename, opened.read(info)
    elif archive.suffix == ".deb":
        command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking:
            assert unpacking.stdout is not None
            with closing(unpacking.stdout) as stream:
                yield from _of_tar(stream)
    else:
        with tarfile.open(archive) as opened_tar:
            yield from _each(opened_tar)


def _of_tar(stream: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=stream, mode="r|") as opened:
        yield from _each(opened)


def _each(opened: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in opened:
        file = opened.extractfile(member) if _wanted(member.name, member.size) else None
        if member.isfile() and file is not None:
            yield member.name, file.read()


def _wanted(name: str, size_bytes: int) -> bool:
    return name.lower().endswith(SUFFIXES) and 0 < size_bytes <= MOST_FILE_BYTES


def unpacked(package: Package, cache: Path) -> list[Found]:
    """The package's pictures as files; each is there once, whatever its names are."""
    archive = fetched(package, cache)
    folder = cache / "files" / archive.parent.name
    index = folder / "index.json"
    if not index.exists():
        folder.mkdir(parents=True, exist_ok=True)
        names: dict[str, str] = {}
        for name, content in pictures_in(archive):
            form = format_of(content)
            assert form is not None
            file = f"{hashlib.sha256(content).hexdigest()[:16]}.{form.value}"
            if file not in names:
                (folder / file).write_bytes(content)
                names[file] = name
        index.write_text(json.dumps(names, indent=1))
    known: dict[str, str] = json.loads(index.read_text())
    return [
        Found(ImageFormat(file.rpartition(".")[2]), str(package), name, folder / file)
        for file, name in sorted(known.items())
    ]


def chosen(found: Sequence[Sequence[Found]], most: int) -> list[Found]:
    """So many of every format, of each package in turn, and none twice."""
    taken: list[Found] = []
    for form in ImageFormat:
        seen: set[str] = set()
        for turn in zip_longest(*([each for each in one if each.format is form] for one in found)):
            for each in turn:
                if each is not None and each.path.name not in seen and len(seen) < most:
                    seen.add(each.path.name)
                    taken.append(each)
    return taken


def newest(package: Package) -> str:
    """Its version now, of its index; empty where that has none."""
    match package.index:
        case "pypi":
            versions = {
                Version(each) for link in _links(package.name) if (each := _version(link.name))
            }
            return str(max((each for each in versions if not each.is_prerelease), default=""))
        case "npm":
            return _said("npm", "view", package.name, "version")
        case _:
            shown = _said("apt-cache", "policy", package.name).split()
            return shown[shown.index("Candidate:") + 1] if shown else ""
