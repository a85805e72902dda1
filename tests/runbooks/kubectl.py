"""What of kubectl the runbooks use, read with kubectl's own options; the rest is refused.

Only what is asked for is read here. `cluster.py` plays it on the processes of a stack, and
`test_pages.py` holds every name in it against the manifests that are shipped.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tests.runbooks.shell import Refused

# The kinds as kubectl takes them, and what a manifest calls them.
KINDS: Final = {
    "deployment": "Deployment",
    "scaledobject": "ScaledObject",
    "pod": "Pod",
    "pods": "Pod",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What somebody asked the cluster for."""

    namespace: str
    verb: str
    kind: str
    name: str = ""
    replicas: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] = ()
    patch: Any = None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def _parser() -> argparse.ArgumentParser:
    whole = _Parser(prog="kubectl", add_help=False, allow_abbrev=False)
    whole.add_argument("--namespace", "-n", required=True)
    verbs = whole.add_subparsers(dest="verb", required=True, parser_class=_Parser)

    def verb(name: str, within: Any = verbs) -> argparse.ArgumentParser:  # noqa: ANN401 - argparse's own
        parser: argparse.ArgumentParser = within.add_parser(
            name, add_help=False, allow_abbrev=False
        )
        return parser

    def of_kind(parser: argparse.ArgumentParser, *kinds: str) -> argparse.ArgumentParser:
        parser.add_argument("kind", choices=kinds)
        parser.add_argument("name")
        return parser

    verb("get").add_argument("kind", choices=["pods"])
    of_kind(verb("describe"), "pod")
    of_kind(verb("delete"), "pod")
    of_kind(verb("scale"), "deployment").add_argument("--replicas", type=int, required=True)
    patch = of_kind(verb("patch"), "scaledobject")
    patch.add_argument("--type", choices=["merge"], required=True)
    patch.add_argument("--patch", type=json.loads, required=True)
    rollout = verb("rollout").add_subparsers(dest="how", required=True, parser_class=_Parser)
    for how in ("restart", "undo"):
        of_kind(verb(how, rollout), "deployment")
    what = verb("set").add_subparsers(dest="what", required=True, parser_class=_Parser)
    env = verb("env", what)
    env.add_argument("place")
    env.add_argument("settings", nargs="+")
    resources = of_kind(verb("resources", what), "deployment")
    resources.add_argument("--requests", required=True)
    resources.add_argument("--limits", required=True)
    verb("exec").add_argument("place")
    return whole


def read(arguments: Sequence[str]) -> Order:
    """What is asked for; Refused if it is nothing that the runbooks need."""
    words = list(arguments)
    command: list[str] = []
    if "--" in words:
        words, command = words[: words.index("--")], words[words.index("--") + 1 :]
    asked = vars(_parser().parse_args(words))
    verb = " ".join(filter(None, (asked["verb"], asked.get("how"), asked.get("what"))))
    if bool(command) != (verb == "exec"):
        message = f"{verb} takes {'a' if verb == 'exec' else 'no'} command behind --"
        raise Refused(message)
    if "place" in asked:  # deployment/NAME
        asked["kind"], _, asked["name"] = asked["place"].partition("/")
        if asked["kind"] != "deployment" or not asked["name"]:
            message = f"{asked['place']} is no deployment/NAME"
            raise Refused(message)
    settings = asked.get("settings") or [asked[key] for key in ("limits",) if key in asked]
    pairs = [tuple(setting.partition("=")[::2]) for setting in settings]
    return Order(
        namespace=asked["namespace"],
        verb=verb,
        kind=KINDS[asked["kind"]],
        name=asked.get("name", ""),
        replicas=asked.get("replicas", 0),
        settings=tuple((name, value) for name, value in pairs),
        command=tuple(command),
        patch=asked.get("patch"),
    )
