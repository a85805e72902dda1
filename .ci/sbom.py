"""The bill of materials of an image (CycloneDX, JSON): everything that lies in it, with versions.

    .ci/sbom.py ENVIRONMENT OUTPUT [--pyproject FILE] [--system /]

cyclonedx-py looks at the environment. What it cannot see is added here: the Python that runs it,
the packages of Debian beneath, files of others in our own package, and inside each distribution
what its wheel says it carries (PEP 770). The whole is checked against CycloneDX's schema before it
is written. Needs the environment that infra/sbom locks, and runs in it.
"""

import argparse
import importlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

VERSION: Final = "1.6"
OURS: Final = "imagefleet"
PIN: Final = "vendored.json"
WITHIN: Final = 120.0  # seconds
STATUS: Final = "var/lib/dpkg/status"
RELEASE: Final = "etc/os-release"
# Of what wheels list, this is not in them: the first is an option of its build that is never taken,
# the second is looked for in the system, which has none. `make image-test` asks Pillow.
NOT_CARRIED: Final = frozenset({"libimagequant", "FriBiDi"})
# What a part of a wheel is told by; its references and hashes are in the wheel's own list.
KEPT: Final = ("type", "name", "version", "scope", "description", "licenses", "purl")

Component = dict[str, Any]


class Unfit(Exception):
    """What was made is no bill of materials."""


def main(arguments: Sequence[str]) -> int:
    """Write it; 1 where it is not as the schema says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environment", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--pyproject", type=Path, default=Path("pyproject.toml"))
    parser.add_argument("--system", type=Path, default=Path("/"), help="what Debian's lists are of")
    asked = parser.parse_args(arguments)
    try:
        bill = seen(asked.environment, asked.pyproject)
        complete(bill, asked.environment, asked.system)
        text = json.dumps(bill, indent=1, ensure_ascii=False) + "\n"
        require_valid(text)
    except (Unfit, OSError, subprocess.SubprocessError) as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    asked.output.write_text(text, encoding="utf-8")
    return 0


def seen(environment: Path, pyproject: Path) -> dict[str, Any]:
    """What cyclonedx-py sees: every distribution, and who depends on whom."""
    done = subprocess.run(  # noqa: S603 - words and paths of ours
        [
            *(sys.executable, "-m", "cyclonedx_py", "environment", str(environment)),
            *("--pyproject", str(pyproject), "--mc-type", "application"),
            *("--output-reproducible", "--spec-version", VERSION, "--output-format", "JSON"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN,
    )
    if done.returncode:
        message = f"cyclonedx-py: {done.stderr.strip()[-500:]}"
        raise Unfit(message)
    bill: dict[str, Any] = json.loads(done.stdout)
    return bill


def complete(bill: dict[str, Any], environment: Path, system: Path) -> None:
    """Add what cannot be seen from within Python."""
    for packages in environment.glob("lib/python3*/site-packages"):
        carried = {
            folder.name.partition("-")[0].lower(): sorted(folder.glob("sboms/*.json"))
            for folder in packages.glob("*.dist-info")
        }
        for component in bill["components"]:
            lists = carried.get(re.sub(r"[-_.]+", "_", component["name"]).lower(), [])
            if parts := [*_parts(lists, component)]:
                component["components"] = parts
        bill["components"] += vendored(packages / OURS)
    bill["components"].append(interpreter())
    bill["components"] += debian(system)


def _parts(lists: Sequence[Path], whole: Component) -> Iterator[Component]:
    """What a wheel says it carries, but for itself and what only built it."""
    known = {whole["name"].lower()}
    for path in lists:
        for part in json.loads(path.read_text(encoding="utf-8")).get("components", ()):
            absent = part.get("scope") == "excluded" or part["name"] in NOT_CARRIED
            if not absent and part["name"].lower() not in known:
                known.add(part["name"].lower())
                # A part has no name that others refer to: wheels use the same ones.
                yield {key: part[key] for key in KEPT if key in part}


def vendored(package: Path) -> Iterator[Component]:
    """Files of others that lie in our package, by their pins."""
    for path in sorted(package.rglob(PIN)):
        pin = json.loads(path.read_text(encoding="utf-8"))
        yield {
            "type": "library",
            "name": pin["package"],
            "version": pin["version"],
            "licenses": [{"license": {"id": pin["license"]}}],
            "purl": f"pkg:npm/{pin['package']}@{pin['version']}",
        }


def interpreter() -> Component:
    """The Python of this image: its environments are made of it."""
    version = platform.python_version()
    return {
        "type": "platform",
        "name": "python",
        "version": version,
        "licenses": [{"license": {"id": "PSF-2.0"}}],
        "purl": f"pkg:generic/python@{version}",
    }


def debian(system: Path) -> Iterator[Component]:
    """The packages that are installed, by the list that dpkg keeps."""
    released = dict(_assignments(system / RELEASE))
    distribution = f"{released['ID']}-{released['VERSION_ID']}"
    for package in _packages(system / STATUS):
        if package["Status"].endswith(" installed"):
            version = quote(package["Version"], safe="")
            about = f"arch={package['Architecture']}&distro={distribution}"
            yield {
                "type": "library",
                "name": package["Package"],
                "version": package["Version"],
                "purl": f"pkg:deb/{released['ID']}/{package['Package']}@{version}?{about}",
            }


def _packages(status: Path) -> Iterator[Mapping[str, str]]:
    for block in status.read_text(encoding="utf-8").split("\n\n"):
        if block.strip():
            # Lines that begin with a space go on with the one before; none that is read has them.
            yield dict(
                line.split(": ", 1) for line in block.splitlines() if re.match(r"\S+: ", line)
            )


def _assignments(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        name, is_there, value = line.partition("=")
        if is_there:
            yield name, value.strip("\"'")


def require_valid(text: str) -> None:
    """As CycloneDX's schema says, strictly: without anything that it does not know."""
    # They are only where infra/sbom is installed, in the build of a container.
    schema = importlib.import_module("cyclonedx.schema")
    validation = importlib.import_module("cyclonedx.validation.json")

    fault = validation.JsonStrictValidator(schema.SchemaVersion.from_version(VERSION)).validate_str(
        text
    )
    if fault is not None:
        message = f"not CycloneDX {VERSION}: {fault}"[:2000]
        raise Unfit(message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
