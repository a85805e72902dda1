"""Ask the vulnerability database OSV about every package that is locked.

    .ci/audit.py [--database URL] [LOCK...]

Exits with 1 when a version is known to be vulnerable, and with 2 when the database did not answer
or a lock names nothing to ask about: what could not be asked is not taken for good. Needs nothing
but Python.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = (
    "uv.lock",
    ".ci/uv.txt",
    "services/imagefleet/embedded/emulator-requirements.txt",
    "infra/localstack/requirements.txt",
    "infra/sbom/requirements.txt",
)
DATABASE: Final = "https://api.osv.dev"
AT_ONCE: Final = 500  # packages in one question; it takes a thousand
WITHIN: Final = 30  # seconds for one answer
MOST_BYTES: Final = 64 * 2**20
ATTEMPTS: Final = 3

ACCEPTED: Final[dict[str, str]] = {}
"""Vulnerabilities that do not touch us, by id, each with the reason."""

_PINNED: Final = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE
)

Package = tuple[str, str]


class Unanswered(Exception):
    """The database cannot be reached, or says nothing that can be read."""


class Unasked(Exception):
    """A lock cannot be read, or names no package: nothing was asked about it."""


def locked(lock: Path) -> set[Package]:
    """Name and version of every package in a lock, of which there is one at least."""
    try:
        found = _locked(lock)
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{lock} cannot be read: {error!r}"
        raise Unasked(message) from None
    if not found:
        message = f"{lock} names no package with its version"
        raise Unasked(message)
    return found


def _locked(lock: Path) -> set[Package]:
    text = lock.read_text(encoding="utf-8")
    if lock.suffix == ".lock":
        packages = tomllib.loads(text)["package"]
        return {
            (each["name"], each["version"]) for each in packages if "registry" in each["source"]
        }
    return {(found[1], found[2]) for found in _PINNED.finditer(text)}


def ask(url: str, document: object = None) -> Any:  # noqa: ANN401 - JSON
    """One question; asked again where nobody answers."""
    body = None if document is None else json.dumps(document).encode()
    request = Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - ours
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urlopen(request, timeout=WITHIN) as answer:  # noqa: S310 - ours
                return json.loads(answer.read(MOST_BYTES))
        except HTTPError as error:
            why = f"{url} answers {error.code}"
        except (OSError, HTTPException, ValueError) as error:
            why = f"{url}: {error}"
        if attempt == ATTEMPTS:
            raise Unanswered(why)
    raise AssertionError


def vulnerable(packages: list[Package], database: str) -> Iterator[tuple[Package, set[str]]]:
    """The packages that something is known about, with the ids of that."""
    asked: list[tuple[Package, dict[str, object]]] = [
        (each, {"package": {"name": each[0], "ecosystem": "PyPI"}, "version": each[1]})
        for each in packages
    ]
    while asked:
        now, asked = asked[:AT_ONCE], asked[AT_ONCE:]
        found = ask(f"{database}/v1/querybatch", {"queries": [query for _, query in now]})
        try:
            results = found["results"]
            if len(results) != len(now):
                message = f"{len(results)} answers to {len(now)} questions"
                raise Unanswered(message)
            for (package, query), result in zip(now, results, strict=True):
                if ids := {each["id"] for each in result.get("vulns", ())}:
                    yield package, ids
                if token := result.get("next_page_token"):
                    asked.append((package, {**query, "page_token": token}))
        except (AttributeError, KeyError, TypeError) as error:
            message = f"an answer that cannot be read: {error!r}"
            raise Unanswered(message) from None


def told(vulnerability: str, database: str) -> str | None:
    """What it is, on a line; None if it was taken back."""
    found = ask(f"{database}/v1/vulns/{quote(vulnerability, safe='')}")
    if not isinstance(found, dict):
        message = f"an answer about {vulnerability} that cannot be read"
        raise Unanswered(message)
    if "withdrawn" in found:
        return None
    about = str(found.get("summary") or found.get("details") or "").strip().splitlines()
    return ascii(about[0])[1:-1] if about else "no summary"


def audit(locks: list[Path], database: str) -> int:
    """Ask about all of them; how many vulnerabilities there are."""
    packages = sorted({package for lock in locks for package in locked(lock)})
    count = 0
    for (name, version), ids in vulnerable(packages, database):
        for each in sorted(ids):
            about = told(each, database)
            if about is None:
                continue
            if each in ACCEPTED:
                print(f"audit: {name} {version}: {each}, accepted: {ACCEPTED[each]}")
                continue
            print(f"audit: {name} {version}: {each}: {about}")
            count += 1
    names = ", ".join(str(lock) for lock in locks)
    print(f"audit: {count} vulnerabilities in {len(packages)} packages of {names}")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--database", default=DATABASE, metavar="URL", help=f"not {DATABASE}")
    parser.add_argument("locks", nargs="*", type=Path, metavar="LOCK")
    given = parser.parse_args()
    locks = given.locks or [ROOT / name for name in LOCKS]
    try:
        return 1 if audit(locks, given.database.rstrip("/")) else 0
    except Unanswered as error:
        print(f"audit: NOT AUDITED, the database did not answer: {error}", file=sys.stderr)
    except Unasked as error:
        print(f"audit: NOT AUDITED: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
