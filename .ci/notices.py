"""What others wrote that lies in an environment, and under which licence: the notices of an image.

    .ci/notices.py PYTHON_OR_SITE_PACKAGES...        (writes to standard output)

Every distribution with its version and licence, files of others in our own package (vendored.json),
and the text of every licence once, with whose it is. Whoever states no licence is named, and the
exit code is 1: what may be passed on has to be known before it is. Needs nothing but Python.
"""

import importlib.metadata
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OURS: Final = "imagefleet"
PIN: Final = "vendored.json"
TEXT: Final = re.compile(
    r"(licen[cs]e|copying|copyright|notice|authors|third[_-]party)[\w.-]*", re.IGNORECASE
)
NO_TEXT: Final = frozenset({".py", ".pyc", ".json", ".gz", ".js", ".css", ".h", ".so"})
WIDTH: Final = 100
HEAD: Final = """\
NOTICES

What others wrote and this environment of {ours} contains, besides Python itself
and the packages of the base image, whose notices lie in /usr/share/doc. What wheels carry of
further libraries is told by their own texts below, and by the bill of materials beside this file.

"""


class Unlicensed(Exception):
    """Some state no licence."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something that somebody else wrote."""

    name: str
    version: str
    licence: str
    texts: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    """Write the notices; 1 with a line on standard error where they cannot be complete."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        sys.stdout.write(notices(arguments))
    except Unlicensed as error:
        print(f"notices: {error}", file=sys.stderr)
        return 1
    return 0


def notices(folders: Sequence[str]) -> str:
    """The whole file, of environments or folders of packages."""
    packages = [str(found) for folder in folders for found in _packages_of(Path(folder))]
    ours, parts = _parts_in(packages)
    nameless = [part.name for part in parts if not part.licence]
    if nameless:
        message = f"no licence is stated by {', '.join(nameless)}"
        raise Unlicensed(message)
    users: dict[str, list[str]] = defaultdict(list)
    for part in parts:
        for text in part.texts:
            users[text].append(f"{part.name} {part.version}")
    numbers = {text: number for number, text in enumerate(users, start=1)}
    lines = [HEAD.format(ours=ours)]
    for part in parts:
        told = ", ".join(str(numbers[text]) for text in part.texts) or "none in its package"
        lines.append(f"{part.name} {part.version} | {part.licence} | text: {told}\n")
    for text, number in numbers.items():
        lines.append(
            f"\n{'=' * WIDTH}\n{number}: {', '.join(users[text])}\n{'=' * WIDTH}\n{text}\n"
        )
    return "".join(lines)


def _packages_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("lib/python3*/site-packages")) or [folder]


def _parts_in(packages: Sequence[str]) -> tuple[str, list[Part]]:
    """Ours, by name and version, and those of others in the order of their names."""
    ours = OURS
    parts: list[Part] = []
    for found in importlib.metadata.distributions(path=list(packages)):
        if found.name == OURS:
            ours = f"{found.name} {found.version}"
            parts += _vendored(found)
        else:
            texts = tuple(dict.fromkeys(_texts_of(found)))
            parts.append(Part(found.name, found.version, licence_of(found), texts))
    return ours, sorted(parts, key=lambda part: part.name.lower())


def licence_of(found: importlib.metadata.Distribution) -> str:
    """As it is stated: by expression, else by classifiers, else in words of one line."""
    about = found.metadata
    if "License-Expression" in about:
        return about["License-Expression"]
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in about.get_all("Classifier") or ()
        if each.startswith("License :: ") and each != "License :: OSI Approved"
    ]
    words = about["License"].strip() if "License" in about else ""
    return ", ".join(classifiers) or ("" if words == "UNKNOWN" else words.partition("\n")[0])


def _texts_of(found: importlib.metadata.Distribution) -> Iterator[str]:
    for file in found.files or ():
        if TEXT.fullmatch(file.name) and file.suffix not in NO_TEXT:
            yield _text(Path(str(file.locate())))


def _vendored(found: importlib.metadata.Distribution) -> Iterator[Part]:
    """Files of others that lie in our package, each folder of them with its pin."""
    for file in found.files or ():
        if file.name == PIN:
            path = Path(str(file.locate()))
            pin = json.loads(path.read_text(encoding="utf-8"))
            texts = [path.parent / name for name in pin["files"]]
            told = tuple(_text(each) for each in texts if _is_text(each))
            yield Part(pin["package"], pin["version"], pin["license"], told)


def _is_text(path: Path) -> bool:
    return (
        path.suffix not in NO_TEXT
        and re.search(r"licen[cs]e|notice", path.name, re.IGNORECASE) is not None
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
