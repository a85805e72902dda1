"""What Schemathesis cannot know of this API, in the process that it runs in.

Who asks: now the one tenant, now the other, in the midst of one chain of requests, so that either
comes with ids of the other's. What is shown: an id that was given to one tenant is never given to
the other. What there is: ids of answers are asked for again, by any route that takes them. What an
operator turns is turned back, or the next requests would meet a fleet that takes none. And what to
send where a schema says only that it is bytes.
"""

import atexit
import json
import os
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias, cast

import requests
import schemathesis
from hypothesis import strategies
from pydantic.alias_generators import to_camel
from schemathesis import Case as OfSchema
from schemathesis import CheckContext, HookContext, Response

from tests.fuzzing.pictures import PICTURES

Case: TypeAlias = OfSchema[Any]

ASKED: Final[dict[str, Any]] = json.loads(os.environ["FUZZING"])  # noqa: TID251 - not ours
KEYS: Final[list[str]] = ASKED["keys"]
COUNTED: Final = Path(ASKED["counted"])

OF_A_TENANT: Final = frozenset({"jobId", "imageId", "uploadId", "parentJobId", "nextCursor"})
ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAMES: Final = {
    "tenant": re.compile(r"[a-z0-9][a-z0-9-]{0,62}"),
    "name": re.compile(r"[a-z][a-z0-9_.*-]{0,199}"),
}
CURRENT: Final = re.compile(r"/i/([0-9a-f-]{36})/current/(\w+)\.(\w+)$")
MOST_KNOWN: Final = 200  # of a kind
KNOWN_SHARE: Final = 0.6  # of the ids in paths
LONGEST_WAIT: Final = 0.05  # seconds of a long poll; else most of a run would be waiting
TOLD_EVERY: Final = 100  # answers
UNDONE_WITHIN: Final = 30.0  # seconds

_lock = threading.Lock()
_answers = Counter[str]()
_owners: dict[str, str] = {}
_known: dict[str, list[str]] = defaultdict(list)
_current: list[tuple[str, str, str]] = []
_chance = Random(ASKED["seed"])


@schemathesis.auth(refresh_interval=None)
class Anybody:
    """One tenant or the other."""

    def get(self, case: Case, context: object) -> str:
        return _chance.choice(KEYS)

    def set(self, case: Case, data: str, context: object) -> None:
        case.headers["Authorization"] = f"Bearer {data}"


@schemathesis.hook
def map_path_parameters(context: HookContext, path_parameters: dict[str, Any]) -> dict[str, Any]:
    """Now and then something that there is; what was made to be no id, or no name, stays none."""
    given = dict(path_parameters or {})
    if "variant" in given and _current and _chance.random() < KNOWN_SHARE:
        return dict(zip(("image_id", "variant", "ext"), _chance.choice(_current), strict=True))
    for name, value in given.items():
        known = _known[to_camel(name)]
        is_one = NAMES.get(name, ID).fullmatch(str(value))
        if known and is_one and _chance.random() < KNOWN_SHARE:
            given[name] = _chance.choice(known)
    return given


@schemathesis.hook
def map_query(context: HookContext, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Wait for no job: another request comes sooner to something."""
    if query and isinstance(wait := query.get("wait"), int | float) and LONGEST_WAIT < wait <= 20:
        query["wait"] = LONGEST_WAIT
    return query


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Response) -> None:
    """Count, for whoever waits for so many requests, and undo."""
    with _lock:
        _answers[str(response.status_code)] += 1
        if _answers.total() % TOLD_EVERY == 0:
            tell()
    if response.status_code == 200 and case.method == "PUT":
        undo(case, str(response.request.url))


@atexit.register
def tell() -> None:
    """As far as it is."""
    COUNTED.write_text(json.dumps(_answers), encoding="utf-8")


def undo(case: Case, url: str) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    if "/v1/operator/settings/" in url:
        params = {"reason": "undone"}
        requests.delete(url, headers=headers, params=params, timeout=UNDONE_WITHIN)
    elif url.endswith("/limits") and isinstance(case.body, dict):
        limits = dict.fromkeys(cast("dict[str, object]", case.body["limits"]))
        asked: Any = {"limits": limits, "reason": "undone"}
        requests.put(url, headers=headers, json=asked, timeout=UNDONE_WITHIN)


@schemathesis.check
def shows_nothing_of_another_tenant(context: CheckContext, response: Response, case: Case) -> None:
    """Whoever is shown an id first has it: that is the answer which it was made for."""
    asked = str(response.request.headers.get("Authorization", "")).removeprefix("Bearer ")
    media_type = response.headers.get("content-type", [""])[0]
    is_success = response.status_code in {200, 201, 202}
    if asked not in KEYS or not is_success or media_type != "application/json":
        return
    for name, found in told_in(response.json()):
        with _lock:
            _known[name] = [*_known[name][1 - MOST_KNOWN :], found]
            owner = _owners.setdefault(found, asked) if name in OF_A_TENANT else asked
        assert owner == asked, f"{name} {found} is another tenant's"


def told_in(value: object) -> Iterator[tuple[str, str]]:
    """Every id, however deep, by the name of its field; and what else paths are made of."""
    if isinstance(value, list):
        for each in value:
            yield from told_in(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(each, str):
                yield from told_in(each)
            elif ID.fullmatch(each):
                yield ("letterId" if name == "id" else name), each
            elif name == "stableUrl" and (found := CURRENT.search(each)):
                _current[:] = [*_current[1 - MOST_KNOWN :], (found[1], found[2], found[3])]
            elif name in {"tenant", "name"}:
                yield name, each


schemathesis.openapi.media_type("application/octet-stream", strategies.sampled_from(PICTURES))
schemathesis.openapi.format("binary", strategies.sampled_from(PICTURES))
