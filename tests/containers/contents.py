"""What is seen of the images without running the fleet: size, rights, and what they tell."""

import json
import re
from pathlib import Path
from typing import Any, Final

from tests.containers.engine import PREFIX, Engine, image_of

PROCESSES: Final = ("api", "worker", "maintenance", "console", "cli")
VENDORED: Final = ("htmx.org", "swagger-ui-dist", "uplot")
WITHOUT_PILLOW: Final = ("api", "maintenance", "console", "cli")
# Without settings, or with these, what is said of them: every fault at once, and no traceback.
UNUSABLE: Final = {"console": {"IMAGEFLEET_URL": "api", "CONSOLE_IDLE_SECONDS": "long"}}
FAULTS: Final = {"console": ("IMAGEFLEET_URL: expected", "CONSOLE_IDLE_SECONDS: expected")}
OF_OTHERS: Final = ("DATABASE_URL: not set", "AWS_REGION: not set")
TOLD: Final = "/usr/share/doc/imagefleet"
DIST: Final = Path(__file__).parents[2] / "dist"
# MB beyond the base image. On one of 177 MB the images had 277, 292, 270 and 280 before they told
# what is in them: a tenth more is what they may have, as the console, which came later with 246.
LARGEST: Final = {"api": 127, "worker": 144, "maintenance": 120, "console": 75, "cli": 131}
INSTALLED: Final = """
import importlib.metadata, json
found = importlib.metadata.distributions()
print(json.dumps([[each.name, each.version] for each in found]))
"""
# Options of Pillow that its wheel does not carry, and that its bill of materials leaves out.
NOT_CARRIED: Final = (
    "from PIL import features; print(*map(features.check, ['libimagequant', 'fribidi']))"
)

Named = set[tuple[str, str]]


def examine(engine: Engine, process: str) -> str:
    """Raise where an image is not as it should be; else say what it is like."""
    assert engine.user(process) == "65532:65532", engine.user(process)
    code, said = engine.once(process, ["-c", "import PIL"], {}, entrypoint="python")
    assert (code != 0) == (process in WITHOUT_PILLOW), (process, said)
    if process != "cli":
        code, said = engine.once(process, [], UNUSABLE.get(process, {}))
        assert code == 2, said
        assert [] == [fault for fault in FAULTS.get(process, OF_OTHERS) if fault not in said], said
    if process == "console":
        code, said = engine.once(process, ["-c", "import botocore"], {}, entrypoint="python")
        assert code != 0, "the console carries an SDK that it has no use for"
    return f"{measured(engine, process)}, {told(engine, process)}"


def measured(engine: Engine, process: str) -> str:
    counted = ran(engine, process, "du", "--summarize", "--bytes", "/opt/imagefleet", TOLD)
    own = sum(int(line.split()[0]) for line in counted.splitlines()) / 1e6
    assert own <= LARGEST[process], f"{process}: {own:.0f} MB are ours, {LARGEST[process]} at most"
    return f"{engine.size(process) / 1e6:.0f} MB, {own:.0f} of them ours"


def told(engine: Engine, process: str) -> str:
    """Notices and bill of materials name what is there, all of it and nothing else."""
    packages = {(name, version) for name, version in json.loads(inside(engine, process, INSTALLED))}
    debian = dict(
        line.split(" ", 1)
        for line in ran(
            engine, process, "dpkg-query", "-W", "-f", "${Package} ${Version}\\n"
        ).splitlines()
    )
    notices = ran(engine, process, "cat", f"{TOLD}/NOTICES")
    lines = re.findall(r"^(\S+) (\S+) \| (\S.*) \| text: ", notices, re.MULTILINE)
    named = [name for name, _, _ in lines]
    assert [named.count(vendored) for vendored in VENDORED] == [1] * len(VENDORED)
    ours = {name for name in packages if name[0] == PREFIX}
    noticed = {(name, version) for name, version, _ in lines if name not in VENDORED}
    assert noticed == packages - ours, (process, noticed ^ (packages - ours))

    text = ran(engine, process, "cat", f"{TOLD}/sbom.cdx.json")
    written = DIST / f"{image_of(process)}.cdx.json"
    assert written.is_file(), f"{written} is not there: make image"
    assert written.read_text() == text, f"{written} is another build's: make image"
    bill: dict[str, Any] = json.loads(text)
    assert bill["metadata"]["component"]["name"] == PREFIX
    assert listed(bill, "pypi") == packages - ours, listed(bill, "pypi") ^ (packages - ours)
    assert listed(bill, "deb") == set(debian.items())
    assert {name for name, _ in listed(bill, "npm")} == set(VENDORED)
    assert {name for name, _ in listed(bill, "generic")} == {"python"}
    if process not in WITHOUT_PILLOW:
        assert inside(engine, process, NOT_CARRIED).split() == ["False", "False"]
        (pillow,) = (each for each in bill["components"] if each["name"].lower() == "pillow")
        assert {"libwebp", "libavif"} <= {each["name"] for each in pillow["components"]}
    return f"{len(noticed)} packages of Python and {len(debian)} of Debian told"


def listed(bill: dict[str, Any], kind: str) -> Named:
    found = (each for each in bill["components"] if each["purl"].startswith(f"pkg:{kind}/"))
    return {(each["name"], each["version"]) for each in found}


def inside(engine: Engine, process: str, code: str) -> str:
    return ran(engine, process, "python", "-c", code)


def ran(engine: Engine, process: str, program: str, *words: str) -> str:
    code, said = engine.once(process, words, {}, entrypoint=program)
    assert code == 0, said
    return said
