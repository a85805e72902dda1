"""A decoding child in the worker's own container has nothing, and the worker beside it has.

In the context of its pod, as the manifests have it: nobody's id, a read-only root, no capability,
no new privileges, the default filter of system calls, a limit of memory, a small /tmp.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.containers.contexts import memory_bytes
from tests.containers.engine import Engine
from tests.worker.attacks import SECRET

TESTS: Final = Path(__file__).parents[1]
WORKER: Final = "worker"
USER: Final = "65532"
GIVEN: Final = (
    *("containers/__init__.py", "containers/inside.py"),
    *("support/__init__.py", "support/children.py", "support/eventually.py"),
    *("worker/attacks.py", "worker/unfiltered.py"),
)
CANARY: Final = "canary-5d81c0a7e2"
UNFILTERED: Final = "tests.worker.unfiltered"
NOTHING: Final = "0" * 16
FILTERED: Final = "2"
# What follows from the kernel's answer; whatever else an attempt may have met is a breach.
REFUSED: Final = frozenset({"EPERM", "can't start new thread"})


def confined(engine: Engine) -> str:
    """Raise where a child got something, or where nothing could have been got."""
    told = inside(engine)
    found = breaches(told)
    assert found == {}, found
    attempts = len(told["besieged"]) + len(told["burgled"]) + told["calls"]["tried"]

    # The attempts are good ones: a process like the worker gets what a child does not.
    alike = {name.partition(" /tmp")[0]: met.split()[0] for name, met in told["alike"].items()}
    for name in ("read", "write", "remove", "signal 1", "connect by TCP", "connect by path"):
        assert alike[name] == "got", told["alike"]
    # But not the worker's environment and memory, and what it is given in them.
    for name in ("open environ of 1", "open mem of 1", "attach to 1", "read memory of 1"):
        assert alike[name] in {"EACCES", "EPERM"}, told["alike"]

    worker, child = told["worker"], told["child"]
    for rights in (worker, child):
        assert set(rights["Uid"] + rights["Gid"]) == {USER}, rights
        assert (rights["CapEff"], rights["CapBnd"]) == ([NOTHING], [NOTHING]), rights
        assert (rights["NoNewPrivs"], rights["Seccomp"]) == (["1"], [FILTERED]), rights
    (engines,), (both,) = worker["Seccomp_filters"], child["Seccomp_filters"]
    assert int(both) == int(engines) + 1, (engines, both)
    assert told["root"] == "EROFS", told["root"]
    assert told["limit"] == memory_bytes(WORKER), told["limit"]

    # A child without its filter is noticed: what stands behind it does not refuse all of this.
    assert not_refused(inside(engine, UNFILTERED)["besieged"]) != {}
    return (
        f"{attempts} attempts refused; filters: {engines} of the engine, {both} in a child; "
        f"Landlock {told['landlock']}"
    )


def breaches(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a child got, saw or left, by name."""
    found = not_refused({**told["besieged"], **told["burgled"]})
    given = told["belongings"]["given"]
    expected = {
        "calls that were answered": (told["calls"]["not_refused"], {}),
        "open files": (told["belongings"]["open"], [0, 1, 2, *given]),
        "environment": (told["belongings"]["environment"], {}),
        "files left": (told["left"], ["kept", "socket"]),
        "a file that is kept": (told["kept"], True),
        "its own marker in its memory": (told["marker_in_memory"], True),
        "the worker's secret in its memory": (told["secret_in_memory"], False),
        # One by who is like the worker, one to be sure that all were counted.
        "calls of servers": (told["calls_of_servers"], {"tcp": 2, "path": 2}),
    }
    return found | {name: seen for name, (seen, wanted) in expected.items() if seen != wanted}


def not_refused(met: Mapping[str, str]) -> dict[str, Any]:
    return {name: answer for name, answer in met.items() if answer not in REFUSED}


def inside(engine: Engine, *preload: str) -> dict[str, Any]:
    """Run the attempts in a container of the worker's image."""
    with tempfile.TemporaryDirectory() as name:
        given = Path(name)
        given.chmod(0o755)  # the user of the image is nobody here
        for file in GIVEN:
            (given / "tests" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TESTS / file, given / "tests" / file)
        code, said = engine.once(
            WORKER,
            ["-m", "tests.containers.inside", *preload],
            {"PYTHONPATH": "/given", SECRET: CANARY},
            entrypoint="python",
            reading=given,
        )
    assert code == 0, said
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return told
