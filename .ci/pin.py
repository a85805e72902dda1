"""Pin images and actions by digest: what can be fetched now, and nothing else.

    .ci/pin.py [--root FOLDER] [--registry URL] [--forge URL]

An image is asked of its registry, and the digest is that of the manifest that came. A tag of an
action is fetched with git, and the digest is that of the commit that came. Whatever cannot be
fetched stays as it is, is named, and the exit code is 1. Needs Python, and git for actions.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

ROOT: Final = Path(__file__).parents[1]
HUB: Final = "https://registry-1.docker.io"
FORGE: Final = "https://github.com"
WITHIN: Final = 30  # seconds for one answer
MOST_BYTES: Final = 4 * 2**20  # of a manifest
MANIFESTS: Final = (
    "application/vnd.oci.image.index.v1+json"
    ", application/vnd.docker.distribution.manifest.list.v2+json"
    ", application/vnd.oci.image.manifest.v1+json"
    ", application/vnd.docker.distribution.manifest.v2+json"
)

# Where images and actions are named: each with what stands before the name.
IMAGE: Final = r"(?P<name>[a-z0-9][a-z0-9._/:-]*?:[A-Za-z0-9._-]+)(?P<digest>@sha256:[0-9a-f]{64})?"
PLACES: Final[Mapping[str, str]] = {
    "services/Dockerfile": rf"^(?P<before>ARG [A-Z]+_IMAGE=){IMAGE}(?P<after>)$",
    "tests/containers/*.Dockerfile": rf"^(?P<before>ARG [A-Z]+_IMAGE=){IMAGE}(?P<after>)$",
    "Makefile": rf"^(?P<before>[A-Z]+_IMAGE \?= ){IMAGE}(?P<after>)$",
    "compose*.yml": rf"(?P<before>_IMAGE:-){IMAGE}(?P<after>\}})",
}
ACTIONS: Final = ".github/workflows/*.yml"
ACTION: Final = re.compile(
    r"(?P<before>uses: )(?P<name>[\w.-]+/[\w./-]+)@(?P<ref>[\w./-]+)"
    r"(?: # (?P<tag>[\w./-]+))?(?P<after>)$",
    re.MULTILINE,
)
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Unreached(Exception):
    """It could not be fetched."""


def get(url: str, headers: Mapping[str, str]) -> bytes:
    """What is there; HTTPError for who wants to know the status."""
    try:
        request = Request(url, headers=dict(headers))  # noqa: S310 - ours, or https as told
        with urlopen(request, timeout=WITHIN) as answer:  # noqa: S310 - as above
            body: bytes = answer.read(MOST_BYTES + 1)
    except HTTPError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        message = f"{url}: {error}"
        raise Unreached(message) from None
    if len(body) > MOST_BYTES:
        message = f"{url}: too large for a manifest"
        raise Unreached(message)
    return body


def digest_of_image(name: str, registry: str | None) -> str:
    """The digest of the manifest behind a name, which may be an index of several platforms."""
    host, repository, tag = parts_of(name)
    place = registry or (HUB if host is None else f"https://{host}")
    url = f"{place}/v2/{repository}/manifests/{tag}"
    headers = {"Accept": MANIFESTS}
    try:
        try:
            manifest = get(url, headers)
        except HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != HTTPStatus.UNAUTHORIZED or not challenge.startswith("Bearer "):
                raise
            headers["Authorization"] = f"Bearer {token_for(challenge, place)}"
            manifest = get(url, headers)
        kind = json.loads(manifest)
        if not isinstance(kind, dict) or not ({"manifests", "layers"} & kind.keys()):
            message = f"{url}: no manifest"
            raise Unreached(message)
    except HTTPError as error:
        message = f"{url} answers {error.code}"
        raise Unreached(message) from None
    except ValueError:
        message = f"{url}: no manifest"
        raise Unreached(message) from None
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def token_for(challenge: str, place: str) -> str:
    """A token for reading, as the registry says where to get one."""
    said = dict(_CHALLENGE.findall(challenge))
    realm = said.pop("realm", "")
    if urlsplit(realm).scheme != "https" and urlsplit(place).scheme == "https":
        message = f"{place}: sends us to {realm!r} for a token"
        raise Unreached(message)
    query = urlencode({key: said[key] for key in ("service", "scope") if key in said})
    found = json.loads(get(f"{realm}?{query}", {}))
    token = (found.get("token") or found.get("access_token")) if isinstance(found, dict) else None
    if not token:
        message = f"{realm}: gives no token"
        raise Unreached(message)
    return str(token)


def parts_of(name: str) -> tuple[str | None, str, str]:
    """Registry (None is Docker Hub), repository and tag of an image."""
    path, _, tag = name.rpartition(":")
    first, slash, rest = path.partition("/")
    if slash and (set(".:") & set(first) or first == "localhost"):
        return first, rest, tag
    return None, path if slash else f"library/{path}", tag


def commit_of_action(name: str, tag: str, forge: str) -> str:
    """The commit behind a tag, or a branch, of the repository that an action lies in."""
    owner, repository = name.split("/")[:2]
    # A hook sets GIT_DIR, and others lead to objects or settings of another repository.
    environment = {
        key: value
        for key, value in os.environ.items()  # noqa: TID251 - proxies
        if not key.startswith("GIT_")
    }
    environment["GIT_TERMINAL_PROMPT"] = "0"
    with tempfile.TemporaryDirectory() as folder:

        def git(*arguments: str) -> str:
            done = subprocess.run(  # noqa: S603 - no shell, names are matched
                ["git", "-C", folder, *arguments],  # noqa: S607 - whichever there is
                capture_output=True, text=True, timeout=4 * WITHIN, check=True,
                env=environment,
            )  # fmt: skip
            return done.stdout.strip()

        why: list[str] = []
        try:
            git("init", "--quiet", "--bare")
            for kind in ("tags", "heads"):
                try:
                    url = f"{forge}/{owner}/{repository}"
                    git("fetch", "--quiet", "--depth=1", url, f"refs/{kind}/{tag}")
                    return git("rev-parse", "--verify", "FETCH_HEAD^{commit}")
                except subprocess.CalledProcessError as error:
                    why = str(error.stderr).strip().splitlines()
        except (OSError, subprocess.SubprocessError) as error:
            raise Unreached(str(error)) from None
    raise Unreached(why[-1] if why else "git says nothing")


class Pins:
    """What was looked at, and how it went."""

    def __init__(self, registry: str | None, forge: str) -> None:
        self.unreached: dict[str, str] = {}
        self.pinned: dict[str, str] = {}
        self._image = cache(lambda name: digest_of_image(name, registry))
        self._action = cache(lambda name, tag: commit_of_action(name, tag, forge))

    def image(self, found: re.Match[str]) -> str:
        digest = self._asked(found["name"], lambda: self._image(found["name"]))
        if digest is None:
            return found[0]
        return f"{found['before']}{found['name']}@{digest}{found['after']}"

    def action(self, found: re.Match[str]) -> str:
        if _COMMIT.fullmatch(found["ref"]) and not found["tag"]:
            return found[0]  # somebody chose a commit, and said no tag to follow
        tag = found["tag"] or found["ref"]
        commit = self._asked(f"{found['name']}@{tag}", lambda: self._action(found["name"], tag))
        if commit is None:
            return found[0]
        return f"{found['before']}{found['name']}@{commit} # {tag}"

    def _asked(self, what: str, ask: Callable[[], str]) -> str | None:
        if what in self.unreached:
            return None
        try:
            self.pinned[what] = ask()
        except Unreached as error:
            self.unreached[what] = str(error)
            return None
        return self.pinned[what]


def pin(root: Path, pins: Pins) -> None:
    """Rewrite every file that names something with what could be fetched."""
    for pattern, place in PLACES.items():
        for path in sorted(root.glob(pattern)):
            rewrite(path, re.compile(place, re.MULTILINE), pins.image)
    for path in sorted(root.glob(ACTIONS)):
        rewrite(path, ACTION, pins.action)


def rewrite(path: Path, what: re.Pattern[str], by: Callable[[re.Match[str]], str]) -> None:
    """Write a file anew if that changes it, whole or not at all."""
    before = path.read_text(encoding="utf-8")
    after = what.sub(by, before)
    if after != before:
        new = path.with_name(f".{path.name}.new")
        new.write_text(after, encoding="utf-8")
        new.chmod(path.stat().st_mode)
        new.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER")
    parser.add_argument("--registry", metavar="URL", help="of all images, in place of their own")
    parser.add_argument("--forge", default=FORGE, metavar="URL", help=f"not {FORGE}")
    given = parser.parse_args()
    pins = Pins(given.registry, given.forge)
    pin(given.root, pins)
    for what, digest in sorted(pins.pinned.items()):
        print(f"pin: {what} is {digest}")
    for what, why in sorted(pins.unreached.items()):
        print(f"pin: {what} is NOT pinned and stays as it is: {why}", file=sys.stderr)
    if not pins.pinned and not pins.unreached:
        print("pin: found nothing to pin", file=sys.stderr)
        return 1
    return 1 if pins.unreached else 0


if __name__ == "__main__":
    sys.exit(main())
